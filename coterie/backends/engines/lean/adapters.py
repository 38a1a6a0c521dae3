"""LoRA adapters apart from the base weights: a low-rank part is added to its adapter's rows of a product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.backends.engines.lean.weights import FUSED, LeanWeights, product
from coterie.backends.models.merged_weights import MergedWeights

_HEAD = "lm_head"


def unmixable(merged: MergedWeights) -> str | None:
    """Why the lean decoder can't compute this adapter on a base that other adapters share; None: it can."""
    known = {f"{_HEAD}.weight"}
    for index in range(merged.config.num_hidden_layers):
        known |= {f"model.layers.{index}.{name}.weight" for names in FUSED.values() for name in names}
    other = next((name for name in merged.low_rank if name not in known), None)
    return merged.inseparable or (None if other is None else f"the adapter changes {other}")


class LowRankProduct(NamedTuple):
    """One adapter's low-rank part of a fused product of modules: y += x @ down @ up."""

    down: Tensor
    """(in, ranks); the ranks of the modules side by side."""
    up: Tensor
    """(ranks, out); a block for each module, the adapter's scale included."""


class LeanAdapter:
    """One adapter's low-rank parts, laid out like the base's fused weights.

    Args:
        dense: the base with this adapter; values are copied.
        weights: of the base.
    """

    def __init__(self, merged: MergedWeights, weights: LeanWeights) -> None:
        heads = [count * weights.head_dim for count in (weights.heads, weights.kv_heads, weights.kv_heads)]
        heights = {
            "qkv": heads,
            "out": [weights.hidden],
            "gate_up": [weights.mlp] * 2,
            "down": [weights.hidden],
        }
        self.layers: list[dict[str, LowRankProduct]] = []
        for index in range(len(weights.layers)):
            parts = {
                field: _fused(
                    merged, [f"model.layers.{index}.{name}" for name in names], heights[field], weights
                )
                for field, names in FUSED.items()
            }
            self.layers.append({field: part for field, part in parts.items() if part is not None})
        self.head = _fused(merged, [_HEAD], [len(weights.head)], weights)


def _fused(
    merged: MergedWeights, names: Sequence[str], heights: Sequence[int], weights: LeanWeights
) -> LowRankProduct | None:
    low_rank = {
        place: merged.low_rank[f"{name}.weight"]
        for place, name in enumerate(names)
        if f"{name}.weight" in merged.low_rank
    }
    if not low_rank:
        return None
    options = {"dtype": weights.dtype, "device": weights.device}
    down = torch.cat([part.down.detach() for part in low_rank.values()])
    up = torch.zeros(len(down), sum(heights), **options)
    rank = 0
    for place, part in low_rank.items():
        start = sum(heights[:place])
        block = part.scale * part.up.detach().float().T
        up[rank : rank + len(block), start : start + heights[place]] = block
        rank += len(block)
    return LowRankProduct(down.to(**options).T.contiguous(), up)


class AdapterRouting:
    """Which rows of a product belong to which adapter.

    Args:
        routes: by row, an index into `adapters`; int, shape (M,).
        adapters: None is the base alone.
    """

    def __init__(self, routes: np.ndarray, adapters: Sequence[LeanAdapter | None]) -> None:
        edges = np.flatnonzero(np.diff(routes, prepend=-1, append=-1))
        self._runs: list[tuple[slice, LeanAdapter]] = []
        for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            adapter = adapters[routes[start]]
            if adapter is not None:
                self._runs.append((slice(start, stop), adapter))

    def add(self, y: Tensor, x: Tensor, index: int, field: str) -> Tensor:
        """Add the adapters' part of a layer's product, computed from x (M, in), to y (M, out) in place."""
        for rows, adapter in self._runs:
            part = adapter.layers[index].get(field)
            if part is not None:
                y[rows].addmm_(x[rows] @ part.down, part.up)
        return y

    def add_head(self, y: Tensor, x: Tensor) -> Tensor:
        """Add the adapters' part of the language-model head, like `add`; y may be float32 where x is not."""
        for rows, adapter in self._runs:
            if adapter.head is None:
                continue
            inner = x[rows] @ adapter.head.down
            if y.dtype == inner.dtype:
                y[rows].addmm_(inner, adapter.head.up)
            else:
                y[rows] += product(inner, adapter.head.up)
        return y
