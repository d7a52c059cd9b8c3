# SPDX-License-Identifier: Apache-2.0
"""Attention kernels for every device, from Python: ctypes over libtessera's C API, with its field names.

    o = tessera.attention(q, k, v, causal=True)
    dq, dk, dv = tessera.attention_grad(q, k, v, o, lse, dout, causal=True)

Tensors are NumPy arrays, CPU tensors with DLPack (torch), or torch tensors on a GPU, for which kernels are enqueued on
the current stream; nothing is copied, unless device= names a GPU for tensors of the host. What each option means is in
include/tessera/attention.h under the same name."""
import ctypes as _c
import operator as _operator
import threading as _threading

import numpy as _np

from . import _abi, _device, _tensor

__all__ = ["attention", "attention_grad", "verdicts", "devices", "version", "Context", "TesseraError", "Invalid", "Unsupported"]


class TesseraError(RuntimeError):
    """A call failed: .status ("invalid", "unsupported", ...), .field, .text."""

    def __init__(self, error):
        self.status = _abi.STATUS[error.status] if 0 <= error.status < len(_abi.STATUS) else "unknown"
        self.field, self.text = error.field.decode(), error.text.decode()
        super().__init__(f"{self.status}: {self.text}" + (f" [{self.field}]" if self.field else ""))


class Invalid(TesseraError, ValueError):
    """The input breaks a rule."""


class Unsupported(TesseraError, NotImplementedError):
    """Valid, but no kernel here computes it."""


def _check(status, error):
    if status != 0:
        raise {1: Invalid, 2: Unsupported}.get(status, TesseraError)(error)


_lib = _abi.load()


def version():
    """Version of the library in use."""
    return _lib.tsr_version().decode()


class Context:
    """A tsr_context: device, threads, instruction set. Functions take context=; without it one default is shared."""

    def __init__(self, device=None, num_threads=0, cpu_isa=None, variant=None):
        params = _abi.ContextParams(size=_c.sizeof(_abi.ContextParams), device=_text(device), cpu_isa=_text(cpu_isa),
                                    variant=_text(variant))
        _set_integer(params, "num_threads", num_threads)
        self._handle = _c.c_void_p()
        error = _abi.Error()
        _check(_lib.tsr_context_create(params, _c.byref(self._handle), error), error)
        self._devices, self._lock = {}, _threading.Lock()

    def _device(self, name):
        """By name; None: the preferred one."""
        with self._lock:
            if name not in self._devices:
                self._devices[name] = _device.Device(_lib, self._handle, name, _check)
            return self._devices[name]

    def __del__(self):
        if getattr(self, "_handle", None) and _lib is not None:
            _lib.tsr_context_destroy(self._handle)


_default, _default_lock = None, _threading.Lock()


def _context(given):
    global _default
    if given is not None:
        return given
    with _default_lock:
        if _default is None:
            _default = Context()
        return _default


def _text(s):
    s = s.encode() if isinstance(s, str) else s
    if s is not None and b"\0" in s:
        raise ValueError(f"{s!r} has a NUL, where C would end it")
    return s


def _set_integer(struct, name, value):
    """ctypes keeps the low bits of a number that does not fit: another number, and another result."""
    value = _operator.index(value)
    setattr(struct, name, value)
    if getattr(struct, name) != value:
        raise ValueError(f"{name} is {value}, which its C type does not hold")


def devices(context=None):
    """What there is to compute on: dicts name, description, host_memory; of back ends that cannot be used here name and
    why_not."""
    context, error, found = _context(context), _abi.Error(), []
    for index in range(_lib.tsr_backend_count(context._handle)):
        info = _abi.BackendInfo(size=_c.sizeof(_abi.BackendInfo))
        _check(_lib.tsr_backend_get(context._handle, index, info, error), error)
        if info.why_not is not None:
            found.append({"name": info.name.decode(), "why_not": info.why_not.decode(errors="replace")})
        for n in range(info.device_count):
            device = context._device(f"{info.name.decode()}:{n}")
            if device.computes:
                found.append({"name": device.name, "description": device.description,
                              "host_memory": device.host_memory})
    return found


_ORDERS = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "thd": (-1, 0, 1, 2)}
_LEFT = {"cu_seqlens_q", "cu_seqlens_k", "seqlens_q", "seqlens_k", "block_table", "kv_indptr", "kv_indices",
         "last_page_len", "prefix", "mask_offsets", "mask_row_strides", "segments_q", "segments_k", "sink", "max_s",
         "dsink", "rng_state", "q_descale"}
_SHAPED = {"q", "k", "v", "o", "dout", "dq", "dk", "dv"}
_VALUES = {"batch", "max_seqlen_q", "max_seqlen_k", "num_splits", "window_left", "window_right", "sink_tokens", "chunk",
           "block_rows", "block_cols"}
_RUN = {"seed", "offset", "total_q", "total_k"}
_RUN_FLOATS = {"scale", "softcap", "dropout_p"}


def _axes(name, ndim, layout, packed, paged):
    """Which dimension of a tensor is which logical axis."""
    left = tuple(range(ndim)) + (-1,) * (4 - ndim)
    if name in _SHAPED:
        if paged and name in ("k", "v"):
            return _ORDERS["bhsd"] if layout == "bhsd" else _ORDERS["bshd"]
        return (-1, 0, 1, 2) if ndim == 3 else _ORDERS[layout]
    if name in ("lse", "dlse"):
        return (-1, 0, 1, -1) if packed and ndim == 2 else left
    if name == "segments_q" or name == "segments_k":
        return (-1, 0, -1, -1) if ndim == 1 else left
    if name == "alibi_slopes":
        return (-1, 0, -1, -1) if ndim == 1 else left
    if name in _LEFT or isinstance(name, tuple):
        return left
    return (-1,) * (4 - ndim) + tuple(range(ndim))  # masks, biases, scales: [Sq,Sk], [H,Sq,Sk], ...


class _Call:
    """One description and its arguments."""

    def __init__(self, op, layout, options):
        if layout not in _ORDERS:
            raise ValueError(f"layout is {layout!r}, must be one of {sorted(_ORDERS)}")
        self.desc = _abi.AttentionDesc(size=_c.sizeof(_abi.AttentionDesc), op=op)
        self.args = _abi.RunArgs(size=_c.sizeof(_abi.RunArgs))
        self.layout, self.tensors = layout, []  # (name, view, is output)
        self.packed = options.get("cu_seqlens_q") is not None
        self.paged = options.get("block_table") is not None or options.get("kv_indptr") is not None
        self._options(dict(options))

    def tensor(self, name, x, is_output=False):
        view = _tensor.view(name, x)
        axes = _axes(name, len(view.shape), self.layout, self.packed, self.paged)
        self.tensors.append((name, _tensor.bind(self.desc, self.args, name, view, axes), is_output))
        return x

    def _options(self, options):
        desc, args = self.desc, self.args
        scalars, aux = options.pop("scalars", None) or {}, options.pop("aux", None) or ()
        for name in ("score_expr", "mask_expr", "variant"):
            setattr(desc, name, _text(options.pop(name, None)))
        names = (_c.c_char_p * max(1, len(scalars)))(*[_text(n) for n in scalars])
        if len(scalars) > _abi.MAX_SCALARS or len(aux) > _abi.MAX_AUX:
            raise ValueError(f"at most {_abi.MAX_SCALARS} scalars and {_abi.MAX_AUX} aux tensors")
        if scalars:
            desc.scalar_names, desc.num_scalars = names, len(scalars)
        for i, value in enumerate(scalars.values()):
            args.scalars[i] = value
        desc.num_aux = len(aux)
        for i, x in enumerate(aux):
            self.tensor(("aux", i), x)
        for name, value in options.items():
            self._option(name, value)
        if options.get("window_left") is not None or options.get("window_right") is not None:
            desc.flags |= _abi.FLAGS["window"]
            for side in ("window_left", "window_right"):
                if options.get(side) is None:
                    setattr(desc, side, -1)

    def _option(self, name, value):
        if value is None or value is False and name in _abi.FLAGS:
            return
        if name in _abi.FLAGS and name not in ("chunk", "softcap"):
            if not isinstance(value, (bool, _np.bool_)):
                raise TypeError(f"{name} is {value!r}, must be True or False")
            self.desc.flags |= _abi.FLAGS[name] if value else 0
        elif name in _VALUES:
            _set_integer(self.desc, name, value)
        elif name in _RUN:
            _set_integer(self.args, name, value)
        elif name in _RUN_FLOATS:
            setattr(self.args, name, value)
        elif name in _abi.TENSORS:
            self.tensor(name, value)
        else:
            raise TypeError(f"unknown option {name!r}")
        if name in ("chunk", "softcap"):
            self.desc.flags |= _abi.FLAGS[name]
        if name == "dropout_p":
            self.desc.flags |= _abi.FLAGS["dropout"]

    def some_rows_stay(self):
        """Rows outside the used lengths are not written: the arrays made here must not show what was in their memory."""
        return self.packed or self.desc.seqlens_q.dtype or self.desc.seqlens_k.dtype

    def place(self):
        """Where the tensors are, all in one place: None for the host."""
        first, view, _ = self.tensors[0]
        for name, other, _ in self.tensors:
            if other.device != view.device:
                raise ValueError(f"{_label(name)} is on {other.device or 'the host'}, {_label(first)} on "
                                 f"{view.device or 'the host'}: all tensors must be in one place")
        return view.device

    def device(self, context, name):
        """The device to run on. A GPU's tensors decide; it is an error to ask for another one."""
        place = self.place()
        if place is not None and name is not None and (name if ":" in name else name + ":0") != place:
            raise ValueError(f"the tensors are on {place}, the call asks for {name}")
        return _context(context)._device(place or name)

    def run(self, context, name):
        device = self.device(context, name)
        if self.place() is not None:
            device.run_on_stream(self.desc, self.args, self.tensors[0][1].owner[1].device)
        elif device.host_memory:
            device.run_in_place(self.desc, self.args)
        else:
            device.run_on_copies(self.desc, self.args, self.tensors)


def _label(name):
    return f"aux[{name[1]}]" if isinstance(name, tuple) else name


def _lse_shape(call):
    d = call.desc
    if call.packed:
        return (d.q.shape[2], d.q.shape[1])
    return (d.q.shape[0], d.q.shape[2], d.q.shape[1])


def _forward(q, k, v, layout, out_dtype, want_lse, context, device, options):
    call = _Call(0, layout, options)
    for name, x in (("q", q), ("k", k), ("v", v)):
        call.tensor(name, x)
    shape = list(q.shape)
    shape[-1] = v.shape[-1]
    o = call.tensor("o", _tensor.empty_like(q, tuple(shape), out_dtype), True)
    lse = call.tensor("lse", _tensor.empty_like(q, _lse_shape(call), "f32"), True) if want_lse else None
    if call.some_rows_stay():
        o[...] = 0
        if want_lse:
            lse[...] = -float("inf")
    call.run(context, device)
    return o, lse


def attention(q, k, v, *, layout="bshd", out_dtype=None, return_lse=False, context=None, device=None, **options):
    """softmax(scale q k^T + ...) v. layout: "bshd" (default), "bhsd", or "thd" for packed tensors with cu_seqlens_q, cu_seqlens_k.

    Options have the names of tsr_attention_desc and tsr_run_args: causal, top_left, window_left, window_right, sink_tokens, chunk,
    softcap, scale, bias, mask, alibi_slopes, sink, prefix, segments_q, segments_k, flashmask, block_indptr, block_indices,
    block_rows, block_cols, cu_seqlens_q, cu_seqlens_k, seqlens_q, seqlens_k, block_table, k_scale, v_scale, dropout_p, seed,
    offset, score_expr, mask_expr, scalars={name: value}, aux=[...], deterministic, batch_invariant, variant, num_splits, ...
    Rows outside the used lengths are o = 0, lse = -inf.
    out_dtype: "f32", "f16", "bf16"; None: q's. Returns o, or (o, lse) with return_lse. Torch tensors that require a gradient
    get one. Tensors on a GPU are computed on there, on torch's current stream (all of them have to be there, lengths and
    tables too); device="cuda:0" and the like copies tensors of the host there and back. Raises Invalid, Unsupported,
    TesseraError."""
    if any(getattr(x, "requires_grad", False) for x in (q, k, v, *options.values(), *(options.get("aux") or ()))):
        from . import _autograd
        o, lse = _autograd.attention(q, k, v, layout, out_dtype, context, device, options)
    else:
        o, lse = _forward(q, k, v, layout, out_dtype, return_lse, context, device, options)
    return (o, lse) if return_lse else o


def attention_grad(q, k, v, o, lse, dout, *, layout="bshd", dlse=None, context=None, device=None, **options):
    """Gradients of attention(q, k, v, **options) for the gradient dout of its output: (dq, dk, dv), followed by dbias if a bias was
    given and dsink if a sink was."""
    call = _Call(1, layout, options)
    inputs = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "dout": dout}
    if dlse is not None:
        inputs["dlse"] = dlse
    for name, x in inputs.items():
        call.tensor(name, x)
    grads = [call.tensor("d" + name, _tensor.empty_like(inputs[name], tuple(inputs[name].shape), None), True)
             for name in ("q", "k", "v")]
    for name in ("bias", "sink"):
        if options.get(name) is not None:
            x = options[name]
            grads.append(call.tensor("d" + name, _tensor.empty_like(x, tuple(x.shape), None), True))
    if call.some_rows_stay() or call.desc.cu_seqlens_k.dtype:
        for g in grads:
            g[...] = 0
    call.run(context, device)
    return tuple(grads)


def verdicts(q, k, v, *, layout="bshd", context=None, device=None, **options):
    """What each kernel variant says to this problem: a list of dicts variant, accepted, chosen, reason."""
    call = _Call(0, layout, options)
    for name, x in (("q", q), ("k", k), ("v", v)):
        call.tensor(name, x)
    shape = list(q.shape)
    shape[-1] = v.shape[-1]
    call.tensor("o", _tensor.empty_like(q, tuple(shape), None))
    error, count, rows = _abi.Error(), _c.c_int32(64), (_abi.Verdict * 64)()
    handle = call.device(context, device)._handle
    _check(_lib.tsr_attention_verdicts(handle, call.desc, rows, _c.byref(count), error), error)
    return [{"variant": r.variant.decode(), "accepted": bool(r.accepted), "chosen": bool(r.chosen),
             "reason": r.reason.decode()} for r in rows[:min(count.value, 64)]]
