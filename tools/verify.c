/* SPDX-License-Identifier: Apache-2.0 */
#include "verify.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "verify_compare.h"

/* Of an operand, which may be fp8. */
static double operand_roundoff(tsr_dtype dtype) {
  return dtype == TSR_F8E4M3 ? 0x1p-4 : dtype == TSR_F8E5M2 ? 0x1p-3 : conf_roundoff(dtype);
}

int32_t verify_threads(const tool_options *options) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (options->threads.given)
    return options->threads.value > 64 ? 64 : (int32_t)options->threads.value;
  return online < 1 ? 1 : online > 64 ? 64 : (int32_t)online;
}

/* ---- The oracle ------------------------------------------------------------------------------ */

/* The outputs of one oracle mode, NULL where not wanted. */
typedef struct oracle_values {
  double *of[OUTPUT_COUNT];
} oracle_values;

typedef struct oracle_job {
  tsr_context *context;
  const tsr_attention_desc *desc;
  const tsr_run_args *args;
  tsr_reference_out out;
  tsr_status status;
  tsr_error err;
} oracle_job;

static void *oracle_thread(void *arg) {
  oracle_job *job = arg;
  job->status = tsr_reference_attention(job->context, job->desc, job->args, &job->out, &job->err);
  return NULL;
}

/* Runs jobs side by side, the first on this thread. */
static tsr_status run_jobs(oracle_job *jobs, int32_t count, tsr_error *err) {
  pthread_t threads[64];
  int32_t started = 1;
  while (started < count && pthread_create(&threads[started], NULL, oracle_thread, &jobs[started]) == 0)
    started++;
  oracle_thread(&jobs[0]);
  for (int32_t i = 1; i < started; i++)
    pthread_join(threads[i], NULL);
  for (int32_t i = started; i < count; i++)
    oracle_thread(&jobs[i]);
  for (int32_t i = 0; i < count; i++) {
    if (jobs[i].status != TSR_OK) {
      *err = jobs[i].err;
      return jobs[i].status;
    }
  }
  return TSR_OK;
}

static tsr_status allocate_values(const tool_problem *problem, int32_t first, int32_t last, oracle_values *values,
                                  tsr_error *err) {
  memset(values, 0, sizeof(*values));
  for (int32_t i = first; i <= last; i++) {
    const tool_tensor *t = &problem->outputs[i];
    if (t->dtype == TSR_DTYPE_NONE || i == OUTPUT_dropout_mask)
      continue;
    values->of[i] = malloc(((size_t)t->count + 1) * sizeof(double));
    if (!values->of[i]) {
      tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for the oracle's %s", problem_output_name(i));
      return err->status;
    }
    compare_poison(values->of[i], t->count);
  }
  return TSR_OK;
}

static void free_values(oracle_values *values) {
  for (int32_t i = 0; i < OUTPUT_COUNT; i++)
    free(values->of[i]);
  memset(values, 0, sizeof(*values));
}

/* Stratified: one row of each N-th part of the sequence, in ascending order. */
static int64_t *choose_rows(const tool_problem *problem, int64_t wanted, int64_t *count) {
  const int64_t length = problem->max_seqlen_q;
  const int64_t n = wanted > 0 && wanted < length ? wanted : length;
  uint64_t state = problem->random_seed ^ UINT64_C(0xA5A5A5A5);
  int64_t *rows = malloc(((size_t)n + 1) * sizeof(*rows));
  *count = n;
  for (int64_t i = 0; rows && i < n; i++) {
    const int64_t first = (int64_t)((double)i * (double)length / (double)n);
    const int64_t next = (int64_t)((double)(i + 1) * (double)length / (double)n);
    rows[i] = n == length ? i : first + (int64_t)(random_next(&state) % (uint64_t)(next > first ? next - first : 1));
  }
  return rows;
}

/* Job i takes every count-th row from the i-th on, so that causal rows of all lengths are spread evenly. Writes them
 * to `mine` and returns how many. */
static int64_t deal_rows(const int64_t *rows, int64_t num_rows, int32_t job, int32_t jobs, int64_t *mine) {
  int64_t count = 0;
  for (int64_t i = job; i < num_rows; i += jobs)
    mine[count++] = rows[i];
  return count;
}

/* The largest of all jobs; a NaN stays. */
static void fold_max(const double *of_jobs, int32_t jobs, int64_t heads, double *max_s) {
  memcpy(max_s, of_jobs, (size_t)heads * sizeof(double));
  for (int32_t i = 1; i < jobs; i++) {
    for (int64_t h = 0; h < heads; h++) {
      const double value = of_jobs[i * heads + h];
      if (value > max_s[h] || isnan(value))
        max_s[h] = value;
    }
  }
}

static tsr_status forward_oracle(tool_engine *engine, const tool_problem *problem, int32_t mode, const int64_t *rows,
                                 int64_t num_rows, int32_t threads, const oracle_values *values, uint8_t *dropout_mask,
                                 tsr_error *err) {
  oracle_job jobs[64];
  const int32_t count = num_rows < threads ? (num_rows > 0 ? (int32_t)num_rows : 1) : threads;
  int64_t *dealt = malloc(((size_t)num_rows + 1) * sizeof(*dealt)), used = 0;
  double *max_s = malloc(((size_t)(count * problem->heads) + 1) * sizeof(*max_s));
  if (!dealt || !max_s) {
    free(dealt);
    free(max_s);
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory for the oracle's rows");
    return err->status;
  }
  memset(jobs, 0, sizeof(jobs));
  for (int32_t i = 0; i < count; i++) {
    oracle_job *job = &jobs[i];
    job->context = engine->context;
    job->desc = &problem->forward;
    job->args = &problem->forward_args;
    job->out = tsr_reference_out_init();
    job->out.mode = mode;
    job->out.o = values->of[OUTPUT_o];
    job->out.lse = values->of[OUTPUT_lse];
    job->out.max_s = values->of[OUTPUT_max_s] ? max_s + i * problem->heads : NULL;
    job->out.dropout_mask = mode == TSR_REFERENCE_F64 ? dropout_mask : NULL;
    job->out.rows = dealt + used;
    job->out.num_rows = deal_rows(rows, num_rows, i, count, dealt + used);
    used += job->out.num_rows;
  }
  const tsr_status status = run_jobs(jobs, count, err);
  if (status == TSR_OK && values->of[OUTPUT_max_s])
    fold_max(max_s, count, problem->heads, values->of[OUTPUT_max_s]);
  free(dealt);
  free(max_s);
  return status;
}

/* Gradients sum over rows, so the two modes are the two jobs. */
static tsr_status backward_oracle(tool_engine *engine, const tool_problem *problem, int32_t threads,
                                  const oracle_values values[2], tsr_error *err) {
  tsr_attention_desc desc = problem->backward;
  tsr_run_args args = problem->backward_args;
  oracle_job jobs[2];
  memset(jobs, 0, sizeof(jobs));
  memset(&desc.o, 0, sizeof(desc.o)); /* the oracle's own o and lse, not those under test */
  memset(&desc.lse, 0, sizeof(desc.lse));
  memset(&args.o, 0, sizeof(args.o));
  memset(&args.lse, 0, sizeof(args.lse));
  for (int32_t i = 0; i < 2; i++) {
    double *const *of = values[i].of;
    jobs[i].context = engine->context;
    jobs[i].desc = &desc;
    jobs[i].args = &args;
    jobs[i].out = tsr_reference_out_init();
    jobs[i].out.mode = i == 0 ? TSR_REFERENCE_F64 : TSR_REFERENCE_PLAIN;
    jobs[i].out.dq = of[OUTPUT_dq];
    jobs[i].out.dk = of[OUTPUT_dk];
    jobs[i].out.dv = of[OUTPUT_dv];
    jobs[i].out.dbias = of[OUTPUT_dbias];
    jobs[i].out.dsink = of[OUTPUT_dsink];
  }
  if (threads > 1)
    return run_jobs(jobs, 2, err);
  const tsr_status status = run_jobs(jobs, 1, err);
  return status == TSR_OK ? run_jobs(jobs + 1, 1, err) : status;
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* For rows of a packed tensor the sequence they belong to. */
static int64_t *sequence_of_rows(const tool_tensor *cu, int64_t num_rows) {
  int64_t *of = malloc(((size_t)num_rows + 1) * sizeof(*of));
  for (int64_t i = 0; of && i < num_rows; i++)
    of[i] = -1;
  for (int64_t b = 0; of && b + 1 < cu->count; b++) {
    const int64_t start = (int64_t)tsr_decode(cu->dtype, cu->data, b * cu->stride[0]);
    const int64_t end = (int64_t)tsr_decode(cu->dtype, cu->data, (b + 1) * cu->stride[0]);
    for (int64_t row = start; row < end && row < num_rows; row++)
      of[row] = b;
  }
  return of;
}

typedef struct sequences {
  int64_t *q, *k; /* NULL: dense */
} sequences;

static tsr_status find_sequences(const tool_problem *problem, sequences *s, tsr_error *err) {
  const tool_tensor *cu_q = &problem->inputs[INPUT_cu_seqlens_q], *cu_k = &problem->inputs[INPUT_cu_seqlens_k];
  memset(s, 0, sizeof(*s));
  if (cu_q->dtype != TSR_DTYPE_NONE)
    s->q = sequence_of_rows(cu_q, problem->forward.q.shape[1]);
  if (cu_k->dtype != TSR_DTYPE_NONE)
    s->k = sequence_of_rows(cu_k, problem->forward.k.shape[1]);
  if ((cu_q->dtype != TSR_DTYPE_NONE && !s->q) || (cu_k->dtype != TSR_DTYPE_NONE && !s->k)) {
    tool_error(err, TSR_OUT_OF_MEMORY, "", "no memory to compare sequences");
    return err->status;
  }
  return TSR_OK;
}

static void describe(const tool_problem *problem, int32_t output, const sequences *s, compare_input *in) {
  const int backward = output >= OUTPUT_dq;
  const tsr_attention_desc *desc = backward ? &problem->backward : &problem->forward;
  memset(in, 0, sizeof(*in));
  in->name = problem_output_name(output);
  in->layout = problem_output_layout((tsr_attention_desc *)desc, output);
  in->data = problem->outputs[output].data;
  in->num_sequences = problem->num_sequences > in->layout->shape[0] ? problem->num_sequences : in->layout->shape[0];
  in->num_heads = problem->heads;
  in->plain_factor = backward ? 3 : 2;
  switch (output) {
  case OUTPUT_o:
  case OUTPUT_dq:
    in->grouping = GROUP_BSHD;
    in->sequence_of_row = s->q;
    break;
  case OUTPUT_dk:
  case OUTPUT_dv:
    in->grouping = GROUP_BSHD;
    in->sequence_of_row = s->k;
    in->num_heads = problem->kv_heads;
    break;
  case OUTPUT_lse:
    in->grouping = GROUP_BHS;
    in->sequence_of_row = s->q;
    in->lse = 1;
    break;
  case OUTPUT_dbias: in->grouping = GROUP_BHSS; break;
  default:
    in->grouping = GROUP_ALL;
    in->lse = output == OUTPUT_max_s;
    break;
  }
}

static tsr_status compare_outputs(const tool_problem *problem, const oracle_values values[2], const sequences *s,
                                  verify_report *report, tsr_error *err) {
  tsr_status status = TSR_OK;
  for (int32_t i = 0; i < OUTPUT_COUNT && status == TSR_OK; i++) {
    compare_input in;
    if (!values[0].of[i])
      continue;
    describe(problem, i, s, &in);
    in.reference = values[0].of[i];
    in.plain = values[1].of[i];
    status = compare_tensor(&in, &report->results[report->count], err);
    report->passed &= report->results[report->count++].passed;
  }
  return status;
}

/* Kept or dropped is not a matter of tolerance. Pairs outside the used lengths are 2 in the oracle's. */
static void compare_dropout(const tool_problem *problem, const uint8_t *wanted, verify_report *report) {
  const tool_tensor *t = &problem->outputs[OUTPUT_dropout_mask];
  verify_result *r = &report->results[report->count++];
  memset(r, 0, sizeof(*r));
  snprintf(r->name, sizeof(r->name), "dropout_mask");
  for (int64_t i = 0; i < t->count; i++) {
    const double error = wanted[i] == 2 ? 0 : fabs((double)((const uint8_t *)t->data)[i] - wanted[i]);
    r->elements += wanted[i] != 2;
    r->max_error = fmax(r->max_error, error);
  }
  r->passed = r->max_error == 0;
  report->passed &= r->passed;
}

static tsr_status check_forward(tool_engine *engine, const tool_problem *problem, int64_t rows, int32_t threads,
                                oracle_values values[2], verify_report *report, tsr_error *err) {
  int64_t num_rows;
  int64_t *chosen = choose_rows(problem, rows, &num_rows);
  const tool_tensor *mask = &problem->outputs[OUTPUT_dropout_mask];
  uint8_t *kept = mask->dtype ? malloc((size_t)mask->count + 1) : NULL;
  tsr_status status = TSR_OK;
  sequences s = {NULL, NULL};
  if (!chosen || (mask->dtype && !kept))
    tool_error(err, status = TSR_OUT_OF_MEMORY, "", "no memory for the oracle's rows");
  if (kept)
    memset(kept, 2, (size_t)mask->count);
  report->rows = rows > 0 && num_rows < problem->max_seqlen_q ? num_rows : 0;
  if (status == TSR_OK && report->rows && values[0].of[OUTPUT_max_s]) /* a maximum over some rows says nothing */
    for (int i = 0; i < 2; i++) {
      free(values[i].of[OUTPUT_max_s]);
      values[i].of[OUTPUT_max_s] = NULL;
    }
  for (int32_t mode = 0; mode < 2 && status == TSR_OK; mode++) {
    progress_begin(&engine->progress, engine->progress.term,
                   engine->quiet ? NULL
                   : mode == 0   ? "check, float64"
                                 : "check, plain  ");
    status = forward_oracle(engine, problem, mode == 0 ? TSR_REFERENCE_F64 : TSR_REFERENCE_PLAIN, chosen, num_rows,
                            threads, &values[mode], kept, err);
    progress_end(&engine->progress);
  }
  if (status == TSR_OK)
    status = find_sequences(problem, &s, err);
  if (status == TSR_OK)
    status = compare_outputs(problem, values, &s, report, err);
  if (status == TSR_OK && kept)
    compare_dropout(problem, kept, report);
  free(s.q);
  free(s.k);
  free(kept);
  free(chosen);
  return status;
}

static tsr_status check_backward(tool_engine *engine, const tool_problem *problem, int32_t threads,
                                 oracle_values values[2], verify_report *report, tsr_error *err) {
  sequences s = {NULL, NULL};
  progress_begin(&engine->progress, engine->progress.term, engine->quiet ? NULL : "check");
  tsr_status status = backward_oracle(engine, problem, threads, values, err);
  progress_end(&engine->progress);
  if (status == TSR_OK)
    status = find_sequences(problem, &s, err);
  if (status == TSR_OK)
    status = compare_outputs(problem, values, &s, report, err);
  free(s.q);
  free(s.k);
  return status;
}

tsr_status verify_problem(tool_engine *engine, const tool_problem *problem, int64_t rows, int32_t threads,
                          verify_report *report, tsr_error *err) {
  oracle_values values[2];
  const int32_t first = problem->has_backward ? OUTPUT_dq : OUTPUT_o;
  const int32_t last = problem->has_backward ? OUTPUT_dsink : OUTPUT_dropout_mask;
  const double start = term_seconds();
  memset(values, 0, sizeof(values));
  tsr_status status = allocate_values(problem, first, last, &values[0], err);
  if (status == TSR_OK)
    status = allocate_values(problem, first, last, &values[1], err);
  if (status == TSR_OK)
    status = problem->has_backward ? check_backward(engine, problem, threads, values, report, err)
                                   : check_forward(engine, problem, rows, threads, values, report, err);
  free_values(&values[0]);
  free_values(&values[1]);
  report->seconds = term_seconds() - start;
  return status;
}

tsr_status verify_expected(const tool_problem *problem, const tool_tensor *expected, double tolerance,
                           verify_report *report, tsr_error *err) {
  const tool_tensor *o = &problem->outputs[OUTPUT_o];
  const tsr_dtype q = problem->inputs[INPUT_q].dtype;
  sequences s;
  compare_input in;
  int same = expected->rank == o->rank;
  for (int32_t i = 0; same && i < o->rank; i++)
    same = expected->shape[i] == o->shape[i];
  if (!same) {
    tool_error(err, TSR_INVALID, "expect",
               "the expected tensor has %d axes and %lld elements, o has %d and %lld: the "
               "shapes differ",
               expected->rank, (long long)expected->count, o->rank, (long long)o->count);
    return err->status;
  }
  tsr_layout layout;
  tsr_status status = layout_of_tensor(expected, AXES_BSHD, problem->bhsd, "expect", &layout, err);
  double *wanted = status == TSR_OK ? malloc(((size_t)expected->count + 1) * sizeof(double)) : NULL;
  if (status == TSR_OK && !wanted)
    tool_error(err, status = TSR_OUT_OF_MEMORY, "expect", "no memory for the expected tensor");
  if (status != TSR_OK)
    return status;
  int64_t at = 0;
  for (int64_t b = 0; b < layout.shape[0]; b++)
    for (int64_t r = 0; r < layout.shape[1]; r++)
      for (int64_t h = 0; h < layout.shape[2]; h++)
        for (int64_t d = 0; d < layout.shape[3]; d++)
          wanted[at++] =
              tsr_decode(layout.dtype, expected->data,
                         b * layout.stride[0] + r * layout.stride[1] + h * layout.stride[2] + d * layout.stride[3]);
  status = find_sequences(problem, &s, err);
  if (status == TSR_OK) {
    describe(problem, OUTPUT_o, &s, &in);
    in.name = "o (expected)";
    in.reference = wanted;
    in.roundoff = 8 * fmax(operand_roundoff(q), operand_roundoff(o->dtype));
    if (q == TSR_F32 && o->dtype == TSR_F32)
      in.roundoff = 4 * conf_roundoff(TSR_F32); /* already eight roundoffs wide */
    in.tolerance = tolerance;
    status = compare_tensor(&in, &report->results[report->count], err);
    report->passed &= report->results[report->count++].passed;
  }
  free(s.q);
  free(s.k);
  free(wanted);
  return status;
}

/* ---- Reports --------------------------------------------------------------------------------- */

void verify_print(const tool_options *options, const verify_report *report) {
  const tool_term *t = &options->term;
  for (int32_t i = 0; i < report->count; i++) {
    const verify_result *r = &report->results[i];
    term_number count;
    printf("%-13s %s%s%s  max error %.3g of %.3g allowed", r->name, term_style(t, r->passed ? STYLE_GREEN : STYLE_RED),
           r->passed ? "ok  " : "FAIL", term_style(t, STYLE_RESET), r->max_error, r->max_allowed);
    if (r->rms_allowed > 0)
      printf(", rms %.3g of %.3g", r->rms_error, r->rms_allowed);
    printf("  %s(%s values", term_style(t, STYLE_DIM), format_count(count, (double)r->elements));
    if (!r->passed)
      printf(", worst in sequence %lld, head %lld", (long long)r->sequence, (long long)r->head);
    if (r->wrong_nonfinite > 0)
      printf(", %lld not finite where they should be or the reverse", (long long)r->wrong_nonfinite);
    printf(")%s\n", term_style(t, STYLE_RESET));
  }
}

void verify_json(json_writer *w, const verify_report *report) {
  json_open(w, "checks", '[');
  for (int32_t i = 0; i < report->count; i++) {
    const verify_result *r = &report->results[i];
    json_open(w, NULL, '{');
    json_put_string(w, "tensor", r->name);
    json_put_bool(w, "passed", r->passed);
    json_put_int(w, "values", r->elements);
    json_put_int(w, "wrong_nonfinite", r->wrong_nonfinite);
    json_put_double(w, "max_error", r->max_error);
    json_put_double(w, "max_allowed", r->max_allowed);
    json_put_double(w, "rms_error", r->rms_error);
    if (r->rms_allowed > 0)
      json_put_double(w, "rms_allowed", r->rms_allowed);
    json_put_double(w, "plain_max_error", r->plain_max_error);
    json_put_int(w, "worst_sequence", r->sequence);
    json_put_int(w, "worst_head", r->head);
    json_close(w, '}');
  }
  json_close(w, ']');
  if (report->rows > 0)
    json_put_int(w, "checked_rows", report->rows);
}
