"""What replacing actions changes, by role and turn, and whether advantages say the same."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from coterie.stats import BOOTSTRAP_FROM, Difference, Interval, clustered_bootstrap, paired_difference

Verdict = Literal["agrees", "disagrees", "uncredited", ""]
ROUNDING = 1e-9
"""Advantages below it are 0."""


@dataclass(frozen=True, slots=True)
class CheckedAction:
    """A recorded action and its replacement, each played on from the same state with the same draws."""

    task: str
    role: str
    turn: int
    advantage: float | None
    drawn: bool
    """As in `Choice`."""
    recorded: Sequence[float | None]
    """Returns with the recorded action, by sample; None: missing."""
    replaced: Sequence[float | None]
    successes: Sequence[tuple[float | None, float | None]] = ()
    """(recorded, replaced) success, by sample."""

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """The samples in which neither return is missing."""
        both = zip(self.recorded, self.replaced, strict=True)
        return [(a, b) for a, b in both if a is not None and b is not None]

    @property
    def effect(self) -> float:
        """Mean of recorded less replaced."""
        return math.fsum(a - b for a, b in self.pairs) / len(self.pairs)


@dataclass(frozen=True, slots=True)
class TurnEffect:
    """What a role's actions in a turn add to the return of an episode, over the replacement."""

    role: str
    turn: int
    states: int
    """Recorded states that were checked."""
    change: Difference
    """Return with the recorded action less that with the replacement, paired by task."""
    success: Difference
    """The same of success; NaN where no episode has an outcome."""
    preferred: Interval
    """Change of the actions with an advantage above 0 less that of those with one below, within a task; NaN
    where no task has both."""
    advantage: Interval
    """Mean advantage of the drawn actions, over tasks."""
    verdict: Verdict
    """Whether advantages say the same: `agrees`, `disagrees`, `uncredited` (no action has an advantage, and
    the change is not 0), or empty: it can't be told."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "turn": self.turn,
            "states": self.states,
            "change": self.change.as_dict(),
            "success": self.success.as_dict(),
            "preferred": self.preferred.as_dict(),
            "advantage": self.advantage.as_dict(),
            "verdict": self.verdict or None,
        }


def turn_effects(checked: Iterable[CheckedAction], seed: int = 0) -> list[TurnEffect]:
    """By role and turn, in the order in which roles first come."""
    places: dict[tuple[str, int], list[CheckedAction]] = {}
    for action in checked:
        if action.pairs:
            places.setdefault((action.role, action.turn), []).append(action)
    roles = list(dict.fromkeys(role for role, _ in places))
    order = sorted(places, key=lambda place: (roles.index(place[0]), place[1]))
    return [_effect(*place, places[place], seed) for place in order]


def _effect(role: str, turn: int, checked: Sequence[CheckedAction], seed: int) -> TurnEffect:
    drawn = [action for action in checked if action.drawn]
    pairs: dict[str, list[tuple[float, float]]] = {}
    successes: dict[str, list[tuple[float, float]]] = {}
    advantages: dict[str, list[float]] = {}
    for action in drawn:
        pairs.setdefault(action.task, []).extend(action.pairs)
        known = [(a, b) for a, b in action.successes if a is not None and b is not None]
        if known:
            successes.setdefault(action.task, []).extend(known)
        if action.advantage is not None:
            advantages.setdefault(action.task, []).append(action.advantage)
    change = _paired(pairs, seed, share=False)
    preferred = clustered_bootstrap(_preferred(checked), share=False, seed=seed)
    advantage = clustered_bootstrap(advantages, share=False, seed=seed)
    credited = any(abs(value) > ROUNDING for of_task in advantages.values() for value in of_task)
    verdict = _verdict(change, preferred, advantage, credited, bool(advantages))
    return TurnEffect(
        role, turn, len(drawn), change, _paired(successes, seed, share=True), preferred, advantage, verdict
    )


def _paired(pairs: Mapping[str, Sequence[tuple[float, float]]], seed: int, share: bool) -> Difference:
    return paired_difference(
        {task: [a for a, _ in of_task] for task, of_task in pairs.items()},
        {task: [b for _, b in of_task] for task, of_task in pairs.items()},
        seed=seed,
        share=share,
    )


def _preferred(checked: Sequence[CheckedAction]) -> dict[str, list[float]]:
    """By task with both: mean change of actions that credit raises, less that of those that it lowers."""
    by_sign: dict[str, dict[bool, list[float]]] = {}
    for action in checked:
        if action.advantage is not None and abs(action.advantage) > ROUNDING:
            by_sign.setdefault(action.task, {}).setdefault(action.advantage > 0, []).append(action.effect)
    return {
        task: [math.fsum(signs[True]) / len(signs[True]) - math.fsum(signs[False]) / len(signs[False])]
        for task, signs in by_sign.items()
        if len(signs) == 2
    }


def _verdict(
    change: Interval, preferred: Interval, advantage: Interval, credited: bool, trained: bool
) -> Verdict:
    if trained and not credited and sign(change):
        return "uncredited"
    against = sign(advantage) if abs(advantage.mean) > ROUNDING else 0
    if sign(preferred) < 0 or against * sign(change) < 0:
        return "disagrees"
    return "agrees" if sign(preferred) > 0 else ""


def sign(interval: Interval) -> int:
    """1 or -1 where the interval lies above or below 0, else 0.

    Where all of 6 tasks or more have one value, there is no bound to compare, and that value's sign counts:
    with p = 2 / 2**6 or less, of the sign-flip test, chance gives the same sign to each of them.
    """
    if math.isnan(interval.lo) and interval.n >= BOOTSTRAP_FROM:
        return int(interval.mean > 0) - int(interval.mean < 0)
    return int(interval.lo > 0) - int(interval.hi < 0)
