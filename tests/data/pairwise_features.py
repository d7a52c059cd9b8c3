# SPDX-License-Identifier: Apache-2.0
"""What a problem of pairwise.py can have, what excludes what, and the covering array over it."""
import itertools
from types import SimpleNamespace

# ---- Features ----------------------------------------------------------------------------------
# name: (slot, flags, needs). Features of one slot exclude each other; `*` marks a slot's default, which a case
# has when it names no other. F: forward only (paged, quantised, fp8); B: input of backward only; M: masks pairs;
# E: mathematical, so its effect on the results is checked. needs: groups separated by ';', of each at least one
# must be there. kv_i8_u4: K in i8, V in u4.
FLOAT8 = 'f8e4m3|f8e5m2'
QUANT = 'kv_i8|kv_u4|kv_i8_u4|kv_f8e4m3|kv_f8e5m2'
GRANULARITY = 'scale_tensor|scale_head|scale_token|scale_group|scale_full'
BIAS = 'bias_f32|bias_f16|bias_bf16'
MASK = 'mask_u8|mask_bit|mask_bit_packed'
FLASH = 'fm_n2|fm_n4|fm_c1|fm_c2'
FEATURES = {
    'q_dense': ('q', '*', ''),
    'q_packed': ('q', '', ''),
    'kv_dense': ('kv', '*', ''),
    'kv_packed': ('kv', '', ''),
    'kv_table': ('kv', 'F', 'seqlens_k'),
    'kv_csr': ('kv', 'F', ''),
    'mha': ('heads', '*', ''),
    'gqa': ('heads', 'E', ''),
    'mqa': ('heads', '', ''),
    'dv_equal': ('dims', '*', ''),
    'dv_less': ('dims', '', ''),
    'dv_more': ('dims', '', ''),
    'f32': ('dtype', '*', ''),
    'f16': ('dtype', '', ''),
    'bf16': ('dtype', '', ''),
    'f8e4m3': ('dtype', 'F', ''),
    'f8e5m2': ('dtype', 'F', ''),
    'o_f32': ('', '', 'f16|bf16|' + FLOAT8),
    'layout_bhsd': ('layout', '', ''),
    'layout_padded': ('layout', '', ''),
    'layout_broadcast': ('layout', '', ''),
    'seqlens_q': ('', '', ''),
    'seqlens_k': ('', '', ''),
    'zero_q': ('', '', 'seqlens_q|q_packed'),
    'zero_kv': ('', '', 'seqlens_k|kv_packed|kv_csr'),
    'long_q': ('', '', ''),
    'index_i64': ('', '', 'seqlens_k|seqlens_q|q_packed|kv_packed|prefix'),
    'causal': ('', 'ME', ''),
    'top_left': ('', 'E', ''),
    'window': ('window', 'ME', ''),
    'window_open': ('window', 'ME', ''),
    'sink_tokens': ('', 'E', 'window|window_open'),
    'chunk': ('', 'ME', ''),
    'prefix': ('', 'E', 'causal'),
    'softcap': ('', 'E', ''),
    'scale': ('', 'E', ''),
    'alibi': ('alibi', 'E', ''),
    'alibi_b': ('alibi', 'E', ''),
    'bias_f32': ('bias', 'E', ''),
    'bias_f16': ('bias', 'E', ''),
    'bias_bf16': ('bias', 'E', ''),
    'bias_inf': ('', 'ME', BIAS),
    'bias_b1': ('', '', BIAS),
    'bias_h1': ('', '', BIAS),
    'bias_q1': ('', '', BIAS),
    'bias_k1': ('', '', BIAS),
    'mask_u8': ('mask', 'ME', ''),
    'mask_bit': ('mask', 'ME', ''),
    'mask_bit_packed': ('mask', 'ME', 'q_packed'),
    'mask_b1': ('', '', MASK),
    'mask_h1': ('', '', MASK),
    'mask_q1': ('', '', MASK),
    'mask_k1': ('', '', MASK),
    'empty_row': ('', '', MASK),
    'nan_masked': ('', '', MASK),
    'segments': ('', 'ME', ''),
    'fm_n2': ('flashmask', 'ME', ''),
    'fm_n4': ('flashmask', 'ME', ''),
    'fm_c1': ('flashmask', 'ME', 'causal'),
    'fm_c2': ('flashmask', 'ME', 'causal'),
    'fm_hkv': ('fm_heads', '', FLASH),
    'fm_hq': ('fm_heads', '', FLASH),
    'blocks': ('blocks', 'ME', ''),
    'blocks_shared': ('blocks', 'ME', ''),
    'sink': ('', 'E', ''),
    'sink_inf': ('', 'E', 'sink'),
    'dropout': ('', 'E', ''),
    'rng_state': ('', '', 'dropout'),
    'score_cmp': ('score', 'E', ''),
    'score_tanh': ('score', 'E', ''),
    'score_aux': ('score', 'E', ''),
    'score_branch': ('score', 'E', ''),
    'score_softplus': ('score', 'E', ''),
    'mexpr_int': ('mexpr', 'ME', ''),
    'mexpr_aux': ('mexpr', 'ME', ''),
    'mexpr_scalar': ('mexpr', 'ME', ''),
    'mexpr_cond': ('mexpr', 'ME', ''),
    'dlse': ('', 'BE', ''),
    'v_in_k': ('', '', 'mqa'),
    **{x: ('quant', 'F', GRANULARITY) for x in QUANT.split('|')},
    **{g: ('granularity', 'F', QUANT + '|' + FLOAT8) for g in GRANULARITY.split('|')},
    'scale_f16': ('scale_dtype', 'F', GRANULARITY),
    'scale_bf16': ('scale_dtype', 'F', GRANULARITY),
    'zeros': ('', 'FE', GRANULARITY),
    'q_descale': ('', 'FE', FLOAT8),
}
# (a, b, reason); names may be alternatives with '|', F is all that is forward only. Two features of one slot are
# excluded too, and pairs of which one needs what the other excludes.
FORBIDDEN = [
    ('fm_n2|fm_n4', 'causal', 'these encodings are for masks that are not causal'),
    ('mask_bit_packed', 'mask_b1', 'a byte offset per sequence replaces axis b'),
    ('mask_bit_packed', 'mask_q1', 'a row stride per sequence replaces axis s'),
    ('empty_row', 'mask_q1', 'one row for all: every row would be empty'),
    ('nan_masked', 'mask_k1', 'no single key can be masked'),
    ('mask_bit|mask_bit_packed', 'mask_k1', 'a bit mask has a bit for every key'),
    ('nan_masked', 'kv_i8|kv_u4|kv_i8_u4', 'integer codes have no NaN'),
    ('v_in_k', 'kv_i8_u4', 'V is K, so of its type'),
    ('layout_broadcast', 'kv_packed|kv_table|kv_csr', 'K and V have no batch axis to broadcast'),
    ('v_in_k', 'dv_more', 'V is the first Dv channels of K: Dv <= D'),
    (QUANT, FLOAT8, 'quantised K/V take a Q of f32, f16 or bf16'),
    ('dlse', 'F', 'forward only: there is no backward that could read dlse'),
]
NAMES = list(FEATURES)
SLOT = {n: FEATURES[n][0] for n in NAMES}
FLAGS = {n: FEATURES[n][1] for n in NAMES}
NEEDS = {n: [g.split('|') for g in FEATURES[n][2].split(';') if g] for n in NAMES}
DEFAULTS = [n for n in NAMES if '*' in FLAGS[n]]
FORBID = {}
for _a, _b, _why in FORBIDDEN:
  _bs = [n for n in NAMES if 'F' in FLAGS[n]] if _b == 'F' else _b.split('|')
  FORBID.update({frozenset(p): _why for p in itertools.product(_a.split('|'), _bs)})
MAX_MASKS = 5  # masking features in one generated case; more leave too few visible pairs
MAX_FEATURES = 24  # features beside the defaults


# ---- Which cases -----------------------------------------------------------------------------------
def closures(chosen, universe):
  """Every valid set made from `chosen` by adding what is needed, from `universe`."""
  chosen = frozenset(chosen)
  slots = [SLOT[n] for n in chosen if SLOT[n]]
  if len(slots) != len(set(slots)) or any(
      frozenset(pair) in FORBID for pair in itertools.combinations(chosen, 2)):
    return
  for name in sorted(chosen, key=NAMES.index):
    for group in NEEDS[name]:
      if not chosen & set(group):
        for n in group:
          if n in universe:
            yield from closures(chosen | {n}, universe)
        return
  yield chosen


def closure(chosen, universe):
  """The first of them; None if there is none."""
  return next(closures(chosen, universe), None)


def complete(chosen):
  """With the defaults of the slots it leaves open."""
  taken = {SLOT[n] for n in chosen}
  return frozenset(chosen) | {n for n in DEFAULTS if SLOT[n] not in taken}


def pairs_of(features):
  return {frozenset(p) for p in itertools.combinations(features, 2)}


def crowded(case):
  """More than a tiny problem can show: masks that leave few pairs, a bias or mask of nearly one element."""
  return (len(case) > MAX_FEATURES or sum('M' in FLAGS[n] for n in case) > MAX_MASKS or
          any(sum(n.startswith(family) and n[-1] == '1' for n in case) > 2 for family in ('bias_', 'mask_')))


def cover(todo, universe):
  """Greedy covering array: cases from `universe` until no pair of `todo` is left (todo is emptied)."""
  cases = []
  covered = lambda case: sum(p in todo for p in pairs_of(complete(case)))
  for pair in sorted(todo, key=lambda pair: sorted(map(NAMES.index, pair))):
    if pair not in todo:
      continue
    case = max(closures(pair, universe), key=covered)  # of equals the first
    while True:
      wider = [w for n in universe if n not in case for w in closures(case | {n}, universe) if not crowded(w)]
      best = max(wider, key=covered, default=case)
      if covered(best) == covered(case):
        break
      case = best
    case = complete(case)
    assert pair <= case
    todo -= pairs_of(case)
    cases.append(case)
  return cases


def plan():
  """The cases: every feature alone, then the covering arrays. Returns [(name, features)], and the table's counts."""
  forward_only = [n for n in NAMES if 'F' in FLAGS[n]]
  both = [n for n in NAMES if n not in forward_only]
  all_forward = [n for n in NAMES if 'B' not in FLAGS[n]]
  cases = [(n, complete(closure({n}, NAMES))) for n in NAMES]
  refused = {}
  todo_both, todo_forward = set(), set()
  for a, b in itertools.combinations(NAMES, 2):
    pair = frozenset((a, b))
    if closure(pair, both) and not pair & set(forward_only):
      todo_both.add(pair)
    elif closure(pair, all_forward):
      todo_forward.add(pair)
    else:
      why = FORBID.get(
          pair,
          'one slot: %s' % SLOT[a] if SLOT[a] and SLOT[a] == SLOT[b] else 'one needs what the other excludes')
      refused.setdefault(why, []).append('%s + %s' % (a, b))
  table = SimpleNamespace(both=frozenset(todo_both), forward=frozenset(todo_forward), refused=refused)
  for _, case in cases:
    if not case & set(forward_only):
      todo_both -= pairs_of(case)
    todo_forward -= pairs_of(case)
  cases += [('pairs-%02d' % n, c) for n, c in enumerate(cover(todo_both, both))]
  cases += [('forward-%02d' % n, c) for n, c in enumerate(cover(todo_forward, all_forward))]
  seen_both, seen = set(), set()
  for _, case in cases:
    seen |= pairs_of(case)
    if not case & set(forward_only):
      seen_both |= pairs_of(case)
  assert table.both <= seen_both, 'pairs not run backward'
  assert table.forward <= seen, 'pairs not run'
  assert len(table.both) + len(table.forward) + sum(map(len,
                                                        refused.values())) == len(NAMES) * (len(NAMES) - 1) // 2
  return cases, table
