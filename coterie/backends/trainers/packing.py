"""Packing of token rows for one forward: a shared prompt is computed once, without padding.

A packed micro-batch is a single row of T tokens: all distinct prompts, then all completions.

    [prompt A][prompt B][completion A0][completion A1][completion B0]

Position ids restart at the prompt's length for every completion. A completion attends to its prompt and to
itself (`attention.py`). All other parts of a transformer compute each token separately, so packing doesn't
affect them. Tokens that no trained token depends on are left out, such as a row's last token, which is
predicted and never read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from coterie.backends.models.memory import COPY_SHARE
from coterie.core.types import Sample


class Probe(NamedTuple):
    """A row of no episode: scored for a comparison, or a demonstration."""

    token_ids: np.ndarray
    loss_mask: np.ndarray
    temperature: float = 1.0


TokenRow = Sample | Probe
"""A row that can be packed."""


@dataclass(frozen=True, slots=True, eq=False)
class AttentionBlock:
    """Sequences of similar length that attend in one call; indices point into the packed row."""

    queries: np.ndarray
    """int64, shape (n, Q); padded with 0."""
    keys: np.ndarray | None
    """int64, shape (n, L): prompt, completion, padding. None: the queries themselves, causal."""
    offsets: np.ndarray | None
    """int64, shape (n,): the lengths of the prompts. Query i attends to keys 0..offset + i."""


class PackedLengths(NamedTuple):
    """Lengths of a packed row's sequences, in the row's order; P prompts and K completions."""

    prompts: np.ndarray
    """int64, shape (P,)."""
    completions: np.ndarray
    """int64, shape (K,); 0 for a completion of which only the first token is predicted."""
    of: np.ndarray
    """int64, shape (K,): the prompt of each completion."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedRows:
    """The input of one forward. R = 1 when packed; T is the longest row's length."""

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
    blocks: tuple[AttentionBlock, ...] = ()
    restore: np.ndarray | None = None
    """int64, shape (T,): the index of each token's output in the blocks' concatenated outputs."""
    mask: np.ndarray | None = None
    """bool, shape (R, T): real tokens; None if rows are packed instead of padded."""
    lengths: PackedLengths | None = None
    """The lengths of a packed row's sequences; None if rows are padded."""


@dataclass(frozen=True, slots=True, eq=False)
class _Parts:
    """A row divided into its prompt, which rows may share, and its completion."""

    prompt: np.ndarray
    completion: np.ndarray
    """Tokens read after the prompt: those before the last trained token."""
    trained: np.ndarray
    """Indices of trained tokens in the row."""
    ids: np.ndarray


def parts(row: TokenRow) -> _Parts:
    """Divide a row at its first trained token.

    Raises:
        ValueError: the row's first token is trained, and no token before it can predict it.
    """
    ids, trained = row.token_ids, np.flatnonzero(row.loss_mask)
    if not len(trained):
        return _Parts(ids[:0], ids[:0], trained, ids)
    first, last = int(trained[0]), int(trained[-1])
    if first == 0:
        raise ValueError("a sample's first token is in its loss mask, and no token comes before it")
    return _Parts(ids[:first], ids[first:last], trained, ids)


def plan(rows: Sequence[TokenRow], budget: int, packing: bool) -> list[list[int]]:
    """Indices of the rows of every micro-batch; each row with a trained token is in exactly one.

    Rows of similar length are together. A group that shares a prompt is split only if the group alone exceeds
    the budget. A row is never split, however long.

    Args:
        budget: tokens of one forward.
    """
    divided = {index: parts(row) for index, row in enumerate(rows)}
    kept = [index for index in divided if len(divided[index].trained)]
    if not packing:
        return _plan_padded(
            [(index, len(divided[index].prompt) + len(divided[index].completion)) for index in kept], budget
        )
    groups: dict[bytes, list[int]] = {}
    for index in kept:
        groups.setdefault(divided[index].prompt.tobytes(), []).append(index)
    batches: list[list[int]] = []
    spent = math.inf
    for members in sorted(groups.values(), key=lambda members: (len(divided[members[0]].prompt), members[0])):
        prompt = len(divided[members[0]].prompt)
        costs = [
            len(divided[index].completion) + (prompt + len(divided[index].completion)) / COPY_SHARE
            for index in members
        ]
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
        if not batches or (len(batches[-1]) + 1) * length > budget:  # lengths ascend: this one is the longest
            batches.append([])
        batches[-1].append(index)
    return batches


def pack(rows: Sequence[TokenRow]) -> PackedRows:
    """One row with every distinct prompt once, then the completions; each given row has a trained token."""
    divided = [parts(row) for row in rows]
    prompts: dict[bytes, int] = {}
    of_row = [prompts.setdefault(part.prompt.tobytes(), len(prompts)) for part in divided]
    distinct = [divided[of_row.index(number)].prompt for number in range(len(prompts))]
    starts = np.cumsum([0, *map(len, distinct), *(len(part.completion) for part in divided)])
    prompt_at, completion_at = starts[: len(distinct)], starts[len(distinct) : -1]
    select = []
    for part, number, start in zip(divided, of_row, completion_at, strict=True):
        before, length = part.trained - 1, len(part.prompt)
        select.append(np.where(before < length, prompt_at[number] + before, start + before - length))
    blocks = _prompt_blocks(distinct, prompt_at) + _completion_blocks(
        divided, of_row, prompt_at, completion_at
    )
    return PackedRows(
        ids=np.concatenate([*distinct, *(part.completion for part in divided)])[None],
        positions=np.concatenate(
            [np.arange(len(prompt)) for prompt in distinct]
            + [np.arange(len(part.prompt), len(part.prompt) + len(part.completion)) for part in divided]
        )[None],
        select=np.concatenate(select),
        blocks=tuple(block for block, _ in blocks),
        restore=_restore(blocks, int(starts[-1])),
        targets=_targets(divided),
        temperatures=_temperatures(rows, divided),
        lengths=PackedLengths(
            np.array([len(prompt) for prompt in distinct], dtype=np.int64),
            np.array([len(part.completion) for part in divided], dtype=np.int64),
            np.array(of_row, dtype=np.int64),
        ),
    )


def pad(rows: Sequence[TokenRow], filler: int = 0) -> PackedRows:
    """One row per given row, padded on the right."""
    divided = [parts(row) for row in rows]
    read = [np.concatenate([part.prompt, part.completion]) for part in divided]
    longest = max(map(len, read))
    ids = np.full((len(rows), longest), filler, dtype=np.int64)
    mask = np.zeros(ids.shape, dtype=bool)
    for number, tokens in enumerate(read):
        ids[number, : len(tokens)] = tokens
        mask[number, : len(tokens)] = True
    return PackedRows(
        ids=ids,
        positions=np.broadcast_to(np.arange(longest), ids.shape).copy(),
        select=np.concatenate([number * longest + part.trained - 1 for number, part in enumerate(divided)]),
        mask=mask,
        targets=_targets(divided),
        temperatures=_temperatures(rows, divided),
    )


def _targets(divided: Sequence[_Parts]) -> np.ndarray:
    return np.concatenate([part.ids[part.trained] for part in divided])


def _temperatures(rows: Sequence[TokenRow], divided: Sequence[_Parts]) -> np.ndarray:
    return np.repeat([float(row.temperature) for row in rows], [len(part.trained) for part in divided])


def _octave(length: int) -> int:
    """A class of lengths that attend together; padding at most doubles a length, except for short ones."""
    return max(math.ceil(math.log2(max(length, 1))), 5)


def _prompt_blocks(
    prompts: Sequence[np.ndarray], starts: np.ndarray
) -> list[tuple[AttentionBlock, np.ndarray]]:
    """The blocks of prompts, each with its sequences' lengths."""
    octaves: dict[int, list[int]] = {}
    for number, prompt in enumerate(prompts):
        octaves.setdefault(_octave(len(prompt)), []).append(number)
    blocks = []
    for members in octaves.values():
        lengths = np.array([len(prompts[number]) for number in members])
        blocks.append((AttentionBlock(_spread(starts[members], lengths), None, None), lengths))
    return blocks


def _completion_blocks(
    divided: Sequence[_Parts], of_row: Sequence[int], prompt_at: np.ndarray, completion_at: np.ndarray
) -> list[tuple[AttentionBlock, np.ndarray]]:
    octaves: dict[tuple[int, int], list[int]] = {}
    for number, part in enumerate(divided):
        if len(part.completion):
            octaves.setdefault((_octave(len(part.prompt)), _octave(len(part.completion))), []).append(number)
    blocks = []
    for members in octaves.values():
        prompt = np.array([len(divided[number].prompt) for number in members])
        completion = np.array([len(divided[number].completion) for number in members])
        keys = np.zeros((len(members), int((prompt + completion).max())), dtype=np.int64)
        column = np.arange(keys.shape[1])
        start = prompt_at[[of_row[number] for number in members]]
        keys = np.where(column < prompt[:, None], start[:, None] + column, keys)
        inside = (column >= prompt[:, None]) & (column < (prompt + completion)[:, None])
        keys = np.where(inside, completion_at[members][:, None] + column - prompt[:, None], keys)
        blocks.append((AttentionBlock(_spread(completion_at[members], completion), keys, prompt), completion))
    return blocks


def _spread(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ... for each sequence, padded with 0; shape (n, longest)."""
    column = np.arange(int(lengths.max()))
    return np.where(column < lengths[:, None], starts[:, None] + column, 0)


def _restore(blocks: Sequence[tuple[AttentionBlock, np.ndarray]], tokens: int) -> np.ndarray:
    restore = np.zeros(tokens, dtype=np.int64)
    offset = 0
    for block, lengths in blocks:
        count, longest = block.queries.shape
        real = np.arange(longest) < lengths[:, None]
        restore[block.queries[real]] = (offset + np.arange(count * longest).reshape(count, longest))[real]
        offset += count * longest
    return restore
