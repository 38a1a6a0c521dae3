"""Rows of token ids to one forward: a shared prompt is computed once, and nothing is padded.

Packed, a micro-batch is a single row of T tokens: all distinct prompts, then all completions.

    [prompt A][prompt B][completion A0][completion A1][completion B0]

Position ids restart at the prompt's length for every completion, and attention is told who sees what
(`attention.py`): a completion sees its prompt and itself. Everything else in a transformer works on one
token at a time, so it neither knows nor pads. What no trained token depends on is left out: the last
token of a row is only predicted, never read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

_COPY_SHARE = 8
"""A key and value copied for a completion weigh an eighth of a token in the budget: of about 16 vectors of
the hidden size that a layer keeps per token for the backward pass, they are two."""


class Row(Protocol):
    """What is packed; a Sample is one."""

    @property
    def token_ids(self) -> np.ndarray: ...

    @property
    def loss_mask(self) -> np.ndarray: ...

    @property
    def temperature(self) -> float: ...


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Sequences of similar length that attend in one call; indices point into the packed row."""

    queries: np.ndarray
    """int64, shape (n, Q); padded with 0."""
    keys: np.ndarray | None
    """int64, shape (n, L): prompt, then own tokens, then padding. None: the queries themselves, causal."""
    offsets: np.ndarray | None
    """int64, shape (n,): query i sees keys 0..offset + i; the length of the prompt."""


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """One forward. R = 1 when packed; T is the longest row's length."""

    ids: np.ndarray
    """int64, shape (R, T)."""
    positions: np.ndarray
    """int64, shape (R, T)."""
    select: np.ndarray
    """int64, shape (N,): in ids.ravel(), the position that predicts each trained token, row after row."""
    targets: np.ndarray
    """int64, shape (N,): the trained tokens."""
    temperatures: np.ndarray
    """float64, shape (N,)."""
    blocks: tuple[Block, ...] = ()
    restore: np.ndarray | None = None
    """int64, shape (T,): where each token's output lies among the blocks' outputs, one after another."""
    mask: np.ndarray | None = None
    """bool, shape (R, T): real tokens; only where rows are padded instead of packed."""


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """A row, cut into what it may share and what is its own."""

    prompt: np.ndarray
    own: np.ndarray
    """Read tokens after the prompt: all but the last trained one and what follows it."""
    trained: np.ndarray
    """Indices of trained tokens in the row."""
    ids: np.ndarray


def parts(row: Row) -> _Parts:
    """Cut a row at its first trained token.

    Raises:
        ValueError: the very first token is trained, and nothing predicts it.
    """
    ids, trained = row.token_ids, np.flatnonzero(row.loss_mask)
    if not len(trained):
        return _Parts(ids[:0], ids[:0], trained, ids)
    first, last = int(trained[0]), int(trained[-1])
    if first == 0:
        raise ValueError("a sample's first token is in its loss mask, and no token comes before it")
    return _Parts(ids[:first], ids[first:last], trained, ids)


def plan(rows: Sequence[Row], budget: int, packing: bool) -> list[list[int]]:
    """Indices of the rows of every micro-batch; together they hold each row with a trained token once.

    Rows of similar length go together. A group that shares a prompt is split only where it alone
    passes the budget; a row is never split, however long.

    Args:
        budget: tokens of one forward.
    """
    cut = {index: parts(row) for index, row in enumerate(rows)}
    kept = [index for index in cut if len(cut[index].trained)]
    if not packing:
        return _plan_padded([(index, len(cut[index].prompt) + len(cut[index].own)) for index in kept], budget)
    groups: dict[bytes, list[int]] = {}
    for index in kept:
        groups.setdefault(cut[index].prompt.tobytes(), []).append(index)
    batches: list[list[int]] = []
    spent = math.inf
    for members in sorted(groups.values(), key=lambda members: (len(cut[members[0]].prompt), members[0])):
        prompt = len(cut[members[0]].prompt)
        costs = [len(cut[index].own) + (prompt + len(cut[index].own)) / _COPY_SHARE for index in members]
        if spent + prompt + sum(costs) > budget:
            batches.append([])
            spent = 0.0
        spent += prompt
        for index, cost in zip(members, costs, strict=True):
            if spent + cost > budget and batches[-1]:
                batches.append([])
                spent = float(prompt)
            batches[-1].append(index)
            spent += cost
    return batches


def _plan_padded(lengths: list[tuple[int, int]], budget: int) -> list[list[int]]:
    batches: list[list[int]] = []
    for index, length in sorted(lengths, key=lambda item: (item[1], item[0])):
        if not batches or (len(batches[-1]) + 1) * length > budget:  # sorted: this is the longest so far
            batches.append([])
        batches[-1].append(index)
    return batches


def pack(rows: Sequence[Row]) -> Packed:
    """Every distinct prompt once, and the completions; each row has a trained token."""
    cut = [parts(row) for row in rows]
    prompts: dict[bytes, int] = {}
    of_row = [prompts.setdefault(part.prompt.tobytes(), len(prompts)) for part in cut]
    distinct = [cut[of_row.index(number)].prompt for number in range(len(prompts))]
    starts = np.cumsum([0, *map(len, distinct), *(len(part.own) for part in cut)])
    prompt_at, own_at = starts[: len(distinct)], starts[len(distinct) : -1]
    select = []
    for part, number, start in zip(cut, of_row, own_at, strict=True):
        before, length = part.trained - 1, len(part.prompt)
        select.append(np.where(before < length, prompt_at[number] + before, start + before - length))
    blocks = _prompt_blocks(distinct, prompt_at) + _own_blocks(cut, of_row, prompt_at, own_at)
    return Packed(
        ids=np.concatenate([*distinct, *(part.own for part in cut)])[None],
        positions=np.concatenate(
            [np.arange(len(prompt)) for prompt in distinct]
            + [np.arange(len(part.prompt), len(part.prompt) + len(part.own)) for part in cut]
        )[None],
        select=np.concatenate(select),
        blocks=tuple(block for block, _ in blocks),
        restore=_restore(blocks, int(starts[-1])),
        targets=_targets(cut),
        temperatures=_temperatures(rows, cut),
    )


def pad(rows: Sequence[Row], filler: int = 0) -> Packed:
    """One row each, padded on the right."""
    cut = [parts(row) for row in rows]
    read = [np.concatenate([part.prompt, part.own]) for part in cut]
    longest = max(map(len, read))
    ids = np.full((len(rows), longest), filler, dtype=np.int64)
    mask = np.zeros(ids.shape, dtype=bool)
    for number, tokens in enumerate(read):
        ids[number, : len(tokens)] = tokens
        mask[number, : len(tokens)] = True
    return Packed(
        ids=ids,
        positions=np.broadcast_to(np.arange(longest), ids.shape).copy(),
        select=np.concatenate([number * longest + part.trained - 1 for number, part in enumerate(cut)]),
        mask=mask,
        targets=_targets(cut),
        temperatures=_temperatures(rows, cut),
    )


def _targets(cut: Sequence[_Parts]) -> np.ndarray:
    return np.concatenate([part.ids[part.trained] for part in cut])


def _temperatures(rows: Sequence[Row], cut: Sequence[_Parts]) -> np.ndarray:
    return np.repeat([float(row.temperature) for row in rows], [len(part.trained) for part in cut])


def _octave(length: int) -> int:
    """Lengths of one octave attend together: padding at most doubles one, and short ones don't matter."""
    return max(math.ceil(math.log2(max(length, 1))), 5)


def _prompt_blocks(prompts: Sequence[np.ndarray], starts: np.ndarray) -> list[tuple[Block, np.ndarray]]:
    """Blocks, each with its sequences' lengths."""
    octaves: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        octaves.setdefault(_octave(len(prompt)), []).append(number)
    found = []
    for members in octaves.values():
        lengths = np.array([len(prompts[number]) for number in members])
        found.append((Block(_spread(starts[members], lengths), None, None), lengths))
    return found


def _own_blocks(
    cut: Sequence[_Parts], of_row: Sequence[int], prompt_at: np.ndarray, own_at: np.ndarray
) -> list[tuple[Block, np.ndarray]]:
    octaves: dict[tuple[int, int], list[int]] = {}
    for number, part in enumerate(cut):
        if len(part.own):
            octaves.setdefault((_octave(len(part.prompt)), _octave(len(part.own))), []).append(number)
    found = []
    for members in octaves.values():
        prompt = np.array([len(cut[number].prompt) for number in members])
        own = np.array([len(cut[number].own) for number in members])
        keys = np.zeros((len(members), int((prompt + own).max())), dtype=np.int64)
        column = np.arange(keys.shape[1])
        start = prompt_at[[of_row[number] for number in members]]
        keys = np.where(column < prompt[:, None], start[:, None] + column, keys)
        inside = (column >= prompt[:, None]) & (column < (prompt + own)[:, None])
        keys = np.where(inside, own_at[members][:, None] + column - prompt[:, None], keys)
        found.append((Block(_spread(own_at[members], own), keys, prompt), own))
    return found


def _spread(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ... for each sequence, padded with 0; shape (n, longest)."""
    column = np.arange(int(lengths.max()))
    return np.where(column < lengths[:, None], starts[:, None] + column, 0)


def _restore(blocks: Sequence[tuple[Block, np.ndarray]], tokens: int) -> np.ndarray:
    restore = np.zeros(tokens, dtype=np.int64)
    offset = 0
    for block, lengths in blocks:
        count, longest = block.queries.shape
        real = np.arange(longest) < lengths[:, None]
        restore[block.queries[real]] = (offset + np.arange(count * longest).reshape(count, longest))[real]
        offset += count * longest
    return restore
