#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A second opinion on attention: the definition in NumPy float64, for every feature alone and every pair of features.

Needs NumPy only; reads nothing of the library. It writes pairwise.bin, which tests/pairwise.c reads:

  pairwise.py            writes pairwise.bin beside this file and prints the coverage table
  pairwise.py --check    makes everything again in memory and compares with the stored file; exit status 1 on a
                         difference (expected values may differ by float64 rounding, 1e-12, where libm or NumPy
                         differ; all other bytes must be equal)
  pairwise.py --list     prints each case with its features

  pairwise_features.py   what a problem can have, what excludes what and why, and the covering array
  pairwise_math.py       the definition, forward and backward
  pairwise_case.py       data and memory of one problem

Every allowed pair of features that can run backward is in a case that is run forward and backward, every other
allowed pair in a forward case. A case is accepted only if switching off any one of its mathematical features
changes the expected results, so that no feature hides behind another.

File, little endian, nothing aligned; str = u16 bytes, then the bytes; array = raw bytes in C order:
  "TSRPAIR1", u32 version (1), u32 cases; per case: u32 bytes of the record that follows, then
  str name, str features (names joined by blanks), f64 tolerance, str reason of the tolerance, u8 backward (0, 1)
  u16 n, n fields:  str key, u8 kind, value: 'i' i64 (also unsigned fields), 'f' f32, 't' str,
                    's' str name + f32 (a scalar)
  u16 n, n tensors: str key (a field of tsr_run_args, aux0 ...), u8 role, u8 dtype (tsr_dtype), 4 x i32 shape,
                    4 x i32 stride, i32 offset_bytes, u32 bytes, the bytes of the memory (none for outputs)
                    role 0 input; 1 input of backward only; 2 output of forward only; 3 output of backward;
                    4 output of forward, input of backward (o, lse)
  u16 n, n expected: str key (a field of tsr_reference_out), u8 kind 'd' f64 or 'b' u8, 4 x i32 shape, array
An expected float64 with the bits UNTOUCHED, a u8 of 0xA5: the element lies outside the used lengths and is not written.
An expected -0.0: nothing contributes to the element, so it is exactly zero (of either sign).
"""
import math
import os
import struct
import sys

import numpy as np

sys.dont_write_bytecode = True
from pairwise_case import build
from pairwise_features import FLAGS, NAMES, plan
from pairwise_math import UNTOUCHED, check_codecs, check_philox


# ---- The file --------------------------------------------------------------------------------------
def text(s):
  s = s.encode('ascii')
  return struct.pack('<H', len(s)) + s


def record(name, case, result):
  fields = [(k, struct.pack('<cq', b'i', v - 2**64 if v >= 2**63 else v))
            for k, v in case.fields.items()
            if isinstance(v, int)]
  fields += [(k, struct.pack('<cf', b'f', v)) for k, v in case.fields.items() if isinstance(v, float)]
  fields += [(k, b't' + text(v)) for k, v in case.texts.items() if k.endswith('_expr')]
  fields += [('scalar', b's' + text(k) + struct.pack('<f', v)) for k, v in case.scalars.items()]
  features = sorted(case.features, key=NAMES.index)
  tolerance, why = 1e-12, 'both sides compute in float64'
  out = [
      text(name),
      text(' '.join(features)),
      struct.pack('<d', tolerance),
      text(why),
      struct.pack('<B', case.p.backward),
      struct.pack('<H', len(fields))
  ]
  out += [text(k) + v for k, v in fields]
  out.append(struct.pack('<H', len(case.tensors)))
  for key, t in case.tensors.items():
    out.append(
        text(key) +
        struct.pack('<BB4i4iiI', t.role, t.dtype, *map(int, t.shape), *map(int, t.stride), t.lead, len(t.data)))
    out.append(t.data)
  expected = case.expected(result)
  out.append(struct.pack('<H', len(expected)))
  for key, value in expected.items():
    assert value.dtype == np.uint8 or (value.view(np.uint64) == UNTOUCHED.view(
        np.uint64))[np.isnan(value)].all(), (name, key)
    shape = list(value.shape) + [1] * (4 - value.ndim)
    kind = b'b' if value.dtype == np.uint8 else b'd'
    out.append(
        text(key) + kind + struct.pack('<4i', *shape) + value.astype('u1' if kind == b'b' else '<f8').tobytes())
  body = b''.join(out)
  return struct.pack('<I', len(body)) + body


def generate(cases):
  records = []
  for name, features in cases:
    with np.errstate(all='ignore'):
      records.append(record(name, *build(features)))
  return b'TSRPAIR1' + struct.pack('<II', 1, len(records)) + b''.join(records)


def only_rounding(a, b):
  """Files of equal layout (a is sound) whose bytes differ only in expected values, by at most 1e-12 of the largest."""
  if len(a) != len(b) or a[:16] != b[:16]:
    return False
  at = 16
  for _ in range(struct.unpack_from('<I', a, 12)[0]):
    end = at + 4 + struct.unpack_from('<I', a, at)[0]
    start = expected_offset(a, at + 4)
    if a[at:start] != b[at:start]:
      return False
    n = struct.unpack_from('<H', a, start)[0]
    at = start + 2
    for _ in range(n):
      at += 2 + struct.unpack_from('<H', a, at)[0]
      kind = a[at:at + 1]
      count = math.prod(struct.unpack_from('<4i', a, at + 1))
      at += 17
      size = count * (8 if kind == b'd' else 1)
      if a[at - 17:at] != b[at - 17:at] or (kind == b'b' and a[at:at + size] != b[at:at + size]):
        return False
      if kind == b'd':
        x, y = np.frombuffer(a, '<f8', count, at), np.frombuffer(b, '<f8', count, at)
        mark = lambda v: ~np.isfinite(v) | ((v == 0) & np.signbit(v))  # and infinities: bit for bit
        odd = mark(x) | mark(y)
        if (x.view(np.uint64) != y.view(np.uint64))[odd].any():
          return False
        x, y = x[~odd], y[~odd]
        if x.size and np.abs(x - y).max() > 1e-12 * max(1.0, np.abs(x).max()):
          return False
      at += size
    if at != end:
      return False
  return at == len(a)


def expected_offset(data, at):
  """Where the expected values of the record at `at` begin."""

  def skip_text(at):
    return at + 2 + struct.unpack_from('<H', data, at)[0]

  at = skip_text(skip_text(at)) + 8
  at = skip_text(at) + 1
  n = struct.unpack_from('<H', data, at)[0]
  at += 2
  for _ in range(n):
    at = skip_text(at)
    kind = data[at:at + 1]
    at += 1
    at = at + 8 if kind == b'i' else at + 4 if kind == b'f' else skip_text(at) + (4 if kind == b's' else 0)
  n = struct.unpack_from('<H', data, at)[0]
  at += 2
  for _ in range(n):
    at = skip_text(at)
    at += 42 + struct.unpack_from('<I', data, at + 38)[0]
  return at


def main(arguments):
  if arguments not in ([], ['--check'], ['--list']):
    sys.exit('usage: pairwise.py [--check | --list]')
  check_codecs()
  check_philox()
  cases, table = plan()
  if arguments == ['--list']:
    for name, features in cases:
      print('%-16s %s' % (name, ' '.join(sorted(features, key=NAMES.index))))
    return
  path = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'pairwise.bin')
  data = generate(cases)
  print('%d features, %d pairs' % (len(NAMES), len(NAMES) * (len(NAMES) - 1) // 2))
  print('  %4d forward and backward, %d forward only: all covered by %d cases, %d of them backward too' % (len(
      table.both), len(table.forward), len(cases), sum(not any('F' in FLAGS[n] for n in c) for _, c in cases)))
  for why, pairs in sorted(table.refused.items(), key=lambda x: (-len(x[1]), x[0])):
    print('  %4d excluded: %s' % (len(pairs), why) +
          (' (%s)' % ', '.join(pairs) if why.startswith('one needs') else ''))
  if arguments == ['--check']:
    with open(path, 'rb') as f:
      stored = f.read()
    if stored == data:
      print('pairwise.bin: identical, %d bytes' % len(data))
    elif only_rounding(data, stored):
      print('pairwise.bin: equal but for float64 rounding of expected values')
    else:
      sys.exit('pairwise.bin differs')
  else:
    with open(path, 'wb') as f:
      f.write(data)
    print('pairwise.bin: %d bytes' % len(data))


if __name__ == '__main__':
  main(sys.argv[1:])
