"""The kernels of the trainer's attention: SDPA, FlashAttention 2 and FlexAttention, padded and packed.

SDPA runs everywhere. FlashAttention takes sequences of any length in one call and knows grouped heads; keys
of a shared prompt are gathered for each completion. FlexAttention computes the packed row as it is, by a
block mask: nothing is gathered. Neither trains on a CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.backends.trainers.attention import NAME, Blocks, layout_of
from coterie.backends.trainers.packing import PackedLengths, PackedRows
from coterie.core.errors import ConfigError

IMPLEMENTATIONS = {"sdpa": "sdpa", "flash_attention_2": "flash_attention_2", "flex": "sdpa"}
"""The kernel's name in transformers, for padded rows. Padded rows have no shared prompts, so `flex` has
nothing over SDPA there."""
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
    attention). In a packed context, calls without a layout use plain SDPA.
    """
    before = model.config._attn_implementation
    if packed:
        model.config._attn_implementation = NAME
    elif IMPLEMENTATIONS[name] != "sdpa":
        model.config._attn_implementation = IMPLEMENTATIONS[name]
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


# ---------------------------------------------------------------------------------------- FlashAttention


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
            np.concatenate(
                [
                    np.arange(starts[prompt], starts[prompt + 1]),
                    np.arange(begins[number], begins[number + 1]),
                ]
            )
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


# ----------------------------------------------------------------------------------------- FlexAttention


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
