# SPDX-License-Identifier: Apache-2.0
"""The structs and functions of include/tessera/*.h as ctypes, field for field (a test compares every offset with the C compiler's), and
finding the library."""
import ctypes as c
import ctypes.util
import os

DTYPES = ("none", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8", "u4", "u8", "bit", "i32", "i64", "f8e4m3fnuz",
          "f8e5m2fnuz")
FLAGS = {"causal": 0x1, "top_left": 0x2, "window": 0x4, "chunk": 0x8, "softcap": 0x10, "dropout": 0x20, "v_in_k": 0x40,
         "fast": 0x80, "deterministic": 0x100, "batch_invariant": 0x200}
STATUS = ("ok", "invalid", "unsupported", "out of workspace", "out of memory", "backend missing", "device error",
          "device lost", "cancelled", "forked", "io")
MAX_SCALARS, MAX_AUX = 16, 8

# The tensors of tsr_attention_desc and tsr_run_args, in the order of the description.
_MAIN = ("q", "k", "v", "o", "lse", "max_s", "cu_seqlens_q", "cu_seqlens_k", "seqlens_q", "seqlens_k", "block_table",
         "kv_indptr", "kv_indices", "last_page_len")
_MASKS = ("prefix", "mask", "mask_offsets", "mask_row_strides", "segments_q", "segments_k", "flashmask")
_BLOCKS = ("block_indptr", "block_indices", "bias", "alibi_slopes", "sink")
_SCALES = ("k_scale", "k_zero", "v_scale", "v_zero", "q_descale", "rng_state", "dropout_mask")
_GRADS = ("dout", "dlse", "dq", "dk", "dv", "dbias", "dsink")
TENSORS = _MAIN + _MASKS + _BLOCKS + _SCALES + _GRADS


class Error(c.Structure):
    _fields_ = [("status", c.c_int32), ("native_code", c.c_int32), ("field", c.c_char * 64), ("text", c.c_char * 440)]


class Layout(c.Structure):
    _fields_ = [("dtype", c.c_int32), ("align_bytes", c.c_int32), ("shape", c.c_int64 * 4), ("stride", c.c_int64 * 4),
                ("reserved", c.c_int64 * 2)]


class Buffer(c.Structure):
    _fields_ = [("ptr", c.c_void_p), ("offset_bytes", c.c_int64)]


class ContextParams(c.Structure):
    _fields_ = [("size", c.c_size_t), ("flags", c.c_uint64), ("alloc", c.c_void_p), ("free", c.c_void_p),
                ("log", c.c_void_p), ("log_level", c.c_int32), ("num_threads", c.c_int32),
                ("parallel_for", c.c_void_p), ("should_stop", c.c_void_p), ("user", c.c_void_p),
                ("device", c.c_char_p), ("cpu_isa", c.c_char_p), ("variant", c.c_char_p),
                ("compile", c.c_int32), ("reserved", c.c_int32), ("cache_dir", c.c_char_p),
                ("cache_get", c.c_void_p), ("cache_put", c.c_void_p),
                ("nvrtc_path", c.c_char_p), ("hiprtc_path", c.c_char_p), ("opencl_path", c.c_char_p)]


def _layouts(names):
    return [(name, Layout) for name in names]


class AttentionDesc(c.Structure):
    _fields_ = [("size", c.c_size_t), ("op", c.c_int32), ("memory", c.c_int32), ("flags", c.c_uint64),
                ("batch", c.c_int64), ("max_seqlen_q", c.c_int64), ("max_seqlen_k", c.c_int64),
                ("variant", c.c_char_p), ("num_splits", c.c_int32), ("num_aux", c.c_int32),
                *_layouts(_MAIN),
                ("window_left", c.c_int64), ("window_right", c.c_int64), ("sink_tokens", c.c_int64),
                ("chunk", c.c_int64),
                *_layouts(_MASKS),
                ("block_rows", c.c_int32), ("block_cols", c.c_int32),
                *_layouts(_BLOCKS), *_layouts(_SCALES),
                ("score_expr", c.c_char_p), ("mask_expr", c.c_char_p), ("scalar_names", c.POINTER(c.c_char_p)),
                ("num_scalars", c.c_int64), ("aux", Layout * MAX_AUX),
                *_layouts(_GRADS)]


class RunArgs(c.Structure):
    _fields_ = [("size", c.c_size_t), ("batch", c.c_int64), ("total_q", c.c_int64), ("total_k", c.c_int64),
                ("scale", c.c_float), ("softcap", c.c_float), ("dropout_p", c.c_float), ("reserved", c.c_uint32),
                ("seed", c.c_uint64), ("offset", c.c_uint64), ("scalars", c.c_float * MAX_SCALARS),
                *[(name, Buffer) for name in _MAIN + _MASKS + _BLOCKS + _SCALES],
                ("aux", Buffer * MAX_AUX),
                *[(name, Buffer) for name in _GRADS],
                ("workspace", Buffer), ("workspace_bytes", c.c_int64),
                ("host_cu_seqlens_q", c.c_void_p), ("host_cu_seqlens_k", c.c_void_p),
                ("host_seqlens_q", c.c_void_p), ("host_seqlens_k", c.c_void_p),
                ("queue", c.c_void_p), ("wait_events", c.c_void_p), ("num_wait_events", c.c_int64),
                ("event", c.c_void_p), ("stats", c.c_void_p)]


class BackendInfo(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("why_not", c.c_char_p), ("device_count", c.c_int32),
                ("reserved", c.c_int32)]


class DeviceInfo(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("description", c.c_char_p), ("backend", c.c_char_p),
                ("isa", c.c_char_p), ("num_threads", c.c_int32), ("computes", c.c_int32), ("local_bytes", c.c_int64),
                ("host_memory", c.c_int32), ("memory_kinds", c.c_int32)]


class Verdict(c.Structure):
    _fields_ = [("variant", c.c_char * 48), ("accepted", c.c_int32), ("chosen", c.c_int32), ("reason", c.c_char * 200)]


def _candidates():
    """Where the library may be, in order: TESSERA_LIBRARY, beside this package, the source tree's build folder, the system."""
    named = os.environ.get("TESSERA_LIBRARY")
    if named:
        return [named]
    here = os.path.dirname(os.path.abspath(__file__))
    found = [os.path.join(here, "libtessera.so.0"), os.path.join(here, "..", "..", "..", "build", "libtessera.so.0")]
    return [path for path in found if os.path.exists(path)] + ["libtessera.so.0"]


def load():
    last = None
    for path in _candidates():
        try:
            lib = c.CDLL(path)
            break
        except OSError as error:
            last = error
    else:
        raise ImportError(f"libtessera was not found ({last}); build it, or set TESSERA_LIBRARY to its path")
    error, context = c.POINTER(Error), c.c_void_p
    lib.tsr_version.restype = c.c_char_p
    lib.tsr_context_create.argtypes = [c.POINTER(ContextParams), c.POINTER(context), error]
    lib.tsr_context_destroy.argtypes = [context]
    lib.tsr_context_destroy.restype = None
    device, plan, buffer = c.c_void_p, c.c_void_p, c.POINTER(Buffer)
    lib.tsr_device_open.argtypes = [context, c.c_char_p, c.POINTER(c.c_void_p), error]
    lib.tsr_device_close.argtypes = [c.c_void_p]
    lib.tsr_device_close.restype = None
    lib.tsr_attention_verdicts.argtypes = [c.c_void_p, c.POINTER(AttentionDesc), c.POINTER(Verdict),
                                           c.POINTER(c.c_int32), error]
    lib.tsr_backend_count.argtypes = [context]
    lib.tsr_backend_get.argtypes = [context, c.c_int32, c.POINTER(BackendInfo), error]
    lib.tsr_device_get.argtypes = [device, c.POINTER(DeviceInfo), error]
    lib.tsr_plan_attention.argtypes = [device, c.POINTER(AttentionDesc), c.POINTER(c.c_void_p), error]
    lib.tsr_plan_workspace.argtypes = [plan, c.POINTER(c.c_int64), c.POINTER(c.c_int64), error]
    lib.tsr_plan_destroy.argtypes = [plan]
    lib.tsr_plan_destroy.restype = None
    lib.tsr_run_attention.argtypes = [plan, c.POINTER(RunArgs), error]
    lib.tsr_memory_alloc.argtypes = [device, c.c_int64, c.POINTER(c.c_void_p), error]
    lib.tsr_memory_free.argtypes = [device, c.c_void_p]
    lib.tsr_memory_free.restype = None
    lib.tsr_memory_write.argtypes = [device, buffer, c.c_void_p, c.c_int64, error]
    lib.tsr_memory_read.argtypes = [device, c.c_void_p, buffer, c.c_int64, error]
    lib.tsr_device_wait.argtypes = [device, c.c_void_p, error]
    return lib
