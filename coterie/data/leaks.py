"""Leaks: fingerprints of tasks that occur in more than one split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

EXAMPLES = 3
"""Pairs of ids that are told of each leak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Fingerprints of one kind that occur in two splits, or more than once in one."""

    kind: str
    splits: tuple[str, str]
    """The same twice: repeats within a split."""
    count: int
    """Distinct fingerprints."""
    tasks: tuple[int, int]
    """Tasks of each split that have one of them; of a repeat, how many beyond the first of each, twice."""
    examples: tuple[tuple[str, str], ...]
    """Ids, one of each split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaks:
    """What splits share."""

    sizes: dict[str, int]
    """Tasks that were looked at."""
    shared: tuple[Shared, ...]
    repeats: tuple[Shared, ...]


def leaks(splits: Mapping[str, Iterable[tuple[str, Mapping[str, str]]]]) -> Leaks:
    """Compare the fingerprints of every pair of splits.

    Args:
        splits: name -> (id, {kind: fingerprint}) of each of its tasks.
    """
    sizes: dict[str, int] = {}
    seen: dict[str, dict[str, dict[bytes, list[str]]]] = {}  # kind -> split -> digest -> ids
    for split, tasks in splits.items():
        sizes[split] = 0
        for name, marks in tasks:
            sizes[split] += 1
            for kind, mark in marks.items():
                hashed = hashlib.blake2b(mark.encode("utf-8", "surrogatepass"), digest_size=16).digest()
                seen.setdefault(kind, {}).setdefault(split, {}).setdefault(hashed, []).append(name)
    shared, repeats = [], []
    for kind, by_split in seen.items():
        names = [name for name in splits if name in by_split]
        for at, one in enumerate(names):
            again = {mark: ids for mark, ids in by_split[one].items() if len(ids) > 1}
            if again:
                beyond = sum(len(ids) - 1 for ids in again.values())
                examples = tuple((ids[0], ids[1]) for ids in again.values())
                repeats.append(_shared(kind, (one, one), len(again), (beyond, beyond), examples))
            for other in names[at + 1 :]:
                found = _between(kind, (one, other), by_split)
                if found is not None:
                    shared.append(found)
    return Leaks(sizes=sizes, shared=tuple(shared), repeats=tuple(repeats))


def _between(
    kind: str, pair: tuple[str, str], by_split: Mapping[str, Mapping[bytes, list[str]]]
) -> Shared | None:
    first, second = (by_split[name] for name in pair)
    both = [mark for mark in first if mark in second]
    if not both:
        return None
    tasks = sum(len(first[mark]) for mark in both), sum(len(second[mark]) for mark in both)
    return _shared(kind, pair, len(both), tasks, [(first[mark][0], second[mark][0]) for mark in both])


def _shared(
    kind: str,
    splits: tuple[str, str],
    count: int,
    tasks: tuple[int, int],
    examples: Sequence[tuple[str, str]],
) -> Shared:
    return Shared(kind=kind, splits=splits, count=count, tasks=tasks, examples=tuple(examples[:EXAMPLES]))
