"""The slots of a decoding batch and its key/value caches: one per distinct prompt, one per row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Group = tuple[int, np.ndarray]
"""Length of a prompt, and the rows that share it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs that decide how groups form buckets; the unit is the linear layers of one row."""

    key: float
    """Attending to one key."""
    bucket: float
    """The fixed cost of one more bucket: a few more kernels per layer."""

    def of(self, groups: int, siblings: int, prompt: int) -> float:
        return self.bucket + groups * siblings * (1.0 + self.key * prompt)


def plan(groups: Sequence[Group], costs: Costs) -> list[list[int]]:
    """Divide the groups into buckets, each padded to its most siblings and its longest prompt.

    Groups of similar shape form a class. Consecutive classes are joined into runs with the least total cost,
    by dynamic programming over the classes.

    Returns:
        indices of groups by bucket; groups with more siblings come first, then those with longer prompts.
    """
    shapes = [(len(rows), length) for length, rows in groups]
    order = sorted(range(len(groups)), key=lambda index: (-shapes[index][0], -shapes[index][1]))
    classes: dict[tuple[int, int], list[int]] = {}
    for index in order:
        siblings, length = shapes[index]
        classes.setdefault((-siblings.bit_length(), -int(2 * np.log2(length + 1))), []).append(index)
    runs = [classes[name] for name in sorted(classes)]
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(runs) + 1):
        options = []
        count = siblings = length = 0
        for start in range(end - 1, -1, -1):
            count += len(runs[start])
            siblings = max(siblings, *(shapes[index][0] for index in runs[start]))
            length = max(length, *(shapes[index][1] for index in runs[start]))
            options.append((best[start][0] + costs.of(count, siblings, length), start))
        best.append(min(options))
    buckets: list[list[int]] = []
    end = len(runs)
    while end:
        start = best[end][1]
        buckets.append([index for run in runs[start:end] for index in run])
        end = start
    return buckets[::-1]


class Bucket:
    """Groups of siblings of similar shape: G prompts with K slots each, slots in the order (g, k).

    Args:
        groups: G of them.
        idle: the row number of unused slots.
        layers, heads, width: of the cache: layers, key/value heads, head size.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        idle: int,
        *,
        layers: int,
        heads: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        count, siblings = len(groups), max(len(rows) for _, rows in groups)
        longest = max(length for length, _ in groups)
        self.idle = idle
        self.lengths = np.array([length for length, _ in groups])
        self.slots = np.full((count, siblings), idle, dtype=np.int64)
        for index, (_, rows) in enumerate(groups):
            self.slots[index, : len(rows)] = rows
        options = {"dtype": dtype, "device": device}
        # Zeros instead of uninitialised memory: masked keys must be finite numbers.
        self.keys = torch.zeros(layers, count, heads, longest, width, **options)
        self.values = torch.zeros(layers, count, heads, longest, width, **options)
        self.own_keys = torch.empty(layers, count, heads, siblings, 0, width, **options)
        self.own_values = torch.empty(layers, count, heads, siblings, 0, width, **options)
        self.mask: Tensor | None = None
        if (self.lengths < longest).any():
            outside = np.arange(longest) >= self.lengths[:, None]
            mask = torch.zeros(count, longest, **options)
            mask.masked_fill_(torch.from_numpy(outside).to(device), -torch.inf)
            self.mask = mask[:, None].expand(count, heads, longest).reshape(count * heads, 1, longest)

    @property
    def capacity(self) -> int:
        """The number of drawn tokens that a row's cache can hold."""
        return self.own_keys.shape[4]

    def reserve(self, tokens: int, most: int) -> None:
        """Make room for `tokens` drawn tokens per row. Capacity doubles, since most rows stop early."""
        if tokens <= self.capacity:
            return
        capacity = min(max(tokens, 2 * self.capacity, 32), max(most, tokens))
        for name in ("own_keys", "own_values"):
            old = getattr(self, name)
            new = old.new_empty(*old.shape[:4], capacity, old.shape[5])
            new[:, :, :, :, : old.shape[4]] = old
            setattr(self, name, new)

    def take(self, other: Bucket, tokens: int) -> None:
        """Copy the caches of this bucket's rows that had slots in another bucket."""
        old_slots = {row: slot for slot, row in np.ndenumerate(other.slots) if row != self.idle}
        moves = [(*slot, *old_slots[row]) for slot, row in np.ndenumerate(self.slots) if row in old_slots]
        if not moves:
            return
        to_g, to_k, from_g, from_k = torch.tensor(moves, device=self.keys.device).T
        for name in ("own_keys", "own_values"):
            new = getattr(self, name).transpose(2, 3)  # (layers, G, K, heads, capacity, width)
            new[:, to_g, to_k, :, :tokens] = getattr(other, name).transpose(2, 3)[
                :, from_g, from_k, :, :tokens
            ]
        first = to_k == 0  # each group has a row in slot 0, and its prompt is copied once
        to_g, from_g, length = to_g[first], from_g[first], min(self.keys.shape[3], other.keys.shape[3])
        for name in ("keys", "values"):
            getattr(self, name)[:, to_g, :, :length] = getattr(other, name)[:, from_g, :, :length]


def surviving(buckets: Sequence[Bucket], alive: np.ndarray) -> list[Group]:
    """The groups of the buckets, reduced to rows that still draw; groups without such rows are left out.

    Args:
        alive: bool by row, False for the idle row.
    """
    groups: list[Group] = []
    for bucket in buckets:
        for length, slots in zip(bucket.lengths, bucket.slots, strict=True):
            rows = slots[alive[slots]]
            if len(rows):
                groups.append((int(length), rows))
    return groups
