"""Attention over packed rows, as an implementation that transformers' models call by name.

Prompts attend to themselves once, completions to [their prompt | themselves], in blocks of similar length.
A dense 4-D mask over the packed row is the alternative; its cost is quadratic in the sum of all lengths.

Measured on one CPU thread, for 8 groups of 8 completions of 64 tokens (0.66 M parameters, forward and
backward). With prompts of 32 tokens: 0.30 s, against 0.41 s with the dense mask and 0.39 s for padded rows
that share nothing. With prompts of 512 tokens: 0.85 s against 1.1 s and 3.8 s.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from coterie.backends.trainers.packing import PackedRows

NAME = "coterie_packed"

_REFUSED = ("sliding_window", "softcap", "s_aux", "position_bias")
"""Arguments of some models' attention that the packed attention doesn't compute."""


class Unsupported(Exception):
    """The model's attention has a feature that the packed attention lacks."""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """`PackedRows.blocks` on the device, each for one call of SDPA."""

    blocks: tuple[tuple[Tensor, Tensor | None, Tensor | None], ...]
    """queries (n * Q,); keys (n * L,) or None for the queries; mask (n or 1, 1, Q, L) or None for causal."""
    shapes: tuple[tuple[int, int], ...]
    """(n, Q) of every block."""
    restore: Tensor
    biases: dict[tuple[int, torch.dtype, int], Tensor] = field(default_factory=dict)
    """Masks as numbers, by block, dtype and repeats. Made once, they are kept once for all layers; of a bool
    mask SDPA would keep a copy for each."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention of every token to its prompt and to itself, as other kernels' layouts have it too.

        Args:
            query: shape (T, H, D); `key` and `value` (T, H_kv, D).

        Returns:
            shape (T, H, D).
        """
        outputs = []
        repeats = query.shape[1] // key.shape[1] if query.device.type != "cpu" else 1
        for number, (queries, keys, mask) in enumerate(self.blocks):
            count, longest = self.shapes[number]
            q = _gather(query, queries, count)
            k, v = (_gather(tensor, queries if keys is None else keys, count) for tensor in (key, value))
            if mask is not None:
                mask = self._bias(number, mask, query.dtype, repeats)
            output = grouped_sdpa(q, k, v, mask, scaling)
            outputs.append(output.transpose(1, 2).reshape(count * longest, *output.shape[1::2]))
        return torch.cat(outputs).index_select(0, self.restore)

    def _bias(self, number: int, mask: Tensor, dtype: torch.dtype, repeats: int) -> Tensor:
        """0 where a query attends and -inf elsewhere, for the queries of `repeats` heads."""
        key = number, dtype, repeats
        if key not in self.biases:
            bias = torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -math.inf)
            self.biases[key] = bias.repeat(1, 1, repeats, 1)
        return self.biases[key]


def layout_of(packed: PackedRows, device: Any) -> Blocks:
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
    return Blocks(tuple(blocks), tuple(shapes), torch.from_numpy(packed.restore).to(device))


def grouped_sdpa(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
) -> Tensor:
    """SDPA whose query heads share key/value heads, without copies of keys and values.

    torch's `enable_gqa` does it on CPUs, and on GPUs without a mask. With a mask, a GPU's only kernel for it
    holds all scores at once. There the query heads of one key/value head become further queries of this head:
    (n, H, Q, D) becomes (n, H_kv, H / H_kv * Q, D).

    Args:
        query: shape (n, H, Q, D); `key` and `value` (n, H_kv, L, D).
        mask: shape (n or 1, 1, Q, L), 0 where a query attends and -inf elsewhere; None: causal. Where heads
            are folded: (n or 1, 1, H / H_kv * Q, L).
    """
    repeats = query.shape[1] // key.shape[1]
    if query.device.type == "cpu" and query.dtype in (torch.bfloat16, torch.float16):
        wide: Tensor = _WideAttention.apply(query, key, value, mask, scaling)  # type: ignore[no-untyped-call]
        return wide
    if repeats == 1 or mask is None or query.device.type == "cpu":
        return scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=repeats > 1
        )
    return folded_sdpa(query, key, value, mask, scaling)


class _WideAttention(torch.autograd.Function):
    """SDPA of 16-bit tensors on a CPU, computed in float32 and saved in 16 bits.

    The kernel's products of 16 bits are slow on CPUs without matrix units: forward and backward passes take
    1.5 to 1.8 times those of float32, casts included (Zen 4, heads of 64).
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None
    ) -> Tensor:
        wide = [tensor.float() for tensor in (query, key, value)]
        bias = None if mask is None else mask.float()
        output, logsum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            *wide, 0.0, mask is None, attn_mask=bias, scale=scaling
        )
        ctx.scaling = scaling
        output = output.to(query.dtype)
        ctx.save_for_backward(query, key, value, mask, output, logsum)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor) -> tuple[Any, ...]:
        query, key, value, mask, output, logsum = ctx.saved_tensors
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *(tensor.float() for tensor in (d_output, query, key, value, output)),
            logsum, 0.0, mask is None, attn_mask=None if mask is None else mask.float(), scale=ctx.scaling,
        )  # fmt: skip
        return (*(gradient.to(query.dtype) for gradient in gradients), None, None)


def folded_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float | None) -> Tensor:
    """`grouped_sdpa` with a mask, by kernels that know no groups."""
    repeats = query.shape[1] // key.shape[1]
    queries = query.unflatten(1, (-1, repeats)).flatten(2, 3)
    output = scaled_dot_product_attention(queries, key, value, attn_mask=mask, scale=scaling)
    return output.unflatten(2, (repeats, -1)).flatten(1, 2)


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    layout: Any = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Packed attention with transformers' attention interface; plain SDPA without a layout.

    Args:
        query: shape (1, H, T, D); `key` and `value` (1, H_kv, T, D).
        layout: a packed row's indices and masks for one kernel, as `attention_kernels.layout_for` gives them.

    Returns:
        shape (1, T, H, D).

    Raises:
        Unsupported: the model's attention has a feature that packed attention lacks.
    """
    if layout is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    for name in _REFUSED:
        if kwargs.get(name) is not None:
            raise Unsupported(f"its attention uses {name}")
    if dropout:
        raise Unsupported("its attention has dropout")
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]  # (T, heads, D)
    return layout.attend(rows[0], rows[1], rows[2], scaling)[None], None


def _gather(rows: Tensor, index: Tensor, count: int) -> Tensor:
    """(T, heads, D) to (count, heads, length, D)."""
    return rows.index_select(0, index).view(count, -1, *rows.shape[1:]).transpose(1, 2)


ALL_ATTENTION_FUNCTIONS.register(NAME, packed_attention)
# For calls without a layout, which an engine may make in another thread at the same time.
ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
