# SPDX-License-Identifier: Apache-2.0
"""Devices: plans that are kept, and runs in place, on the current stream, or on copies."""
import collections
import ctypes as c
import threading

from . import _abi

MAX_PLANS = 64  # kept by a device; the one that was used least recently goes


class Device:
    """An open tsr_device. check(status, error) raises."""

    def __init__(self, lib, context, name, check):
        self._lib, self._check = lib, check
        self._handle, error = c.c_void_p(), _abi.Error()
        check(lib.tsr_device_open(context, name.encode() if name else None, c.byref(self._handle), error), error)
        info = _abi.DeviceInfo(size=c.sizeof(_abi.DeviceInfo))
        check(lib.tsr_device_get(self._handle, info, error), error)
        self.name, self.description = info.name.decode(), info.description.decode(errors="replace")
        self.host_memory, self.computes = bool(info.host_memory), bool(info.computes)
        self._plans, self._lock = collections.OrderedDict(), threading.Lock()

    def __del__(self):
        if getattr(self, "_handle", None) and self._lib is not None:
            for plan in getattr(self, "_plans", {}).values():
                plan.release()
            self._lib.tsr_device_close(self._handle)

    def _plan(self, desc):
        """A plan for the description. What it points to is compared by what it says."""
        plain = _abi.AttentionDesc.from_buffer_copy(desc)
        names = tuple(desc.scalar_names[i] for i in range(desc.num_scalars))
        plain.score_expr = plain.mask_expr = plain.variant = None
        plain.scalar_names = c.POINTER(c.c_char_p)()
        key = (bytes(plain), desc.score_expr, desc.mask_expr, desc.variant, names)
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
                return plan
        plan = _Plan(self._lib, self._handle, desc, self._check)
        with self._lock:
            self._plans[key] = plan
            while len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)  # whoever runs it keeps it until then
        return plan

    def _run(self, plan, args):
        error = _abi.Error()
        self._check(self._lib.tsr_run_attention(plan.handle, args, error), error)

    def _wait(self):
        error = _abi.Error()
        self._check(self._lib.tsr_device_wait(self._handle, None, error), error)

    def _new(self, size):
        ptr, error = c.c_void_p(), _abi.Error()
        self._check(self._lib.tsr_memory_alloc(self._handle, size, c.byref(ptr), error), error)
        return ptr.value

    def run_in_place(self, desc, args):
        """Tensors are host memory, and so is the device's."""
        plan, workspace = self._plan(desc), None
        try:
            if plan.workspace_bytes:
                workspace = self._new(plan.workspace_bytes)
                args.workspace, args.workspace_bytes = _abi.Buffer(workspace, 0), plan.workspace_bytes
            self._run(plan, args)
        finally:
            self._lib.tsr_memory_free(self._handle, workspace)

    def run_on_stream(self, desc, args, torch_device):
        """Tensors are the device's. Enqueues on torch's current stream and returns; the workspace is torch's, which gives
        its memory to later work of that stream only."""
        import torch  # whose tensors they are
        plan = self._plan(desc)
        if plan.workspace_bytes:
            workspace = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=torch_device)
            args.workspace, args.workspace_bytes = _abi.Buffer(workspace.data_ptr(), 0), plan.workspace_bytes
        args.queue = torch.cuda.current_stream(torch_device).cuda_stream
        self._run(plan, args)

    def run_on_copies(self, desc, args, tensors):
        """Tensors are host memory, the device has its own. tensors: (name, view, is_output)."""
        plan, made, error = self._plan(desc), [], _abi.Error()
        try:
            for name, view, _ in tensors:
                made.append(self._new(view.span_bytes()))
                buffer = _abi.Buffer(made[-1], 0)
                self._check(self._lib.tsr_memory_write(self._handle, buffer, view.address or None, view.span_bytes(),
                                                       error), error)
                if isinstance(name, tuple):
                    args.aux[name[1]] = buffer
                else:
                    setattr(args, name, buffer)
            if plan.workspace_bytes:
                made.append(self._new(plan.workspace_bytes))
                args.workspace, args.workspace_bytes = _abi.Buffer(made[-1], 0), plan.workspace_bytes
            self._run(plan, args)
            self._wait()
            for (_, view, is_output), ptr in zip(tensors, made):
                if is_output:
                    self._check(self._lib.tsr_memory_read(self._handle, view.address or None, _abi.Buffer(ptr, 0),
                                                          view.span_bytes(), error), error)
        finally:
            for ptr in made:
                self._lib.tsr_memory_free(self._handle, ptr)


class _Plan:
    def __init__(self, lib, device, desc, check):
        self._lib, self.handle, error = lib, c.c_void_p(), _abi.Error()
        check(lib.tsr_plan_attention(device, desc, c.byref(self.handle), error), error)
        size = c.c_int64()
        check(lib.tsr_plan_workspace(self.handle, c.byref(size), None, error), error)
        self.workspace_bytes = size.value

    def release(self):
        if self.handle:
            self._lib.tsr_plan_destroy(self.handle)
            self.handle = c.c_void_p()

    def __del__(self):
        if getattr(self, "handle", None) and self._lib is not None:
            self.release()
