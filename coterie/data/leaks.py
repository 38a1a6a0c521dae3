"""Leaks: fingerprints of tasks that occur in more than one split."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

EXAMPLES = 3
"""Most pairs of ids that a leak holds as examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFingerprints:
    """Fingerprints of one kind that occur in two splits, or more than once in one."""

    kind: str
    splits: tuple[str, str]
    """Two splits; the same one twice for repeats within it."""
    count: int
    """Distinct fingerprints."""
    tasks: tuple[int, int]
    """Tasks of each split with one of these fingerprints; for repeats, twice those beyond the first."""
    examples: tuple[tuple[str, str], ...]
    """Pairs of task ids, one of each split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaks:
    """Fingerprints that splits share, and those that repeat within one."""

    sizes: dict[str, int]
    """Number of compared tasks, by split."""
    shared: tuple[SharedFingerprints, ...]
    repeats: tuple[SharedFingerprints, ...]


def leaks(splits: Mapping[str, Iterable[tuple[str, Mapping[str, str]]]]) -> Leaks:
    """Compare the fingerprints of every pair of splits.

    Args:
        splits: name -> (id, {kind: fingerprint}) of each of its tasks.
    """
    sizes: dict[str, int] = {}
    seen: dict[str, dict[str, dict[bytes, list[str]]]] = {}  # kind -> split -> digest -> ids
    for split, tasks in splits.items():
        sizes[split] = 0
        for task, fingerprints in tasks:
            sizes[split] += 1
            for kind, fingerprint in fingerprints.items():
                hashed = hashlib.blake2b(
                    fingerprint.encode("utf-8", "surrogatepass"), digest_size=16
                ).digest()
                seen.setdefault(kind, {}).setdefault(split, {}).setdefault(hashed, []).append(task)
    shared, repeats = [], []
    for kind, by_split in seen.items():
        present = [name for name in splits if name in by_split]
        for index, split in enumerate(present):
            repeated = {hashed: ids for hashed, ids in by_split[split].items() if len(ids) > 1}
            if repeated:
                extra = sum(len(ids) - 1 for ids in repeated.values())
                examples = tuple((ids[0], ids[1]) for ids in repeated.values())
                repeats.append(_shared(kind, (split, split), len(repeated), (extra, extra), examples))
            for other in present[index + 1 :]:
                leak = _between(kind, (split, other), by_split)
                if leak is not None:
                    shared.append(leak)
    return Leaks(sizes=sizes, shared=tuple(shared), repeats=tuple(repeats))


def _between(
    kind: str, pair: tuple[str, str], by_split: Mapping[str, Mapping[bytes, list[str]]]
) -> SharedFingerprints | None:
    first, second = (by_split[name] for name in pair)
    common = [hashed for hashed in first if hashed in second]
    if not common:
        return None
    tasks = sum(len(first[hashed]) for hashed in common), sum(len(second[hashed]) for hashed in common)
    return _shared(
        kind, pair, len(common), tasks, [(first[hashed][0], second[hashed][0]) for hashed in common]
    )


def _shared(
    kind: str,
    splits: tuple[str, str],
    count: int,
    tasks: tuple[int, int],
    examples: Sequence[tuple[str, str]],
) -> SharedFingerprints:
    return SharedFingerprints(
        kind=kind, splits=splits, count=count, tasks=tasks, examples=tuple(examples[:EXAMPLES])
    )
