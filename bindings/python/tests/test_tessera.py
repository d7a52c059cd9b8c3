# SPDX-License-Identifier: Apache-2.0
"""The bindings against NumPy in float64, on every option that Python treats specially; and every struct offset against the C compiler's.
Run: PYTHONPATH=bindings/python python3 bindings/python/tests/test_tessera.py"""
import functools
import os
import re
import subprocess
import tempfile
import unittest

import numpy as np

import tessera
from tessera import _abi, _device

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
SEED = int(os.environ.get("TESSERA_TEST_SEED", np.random.SeedSequence().entropy % 2**32))
print("seed", SEED)
try:
    import torch
except ImportError:
    torch = None


def oracle(q, k, v, scale=None, causal=False, window=None, bias=None, cap=None, sink=None):
    """Attention by the definition on [B,S,H,D] in float64: o, lse, p."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = np.repeat(k, group, 2), np.repeat(v, group, 2)
    s = np.einsum("bihd,bjhd->bhij", q, k) * (scale or q.shape[-1] ** -0.5)
    if cap:
        s = cap * np.tanh(s / cap)
    if bias is not None:
        s = s + bias
    i, j = np.arange(s.shape[2])[:, None] + s.shape[3] - s.shape[2], np.arange(s.shape[3])
    if causal:
        s = np.where(j <= i, s, -np.inf)
    if window is not None:
        s = np.where((j >= i - window[0]) & (j <= i + window[1]), s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    if sink is not None:
        total = total + np.exp(sink[None, :, None, None] - top)
    p = p / total
    return np.einsum("bhij,bjhd->bihd", p, v), (top + np.log(total))[..., 0], p


class Forward(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(SEED)

    def tensors(self, b=2, s=37, hq=4, hkv=2, d=20, dtype=np.float32):
        return (self.rng.standard_normal((b, s, h, d)).astype(dtype) for h in (hq, hkv, hkv))

    def close(self, got, want, tolerance=2e-5):
        self.assertEqual(got.shape, want.shape)
        error = np.abs(np.asarray(got, np.float64) - want).max()
        self.assertLess(error, tolerance)

    def test_plain_causal_window(self):
        q, k, v = self.tensors()
        for options, same in (({}, {}), ({"causal": True}, {"causal": True}),
                              ({"window_left": 5, "window_right": 2}, {"window": (5, 2)}),
                              ({"window_left": 0}, {"window": (0, 1000)}), ({"softcap": 2.0}, {"cap": 2.0}),
                              ({"scale": 0.3}, {"scale": 0.3})):
            with self.subTest(options):
                o, lse = tessera.attention(q, k, v, return_lse=True, **options)
                want, want_lse, _ = oracle(q, k, v, **same)
                self.close(o, want)
                self.close(lse, want_lse)

    def test_layouts_are_views(self):
        q, k, v = self.tensors()
        want = oracle(q, k, v)[0]
        moved = [np.moveaxis(x, 2, 1) for x in (q, k, v)]
        self.close(np.moveaxis(tessera.attention(*moved, layout="bhsd"), 1, 2), want)
        wide = [np.repeat(x, 2, -1)[..., ::2] for x in (q, k, v)]
        self.close(tessera.attention(*wide), want)

    def test_bias_sink_expression(self):
        q, k, v = self.tensors()
        bias = self.rng.standard_normal((37, 37)).astype(np.float32)
        sink = self.rng.standard_normal(4).astype(np.float32)
        self.close(tessera.attention(q, k, v, bias=bias, sink=sink), oracle(q, k, v, bias=bias, sink=sink)[0])
        got = tessera.attention(q, k, v, score_expr="score + w * float(i - j)", scalars={"w": 0.1})
        i = np.arange(37)
        self.close(got, oracle(q, k, v, bias=0.1 * (i[:, None] - i))[0])
        got = tessera.attention(q, k, v, score_expr="score + aux0[i, j]", aux=[bias])
        self.close(got, oracle(q, k, v, bias=bias)[0])
        self.close(tessera.attention(q, k, v, mask_expr="j <= i"), oracle(q, k, v, causal=True)[0])

    def test_packed(self):
        lengths = [5, 0, 17]
        cu = np.cumsum([0] + lengths).astype(np.int32)
        q, k, v = (self.rng.standard_normal((22, h, 16)).astype(np.float32) for h in (4, 2, 2))
        o, lse = tessera.attention(q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, batch=3, causal=True,
                                   return_lse=True)
        for a, b in zip(cu[:-1], cu[1:]):
            if a < b:
                want, want_lse, _ = oracle(q[None, a:b], k[None, a:b], v[None, a:b], causal=True)
                self.close(o[a:b], want[0])
                self.close(lse[:, a:b], want_lse[0])

    def test_half(self):
        q, k, v = self.tensors(dtype=np.float16)
        o = tessera.attention(q, k, v)
        self.assertEqual(o.dtype, np.float16)
        self.close(o, oracle(q, k, v)[0], 5e-3)
        self.assertEqual(tessera.attention(q, k, v, out_dtype="f32").dtype, np.float32)

    def test_gradient(self):
        q, k, v = self.tensors()
        bias = self.rng.standard_normal((37, 37)).astype(np.float32)
        sink = self.rng.standard_normal(4).astype(np.float32)
        dout = self.rng.standard_normal(q.shape).astype(np.float32)
        o, lse = tessera.attention(q, k, v, bias=bias, sink=sink, return_lse=True)
        dq, dk, dv, dbias, dsink = tessera.attention_grad(q, k, v, o, lse, dout, bias=bias, sink=sink)
        _, _, p = oracle(q, k, v, bias=bias, sink=sink)
        k2, v2, do = np.repeat(k, 2, 2).astype(np.float64), np.repeat(v, 2, 2).astype(np.float64), dout.astype(np.float64)
        dp = np.einsum("bihd,bjhd->bhij", do, v2)
        delta = (p * dp).sum(-1, keepdims=True)
        ds = p * (dp - delta)
        self.close(dq, np.einsum("bhij,bjhd->bihd", ds, k2) * 20 ** -0.5, 1e-4)
        pairs = lambda x: x.reshape(x.shape[0], x.shape[1], 2, 2, -1).sum(3)
        self.close(dk, pairs(np.einsum("bhij,bihd->bjhd", ds, q.astype(np.float64)) * 20 ** -0.5), 1e-4)
        self.close(dv, pairs(np.einsum("bhij,bihd->bjhd", p, do)), 1e-4)
        self.close(dbias, ds.sum((0, 1)), 1e-4)
        rest = 1 - p.sum(-1, keepdims=True)
        self.close(dsink, -(rest * delta).sum((0, 2, 3)), 1e-4)

    def test_errors(self):
        q, k, v = self.tensors()
        with self.assertRaises(tessera.Invalid) as caught:
            tessera.attention(q[:, :, :3], k, v)
        self.assertIn("q", caught.exception.field + caught.exception.text)
        with self.assertRaises(ValueError):
            tessera.attention(q, k, v, layout="hsbd")
        with self.assertRaises(TypeError):
            tessera.attention(q, k, v, casual=True)
        with self.assertRaises(TypeError):
            tessera.attention(q.astype(np.float64), k, v)
        with self.assertRaises(tessera.Invalid):
            tessera.attention(q, k, v, mask_expr="j <= (i")
        with self.assertRaises(NotImplementedError):
            big = np.zeros((1, 2, 1, 640), np.float32)
            tessera.attention(big, big, big)
        self.assertTrue(any(x["chosen"] for x in tessera.verdicts(q, k, v)))

    def test_values_that_ctypes_would_change(self):
        q, k, v = self.tensors()
        for name, value in (("window_left", 2**64 + 1), ("num_splits", 2**32 + 1), ("seed", -1), ("offset", 2**64)):
            with self.assertRaises(ValueError, msg=name):
                tessera.attention(q, k, v, dropout_p=0.5, **{name: value})
        with self.assertRaises(ValueError):
            tessera.Context(num_threads=2**32 + 1)
        with self.assertRaises(ValueError):
            tessera.attention(q, k, v, score_expr="score\0 * 2")
        for value in ("no", 0, np.ones(2, bool)):
            with self.assertRaises(TypeError, msg=repr(value)):
                tessera.attention(q, k, v, causal=value)
        self.close(tessera.attention(q, k, v, causal=np.bool_(False), window_left=np.int64(3)),
                   oracle(q, k, v, window=(3, 99))[0])

    def test_arrays_that_are_not_what_they_seem(self):
        q, k, v = self.tensors()
        swapped = np.dtype(np.float32).newbyteorder()
        for x in (q.astype(swapped), q.tolist(), None):
            with self.assertRaises(TypeError):
                tessera.attention(x, k, v)
        with self.assertRaises(TypeError):
            tessera.attention(q, k, v, seqlens_k=[37])
        with self.assertRaises(tessera.Invalid):
            tessera.attention(q[:, ::-1], k, v)
        frozen = q.copy()
        frozen.flags.writeable = False
        self.close(tessera.attention(frozen, np.broadcast_to(k[:1], k.shape), v),
                   oracle(q, np.broadcast_to(k[:1], k.shape), v)[0])

    def test_rows_outside_lengths(self):
        q, k, v = self.tensors()
        for _ in range(8):  # memory that a later array may get
            np.full(q.shape, np.nan, np.float32)
        used = np.array([5, 37], np.int32)
        o, lse = tessera.attention(q, k, v, seqlens_q=used, return_lse=True)
        self.assertTrue((o[0, 5:] == 0).all() and (lse[0, :, 5:] == -np.inf).all())
        self.close(o[1:], oracle(q[1:], k[1:], v[1:])[0])
        bias = self.rng.standard_normal((37, 37)).astype(np.float32)
        o, lse = tessera.attention(q[:1], k[:1], v[:1], seqlens_q=used[:1], bias=bias, return_lse=True)
        *_, dbias = tessera.attention_grad(q[:1], k[:1], v[:1], o, lse, np.ones_like(o), seqlens_q=used[:1], bias=bias)
        self.assertTrue((dbias[5:] == 0).all() and (dbias[:5] != 0).any())

    def test_context(self):
        q, k, v = self.tensors()
        o = tessera.attention(q, k, v, context=tessera.Context(num_threads=1, device="cpu"))
        self.close(o, oracle(q, k, v)[0])
        with self.assertRaises(tessera.Invalid):
            tessera.Context(num_threads=-2)
        empty = np.zeros((0, 4, 2, 8), np.float32)
        self.assertEqual(tessera.attention(empty, empty, empty).shape, (0, 4, 2, 8))
        self.assertRegex(tessera.version(), r"^\d+\.\d+\.\d+$")


class Devices(Forward):
    """All of the above with device= for every device of this machine: in place where it is the host's memory, else on
    copies."""

    device = "cpu:0"

    def setUp(self):
        super().setUp()
        self.plain = tessera.attention, tessera.attention_grad, tessera.verdicts
        for function in self.plain:
            setattr(tessera, function.__name__, functools.partial(function, device=self.device))

    def tearDown(self):
        for function in self.plain:
            setattr(tessera, function.__name__, function)

    def test_context(self):
        q, k, v = self.tensors()
        context = tessera.Context(device=self.device)
        self.close(self.plain[0](q, k, v, context=context), oracle(q, k, v)[0])
        with self.assertRaises(tessera.TesseraError):
            self.plain[0](q, k, v, device="warp:0")

    def test_plans_are_kept_and_let_go(self):
        q, k, v = self.tensors(b=1, s=5)
        device = tessera._context(None)._device(self.device)
        for n in range(2 * _device.MAX_PLANS):
            tessera.attention(q, k, v, window_left=n)
        self.assertEqual(len(device._plans), _device.MAX_PLANS)
        kept = next(reversed(device._plans.values()))
        tessera.attention(q, k, v, window_left=2 * _device.MAX_PLANS - 1)
        self.assertIs(next(reversed(device._plans.values())), kept)
        for w in (0.1, 0.2):  # texts are compared by what they say
            text = "score + " + "w"
            got = tessera.attention(q, k, v, score_expr=text + " * float(i - j)", scalars={"w": w})
            i = np.arange(5)
            self.close(got, oracle(q, k, v, bias=w * (i[:, None] - i))[0])


def load_tests(loader, standard, pattern):
    """Devices once for each that there is."""
    suite = unittest.TestSuite()
    for test in standard:
        if not any(isinstance(t, Devices) for t in test):
            suite.addTest(test)
    for device in tessera.devices():
        if "why_not" in device:
            print(f"{device['name']}: {device['why_not']}")
        else:
            print(f"{device['name']}: {device['description']}")
            name = "Devices " + device["name"]
            suite.addTest(loader.loadTestsFromTestCase(type(name, (Devices,), {"device": device["name"]})))
    return suite


@unittest.skipIf(torch is None, "torch is not installed")
class Torch(unittest.TestCase):
    def test_autograd(self):
        torch.manual_seed(SEED)
        q, k, v = (torch.randn(2, 4, 33, 16, requires_grad=True) for _ in range(3))
        dout = torch.randn(2, 4, 33, 16)
        tessera.attention(q, k, v, layout="bhsd", causal=True).backward(dout)
        got = [x.grad.clone() for x in (q, k, v)]
        for x in (q, k, v):
            x.grad = None
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(torch.ones(33, 33).triu(1).bool(), float("-inf"))
        (scores.softmax(-1) @ v).backward(dout)
        for a, x in zip(got, (q, k, v)):
            self.assertLess((a - x.grad).abs().max().item(), 1e-4)

    def test_gradients_it_has_not(self):
        q, k, v = (torch.randn(1, 5, 2, 8) for _ in range(3))
        for name, shape in (("bias", (5, 5)), ("sink", (2,)), ("alibi_slopes", (2,))):
            option = {name: torch.zeros(shape, requires_grad=True)}
            with self.assertRaises(NotImplementedError, msg=name):
                tessera.attention(q, k, v, **option)
            with torch.no_grad():
                self.assertFalse(tessera.attention(q, k, v, **option).requires_grad)

    def test_negated_view(self):
        q = torch.randn(1, 5, 2, 8)
        with self.assertRaises(TypeError):
            tessera.attention(torch._neg_view(q), q, q)

    def test_bfloat16(self):
        torch.manual_seed(SEED)
        q, k, v = (torch.randn(1, 21, 2, 32, dtype=torch.bfloat16) for _ in range(3))
        o = tessera.attention(q, k, v)
        self.assertEqual(o.dtype, torch.bfloat16)
        want = oracle(q.float().numpy(), k.float().numpy(), v.float().numpy())[0]
        self.assertLess(np.abs(o.float().numpy() - want).max(), 3e-2)


class Abi(unittest.TestCase):
    """The ctypes structs are the C structs, the constants the C constants."""

    STRUCTS = {"tsr_error": _abi.Error, "tsr_layout": _abi.Layout, "tsr_buffer": _abi.Buffer,
               "tsr_context_params": _abi.ContextParams, "tsr_attention_desc": _abi.AttentionDesc,
               "tsr_run_args": _abi.RunArgs, "tsr_verdict": _abi.Verdict, "tsr_backend_info": _abi.BackendInfo,
               "tsr_device_info": _abi.DeviceInfo}

    def test_offsets(self):
        lines, want = [], []
        for name, struct in self.STRUCTS.items():
            for field, _ in struct._fields_:
                lines.append(f'printf("%zu\\n", offsetof({name}, {field}));')
                want.append(getattr(struct, field).offset)
            lines.append(f'printf("%zu\\n", sizeof({name}));')
            want.append(__import__("ctypes").sizeof(struct))
        for flag, value in _abi.FLAGS.items():
            lines.append(f'printf("%llu\\n", (unsigned long long)TSR_{flag.upper()});')
            want.append(value)
        source = "#include <stdio.h>\n#include <tessera/tessera.h>\nint main(void) {" + "\n".join(lines) + "return 0;}"
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "offsets")
            with open(path + ".c", "w", encoding="utf-8") as out:
                out.write(source)
            subprocess.run(["gcc", "-std=c11", "-I", os.path.join(ROOT, "include"), path + ".c", "-o", path], check=True)
            got = [int(x) for x in subprocess.run([path], capture_output=True, check=True, text=True).stdout.split()]
        self.assertEqual(got, want)

    def test_the_readmes_run(self):
        for name in ("README.md", os.path.join("bindings", "python", "README.md")):
            with open(os.path.join(ROOT, name), encoding="utf-8") as text:
                blocks = re.findall(r"^```python\n(.*?)^```$", text.read(), re.M | re.S)
            self.assertTrue(blocks, name)
            names = {}
            exec(blocks[0], names)  # the rest of a file may show what needs torch or a device
            self.assertEqual(names["o"].shape, names["q"].shape)
            self.assertTrue(np.isfinite(names["o"]).all())

    def test_every_tensor_is_listed(self):
        with open(os.path.join(ROOT, "common", "slots.h"), encoding="utf-8") as header:
            names = re.findall(r"^  X\((\w+),", header.read(), re.M)
        self.assertEqual(tuple(names), _abi.TENSORS)


if __name__ == "__main__":
    unittest.main(verbosity=1)
