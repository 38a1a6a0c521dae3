"""Attention over packed rows, as an implementation that transformers' models call by name.

Prompts attend to themselves once, completions to [their prompt | themselves], in blocks of similar length.
A dense 4-D mask over the packed row is the alternative; its cost is quadratic in the sum of all lengths.

Measured on one CPU thread, for 8 groups of 8 completions of 64 tokens (0.66 M parameters, forward and
backward). With prompts of 32 tokens: 0.30 s, against 0.41 s with the dense mask and 0.39 s for padded rows
that share nothing. With prompts of 512 tokens: 0.85 s against 1.1 s and 3.8 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from coterie.backends.trainers.packing import Packed

NAME = "coterie_packed"

_REFUSED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of some models' attention that the packed attention doesn't compute."""


class Unsupported(Exception):
    """The model's attention has a feature that the packed attention lacks."""


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """`Packed.blocks` on the device."""

    blocks: tuple[tuple[Tensor, Tensor | None, Tensor | None], ...]
    """queries (n * Q,); keys (n * L,) or None for the queries; mask (n or 1, 1, Q, L) or None for causal."""
    shapes: tuple[tuple[int, int], ...]
    """(n, Q) of every block."""
    restore: Tensor


def layout_of(packed: Packed, device: Any) -> Layout:
    """The tensors of a packed row's blocks."""
    assert packed.restore is not None
    blocks, shapes = [], []
    for block in packed.blocks:
        count, longest = block.queries.shape
        keys = mask = None
        if block.keys is not None and block.offsets is not None:
            offsets = block.offsets[:1] if (block.offsets == block.offsets[0]).all() else block.offsets
            row = torch.from_numpy(offsets).view(-1, 1, 1, 1) + torch.arange(longest).view(1, 1, -1, 1)
            mask = (torch.arange(block.keys.shape[1]) <= row).to(device)
            keys = torch.from_numpy(block.keys).reshape(-1).to(device)
        blocks.append((torch.from_numpy(block.queries).reshape(-1).to(device), keys, mask))
        shapes.append((count, longest))
    return Layout(tuple(blocks), tuple(shapes), torch.from_numpy(packed.restore).to(device))


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Layout | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Packed attention with transformers' attention interface; plain SDPA without a layout.

    Args:
        query: shape (1, H, T, D); `key` and `value` (1, H_kv, T, D).

    Returns:
        shape (1, T, H, D).
    """
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise Unsupported(f"its attention uses {name}")
    repeats = query.shape[1] // key.shape[1]
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]  # (T, heads, D)
    outputs = []
    for (queries, keys, mask), (count, longest) in zip(layout.blocks, layout.shapes, strict=True):
        q = _gather(rows[0], queries, count, 1)
        k, v = (_gather(tensor, queries if keys is None else keys, count, repeats) for tensor in rows[1:])
        output = scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling
        )
        outputs.append(output.transpose(1, 2).reshape(count * longest, *output.shape[1::2]))
    return torch.cat(outputs).index_select(0, layout.restore)[None], None


def _gather(rows: Tensor, index: Tensor, count: int, repeats: int) -> Tensor:
    """(T, heads, D) to (count, heads * repeats, length, D)."""
    gathered = rows.index_select(0, index).view(count, -1, *rows.shape[1:]).transpose(1, 2)
    return gathered.repeat_interleave(repeats, dim=1) if repeats > 1 else gathered


@contextmanager
def packed_rows(model: Any) -> Iterator[None]:
    """Make the model use packed attention; calls without a layout use plain SDPA.

    Run forward and backward inside this context: gradient checkpointing calls the attention again.
    """
    before = model.config._attn_implementation
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
# For calls without a layout, which an engine may make in another thread at the same time.
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
