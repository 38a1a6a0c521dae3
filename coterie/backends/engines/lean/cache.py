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


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What the caches of a model have in common."""

    layers: int
    heads: int
    """Key/value heads."""
    width: int
    """Head size."""
    dtype: torch.dtype
    device: torch.device
    tokens: int | None = None
    """Drawn tokens a row that room is made for at once; None: room grows with the tokens, by doubling."""
    turned: bool = False
    """Whether drawn tokens' keys are stored as (width, capacity), the order in which products read them."""

    def room(self, groups: int, siblings: int, capacity: int, *, turned: bool) -> Tensor:
        """Room for the keys or the values of drawn tokens; (groups, heads, siblings, capacity, width)."""
        sizes = (self.width, capacity) if turned else (capacity, self.width)
        room = torch.empty(groups, self.heads, siblings, *sizes, dtype=self.dtype, device=self.device)
        return room.transpose(3, 4) if turned else room


class Bucket:
    """Groups of siblings of similar shape: G prompts with K slots each, slots in the order (g, k).

    Each layer's cache is a tensor of its own. Room grows, and rows move to another bucket, layer by layer, so
    that at most one layer exists twice.

    Args:
        groups: G of them.
        idle: the row number of unused slots.
        empty: whether the layers are added later, by `repack`.
    """

    def __init__(self, groups: Sequence[Group], idle: int, shape: CacheShape, *, empty: bool = False) -> None:
        count, siblings = len(groups), max(len(rows) for _, rows in groups)
        longest = max(length for length, _ in groups)
        heads, options = shape.heads, {"dtype": shape.dtype, "device": shape.device}
        self.idle, self.shape, self.longest = idle, shape, longest
        self.lengths = np.array([length for length, _ in groups])
        self.slots = np.full((count, siblings), idle, dtype=np.int64)
        for index, (_, rows) in enumerate(groups):
            self.slots[index, : len(rows)] = rows
        self.capacity = shape.tokens or 0
        """The number of drawn tokens that a row's cache can hold."""
        self.keys: list[Tensor] = []
        """By layer, of the prompts: (G, heads, P, width)."""
        self.values: list[Tensor] = []
        self.own_keys: list[Tensor] = []
        """By layer, of the drawn tokens: (G, heads, K, capacity, width)."""
        self.own_values: list[Tensor] = []
        for _ in range(0 if empty else shape.layers):
            self._add_layer()
        self.mask: Tensor | None = None
        if (self.lengths < longest).any():
            outside = np.arange(longest) >= self.lengths[:, None]
            mask = torch.zeros(count, longest, **options)
            mask.masked_fill_(torch.from_numpy(outside).to(shape.device), -torch.inf)
            self.mask = mask[:, None].expand(count, heads, longest).reshape(count * heads, 1, longest)

    def _add_layer(self) -> None:
        count, siblings = self.slots.shape
        heads, width = self.shape.heads, self.shape.width
        options = {"dtype": self.shape.dtype, "device": self.shape.device}
        for layers in (self.keys, self.values):
            # Zeros instead of uninitialised memory: masked keys must be finite numbers.
            layers.append(torch.zeros(count, heads, self.longest, width, **options))
        self.own_keys.append(self.shape.room(count, siblings, self.capacity, turned=self.shape.turned))
        self.own_values.append(self.shape.room(count, siblings, self.capacity, turned=False))

    def reserve(self, tokens: int, most: int) -> None:
        """Make room for `tokens` drawn tokens per row. Capacity doubles, since most rows stop early."""
        if tokens <= self.capacity:
            return
        filled, self.capacity = self.capacity, min(max(tokens, 2 * self.capacity, 32), max(most, tokens))
        for layers, turned in ((self.own_keys, self.shape.turned), (self.own_values, False)):
            for index, old in enumerate(layers):
                new = self.shape.room(*self.slots.shape, self.capacity, turned=turned)
                new[:, :, :, :filled] = old
                layers[index] = new

    def moves_from(self, other: Bucket) -> Tensor | None:
        """(group, slot, group there, slot there) of the rows that have slots in both buckets; (4, rows)."""
        old_slots = {row: slot for slot, row in np.ndenumerate(other.slots) if row != self.idle}
        moves = [(*slot, *old_slots[row]) for slot, row in np.ndenumerate(self.slots) if row in old_slots]
        return torch.tensor(moves, device=self.shape.device).T if moves else None

    def take(self, other: Bucket, moves: Tensor, tokens: int) -> None:
        """Copy the newest layer's caches of rows that had slots in another bucket."""
        to_g, to_k, from_g, from_k = moves
        layer = len(self.keys) - 1
        for new, old in ((self.own_keys, other.own_keys), (self.own_values, other.own_values)):
            # (G, K, heads, capacity, width)
            new[layer].transpose(1, 2)[to_g, to_k, :, :tokens] = old[layer].transpose(1, 2)[
                from_g, from_k, :, :tokens
            ]
        first = to_k == 0  # each group has a row in slot 0, and its prompt is copied once
        to_g, from_g, length = to_g[first], from_g[first], min(self.longest, other.longest)
        for new, old in ((self.keys, other.keys), (self.values, other.values)):
            new[layer][to_g, :, :length] = old[layer][from_g, :, :length]


def repack(new: Sequence[Bucket], old: Sequence[Bucket], tokens: int) -> None:
    """Move the rows of `new`, whose layers are empty, out of `old`, which has no caches afterwards.

    Args:
        tokens: drawn tokens that each row has cached.
    """
    moves = [[(other, bucket.moves_from(other)) for other in old] for bucket in new]
    for bucket in new:
        bucket.capacity = max(bucket.capacity, tokens)
    for layer in range(old[0].shape.layers):
        for bucket, sources in zip(new, moves, strict=True):
            bucket._add_layer()
            for other, chosen in sources:
                if chosen is not None:
                    bucket.take(other, chosen, tokens)
        for other in old:
            nothing = other.keys[layer].new_empty(0)
            other.keys[layer] = other.values[layer] = nothing
            other.own_keys[layer] = other.own_values[layer] = nothing


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
