"""The smallest example: a failing case with as little in its arguments as still breaks the same promise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coterie.testing.checking.cases import Case, arguments_of

COUNTS = ("episodes", "turns", "tasks", "seeds", "texts", "limit")
"""Arguments that say how much a check does."""
_SEEDS = 8


def smallest(case: Case, breaks: Callable[[Case], bool], *, seconds: float) -> Case:
    """The case with fewer and shorter arguments, found by calling the check again and again.

    Args:
        breaks: whether a case breaks the same promise at the same place.
        seconds: after which the smallest one so far is returned.
    """
    until = time.monotonic() + seconds
    moved = True
    while moved:
        moved = False
        for smaller in _smaller(case):
            if time.monotonic() > until:
                return case
            if breaks(smaller):
                case, moved = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases that are smaller in one argument, those that save most time first."""
    given = {**arguments_of(case.kind), **case.arguments}
    for name in COUNTS:
        value = given.get(name)
        if isinstance(value, int) and value > 1:
            yield case.with_arguments(**{name: 1})
            if name == "episodes":  # another episode may be the one that fails
                for seed in range(1, _SEEDS):
                    yield case.with_arguments(episodes=1, seed=seed)
            if value > 3:
                yield case.with_arguments(**{name: value // 2})
    for name, value in case.arguments.items():
        if isinstance(value, (list, tuple)) and len(value) > 1 and name not in ("order", "roles"):
            for part in _parts(value):
                yield case.with_arguments(**{name: part})
    for name, value in case.arguments.items():
        if name in ("good", "feedback", "texts") and isinstance(value, (list, tuple)) and len(value) == 1:
            yield case.with_arguments(**{name: value[:0]})


def _parts(value: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Each item alone, the halves, and all but one."""
    if len(value) <= 12:
        yield from (value[index : index + 1] for index in range(len(value)))
    middle = len(value) // 2
    if len(value) > 3:
        yield from (value[:middle], value[middle:])
    if 2 < len(value) <= 12:
        yield from ([*value[:index], *value[index + 1 :]] for index in range(len(value)))
