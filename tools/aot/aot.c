/* SPDX-License-Identifier: Apache-2.0 */
/* Runs while Tessera is built: compiles kernels ahead of time.
 *
 *   aot MANIFEST FOLDER PROBLEMS [LANGUAGE TARGET SUFFIX COMMAND]...
 *
 * PROBLEMS is a file like tools/aot/problems.list. Their plans are made by the library itself, on a device that
 * compiles nothing but takes down which kernels are wanted. Each, for each TARGET (see tsr__embedded_image), is written
 * to FOLDER and compiled by COMMAND, in which {in} and {out} stand for files; SUFFIX is the input's. MANIFEST gets a
 * line "SOURCE TARGET FILE" an image, which tools/embed.c reads. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/gpu_int.h"
#include "common/image_parts.h"
#include "tessera/tessera.h"

enum { MAX_SOURCES = 256, MAX_JOBS = 2, PATH_BYTES = 1024 };

static void die(const char *fmt, ...) {
  va_list ap;
  va_start(ap, fmt);
  fputs("aot: ", stderr);
  vfprintf(stderr, fmt, ap);
  fputc('\n', stderr);
  va_end(ap);
  exit(1);
}

/* ---- A device that takes down which kernels are wanted --------------------------------------------- */

static tsr__kernel_key keys[MAX_SOURCES];
static int num_keys;

static tsr_status note_kernels(const tsr__device *dev, const tsr__op_problem *p, tsr__plan_build *build,
                               tsr_error *err) {
  (void)dev;
  (void)p;
  (void)err;
  for (int32_t i = 0; i < build->num_launches; i++) {
    const tsr__kernel_key key = tsr__gpu_key(&build->launches[i]);
    int known = 0;
    while (known < num_keys && memcmp(&keys[known], &key, sizeof(key)) != 0) {
      known++;
    }
    if (known == MAX_SOURCES) {
      die("more than %d kernels", MAX_SOURCES);
    }
    keys[known] = key;
    num_keys += known == num_keys;
  }
  return TSR_OK;
}

static int32_t count(const tsr__host *host, char *why_not, size_t bytes) {
  (void)host;
  (void)why_not;
  (void)bytes;
  return 1;
}

static tsr_status open_device(const tsr__host *host, int32_t index, tsr__device *dev, tsr_error *err) {
  static const tsr__gpu_driver driver = {.language = ""};
  const tsr_status st = tsr__gpu_device_open(host, &driver, NULL, "", "", dev, err);
  (void)index;
  dev->num_threads = 64; /* multiprocessors: enough that decoding is split */
  dev->local_bytes = 48 * 1024;
  dev->memory_kinds = 1 << TSR_MEMORY_NATIVE;
  return st;
}

static const tsr__backend recorder = {
    .abi = TSR__BACKEND_ABI,
    .name = "aot",
    .computes = 1,
    .count = count,
    .open = open_device,
    .close = tsr__gpu_device_close,
    .prepare = note_kernels,
};

const tsr__backend *const tsr__backends[] = {&recorder, NULL};
const tsr__embedded_image tsr__embedded_images[] = {{NULL, NULL, NULL, 0}};

/* ---- Problems -------------------------------------------------------------------------------------- */

static tsr_dtype dtype_named(const char *name) {
  for (tsr_dtype t = TSR_F32; t <= TSR_BF16; t++) {
    if (strcmp(name, tsr_dtype_name(t)) == 0) {
      return t;
    }
  }
  die("%s is no element type of queries", name);
  return TSR_DTYPE_NONE;
}

static tsr_status plan_append(tsr_device *device, tsr_plan **plan, tsr_error *err) {
  tsr_append_desc d = tsr_append_desc_init();
  d.k_new = tsr_layout_dense(TSR_F16, 1, 1, 8, 128);
  d.v_new = d.k_new;
  d.k_cache = tsr_layout_dense(TSR_F16, 1, 1024, 8, 128);
  d.v_cache = d.k_cache;
  return tsr_plan_append(device, &d, plan, err);
}

static tsr_status plan_merge(tsr_device *device, tsr_plan **plan, tsr_error *err) {
  tsr_merge_desc d = tsr_merge_desc_init();
  d.num_partials = 2;
  d.o = tsr_layout_dense(TSR_F16, 1, 1, 8, 128);
  d.partial_o = tsr_layout_dense(TSR_F32, 1, 1, 8, 128);
  d.partial_lse = tsr_layout_dense(TSR_F32, 1, 8, 1, 1);
  return tsr_plan_merge(device, &d, plan, err);
}

static tsr_status plan_attention(tsr_device *device, const char *line, tsr_plan **plan, tsr_error *err) {
  tsr_attention_desc d = tsr_attention_desc_init();
  char type[16], word[16];
  int dim, rows, columns, align;
  const int n = sscanf(line, "%15s %d %d %d %d %15s", type, &dim, &rows, &columns, &align, word);
  if (n < 5 || (n == 6 && strcmp(word, "lengths") != 0)) {
    die("this line is not understood: %s", line);
  }
  d.q = tsr_layout_dense(dtype_named(type), 1, rows, 32, dim);
  d.k = tsr_layout_dense(d.q.dtype, 1, columns, 8, dim);
  d.q.align_bytes = d.k.align_bytes = align;
  d.v = d.k;
  d.o = d.q;
  if (n == 6) {
    d.seqlens_q = tsr_layout_dense(TSR_I32, 1, 1, 1, 1);
    d.seqlens_k = d.seqlens_q;
  }
  return tsr_plan_attention(device, &d, plan, err);
}

static void plan_line(tsr_device *device, const char *line) {
  tsr_plan *plan = NULL;
  tsr_error err;
  const tsr_status st = strcmp(line, "append") == 0  ? plan_append(device, &plan, &err)
                        : strcmp(line, "merge") == 0 ? plan_merge(device, &plan, &err)
                                                     : plan_attention(device, line, &plan, &err);
  if (st != TSR_OK) {
    die("%s: %s: %s", line, err.field, err.text);
  }
  tsr_plan_destroy(plan);
}

static void read_problems(const char *path) {
  tsr_context_params params = tsr_context_params_init();
  tsr_context *context = NULL;
  tsr_device *device = NULL;
  char line[256];
  tsr_error err;
  FILE *in = fopen(path, "r");
  if (in == NULL) {
    die("%s cannot be read", path);
  }
  params.flags = TSR_CONTEXT_IGNORE_ENV;
  if (tsr_context_create(&params, &context, &err) != TSR_OK ||
      tsr_device_open(context, "aot", &device, &err) != TSR_OK) {
    die("%s", err.text);
  }
  while (fgets(line, sizeof(line), in) != NULL) {
    line[strcspn(line, "#\n")] = '\0';
    if (line[strspn(line, " ")] != '\0') {
      plan_line(device, line);
    }
  }
  fclose(in);
  tsr_device_close(device);
  tsr_context_destroy(context);
}

/* ---- Compilation ----------------------------------------------------------------------------------- */

static void write_source(const char *path, const tsr__gpu_source *source) {
  FILE *out = fopen(path, "w");
  if (out == NULL) {
    die("%s cannot be written", path);
  }
  fputs(source->defines, out);
  for (const char *const *p = source->pieces; *p != NULL; p++) {
    fprintf(out, "%s\n", *p);
  }
  if (ferror(out) || fclose(out) != 0) {
    die("%s: write error", path);
  }
}

/* The command with its files in place, for a shell. */
static void make_command(char *out, size_t room, const char *command, const char *in_path, const char *out_path) {
  size_t used = 0;
  while (*command != '\0') {
    const char *piece = command;
    size_t n = 1;
    if (strncmp(command, "{in}", 4) == 0) {
      piece = in_path;
      n = strlen(in_path);
      command += 4;
    } else if (strncmp(command, "{out}", 5) == 0) {
      piece = out_path;
      n = strlen(out_path);
      command += 5;
    } else {
      command++;
    }
    if (used + n >= room) {
      die("a command is too long");
    }
    memcpy(out + used, piece, n);
    used += n;
  }
  out[used] = '\0';
}

/* Waits for one of the running commands. */
static void reap(int *running) {
  int status;
  if (wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    die("a kernel does not compile");
  }
  (*running)--;
}

static void start(const char *command, int *running) {
  pid_t child;
  if (*running == MAX_JOBS) {
    reap(running);
  }
  fflush(NULL);
  child = fork();
  if (child < 0) {
    die("no process can be started");
  }
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
  }
  (*running)++;
}

/* All kernels for one target. */
static void compile_all(FILE *manifest, const char *folder, char **job, int *running) {
  for (int k = 0; k < num_keys; k++) {
    char name[TSR__IMAGE_NAME_BYTES], in_path[PATH_BYTES], out_path[PATH_BYTES], command[4 * PATH_BYTES];
    tsr__gpu_text text;
    tsr_error err;
    if (tsr__gpu_text_make(&keys[k], "", &text, &err) != TSR_OK) {
      die("%s", err.text);
    }
    tsr__image_source_name(job[0], &text.source, name);
    snprintf(in_path, sizeof(in_path), "%.800s/%s.%.10s", folder, name, job[2]);
    snprintf(out_path, sizeof(out_path), "%.800s/%s-%.60s", folder, name, job[1]);
    write_source(in_path, &text.source);
    make_command(command, sizeof(command), job[3], in_path, out_path);
    start(command, running);
    fprintf(manifest, "%s %s %s\n", name, job[1], out_path);
  }
}

int main(int argc, char **argv) {
  FILE *manifest;
  int running = 0;
  if (argc < 4 || argc % 4 != 0) {
    die("usage: aot MANIFEST FOLDER PROBLEMS [LANGUAGE TARGET SUFFIX COMMAND]...");
  }
  read_problems(argv[3]);
  mkdir(argv[2], 0777); /* writing to it shows whether it is there */
  manifest = fopen(argv[1], "w");
  if (manifest == NULL) {
    die("%s cannot be written", argv[1]);
  }
  for (int j = 4; j < argc; j += 4) {
    compile_all(manifest, argv[2], argv + j, &running);
  }
  while (running > 0) {
    reap(&running);
  }
  if (ferror(manifest) || fclose(manifest) != 0) {
    die("%s: write error", argv[1]);
  }
  return 0;
}
