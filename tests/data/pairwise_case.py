# SPDX-License-Identifier: Apache-2.0
"""One problem of pairwise.py from its features: data, memory as the C API takes it, expected results in its shapes."""
from types import SimpleNamespace

import numpy as np

from pairwise_features import BIAS, FLAGS, FLASH, FLOAT8, GRANULARITY, MASK, NAMES
from pairwise_math import (BF16, BIT, F16, F32, F8E4M3, F8E5M2, FIELDS, I32, I64, I8, MEXPRS, NAME_DTYPE,
                           SCORES, U4, U8, UNTOUCHED, WIDTH, Random, decode, encode, evaluate)


# ---- Memory ----------------------------------------------------------------------------------------
def pack(dtype, bits):
  """Element bit patterns in memory order -> bytes."""
  if dtype == U4:
    return (bits[0::2] | bits[1::2] << np.uint64(4)).astype(np.uint8).tobytes()
  kind = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[WIDTH[dtype]]
  return bits.astype(kind).astype(np.dtype(kind).newbyteorder('<')).tobytes()


def dense_strides(shape, order=(0, 1, 2, 3), last=1, pad=0):
  stride, run = [0] * 4, last
  for n, axis in enumerate(reversed(order)):
    stride[axis] = run
    run = run * max(shape[axis], 1) + (pad if n == 0 else 0)
  return stride


def place(dtype, bits, order=(0, 1, 2, 3), last=1, pad=0, lead=0, shared_batch=False):
  """Lays a 4-axis array of bit patterns out; what is between the elements is filled with ones (NaN in any float type)."""
  bits = np.asarray(bits, np.uint64)
  shape = list(bits.shape)
  source = bits[:1] if shared_batch else bits
  stride = dense_strides(source.shape, order, last, pad)
  count = 1 + sum((n - 1) * s for n, s in zip(source.shape, stride)) if source.size else 0
  memory = np.full(count + (count & 1 if dtype == U4 else 0),
                   (1 << (4 if dtype == U4 else 8 * WIDTH[dtype])) - 1, np.uint64)
  memory[sum(ix * s for ix, s in zip(np.indices(source.shape), stride)).ravel()] = source.ravel()
  if shared_batch:
    stride[0] = 0
  return SimpleNamespace(dtype=dtype,
                         shape=shape,
                         stride=stride,
                         lead=lead,
                         data=b'\xff' * lead + pack(dtype, memory),
                         role=0)


def place_bits(mask, row_bytes, lead=0):
  """A bit mask [b,h,i,j] with rows of row_bytes bytes; unused bits are ones."""
  B, H, S, K = mask.shape
  memory = np.full((B, H, S, row_bytes * 8), True)
  memory[..., :K] = mask
  data = np.packbits(memory, axis=-1, bitorder='little').tobytes()
  return SimpleNamespace(dtype=BIT,
                         shape=[B, H, S, K],
                         stride=[row_bytes * S * H, row_bytes * S, row_bytes, 1],
                         lead=lead,
                         data=b'\xff' * lead + data,
                         role=0)


def place_packed_bits(mask, q_slots, kv_slots):
  """Rows of each sequence one after another with their own row strides: one tensor, byte offsets and row strides by b."""
  B, H, S, K = mask.shape
  head_bytes = max(slot * (-(-kv // 8) + b) for b, (slot, kv) in enumerate(zip(q_slots, kv_slots))) + 1
  offsets, strides, start = [], [], 3
  for b in range(B):
    offsets.append(start)
    strides.append(-(-kv_slots[b] // 8) + b)
    start += head_bytes * H
  memory = bytearray(b'\xff' * start)
  for b, h, i, j in np.argwhere(~mask):
    if i < q_slots[b] and j < kv_slots[b]:
      memory[offsets[b] + h * head_bytes + i * strides[b] + (j >> 3)] &= ~(1 << (j & 7)) & 0xff
  rest = start - (H - 1) * head_bytes  # but for the heads, the layout states only how many bytes there are
  t = SimpleNamespace(dtype=BIT, shape=[1, H, 1, 8 * rest], stride=[0, head_bytes, 0, 1], lead=0, data=bytes(memory), role=0)
  return t, np.array(offsets), np.array(strides)


# ---- One problem -----------------------------------------------------------------------------------
CAUSAL, TOP_LEFT, WINDOW, CHUNK, SOFTCAP, DROPOUT, V_IN_K = 1, 2, 4, 8, 16, 32, 64  # flags of attention.h


def vector(dtype, values):
  return place(dtype, encode(dtype, np.asarray(values)).reshape(-1, 1, 1, 1))


class Case:

  def __init__(self, features, attempt):
    self.features = features
    self.rng = Random(' '.join(sorted(features)) + ' #%d' % attempt)
    self.grow = attempt // 100  # larger sizes where many features meet
    self.tensors, self.fields, self.texts = {}, {}, {}
    self.p = SimpleNamespace(features=features,
                             backward=not any('F' in FLAGS[n] for n in features),
                             gain=0.0,
                             cut=0.0,
                             aux={})
    self.flags = 0
    for step in (self.sizes, self.arrange, self.main_tensors, self.positions, self.additive, self.masks,
                 self.expressions, self.gradients, self.outputs):
      step()

  def has(self, *names):
    return any(n in self.features for n in names)

  def any_of(self, alternatives):
    return self.has(*alternatives.split('|'))

  def sizes(self):
    p, r = self.p, self.rng
    p.B = 2
    p.Hq, p.Hkv = (4, 2) if self.has('gqa') else (3, 1) if self.has('mqa') else (2, 2)
    p.D, p.Dv = (6, 4) if self.has('dv_less') else (4, 6) if self.has('dv_more') else (4, 4)
    p.Sq, p.Sk = (r.integers(6, 7), r.integers(4, 5)) if self.has('long_q') else (r.integers(4, 5),
                                                                                  r.integers(6, 8))
    p.Sq, p.Sk = p.Sq + self.grow, p.Sk + self.grow
    self.index = I64 if self.has('index_i64') else I32

  def slots(self, longest, free):
    """Slot lengths of the sequences: the longest for one of them, less for the other where the arrangement allows."""
    s = [longest, longest]
    if free:
      s[self.rng.integers(0, 1)] = self.rng.integers(max(2, longest - 3), longest - 1)
    return s

  def used(self, slots, override, zero):
    if override:
      slots = [self.rng.integers(max(1, s - 2), s - (n == 0 and s > 1)) for n, s in enumerate(slots)]
    if zero:
      slots = list(slots)
      slots[1] = 0
    return slots

  def arrange(self):
    """Where row s of sequence b lies: p.q_map[b], p.kv_map[b] = (index on axis 0, index on axis 1) of the storage."""
    p, r, zq, zk = self.p, self.rng, self.has('zero_q'), self.has('zero_kv')
    pk, csr, table = self.has('kv_packed'), self.has('kv_csr'), self.has('kv_table')
    self.q_slots = self.slots(p.Sq, self.has('q_packed'))
    self.kv_slots = self.slots(p.Sk, pk or csr)
    if zq and not self.has('seqlens_q'):
      self.q_slots = [p.Sq, 0]
    if zk and not self.has('seqlens_k'):
      self.kv_slots = [p.Sk, 0]
    p.q_len = self.used(self.q_slots, self.has('seqlens_q'), zq)
    p.kv_len = self.used(self.kv_slots, self.has('seqlens_k'), zk)
    if self.has('seqlens_q'):
      self.tensors['seqlens_q'] = vector(self.index, p.q_len)
    if self.has('seqlens_k'):
      self.tensors['seqlens_k'] = vector(self.index, p.kv_len)

    def packed(slots, key):
      cu = np.concatenate([[0], np.cumsum(slots)])
      self.tensors[key] = vector(self.index, cu)
      return (1, int(cu[-1]) + 1), [(np.zeros(n, int), c + np.arange(n)) for c, n in zip(cu, slots)
                                   ]  # one row of tail

    dense = lambda slots, s: ((p.B, s), [(np.full(n, b), np.arange(n)) for b, n in enumerate(slots)])
    if self.has('q_packed'):
      self.q_space, p.q_map = packed(self.q_slots, 'cu_seqlens_q')
      self.fields.update(batch=p.B, max_seqlen_q=p.Sq)
    else:
      self.q_space, p.q_map = dense(self.q_slots, p.Sq)
    if pk:
      self.kv_space, p.kv_map = packed(self.kv_slots, 'cu_seqlens_k')
      self.fields.update(max_seqlen_k=p.Sk)
    elif csr or table:
      self.paged(r, p, csr)
    else:
      self.kv_space, p.kv_map = dense(self.kv_slots, p.Sk)

  def paged(self, r, p, csr):
    size = r.integers(1, 3)
    counts = [-(-n // size) for n in (self.kv_slots if csr else p.kv_len)]
    pages = sum(counts) + 2
    ids = np.argsort(r.words(pages), kind='stable')[:sum(counts)]
    start = np.concatenate([[0], np.cumsum(counts)])
    own = [ids[start[b]:start[b + 1]] for b in range(p.B)]
    self.kv_space = (pages, size)
    self.fields.update(max_seqlen_k=p.Sk)
    if csr:
      self.tensors['kv_indptr'] = vector(I32, start)
      self.tensors['kv_indices'] = vector(I32, ids)
      self.tensors['last_page_len'] = vector(
          I32, [n - (c - 1) * size if c else 1 for n, c in zip(self.kv_slots, counts)])
    else:
      table = np.full((p.B, -(-p.Sk // size)), 2**31 - 1)  # entries past the length are never read
      for b in range(p.B):
        table[b, :counts[b]] = own[b]
      self.tensors['block_table'] = place(I32, encode(I32, table)[:, :, None, None])
    p.kv_map = [(own[b][np.arange(n) // size], np.arange(n) % size)
                for b, n in enumerate(self.kv_slots if csr else p.kv_len)]

  def gather(self, space, where, lengths, longest):
    """Storage [n0,n1,H,X] -> [B,H,longest,X], NaN outside the used lengths."""
    out = np.full((self.p.B, longest) + space.shape[2:], np.nan)
    for b, n in enumerate(lengths):
      out[b, :n] = space[where[b][0][:n], where[b][1][:n]]
    return out.transpose(0, 2, 1, 3)

  def unused(self, space, where, lengths):
    """Which rows of a storage no sequence uses."""
    free = np.ones(space, bool)
    for b, n in enumerate(lengths):
      free[where[b][0][:n], where[b][1][:n]] = False
    return free

  def how(self, dtype):
    """Options of place() for q, k, v, o and their like."""
    if self.has('layout_bhsd'):
      return dict(order=(0, 2, 1, 3))
    if self.has('layout_padded'):
      return dict(pad=4, lead=16) if dtype == U4 else dict(last=2, pad=3, lead=16)
    return {}

  def main_tensors(self):
    p, r = self.p, self.rng
    name = next(n for n in NAME_DTYPE if self.has(n))
    dtype = NAME_DTYPE[name]
    kv = {
        'kv_i8': (I8, I8), 'kv_u4': (U4, U4), 'kv_i8_u4': (I8, U4), 'kv_f8e4m3': (F8E4M3, F8E4M3),
        'kv_f8e5m2': (F8E5M2, F8E5M2)
    }
    kv_dtypes = next((t for n, t in kv.items() if self.has(n)), (dtype, dtype))
    self.dtype = dtype
    self.o_dtype = F32 if self.has('o_f32') else (
        F16 if r.chance(0.5) else BF16) if self.any_of(FLOAT8) else dtype
    p.scale = float(np.float32(r.uniform(0.3, 0.9)))
    if self.has('scale'):
      self.fields['scale'] = p.scale

    q = encode(dtype, r.uniform(-1.6, 1.6, self.q_space + (p.Hq, p.D)))
    q[self.unused(self.q_space, p.q_map, p.q_len)] = encode(dtype, np.nan)
    p.q = self.gather(decode(dtype, q), p.q_map, p.q_len, p.Sq)
    self.tensors['q'] = place(dtype, q, **self.how(dtype))
    if self.has('q_descale'):
      d = encode(F32, r.uniform(0.5, 2.0, (p.B, p.Hkv, 1, 1)))
      p.q_descale = decode(F32, d)[:, np.arange(p.Hq) // (p.Hq // p.Hkv)]
      self.tensors['q_descale'] = place(F32, d)

    self.nan_key = r.integers(0, p.Sk - 3) if self.has('nan_masked') else None
    for x, channels, kv_dtype in zip('kv', (p.D, p.Dv), kv_dtypes):
      if x == 'v' and self.has('v_in_k'):
        like = self.tensors['k']
        self.tensors['v'] = SimpleNamespace(dtype=kv_dtype,
                                            shape=like.shape[:3] + [p.Dv],
                                            stride=like.stride,
                                            lead=0,
                                            data=b'',
                                            role=0)
        break
      shape = self.kv_space + (p.Hkv, channels)
      if kv_dtype in FIELDS:
        value = r.uniform(-1.8, 1.8, shape)
        if kv_dtype == F16 and x == 'v':
          value[..., 0] *= 2.0**-17  # subnormal
        bits = encode(kv_dtype, value)
      else:
        bits = r.words(shape) >> np.uint64(56 if kv_dtype == I8 else 60)
      if self.has('layout_broadcast'):
        bits[1:] = bits[:1]
      free = self.unused(self.kv_space, p.kv_map, p.kv_len)
      if self.has('layout_broadcast'):
        free = np.broadcast_to(free.all(0), free.shape)
      if kv_dtype in FIELDS:
        bits[free] = encode(kv_dtype, np.nan)
        if self.nan_key is not None:
          for b, n in enumerate(p.kv_len):
            if self.nan_key < n:
              bits[p.kv_map[b][0][self.nan_key], p.kv_map[b][1][self.nan_key]] = encode(kv_dtype, np.nan)
      self.tensors[x] = place(kv_dtype, bits, shared_batch=self.has('layout_broadcast'), **self.how(kv_dtype))
      setattr(p, x, self.quantisation(x, kv_dtype, bits, free))

  def quantisation(self, x, dtype, bits, free):
    """Codes, scale and zero of K or V as [B,Hkv,Sk,channels] arrays."""
    p, r, channels = self.p, self.rng, bits.shape[3]
    gather = lambda a: self.gather(np.broadcast_to(a, bits.shape), p.kv_map, p.kv_len, p.Sk)
    default = 8.0 if dtype == U4 else 0.0
    out = SimpleNamespace(code=gather(decode(dtype, bits)), scale=1.0, zero=default, default=default)
    if not self.any_of(GRANULARITY):
      return out
    n0, n1 = self.kv_space
    per_b = 1 if self.has('kv_packed', 'kv_table', 'kv_csr') else n0
    shape = {
        'scale_tensor': (1, 1, 1, 1), 'scale_head': (per_b, 1, p.Hkv, 1), 'scale_token': (n0, n1, 1, 1),
        'scale_group': (1, 1, p.Hkv, 2), 'scale_full': (n0, n1, p.Hkv, 2)
    }[next(g for g in GRANULARITY.split('|') if self.has(g))]
    scale_dtype = F16 if self.has('scale_f16') else BF16 if self.has('scale_bf16') else F32
    unit = {I8: 1 / 64, U4: 1 / 5}.get(dtype, 1.0)
    grouped = lambda a: np.repeat(a, channels // a.shape[3], 3)

    def draw(key, shape, lo, hi):
      value = encode(scale_dtype, r.uniform(lo, hi, shape))
      if shape[:2] == self.kv_space:
        value[free] = encode(scale_dtype, np.nan)
      self.tensors[key] = place(scale_dtype, value,
                                **(dict(order=(3, 2, 0, 1)) if self.has('layout_bhsd') else {}))
      return gather(grouped(decode(scale_dtype, value)))

    out.scale = draw(x + '_scale', shape, 0.5 * unit, 1.5 * unit)
    if self.has('zeros'):
      out.zero = draw(x + '_zero', shape if r.chance(0.5) else (1, 1, p.Hkv, 1), default - 0.4 / unit,
                      default + 0.9 / unit)
    return out

  def positions(self):
    p, r = self.p, self.rng
    if self.has('causal'):
      self.flags |= CAUSAL
    if self.has('top_left'):
      self.flags |= TOP_LEFT
    if self.has('window', 'window_open'):
      self.flags |= WINDOW
      p.left, p.right = r.integers(0, 2), r.integers(0, 2)
      if self.has('window_open'):
        p.left, p.right = (-1, p.right) if r.chance(0.5) else (p.left, -1)
      p.sink_tokens = r.integers(1, 2) if self.has('sink_tokens') else 0
      self.fields.update(window_left=p.left, window_right=p.right, sink_tokens=p.sink_tokens)
    if self.has('chunk'):
      self.flags |= CHUNK
      p.chunk = self.fields['chunk'] = r.integers(3, 5)
    if self.has('prefix'):
      p.prefix = r.integers(1, p.Sk - 2, (p.B,))
      self.tensors['prefix'] = vector(self.index, p.prefix)
    if self.has('softcap'):
      self.flags |= SOFTCAP
      p.softcap = self.fields['softcap'] = float(np.float32(r.uniform(0.8, 2.0)))

  def broadcast(self, family):
    p = self.p
    return tuple(1 if self.has(family + axis) else n
                 for axis, n in zip(('_b1', '_h1', '_q1', '_k1'), (p.B, p.Hq, p.Sq, p.Sk)))

  def beyond(self, shape):
    """Elements of a [B|1,H|1,Sq|1,Sk|1] tensor that no pair inside the used lengths reads."""
    p = self.p
    inside = (np.arange(p.Sq) < np.array(p.q_len)[:, None])[:, None, :, None] & (np.arange(p.Sk) < np.array(
        p.kv_len)[:, None])[:, None, None, :]
    inside = np.broadcast_to(inside, (p.B, p.Hq, p.Sq, p.Sk))
    return ~inside.any(tuple(a for a in range(4) if shape[a] == 1), keepdims=True)

  def additive(self):
    p, r = self.p, self.rng
    strided = dict(order=(
        1, 0, 3,
        2)) if self.has('layout_bhsd') else dict(last=2, pad=1, lead=8) if self.has('layout_padded') else {}
    if self.has('alibi', 'alibi_b'):
      slopes = encode(F32, r.uniform(0.1, 0.8, (p.B if self.has('alibi_b') else 1, p.Hq, 1, 1)))
      p.alibi = decode(F32, slopes)[:, :, 0, 0]
      self.tensors['alibi_slopes'] = place(F32, slopes)
    for name, dtype in (('bias_f32', F32), ('bias_f16', F16), ('bias_bf16', BF16)):
      if self.has(name):
        shape = self.broadcast('bias')
        value = r.uniform(-1.5, 1.5, shape)
        if self.has('bias_inf'):
          value = np.where(r.chance(0.2, shape), -np.inf, value)
        value = np.where(self.beyond(shape), np.nan, value)
        if self.nan_key is not None and shape[3] > 1:
          value[..., self.nan_key] = np.nan  # masked for every row
        bits = encode(dtype, value)
        p.bias = decode(dtype, bits)
        self.tensors['bias'] = place(dtype, bits, **strided)
    if self.has('sink'):
      z = r.uniform(-1.0, 1.5, (p.Hq,))
      if self.has('sink_inf'):
        z[r.integers(0, p.Hq - 1)] = -np.inf
      self.tensors['sink'] = vector(F32, z)
      p.sink = decode(F32, encode(F32, z))
    if self.has('dropout'):
      self.flags |= DROPOUT
      p.dropout_p = self.fields['dropout_p'] = float(np.float32(r.uniform(0.2, 0.5)))
      p.seed, p.offset = (int(w) for w in r.words((2,)))
      if self.has('rng_state'):
        self.tensors['rng_state'] = place(I64, np.array([p.seed, p.offset], np.uint64).reshape(2, 1, 1, 1))
      else:
        self.fields.update(seed=p.seed, offset=p.offset)

  def masks(self):
    p, r = self.p, self.rng
    if self.any_of(MASK):
      shape = self.broadcast('mask')
      mask = r.chance(0.8, shape)
      if self.nan_key is not None:
        mask[..., self.nan_key] = False
      if self.has('empty_row'):
        mask[:, :, r.integers(0, min(n for n in p.q_len if n) - 1)] = False
      p.mask = np.broadcast_to(mask, (p.B, p.Hq, p.Sq, p.Sk))
      if self.has('mask_u8'):
        code = np.where(mask, r.integers(1, 255, shape), 0)
        self.tensors['mask'] = place(U8, code, **(dict(order=(2, 1, 3, 0)) if self.has('layout_bhsd') else {}))
      elif self.has('mask_bit'):
        padded = self.has('layout_padded')
        self.tensors['mask'] = place_bits(mask, -(-shape[3] // 8) + 2 * padded, 5 * padded)
      else:
        t, offsets, strides = place_packed_bits(mask, self.q_slots, self.kv_slots)
        self.tensors.update(mask=t, mask_offsets=vector(I64, offsets), mask_row_strides=vector(I64, strides))
    if self.has('segments'):
      self.segments()
    for name in FLASH.split('|'):
      if self.has(name):
        self.flashmask(name)
    if self.has('blocks', 'blocks_shared'):
      p.block_rows, p.block_cols = r.integers(1, 3), r.integers(2, 3)
      shape = (p.B, p.Hq) if self.has('blocks') else (1, 1)
      grid = shape + (-(-p.Sq // p.block_rows), -(-p.Sk // p.block_cols))
      p.blocks = r.chance(0.75, grid)
      counts = p.blocks.sum(3)
      indptr = np.concatenate([np.zeros(shape + (1,), int), np.cumsum(counts, 2)], 2)
      indices = np.full(shape + (int(indptr.max()) + 1,), 2**31 - 1)
      for b, h in np.ndindex(shape):
        indices[b, h, :indptr[b, h, -1]] = np.argwhere(p.blocks[b, h])[:, 1]
      self.fields.update(block_rows=p.block_rows, block_cols=p.block_cols)
      self.tensors['block_indptr'] = place(I32, encode(I32, indptr)[..., None])
      self.tensors['block_indices'] = place(I32, encode(I32, indices)[..., None])

  def segments(self):
    p, r = self.p, self.rng
    ids = lambda s: np.where(r.chance(0.1, (p.B, s)), -1, r.chance(0.2, (p.B, s)) * 1)

    def store(key, value, space, where, lengths):
      out = np.full(space, 99)
      for b, n in enumerate(lengths):
        out[where[b][0][:n], where[b][1][:n]] = value[b, :n]
      self.tensors[key] = place(I32, encode(I32, out)[:, :, None, None])

    p.segments_q, p.segments_k = ids(p.Sq), ids(p.Sk)
    store('segments_q', p.segments_q, self.q_space, p.q_map, p.q_len)
    if self.has('kv_table', 'kv_csr'):  # local positions
      store('segments_k', p.segments_k, (p.B, p.Sk), [(np.full(p.Sk, b), np.arange(p.Sk)) for b in range(p.B)],
            p.kv_len)
    else:
      store('segments_k', p.segments_k, self.kv_space, p.kv_map, p.kv_len)

  def flashmask(self, name):
    p, r = self.p, self.rng
    heads = p.Hkv if self.has('fm_hkv') else p.Hq if self.has('fm_hq') else 1
    shape, rows = (p.B, heads, p.Sk), p.Sq
    if name == 'fm_c1':
      c = [r.integers(rows // 2, rows + 1, shape)]
    elif name == 'fm_n2':  # i >= c0 or i < c1
      c = [r.integers(rows - 2, rows + 1, shape), np.maximum(r.integers(-2, 2, shape), 0)]
    else:  # one or two ranges, empty ones included
      start = r.integers(0, rows - 1, shape)
      c = [start, np.minimum(start + r.integers(0, 2, shape), rows)]
      if name == 'fm_n4':
        start = r.integers(0, rows - 1, shape)
        c += [start, np.minimum(start + r.integers(0, 1, shape), rows)]
    p.flashmask = np.stack(c, 3)
    self.tensors['flashmask'] = place(I32, encode(I32, p.flashmask))

  def expressions(self):
    p, r = self.p, self.rng
    used = [n for n in self.features if n in ('score_aux', 'mexpr_aux')]
    for n, name in enumerate(sorted(used, reverse=True)):
      if name == 'score_aux':
        bits = encode(F32, r.uniform(-1, 1, (p.Hq, 4, 1, 1)))
        t = place(F32, bits, last=2, pad=1) if self.has('layout_padded') else place(F32, bits)
        p.aux[name] = decode(F32, bits)[:, :, 0, 0]
      else:
        ids = r.integers(0, 1, (p.B, max(p.Sq, p.Sk) - 1, 1, 1))
        t = place(I32, encode(I32, ids))
        p.aux[name] = ids[:, :, 0, 0]
      self.tensors['aux%d' % n] = t
      self.texts[name] = 'aux%d' % n
    for table, key in ((SCORES, 'score_expr'), (MEXPRS, 'mask_expr')):
      for name in table:
        if self.has(name):
          self.texts[key] = table[name][0].replace('AUX', self.texts.get(name, ''))
    self.scalars = {}
    if self.has('score_aux'):
      p.gain = self.scalars['gain'] = float(np.float32(r.uniform(0.5, 1.5)))
    if self.has('mexpr_scalar'):
      p.cut = self.scalars['cut'] = 2.5
    if used:
      self.fields['num_aux'] = len(used)

  def gradients(self):
    p, r = self.p, self.rng
    if not p.backward:
      return
    do = encode(self.o_dtype, r.uniform(-1, 1, self.q_space + (p.Hq, p.Dv)))
    do[self.unused(self.q_space, p.q_map, p.q_len)] = encode(self.o_dtype, np.nan)
    p.dout = self.gather(decode(self.o_dtype, do), p.q_map, p.q_len, p.Sq)
    self.tensors['dout'] = place(self.o_dtype, do, **self.how(self.o_dtype))
    self.tensors['dout'].role = 1
    if self.has('dlse'):
      g = encode(F32, r.uniform(-1, 1, self.q_space + (p.Hq, 1)))
      g[self.unused(self.q_space, p.q_map, p.q_len)] = encode(F32, np.nan)
      p.dlse = self.gather(decode(F32, g), p.q_map, p.q_len, p.Sq)[..., 0]
      self.tensors['dlse'] = place(F32, g.transpose(0, 2, 1, 3))
      self.tensors['dlse'].role = 1

  def outputs(self):
    """Layouts of the outputs (no bytes) and the expected values in their shapes."""
    p = self.p
    self.fields['flags'] = self.flags | (V_IN_K if self.has('v_in_k') else 0)

    def out(key, dtype, shape, role, **how):
      how.pop('lead', None)
      self.tensors[key] = SimpleNamespace(dtype=dtype,
                                          shape=list(shape),
                                          stride=dense_strides(shape, **how),
                                          lead=0,
                                          data=b'',
                                          role=role)

    q_shape = self.q_space + (p.Hq,)
    out('o', self.o_dtype, q_shape + (p.Dv,), 4, **self.how(self.o_dtype))
    out('lse', F32, (self.q_space[0], p.Hq, self.q_space[1], 1), 4)
    out('max_s', F32, (p.Hq, 1, 1, 1), 2)
    if self.has('dropout'):
      out('dropout_mask', U8, (p.B, p.Hq, p.Sq, p.Sk), 2)
    if p.backward:
      grad = F32 if self.has('o_f32') else self.dtype
      out('dq', grad, q_shape + (p.D,), 3, **self.how(grad))
      out('dk', grad, self.tensors['k'].shape, 3, **self.how(grad))
      out('dv', grad, self.tensors['v'].shape, 3, **self.how(grad))
      if self.any_of(BIAS):
        out('dbias', self.tensors['bias'].dtype, self.tensors['bias'].shape, 3)
      if self.has('sink'):
        out('dsink', F32, (p.Hq, 1, 1, 1), 3)

  def expected(self, r):
    """Results of evaluate() in the shapes of the layouts, with UNTOUCHED and -0.0 where the file's format wants them."""
    p, e = self.p, {}

    def scatter(x, nothing, space, where, lengths):
      x = np.where(nothing, -0.0, np.where(x == 0, 0.0, x)).transpose(0, 2, 1, 3)
      out = np.full(space + x.shape[2:], UNTOUCHED)
      for b, n in enumerate(lengths):
        out[where[b][0][:n], where[b][1][:n]] = x[b, :n]
      return out

    q = (self.q_space, p.q_map, p.q_len)
    no_key = ~r.allowed.any(-1)[..., None]
    e['o'] = scatter(r.o, no_key | ~(r.allowed & r.keep).any(-1)[..., None], *q)
    e['lse'] = scatter(r.lse[..., None], np.zeros((1, 1, 1, 1), bool), *q).transpose(0, 2, 1, 3)
    e['max_s'] = r.max_s
    if self.has('dropout'):
      e['dropout_mask'] = np.where(r.inside, r.keep, 0xA5).astype(np.uint8)
    if p.backward:
      kv = (self.kv_space, p.kv_map, p.kv_len)
      fold = lambda a: a.any(2).reshape(p.B, p.Hkv, -1, p.Sk).any(2)[..., None]
      e['dq'] = scatter(r.dq, no_key, *q)
      e['dk'] = scatter(r.dk, ~fold(r.allowed), *kv)
      e['dv'] = scatter(r.dv, ~fold(r.allowed & r.keep), *kv)
      if self.any_of(BIAS):
        axes = tuple(a for a, n in enumerate(self.tensors['bias'].shape) if n == 1)
        total = r.dbias.sum(axes, keepdims=True)
        total = np.where(r.allowed.any(axes, keepdims=True), np.where(total == 0, 0.0, total), -0.0)
        row = np.broadcast_to((np.arange(p.Sq) < np.array(p.q_len)[:, None])[:, None, :, None], r.allowed.shape)
        written = row.any(axes, keepdims=True) | (
            2 in axes)  # an axis of extent 1 has no rows of its own: an empty sum is 0
        e['dbias'] = np.where(written, total, UNTOUCHED)
      if self.has('sink'):
        e['dsink'] = np.where(r.dsink == 0, 0.0, r.dsink)
    return e


def differs(a, b):
  """Some result is visibly another one."""
  return any(
      hasattr(a, k) and not np.allclose(getattr(a, k), getattr(b, k), rtol=1e-3, atol=1e-3, equal_nan=True)
      for k in ('o', 'lse', 'max_s', 'dq', 'dk', 'dv', 'dsink'))


USES_OFF = 'causal|window|window_open|chunk|alibi|alibi_b|score_cmp|mexpr_aux'


def build(features):
  """The first attempt in which each mathematical feature matters, and a third of the pairs stay visible."""
  for attempt in range(1000):
    case = Case(features, attempt)
    result = evaluate(case.p)
    if result.allowed.sum() < result.inside.sum() / 8:
      continue
    effects = [
        n for n in features if 'E' in FLAGS[n] and (n != 'top_left' or features & set(USES_OFF.split('|')))
    ]
    if all(differs(result, evaluate(case.p, {n})) for n in sorted(effects, key=lambda n: -('M' in FLAGS[n]))):
      return case, result
  raise SystemExit('no effective problem for ' + ' '.join(sorted(features, key=NAMES.index)))
