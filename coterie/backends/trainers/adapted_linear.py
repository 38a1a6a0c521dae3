"""Linear layers with an adapter on a 16-bit base, for the time of an update on a CPU.

PEFT computes the adapter in float32: it casts the input of every adapted layer, keeps that copy for the
backward pass, and adds two arrays in float32. Here the adapter's products are of 16 bits too, as its base's
are. Its weights, their gradients and the optimiser stay float32. The layers of one input share what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOW = (torch.bfloat16, torch.float16)
_inside: ContextVar[bool] = ContextVar("inside", default=False)


@contextmanager
def fused_adapters(model: Any) -> Iterator[None]:
    """Compute the model's adapted layers here, in this thread; an engine may use them in another.

    Layers of other forms, and all on a GPU, keep their forward.
    """
    layers = [module for module in model.modules() if _is_adapted(module)]
    for layer in layers:
        layer.forward = partial(_forward, layer)
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)
        for layer in layers:
            del layer.forward


def _is_adapted(module: Any) -> bool:
    """Whether it is PEFT's LoRA on a plain linear layer of 16 bits, on a CPU."""
    if type(module).__name__ != "Linear" or not hasattr(module, "lora_A") or "forward" in vars(module):
        return False
    base = module.base_layer
    return type(base) is torch.nn.Linear and base.weight.device.type == "cpu"


def _forward(layer: Any, features: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    name = None if args or kwargs or not _inside.get() else _only_adapter(layer, features)
    if name is None:
        output: Tensor = type(layer).forward(layer, features, *args, **kwargs)
        return output
    base, down, up = layer.base_layer, layer.lora_A[name], layer.lora_B[name]
    output = _AdaptedLinear.apply(  # type: ignore[no-untyped-call]
        features, base.weight, base.bias, down.weight, up.weight, float(layer.scaling[name])
    )
    return output


def _only_adapter(layer: Any, features: Tensor) -> str | None:
    """The adapter that is active, if one alone is and nothing of it is beyond two products."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if len(active) != 1 or layer.disable_adapters or layer.merged or layer.lora_variant.get(active[0]):
        return None
    name = active[0]
    base, down, up, drop = (
        layer.base_layer, layer.lora_A[name], layer.lora_B[name], layer.lora_dropout[name]
    )  # fmt: skip
    plain = isinstance(drop, torch.nn.Identity) or not drop.training or drop.p == 0
    hooks = any(module._forward_hooks or module._forward_pre_hooks for module in (base, down, up))
    low = features.dtype == base.weight.dtype and features.dtype in LOW
    fits = low and plain and not hooks and up.bias is None and not base.weight.requires_grad
    return name if fits else None


class _AdaptedLinear(torch.autograd.Function):
    """x W^T + bias + s (x A^T) B^T with a frozen W. A and B are rounded to W's dtype, their gradients not."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        down: Tensor,
        up: Tensor,
        scaling: float,
    ) -> Tensor:
        rows = features.flatten(0, -2)
        inner = rows @ down.to(rows.dtype).t()
        output = torch.nn.functional.linear(rows, weight, bias)
        output.addmm_(inner, up.to(rows.dtype).t(), alpha=scaling)
        ctx.scaling = scaling
        ctx.save_for_backward(features, weight, down, up, inner)
        return output.view(*features.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Any, ...]:
        features, weight, down, up, inner = ctx.saved_tensors
        d_rows, rows = d_output.flatten(0, -2), features.flatten(0, -2)
        d_inner = (d_rows @ up.to(d_rows.dtype)).mul_(ctx.scaling)
        d_features = None
        if ctx.needs_input_grad[0]:
            d_features = (d_rows @ weight).addmm_(d_inner, down.to(d_rows.dtype)).view_as(features)
        d_down = (d_inner.t() @ rows).to(down.dtype)
        d_up = (d_rows.t() @ inner).to(up.dtype).mul_(ctx.scaling)
        return d_features, None, None, d_down, d_up, None
