# SPDX-License-Identifier: Apache-2.0
"""attention() as a torch operation with a gradient for q, k and v."""
import torch

import tessera


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, layout, out_dtype, context, device, options):
        o, lse = tessera._forward(q, k, v, layout, out_dtype, True, context, device, options)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.set_materialize_grads(False)  # to see whether lse was used at all
        ctx.layout, ctx.context, ctx.device, ctx.options = layout, context, device, options
        return o, lse

    @staticmethod
    def backward(ctx, dout, dlse):
        q, k, v, o, lse = ctx.saved_tensors
        if dout is None:
            dout = torch.zeros_like(o)
        grads = tessera.attention_grad(q, k, v, o, lse, dout, layout=ctx.layout, dlse=dlse, context=ctx.context,
                                       device=ctx.device, **ctx.options)
        return (*grads[:3], None, None, None, None, None)


def attention(q, k, v, layout, out_dtype, context, device, options):
    others = {**options, **{f"aux[{n}]": x for n, x in enumerate(options.get("aux") or ())}}
    for name, x in others.items():
        if getattr(x, "requires_grad", False) and torch.is_grad_enabled():
            hint = f": call attention_grad, which returns d{name}" if name in ("bias", "sink") else ": it gets none here"
            raise NotImplementedError(f"{name} requires a gradient{hint}")
    return _Attention.apply(q, k, v, layout, out_dtype, context, device, options)
