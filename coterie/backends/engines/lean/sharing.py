"""One copy of a frozen base for trainer and engine: a layer's fused weights are the module's own tensors.

The lean decoder multiplies with queries, keys and values as one matrix, and with gate and up as one. A frozen
module's tensors can be consecutive rows of such a matrix. Names, shapes and values stay as they are, and so
does what a state dict saves. Weights that are trained are never shared: a batch would see half an update.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from coterie.backends.models.merged_weights import MergedWeights

FUSED: dict[str, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "out": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""A layer's linear products, and the modules whose weights are concatenated in each."""

_ALIGNMENT = 64
"""Bytes: PyTorch's tensors begin at multiples, and kernels may sum in another order elsewhere."""


def joined(parts: Sequence[Tensor]) -> Tensor | None:
    """The parts as one tensor without a copy; None: they are not consecutive rows of one."""
    first, rows, offset = parts[0], 0, parts[0].storage_offset()
    for part in parts:
        if (
            part.untyped_storage()._cdata != first.untyped_storage()._cdata
            or part.storage_offset() != offset
            or not part.is_contiguous()
            or part.dtype != first.dtype
        ):
            return None
        rows, offset = rows + len(part), offset + part.numel()
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def share(base: MergedWeights, dtype: torch.dtype) -> str | None:
    """Let the frozen tensors of each fused product be consecutive rows of one tensor, layer by layer.

    Call it while nothing computes with the module.

    Args:
        base: without an adapter.
        dtype: of the decoder.

    Returns:
        why the decoder needs copies of some weights; None: it needs none.
    """
    reason = None
    for names in _products(base):
        parts = [base[name] for name in names]
        refusal = _refusal(base, names, parts, dtype)
        if names[0].endswith("weight"):  # a copy of biases takes next to nothing
            reason = reason or refusal
        if refusal is None and joined(parts) is None:
            with torch.no_grad():
                fused = torch.cat(parts)
            start = 0
            for name, part in zip(names, parts, strict=True):
                base.move(name, fused[start : start + len(part)])
                start += len(part)
    return reason


def _products(base: MergedWeights) -> Iterator[list[str]]:
    for index in range(base.config.num_hidden_layers):
        for modules in FUSED.values():
            for kind in ("weight", "bias"):
                names = [f"model.layers.{index}.{module}.{kind}" for module in modules]
                if names[0] in base:
                    yield names


def _refusal(
    base: MergedWeights, names: Sequence[str], parts: Sequence[Tensor], dtype: torch.dtype
) -> str | None:
    """Why tensors can't be rows of one that the decoder reads; None: they can."""
    for name, part in zip(names, parts, strict=True):
        if not base.frozen(name):
            return f"{name} is trained"
        if part.dtype != dtype:
            return f"{name} is in {part.dtype}, and the decoder computes in {dtype}"
        if len(parts) > 1 and len(part) * prod(part.shape[1:]) * part.itemsize % _ALIGNMENT:
            return f"{name} has no multiple of {_ALIGNMENT} bytes"
    return None
