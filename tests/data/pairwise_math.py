# SPDX-License-Identifier: Apache-2.0
"""Attention by its definition in NumPy float64, forward and backward; element types, Philox and expressions too."""
import hashlib
import math
from types import SimpleNamespace

import numpy as np

from pairwise_features import FLASH

# ---- Element types -----------------------------------------------------------------------------
F32, F16, BF16, F8E4M3, F8E5M2, I8, U4, U8, BIT, I32, I64 = range(1, 12)  # tsr_dtype
FIELDS = {F32: (8, 23), F16: (5, 10), BF16: (8, 7), F8E4M3: (4, 3),
          F8E5M2: (5, 2)}  # exponent and mantissa bits
WIDTH = {F32: 4, F16: 2, BF16: 2, F8E4M3: 1, F8E5M2: 1, I8: 1, U4: 1, U8: 1, BIT: 1, I32: 4, I64: 8}
NAME_DTYPE = {'f32': F32, 'f16': F16, 'bf16': BF16, 'f8e4m3': F8E4M3, 'f8e5m2': F8E5M2}
UNTOUCHED = np.array([0x7ff8a5a5a5a5a5a5], np.uint64).view(np.float64)[0]


def decode(dtype, bits):
  bits = np.asarray(bits).astype(np.uint64).astype(np.int64)
  if dtype in (U4, U8):
    return bits.astype(np.float64)
  if dtype in (I8, I32, I64):
    size = 8 * WIDTH[dtype]
    return np.where(bits >> (size - 1) & 1, bits - (1 << size if size < 64 else 0), bits).astype(np.float64)
  e, m = FIELDS[dtype]
  bias = (1 << (e - 1)) - 1
  exponent, mantissa = bits >> m & ((1 << e) - 1), bits & ((1 << m) - 1)
  value = np.where(exponent == 0, np.ldexp(mantissa.astype(float), 1 - bias - m),
                   np.ldexp((mantissa + (1 << m)).astype(float), exponent - bias - m))
  top = exponent == (1 << e) - 1
  if dtype == F8E4M3:
    value = np.where(top & (mantissa == 7), np.nan, value)
  else:
    value = np.where(top, np.where(mantissa == 0, np.inf, np.nan), value)
  return np.where(bits >> (e + m) & 1, -value, value)


def encode(dtype, x):
  """Nearest even; fp8 and integers saturate; the other floats overflow to infinity. NaN: a quiet one."""
  x = np.asarray(x, np.float64)
  if dtype not in FIELDS:
    lo, hi = {I8: (-128, 127), U4: (0, 15), U8: (0, 255), I32: (-2**31, 2**31 - 1),
              I64: (-2.0**63, 2.0**62)}[dtype]
    size = 4 if dtype == U4 else 8 * WIDTH[dtype]
    return np.clip(np.rint(x), lo, hi).astype(np.int64).astype(np.uint64) & np.uint64((1 << size) - 1)
  e, m = FIELDS[dtype]
  bias = (1 << (e - 1)) - 1
  infinity = ((1 << e) - 1) << m
  top = {F8E4M3: 0x7e, F8E5M2: 0x7b}.get(dtype, infinity)  # what overflow gives
  a = np.where(np.isfinite(x), np.abs(x), 0.0)
  q = np.maximum(np.frexp(a)[1].astype(np.int64) - 1, 1 - bias) - m
  n = np.rint(np.ldexp(a, -q)).astype(np.int64)
  bits = np.where(n == 0, 0, np.minimum(((q + m + bias) << m) + n - (1 << m), top))
  bits = np.where(np.isinf(x), top, np.where(np.isnan(x), infinity | (1 << m) - 1, bits))
  return (bits | np.where(np.signbit(x), 1 << (e + m), 0)).astype(np.uint64)


def check_codecs():
  for dtype, (e, m) in FIELDS.items():
    bits = np.arange(1 << min(e + m + 1, 16), dtype=np.uint64)
    if dtype == F32:
      bits = (bits * np.uint64(0x9e3779b97f4a7c15)) >> np.uint64(32)
    value = decode(dtype, bits)
    fine = np.isfinite(value)
    assert (encode(dtype, value)[fine] == bits[fine]).all()
    if dtype == F16:
      assert np.array_equal(value, bits.astype(np.uint16).view(np.float16).astype(float), equal_nan=True)
    if dtype == F32:
      with np.errstate(invalid='ignore'):
        assert np.array_equal(value, bits.astype(np.uint32).view(np.float32).astype(float), equal_nan=True)
      x = np.ldexp(decode(F32, bits)[fine], -20) * 1.2345678912
      assert np.array_equal(encode(F32, x), x.astype(np.float32).view(np.uint32))
      with np.errstate(over='ignore'):
        assert np.array_equal(encode(F16, x), x.astype(np.float16).view(np.uint16))
  assert decode(F8E4M3, [0x7e, 0x08, 0x01]).tolist() == [448.0, 2.0**-6, 2.0**-9]
  assert decode(F8E5M2, [0x7b, 0x7c, 0x01]).tolist() == [57344.0, math.inf, 2.0**-16]
  assert encode(F8E4M3, [449.0, 1e9, 17.0, 19.0]).tolist() == [0x7e, 0x7e, 0x58, 0x5a]


# ---- Random numbers: splitmix64 for data, Philox4x32-10 for dropout --------------------------------
class Random:

  def __init__(self, text):
    self.state = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'little')

  def words(self, shape):
    n = int(np.prod(shape))
    z = np.uint64(self.state) + np.arange(1, n + 1, dtype=np.uint64) * np.uint64(0x9e3779b97f4a7c15)
    self.state = (self.state + n * 0x9e3779b97f4a7c15) % 2**64
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
    return (z ^ z >> np.uint64(31)).reshape(shape)

  def uniform(self, lo, hi, shape=()):
    return lo + (hi - lo) * (self.words(shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

  def integers(self, lo, hi, shape=()):
    """lo .. hi, both included."""
    x = lo + np.floor(self.uniform(0, hi - lo + 1, shape)).astype(np.int64)
    return x if shape else int(x)

  def chance(self, p, shape=()):
    return self.uniform(0, 1, shape) < p


def philox(counter, key):
  """Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"; arrays of 32-bit words in uint64."""
  low = np.uint64(0xffffffff)
  c = [np.asarray(x, np.uint64) for x in counter]
  k = [np.asarray(x, np.uint64) for x in key]
  for _ in range(10):
    a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
    c = [b >> np.uint64(32) ^ c[1] ^ k[0], b & low, a >> np.uint64(32) ^ c[3] ^ k[1], a & low]
    k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
  return c


def check_philox():  # Random123's known answers
  for counter, key, answer in (([0] * 4, [0] * 2, '6627e8d5 e169c58d bc57ac4c 9b00dbd8'),
                               ([0xffffffff] * 4, [0xffffffff] * 2, '408f276d 41c83b0e a20bc7c6 6d5451fd'),
                               ([0x243f6a88, 0x85a308d3, 0x13198a2e,
                                 0x03707344], [0xa4093822, 0x299f31d0], 'd16cfe09 94fdcceb 5001e420 24126ea1')):
    assert ' '.join('%08x' % int(w) for w in philox(counter, key)) == answer


def dropout_keep(p, seed, offset, B, Hq, Sq, Sk):
  subkey = philox([offset & 0xffffffff, offset >> 32, 0, 0], [seed & 0xffffffff, seed >> 32])[:2]
  b, h, i, j = np.meshgrid(*map(np.arange, (B, Hq, Sq, Sk)), indexing='ij')
  head = b * Hq + h
  word = philox([j >> 2, i, head & 0xffffffff, head >> 32], subkey)
  return np.choose(j & 3, word) >= np.uint64(math.floor(p * 2.0**32))


# ---- Expressions: the text for the library, the meaning by hand ------------------------------------
# x: s, b, h, hkv, i, j, q_len, kv_len, off (arrays that broadcast), aux(*index) (out of range reads 0), gain, cut.
# Scores: value and derivative. NumPy's // and % of integers round toward minus infinity, as the language's do.
SCORES = {
    'score_cmp': ('score + 0.5 * (j <= i + off)', lambda x: x.s + 0.5 *
                  (x.j <= x.i + x.off), lambda x: np.ones_like(x.s)),
    'score_tanh':
        ('2 * tanh(score / 2) - 0.125 * abs(i - j)', lambda x: 2 * np.tanh(x.s / 2) - 0.125 * np.abs(x.i - x.j),
         lambda x: 1 - np.tanh(x.s / 2)**2),
    'score_aux': ('score * gain + AUX[h, j % 5]', lambda x: x.s * x.gain + x.aux(x.h, x.j % 5),
                  lambda x: x.gain * np.ones_like(x.s)),
    'score_branch': ('(h + b) % 2 == 0 ? score * score * 0.25 : max(score, -0.5)', lambda x: np.where(
        (x.h + x.b) % 2 == 0, x.s * x.s * 0.25, np.maximum(x.s, -0.5)), lambda x: np.where(
            (x.h + x.b) % 2 == 0, 0.5 * x.s, (x.s >= -0.5) * 1.0)),
    'score_softplus': ('log(1.0 + exp(score)) - pow(abs(score), 2.0) / 8',
                       lambda x: np.log(1 + np.exp(x.s)) - x.s**2 / 8, lambda x: 1 /
                       (1 + np.exp(-x.s)) - x.s / 4),
}
MEXPRS = {
    'mexpr_int': ('(i - j) % 4 != 2 && (j - i) / 3 < 2', lambda x: ((x.i - x.j) % 4 != 2) &
                  ((x.j - x.i) // 3 < 2)),
    'mexpr_aux': ('AUX[b, j] == AUX[b, i + off] || !(j % 2)', lambda x:
                  (x.aux(x.b, x.j) == x.aux(x.b, x.i + x.off)) | (x.j % 2 == 0)),
    'mexpr_scalar': ('float((i * 7 + j * 5 + hkv * 3) % 11) >= cut && j < kv_len && i < q_len', lambda x:
                     (x.i * 7 + x.j * 5 + x.hkv * 3) % 11 >= x.cut),
    'mexpr_cond': ('!b || j - 2 * i < 3 ? j % 5 < 4 : i % 2 == j % 2', lambda x: np.where(
        (x.b == 0) | (x.j - 2 * x.i < 3), x.j % 5 < 4, x.i % 2 == x.j % 2)),
}


def read_aux(table, index):
  """Element of a table at arrays of indices; 0 outside."""
  inside = np.logical_and.reduce(
      np.broadcast_arrays(*[(ix >= 0) & (ix < n) for ix, n in zip(index, table.shape)]))
  safe = [np.clip(ix, 0, n - 1) for ix, n in zip(index, table.shape)]
  return np.where(inside, table[tuple(np.broadcast_arrays(*safe))], 0)


# ---- The definition --------------------------------------------------------------------------------
def evaluate(p, off=()):
  """All results of problem p as [B,H,S,...] arrays, with the features in `off` switched off (to see that they matter)."""
  has = lambda *names: any(n in p.features and n not in off for n in names)
  B, Hq, Hkv, Sq, Sk = p.B, p.Hq, p.Hkv, p.Sq, p.Sk
  b, h, i, j = (
      x.reshape([-1 if a == n else 1 for a in range(4)]) for n, x in enumerate(map(np.arange, (B, Hq, Sq, Sk))))
  at_b = lambda x: np.asarray(x).reshape(-1, 1, 1, 1)
  q_len, kv_len = at_b(p.q_len), at_b(p.kv_len)
  shift = kv_len - q_len if not has('top_left') else kv_len * 0
  kv_head = np.arange(Hq) // (Hq // Hkv) if 'gqa' not in off else np.arange(Hq) % Hkv
  hkv = kv_head.reshape(1, -1, 1, 1)
  quant = lambda x: x.scale * (x.code - (x.default if 'zeros' in off else x.zero))
  q, k = p.q * (p.q_descale if has('q_descale') else 1), quant(p.k)
  v = k[..., :p.Dv] if has('v_in_k') else quant(p.v)
  kh, vh = k[:, kv_head], v[:, kv_head]  # [B,Hq,Sk,D]
  inside = (i < q_len) & (j < kv_len) & (h >= 0)

  scale = p.scale if has('scale') else 1 / math.sqrt(p.D)
  s = scale * (q[:, :, :, None, :] * kh[:, :, None, :, :]).sum(-1)
  slope = np.ones_like(s)  # d s / d (scale * dot)
  if has('softcap'):
    slope = 1 - np.tanh(s / p.softcap)**2
    s = p.softcap * np.tanh(s / p.softcap)
  if has('alibi', 'alibi_b'):
    s = s - p.alibi[:, :, None, None] * np.abs(i + shift - j)
  bias = np.zeros((1, 1, 1, 1))
  if has('bias_f32', 'bias_f16', 'bias_bf16'):
    bias = np.where(p.bias == -np.inf, 0.0, p.bias) if 'bias_inf' in off else p.bias
    s = s + bias
  x = SimpleNamespace(s=s,
                      b=b,
                      h=h,
                      hkv=hkv,
                      i=i,
                      j=j,
                      q_len=q_len,
                      kv_len=kv_len,
                      off=shift,
                      gain=p.gain,
                      cut=p.cut)
  outer = np.ones_like(s)  # d score expression / d score
  for name in filter(has, SCORES):
    x.aux = lambda *index: read_aux(p.aux[name], index)
    outer = SCORES[name][2](x)
    s = SCORES[name][1](x)

  allowed = inside & (bias != -np.inf)
  if has('causal'):
    allowed = allowed & ((j <= i + shift) | (has('prefix') and j < at_b(p.prefix)))
  if has('window', 'window_open'):
    near = ((p.left < 0) | (i + shift - p.left <= j)) & ((p.right < 0) | (j <= i + shift + p.right))
    allowed = allowed & (near | (has('sink_tokens') and j < p.sink_tokens))
  if has('chunk'):
    allowed = allowed & ((i + shift) // p.chunk == j // p.chunk)
  if has('mask_u8', 'mask_bit', 'mask_bit_packed'):
    allowed = allowed & p.mask
  if has('segments'):
    sq, sk = p.segments_q[:, None, :, None], p.segments_k[:, None, None, :]
    allowed = allowed & (sq == sk) & (sq >= 0)
  for name in filter(has, FLASH.split('|')):
    head = {1: h * 0, Hkv: hkv, Hq: h}[p.flashmask.shape[1]]
    c = [p.flashmask[b, head, j, n] for n in range(p.flashmask.shape[3])]
    masked = {
        'fm_c1': lambda: i >= c[0], 'fm_c2': lambda: (c[0] <= i) & (i < c[1]),
        'fm_n2': lambda: (i >= c[0]) | (i < c[1]), 'fm_n4': lambda: ((c[0] <= i) & (i < c[1])) | ((c[2] <= i) &
                                                                                                  (i < c[3]))
    }[name]()
    allowed = allowed & ~masked
  if has('blocks', 'blocks_shared'):
    present = np.broadcast_to(p.blocks, (B, Hq) + p.blocks.shape[2:])
    allowed = allowed & present[b, h, i // p.block_rows, j // p.block_cols]
  for name in filter(has, MEXPRS):
    x.aux = lambda *index: read_aux(p.aux[name], index)
    allowed = allowed & MEXPRS[name][1](x)

  r = SimpleNamespace(allowed=allowed, inside=inside)
  some = allowed.any(-1)  # rows that see a key
  r.max_s = np.where(allowed, s, -np.inf).max((0, 2, 3), initial=-np.inf)
  z = np.full(Hq, -np.inf)
  if has('sink'):
    z = np.where(p.sink == -np.inf, 0.0, p.sink) if 'sink_inf' in off else p.sink
  z = z[None, :, None]
  top = np.maximum(np.where(allowed, s, -np.inf).max(-1, initial=-np.inf), z)
  top = np.where(np.isfinite(top), top, 0.0)
  total = np.where(allowed, np.exp(s - top[..., None]), 0.0).sum(-1) + np.exp(z - top)
  r.lse = np.where(total > 0, top + np.log(np.where(total > 0, total, 1.0)), -np.inf)
  prob = np.where(allowed, np.exp(s - np.where(some, r.lse, 0.0)[..., None]), 0.0)
  r.keep = np.ones(prob.shape, bool)
  keep_scale = 1.0
  if has('dropout'):
    r.keep = dropout_keep(p.dropout_p, p.seed, p.offset, B, Hq, Sq, Sk)
    keep_scale = float(np.float32(1 / (1 - p.dropout_p)))
  dropped = np.where(r.keep, prob * keep_scale, 0.0)
  r.o = np.where(allowed[..., None], dropped[..., None] * vh[:, :, None, :, :], 0.0).sum(3)
  if not p.backward:
    return r

  do = p.dout[:, :, :, None, :]
  dprob = np.where(allowed & r.keep, (do * vh[:, :, None, :, :]).sum(-1) * keep_scale, 0.0)
  delta = (p.dout * r.o).sum(-1) - (p.dlse if has('dlse') else 0.0)
  ds = np.where(allowed, prob * (dprob - delta[..., None]), 0.0)  # by the final score
  dbias = np.where(allowed, ds * outer, 0.0)  # by the score before its expression
  draw = np.where(allowed, dbias * slope * scale, 0.0)[..., None]  # by the dot product
  pair = allowed[..., None]
  fold = lambda g: np.stack([g[:, kv_head == n].sum(1) for n in range(Hkv)], 1)  # sums a group's query heads
  r.dq = np.where(pair, draw * kh[:, :, None, :, :], 0.0).sum(3)
  r.dk = fold(np.where(pair, draw * q[:, :, :, None, :], 0.0).sum(2))
  r.dv = fold(np.where(pair, dropped[..., None] * do, 0.0).sum(2))
  r.dbias = dbias
  # In an empty row lse = z: dlse reaches the sink, as in any other row, and nothing else.
  real = (i < q_len)[..., 0] & np.isfinite(z)
  r.dsink = np.where(real, -np.exp(z - r.lse) * delta, 0.0).sum((0, 2))
  return r
