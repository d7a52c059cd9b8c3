# SPDX-License-Identifier: Apache-2.0
"""Arrays of NumPy and tensors of other frameworks as layouts and buffers, without a copy."""
import ctypes as c

import numpy as np

from . import _abi

_NUMPY = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
          "int8": "i8", "uint8": "u8", "bool": "u8", "int32": "i32", "int64": "i64"}
_DLPACK = {(0, 8): "i8", (0, 32): "i32", (0, 64): "i64", (1, 8): "u8", (2, 16): "f16", (2, 32): "f32", (4, 16): "bf16",
           (6, 8): "u8", (10, 8): "f8e4m3", (12, 8): "f8e5m2"}


class _DLTensor(c.Structure):
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int32), ("device_id", c.c_int32), ("ndim", c.c_int32),
                ("code", c.c_uint8), ("bits", c.c_uint8), ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "i32": 4, "i64": 8}
_HOST, _DEVICES = (1, 3, 11), {2: "cuda", 13: "cuda", 10: "hip"}  # device types of DLPack; 13: managed memory


class View:
    """Memory of a tensor: dtype name, shape, strides in elements, address; where it is (None: the host, else "cuda:0");
    and what keeps it alive."""

    def __init__(self, owner, dtype, shape, strides, address, device=None):
        self.owner, self.dtype, self.shape, self.strides, self.address = owner, dtype, shape, strides, address
        self.device = device

    def span_bytes(self):
        """From the first element's first byte to the last one's last."""
        if 0 in self.shape:
            return 0
        return (sum((n - 1) * s for n, s in zip(self.shape, self.strides)) + 1) * _BYTES.get(self.dtype, 1)


def _numpy_view(name, x):
    dtype = _NUMPY.get(x.dtype.name)
    if dtype is None or not x.dtype.isnative:
        raise TypeError(f"{name}: NumPy dtype {x.dtype} has no equivalent")
    if any(s % x.itemsize for s in x.strides):
        raise ValueError(f"{name}: strides {x.strides} are not multiples of the element size")
    return View(x, dtype, x.shape, tuple(s // x.itemsize for s in x.strides), x.__array_interface__["data"][0])


def _dlpack_view(name, x):
    detached = x.detach() if hasattr(x, "detach") else x
    if hasattr(x, "is_neg") and x.is_neg():  # a lazily negated view, which DLPack would export without the sign
        raise TypeError(f"{name} is a negated view: give it resolved, by resolve_neg()")
    # Kernels are enqueued on the stream that is current here: an exporter has nothing to wait for (-1).
    on_host = not hasattr(x, "__dlpack_device__") or int(x.__dlpack_device__()[0]) in _HOST
    capsule = detached.__dlpack__() if on_host else detached.__dlpack__(stream=-1)
    get = c.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
    t = _DLTensor.from_address(get(capsule, b"dltensor"))
    if t.device_type not in _HOST and t.device_type not in _DEVICES:
        raise ValueError(f"{name}: no back end computes on its memory (DLPack device type {t.device_type})")
    device = None if t.device_type in _HOST else f"{_DEVICES[t.device_type]}:{t.device_id}"
    dtype = _DLPACK.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None:
        raise TypeError(f"{name}: DLPack dtype code {t.code}, {t.bits} bits has no equivalent")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    if t.strides:
        strides = tuple(t.strides[i] for i in range(t.ndim))
    else:
        strides = tuple(int(np.prod(shape[i + 1:], dtype=np.int64)) for i in range(t.ndim))
    return View((capsule, x), dtype, shape, strides, (t.data or 0) + t.byte_offset, device)


def view(name, x):
    if isinstance(x, np.ndarray):
        return _numpy_view(name, x)
    if hasattr(x, "__dlpack__"):
        return _dlpack_view(name, x)
    raise TypeError(f"{name} must be a NumPy array or have __dlpack__, it is {type(x).__name__}")


def empty_like(x, shape, dtype):
    """A new array of x's framework, where x is. dtype: f32, f16, bf16 or None for x's own."""
    if isinstance(x, np.ndarray):
        names = {"f32": np.float32, "f16": np.float16, "u8": np.uint8, None: x.dtype}
        if dtype not in names:
            raise TypeError(f"NumPy has no {dtype}; give torch tensors")
        return np.empty(shape, names[dtype])
    import torch  # whoever gives torch tensors has it
    names = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "u8": torch.uint8, None: x.dtype}
    return torch.empty(shape, dtype=names[dtype], device=x.device)


def bind(desc, args, name, v, axes):
    """Puts the tensor of view v under `name`: axes[k] is the dimension that is logical axis k, -1 an axis of extent 1."""
    if sorted(a for a in axes if a >= 0) != list(range(len(v.shape))):
        raise ValueError(f"{name}: {len(v.shape)} dimensions do not fit here (axes {axes})")
    layout = _abi.Layout(dtype=_abi.DTYPES.index(v.dtype))
    for k, axis in enumerate(axes):
        layout.shape[k] = v.shape[axis] if axis >= 0 else 1
        layout.stride[k] = v.strides[axis] if axis >= 0 else 1
    size = _BYTES.get(v.dtype, 1)
    if name in ("q", "k", "v", "dout") and v.address and v.address % 16 == 0 and all(
            layout.shape[k] <= 1 or layout.stride[k] * size % 16 == 0 for k in range(3)):
        layout.align_bytes = 16  # what is seen may be promised: devices then load 16 bytes at once
    buffer = _abi.Buffer(v.address or None, 0)
    if v.address == 0 or 0 in v.shape:
        buffer.ptr = v.address or 64  # an empty tensor has no memory to point to, and none is touched
    if isinstance(name, tuple):
        desc.aux[name[1]], args.aux[name[1]] = layout, buffer
    else:
        setattr(desc, name, layout)
        setattr(args, name, buffer)
    return v
