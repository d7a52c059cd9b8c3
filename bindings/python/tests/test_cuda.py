# SPDX-License-Identifier: Apache-2.0
"""torch tensors on a GPU: on the current stream, without copies, under autograd, in a captured graph, on another device than the
current one. Needs torch with CUDA or ROCm and a library with that back end; says what is missing, and exits with 77, where it cannot run.
Run: TESSERA_LIBRARY=build/libtessera.so.0 PYTHONPATH=bindings/python python3 bindings/python/tests/test_cuda.py"""
import os
import sys
import threading
import time
import unittest

SEED = int(os.environ.get("TESSERA_TEST_SEED", time.time_ns() % 2**32))


def missing():
    """Why these tests cannot run here, or None."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    import tessera
    name = "hip" if torch.version.hip else "cuda"
    for device in tessera.devices():
        if device["name"] == name + ":0":
            print(f"{device['name']}: {device['description']}")
            return None
        if device["name"] == name:
            return f"{name}: {device['why_not']}"
    return f"the library has no {name} back end"


REASON = missing()
if REASON is not None:
    print(f"skipped: {REASON}")
    sys.exit(77)

import torch  # noqa: E402

import tessera  # noqa: E402

PLACE = "hip" if torch.version.hip else "cuda"
print("seed", SEED, "torch", torch.__version__)


def oracle(q, k, v, causal=False, left=None, kv_len=None, bias=None):
    """The definition in float64 on [B,S,H,D]: o, lse. kv_len: a used length for each sequence."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    s = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
    if bias is not None:
        s = s + bias
    j = torch.arange(s.shape[3], device=q.device)
    length = torch.full((q.shape[0],), s.shape[3], device=q.device) if kv_len is None else kv_len.long()
    i = torch.arange(s.shape[2], device=q.device)[None, :, None] + (length - s.shape[2])[:, None, None]
    seen = (j < length[:, None, None]).expand(-1, s.shape[2], -1)
    if causal:
        seen = seen & (j <= i)
    if left is not None:
        seen = seen & (j >= i - left)
    s = s.masked_fill(~seen[:, None], float("-inf"))
    return torch.einsum("bhij,bjhd->bihd", s.softmax(-1).nan_to_num(), v), s.logsumexp(-1)


class Cuda(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(SEED)
        self.device = torch.device("cuda", torch.cuda.current_device())

    def tensors(self, b=2, s=70, hq=4, hkv=2, d=64, dtype=torch.float32, device=None, sk=None):
        device = device or self.device
        return [torch.randn(b, n, h, d, device=device).to(dtype) for n, h in ((s, hq), (sk or s, hkv), (sk or s, hkv))]

    def close(self, got, want, tolerance=5e-6):
        self.assertEqual(got.shape, want.shape)
        self.assertLess((got.double() - want).abs().max().item(), tolerance)

    def test_dtypes_and_masks(self):
        for dtype, tolerance in ((torch.float32, 5e-6), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)):
            q, k, v = self.tensors(dtype=dtype)
            for options, same in (({}, {}), ({"causal": True}, {"causal": True}),
                                  ({"causal": True, "window_left": 9}, {"causal": True, "left": 9})):
                with self.subTest(dtype=dtype, options=options):
                    o, lse = tessera.attention(q, k, v, return_lse=True, **options)
                    self.assertEqual((o.dtype, o.device, lse.device), (dtype, q.device, q.device))
                    want, want_lse = oracle(q, k, v, **same)
                    self.close(o, want, tolerance)
                    self.close(lse, want_lse, 5e-5)

    def test_views_are_not_copied(self):
        q, k, v = self.tensors(b=2, s=256, d=64)
        want = oracle(q, k, v, causal=True)[0]
        moved = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        self.close(tessera.attention(*moved, layout="bhsd", causal=True).transpose(1, 2), want)
        packed = torch.stack([q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)], 2)  # [B,S,3,H,D]
        views = packed.unbind(2)
        self.close(tessera.attention(*views, causal=True), want)
        big = torch.randn(1, 4096, 8, 128, device=self.device, dtype=torch.bfloat16)
        tessera.attention(big, big, big)  # whatever a first call takes
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        o = tessera.attention(big[..., ::2], big[..., ::2], big[..., ::2])
        torch.cuda.synchronize()
        extra = torch.cuda.max_memory_allocated() - before
        self.assertLess(extra, o.numel() * 2 + 4096 * 8 * 4 * 4 + (1 << 20))  # o, and no copies of q, k, v

    def test_paged(self):
        lengths = torch.tensor([37, 64, 1], dtype=torch.int32, device=self.device)
        pages = torch.randperm(16, device=self.device).to(torch.int32)
        table = pages[:12].reshape(3, 4).contiguous()
        k, v = (torch.randn(16, 16, 2, 64, device=self.device) for _ in range(2))
        q = torch.randn(3, 1, 4, 64, device=self.device)
        got = tessera.attention(q, k, v, block_table=table, seqlens_k=lengths)
        dense = [x[table.long()].reshape(3, 64, 2, 64) for x in (k, v)]
        self.close(got, oracle(q, *dense, kv_len=lengths)[0])

    def test_current_stream(self):
        """In the order of the stream that is current, and without waiting for it."""
        q, k, v = self.tensors(s=128)
        late, want = torch.randn_like(q), None
        tessera.attention(q, k, v)  # plans
        want = oracle(late, k, v)[0]
        for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
            torch.cuda.synchronize()
            q.zero_()
            torch.cuda.synchronize()
            with torch.cuda.stream(stream):
                begun = time.perf_counter()
                torch.cuda._sleep(500_000_000)  # cycles: a quarter of a second or more
                q.copy_(late)
                o = tessera.attention(q, k, v)
                enqueued = time.perf_counter() - begun
                q.fill_(float("nan"))
            stream.synchronize()
            took = time.perf_counter() - begun
            self.close(o, want)
            self.assertGreater(took, 0.1)
            self.assertLess(enqueued, took / 2)

    def test_autograd(self):
        for dtype, tolerance in ((torch.float32, 2e-5), (torch.bfloat16, 6e-2)):
            q, k, v = self.tensors(dtype=dtype)
            dout = torch.randn_like(q)
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            tessera.attention(*leaves, causal=True).backward(dout)
            exact = [x.double().requires_grad_() for x in (q, k, v)]
            oracle(*exact, causal=True)[0].backward(dout.double())
            for a, b in zip(leaves, exact):
                self.assertEqual(a.grad.device, q.device)
                self.assertLess((a.grad.double() - b.grad).abs().max().item(), tolerance * b.grad.abs().max().item())

    def test_autograd_of_lse(self):
        q, k, v = self.tensors()
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        tessera.attention(*leaves, return_lse=True)[1].sum().backward()
        exact = [x.double().requires_grad_() for x in (q, k, v)]
        oracle(*exact)[1].sum().backward()
        self.close(leaves[0].grad, exact[0].grad, 2e-5)
        self.close(leaves[1].grad, exact[1].grad, 2e-5)
        self.assertEqual(leaves[2].grad.abs().max().item(), 0)

    def test_packed_gradients(self):
        lengths = [5, 0, 64, 33]
        cu = torch.tensor([0] + lengths, device=self.device).cumsum(0).to(torch.int32)
        q, k, v = (torch.randn(sum(lengths), h, 64, device=self.device, requires_grad=True) for h in (4, 2, 2))
        dout = torch.randn(sum(lengths), 4, 64, device=self.device)
        tessera.attention(q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=64, max_seqlen_k=64,
                          causal=True).backward(dout)
        got = [x.grad.clone() for x in (q, k, v)]
        at = 0
        for n in lengths:
            part = [x.detach()[None, at:at + n].double().requires_grad_() for x in (q, k, v)]
            if n:
                oracle(*part, causal=True)[0].backward(dout[None, at:at + n].double())
                for g, x in zip(got, part):
                    self.close(g[at:at + n], x.grad[0], 2e-5)
            at += n

    def test_graph(self):
        """Captured once, replayed with other numbers, other lengths and a workspace full of NaN."""
        q, k, v = self.tensors(b=3, s=1, sk=900)
        lengths = torch.tensor([900, 900, 900], dtype=torch.int32, device=self.device)

        def step():
            o, lse = tessera.attention(q, k, v, seqlens_k=lengths, num_splits=5, return_lse=True)
            # takes the memory that the workspace gave back, for the next replay to find
            dirt = [torch.full((1 << n,), float("nan"), device=self.device) for n in range(8, 20)]
            del dirt
            return o, lse

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o, lse = step()
        for used in ([900, 900, 900], [1, 0, 257], [64, 899, 128], [333, 2, 65]):
            for x in (q, k, v):
                x.normal_()
            lengths.copy_(torch.tensor(used, dtype=torch.int32))
            graph.replay()
            torch.cuda.synchronize()
            want, want_lse = oracle(q, k, v, kv_len=lengths)
            self.close(o, want)
            seen = torch.tensor(used, device=self.device) > 0
            self.close(lse[seen], want_lse[seen], 5e-5)
            self.assertTrue((lse[~seen] == float("-inf")).all())

    def test_graph_of_a_training_step(self):
        q, k, v = self.tensors(s=96)
        dout, o_grads = torch.randn_like(q), None

        def step():
            o, lse = tessera.attention(q, k, v, causal=True, return_lse=True)
            return (o, *tessera.attention_grad(q, k, v, o, lse, dout, causal=True))

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o_grads = step()
        for _ in range(3):
            for x in (q, k, v, dout):
                x.normal_()
            graph.replay()
            torch.cuda.synchronize()
            exact = [x.double().requires_grad_() for x in (q, k, v)]
            want = oracle(*exact, causal=True)[0]
            want.backward(dout.double())
            self.close(o_grads[0], want.detach())
            for got, x in zip(o_grads[1:], exact):
                self.close(got, x.grad, 2e-5 * x.grad.abs().max().item())

    def test_threads_with_streams_of_their_own(self):
        q, k, v = self.tensors(s=200)
        want = tessera.attention(q, k, v, causal=True, deterministic=True)
        torch.cuda.synchronize()
        wrong = []

        def work():
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(20):
                    o = tessera.attention(q, k, v, causal=True, deterministic=True)
                    torch.cuda.current_stream().synchronize()
                    if not torch.equal(o, want):
                        wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])

    @unittest.skipIf(torch.cuda.device_count() < 2, "one GPU only")
    def test_another_device_than_the_current_one(self):
        other = torch.device("cuda", 1 if self.device.index == 0 else 0)
        q, k, v = self.tensors(device=other)
        before = torch.cuda.current_device()
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        o = tessera.attention(*leaves, causal=True)
        o.sum().backward()
        self.assertEqual(torch.cuda.current_device(), before)
        self.assertEqual(o.device, other)
        torch.cuda.synchronize(other)
        self.close(o.detach(), oracle(q, k, v, causal=True)[0])
        here = torch.randn_like(q, device=self.device)
        with self.assertRaises(ValueError):
            tessera.attention(here, k, v)
        with self.assertRaises(ValueError):
            tessera.attention(q, k, v, device=f"{PLACE}:{before}")

    def test_errors(self):
        q, k, v = self.tensors()
        with self.assertRaisesRegex(ValueError, "host"):
            tessera.attention(q.cpu(), k, v)
        with self.assertRaisesRegex(ValueError, "seqlens_k"):
            tessera.attention(q, k, v, seqlens_k=torch.tensor([3, 4], dtype=torch.int32))
        with self.assertRaisesRegex(ValueError, "cpu"):
            tessera.attention(q, k, v, device="cpu")
        with self.assertRaises(TypeError):
            tessera.attention(q.double(), k.double(), v.double())
        with self.assertRaises(tessera.Invalid):
            tessera.attention(q, k[..., :3], v)
        self.assertTrue(any(x["chosen"] for x in tessera.verdicts(q, k, v)))
        torch.cuda.synchronize()  # nothing of it has harmed the device

    def test_host_tensors_on_copies(self):
        q, k, v = (x.cpu() for x in self.tensors())
        o, lse = tessera.attention(q, k, v, causal=True, return_lse=True, device=f"{PLACE}:{self.device.index}")
        self.assertEqual(o.device.type, "cpu")
        want, want_lse = oracle(q, k, v, causal=True)
        self.close(o, want)
        self.close(lse, want_lse, 5e-5)

    def test_host_cost(self):
        """Not a limit: says how long a call takes to enqueue."""
        q, k, v = self.tensors(b=1, s=16)
        for _ in range(10):
            tessera.attention(q, k, v)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(200):
            tessera.attention(q, k, v)
        print(f"a call of tessera.attention takes {(time.perf_counter() - begun) / 200 * 1e6:.0f} us to enqueue")
        torch.cuda.synchronize()


if __name__ == "__main__":
    unittest.main(verbosity=2)
