"""Attention over packed rows, as an implementation that transformers' models call by name.

Prompts attend to themselves once, completions to [their prompt | themselves], in blocks of similar length.
A dense 4-D mask over the packed row is the alternative; its cost is quadratic in the sum of all lengths.

Measured on one CPU thread, for 8 groups of 8 completions of 64 tokens (0.66 M parameters, forward and
backward). With prompts of 32 tokens: 0.30 s, against 0.41 s with the dense mask and 0.39 s for padded rows
that share nothing. With prompts of 512 tokens: 0.85 s against 1.1 s and 3.8 s.

Kernels: SDPA runs everywhere. FlashAttention 2 takes sequences of any length in one call and knows grouped
heads; keys of a shared prompt are gathered for each completion. FlexAttention computes the packed row as it
is, by a block mask: nothing is gathered. Neither of the two trains on a CPU.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from coterie.backends.trainers.packing import PackedLengths, PackedRows
from coterie.core.errors import ConfigError

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
        """Attention of every token to its prompt and to itself; shape (T, H, D). All layouts have this.

        Args:
            query: shape (T, H, D); `key` and `value` (T, H_kv, D).
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
        layout: a packed row's indices and masks for one kernel, as `layout_for` gives them.

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


HALF_ONLY = ("flash_attention_2",)
"""Kernels that compute in 16 bits only."""
FLEX_BLOCK = 128
"""Side of the blocks of a FlexAttention mask; blocks without a visible key cost nothing."""


def kernel_of(setting: str, device: torch.device, dtype: torch.dtype) -> str:
    """The kernel that `trainer.attention` names; `auto` is `sdpa`.

    Raises:
        ConfigError: the kernel is not installed, or doesn't train on the device or in the dtype.
    """
    if setting in ("auto", "sdpa"):
        return "sdpa"
    why = _missing(setting, device, dtype)
    if why is not None:
        raise ConfigError(
            f"attention '{setting}' can't be used here",
            path="trainer.attention",
            why=why,
            fix="set it to `sdpa` (or `auto`), which every device computes",
        )
    return setting


def _missing(kernel: str, device: torch.device, dtype: torch.dtype) -> str | None:
    """What the kernel lacks here; None: nothing."""
    if kernel == "flash_attention_2":
        if importlib.util.find_spec("flash_attn") is None:
            return "the package flash-attn is not installed (pip install flash-attn --no-build-isolation)"
        if device.type != "cuda":
            return f"FlashAttention computes on GPUs, and the device is {device}"
        if dtype not in (torch.bfloat16, torch.float16):
            return f"FlashAttention computes in 16 bits, and the weights are {dtype}".replace("torch.", "")
        return None
    if device.type != "cuda":
        return f"FlexAttention has no backward pass on the device {device}"
    if importlib.util.find_spec("triton") is None:
        return "FlexAttention is compiled by triton, which is not installed"
    return None


@contextmanager
def kernel(model: Any, name: str, *, packed: bool) -> Iterator[None]:
    """Make the model compute attention with a kernel; run forward and backward passes inside.

    Padded rows with `sdpa` keep the implementation that the model was loaded with (Gemma 2 has eager
    attention), and so with `flex`, which gains nothing without shared prompts. In a packed context, calls
    without a layout use plain SDPA.
    """
    before = model.config._attn_implementation
    if packed:
        model.config._attn_implementation = NAME
    elif name == "flash_attention_2":
        model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def layout_for(name: str, packed: PackedRows, device: Any) -> Blocks | Varlen | Flex:
    """A packed row's layout for a kernel."""
    if name == "sdpa":
        return layout_of(packed, device)
    assert packed.lengths is not None
    return (Varlen if name == "flash_attention_2" else Flex).of(packed.lengths, device)


@dataclass(frozen=True, slots=True, eq=False)
class Varlen:
    """Two calls of FlashAttention: causal prompts, then completions on [prompt | completion]."""

    prompts: Tensor
    """int32, shape (P + 1,): cumulated lengths."""
    completions: Tensor
    """int32, shape (K + 1,): cumulated lengths of the completions that have tokens."""
    keys: Tensor
    """int64: the keys of each completion in the packed row, [prompt | completion] after the other."""
    key_ends: Tensor
    """int32, shape (K + 1,): cumulated lengths of `keys`."""
    longest: tuple[int, int, int]
    """The longest prompt, completion, and prompt with completion."""
    split: int
    """Tokens of all prompts, which come first in the row."""

    @classmethod
    def of(cls, lengths: PackedLengths, device: Any) -> Varlen:
        starts = np.cumsum([0, *lengths.prompts])
        begins = np.cumsum([0, *lengths.completions]) + starts[-1]
        kept = np.flatnonzero(lengths.completions)
        keys = [
            np.r_[starts[prompt] : starts[prompt + 1], begins[number] : begins[number + 1]]
            for number, prompt in zip(kept, lengths.of[kept], strict=True)
        ]

        def ends(values: Any) -> Tensor:
            return torch.tensor(np.cumsum([0, *values]), dtype=torch.int32, device=device)

        return cls(
            prompts=ends(lengths.prompts),
            completions=ends(lengths.completions[kept]),
            keys=torch.from_numpy(np.concatenate([*keys, np.zeros(0, np.int64)])).to(device),
            key_ends=ends([len(part) for part in keys]),
            longest=(
                int(lengths.prompts.max()),
                int(lengths.completions.max(initial=0)),
                max(map(len, keys), default=0),
            ),
            split=int(starts[-1]),
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        attention: Any = importlib.import_module("flash_attn").flash_attn_varlen_func
        options = {
            "softmax_scale": scaling,
            # With more keys than queries, the last query attends to the last key (flash-attn 2.1 and later).
            "causal": True,
            "deterministic": torch.are_deterministic_algorithms_enabled(),
        }
        prompts = attention(
            query[: self.split], key[: self.split], value[: self.split],
            cu_seqlens_q=self.prompts, cu_seqlens_k=self.prompts,
            max_seqlen_q=self.longest[0], max_seqlen_k=self.longest[0], **options,
        )  # fmt: skip
        if not len(self.keys):
            return prompts
        completions = attention(
            query[self.split :], key.index_select(0, self.keys), value.index_select(0, self.keys),
            cu_seqlens_q=self.completions, cu_seqlens_k=self.key_ends,
            max_seqlen_q=self.longest[1], max_seqlen_k=self.longest[2], **options,
        )  # fmt: skip
        return torch.cat([prompts, completions])


@dataclass(frozen=True, slots=True, eq=False)
class Flex:
    """One call of FlexAttention over the packed row."""

    mask: Any
    """The block mask of the row."""

    @classmethod
    def of(cls, lengths: PackedLengths, device: Any) -> Flex:
        from torch.nn.attention.flex_attention import create_block_mask

        sequence, prompt = (
            torch.from_numpy(values).to(device) for values in (sequences(lengths), prompts(lengths))
        )

        def visible(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            before = (sequence[query] == sequence[key]) & (key <= query)
            return before | (prompt[query] == sequence[key])

        tokens = len(sequence)
        return cls(
            create_block_mask(visible, None, None, tokens, tokens, device=device, BLOCK_SIZE=FLEX_BLOCK)
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        rows = [tensor.transpose(0, 1)[None] for tensor in (query, key, value)]
        output = _flex(query.device.type)(*rows, block_mask=self.mask, scale=scaling, enable_gqa=True)
        return output[0].transpose(0, 1)


def sequences(lengths: PackedLengths) -> np.ndarray:
    """int64, shape (T,): the number of each token's sequence; prompts come first."""
    counts = np.concatenate([lengths.prompts, lengths.completions])
    return np.repeat(np.arange(len(counts)), counts)


def prompts(lengths: PackedLengths) -> np.ndarray:
    """int64, shape (T,): the prompt that each token sees besides its own sequence; -1 for none."""
    none = np.full(int(lengths.prompts.sum()), -1)
    return np.concatenate([none, np.repeat(lengths.of, lengths.completions)]).astype(np.int64)


@cache
def _flex(device: str) -> Callable[..., Any]:
    """FlexAttention: compiled on GPUs; as torch computes it without a compiler elsewhere (no gradients)."""
    from torch.nn.attention.flex_attention import flex_attention

    compiled: Callable[..., Any] = torch.compile(flex_attention, dynamic=True)
    return compiled if device == "cuda" else flex_attention
