"""Scores of places in the trees, and the weights that sum them to the reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.core.types.keys import TEAM, Key


@dataclass(frozen=True, slots=True)
class Score:
    """The value of one reward component for a role at a place."""

    value: float | None
    """None: the score is missing. A missing score is never replaced by a number."""
    reason: str = ""
    """Why the score is missing or is its source's floor."""
    source: str = ""
    """Name of the reward source; empty where none was asked, since a system fault came before it."""
    whole: bool = False
    """Whether a failed call left it, of a source that names the owners of its scores itself (scopes `joint`
    and `episode`). It stands under TEAM for every owner of its component."""

    comment: str = ""
    """What a judge wrote about it; a source returns a Score in place of a number to record one."""

    @property
    def floor(self) -> bool:
        """Whether it is its source's floor."""
        return self.value is not None and self.reason != ""


class Scores:
    """The scores of a step: (place, role or TEAM, component) -> Score. Scores are added, never replaced."""

    __slots__ = ("_by_place", "answers")

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}  # of programs, for replays (`coterie/answers.py`)
        self._by_place: dict[Key, dict[tuple[str, str], Score]] = {}

    def add(self, key: Key, role: str, component: str, score: Score) -> None:
        """Add one score.

        Raises:
            ValueError: the place already has a score for that role and component.
        """
        cell = self._by_place.setdefault(key, {})
        if (role, component) in cell:
            raise ValueError(f"{key.text()}: {role}.{component} was scored twice")
        cell[role, component] = score

    def at(self, key: Key) -> Mapping[tuple[str, str], Score]:
        """The scores of a place: {(role or TEAM, component): Score}."""
        return self._by_place.get(key, {})

    def merge(self, other: Scores) -> None:
        """Add all scores of another table."""
        self.answers |= other.answers
        for key, role, component, score in other:
            self.add(key, role, component, score)

    def __iter__(self) -> Iterator[tuple[Key, str, str, Score]]:
        for key, cell in self._by_place.items():
            for (role, component), score in cell.items():
                yield key, role, component, score

    def __len__(self) -> int:
        return sum(len(cell) for cell in self._by_place.values())


ComponentKind = Literal["increment", "potential", "counterfactual"]
"""Meaning of a component's number: a gain (`increment`), the value of a state (`potential`, Ng et al. 1999),
or what a proposal would have earned (`counterfactual`). Returns over several turns sum increments and
differences of potentials, and leave counterfactuals out."""


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The weights that sum components to a role's reward, for selection and for credit alike.

    reward(role) = team_weight * sum_c weights[c] * team score c + sum_c weights[c] * the role's score c
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """By component; 1 where absent."""
    team_weight: float = 1.0
    """Factor on the scores of TEAM: alpha in AT-GRPO (arXiv 2510.11062, Algorithm 1)."""
    kinds: Mapping[str, ComponentKind] = field(default_factory=dict)
    """By component; `increment` where absent."""

    def weight(self, role: str, component: str) -> float:
        """Weight of a role's component; `role` may be TEAM."""
        return self.weights.get(component, 1.0) * (self.team_weight if role == TEAM else 1.0)

    def counts(self, role: str, owner: str, component: str, score: Score) -> bool:
        """Whether an owner's score is part of a role's reward.

        A whole score may stand for the role's own, so a `team_weight` of 0 doesn't make it nothing.
        """
        counted = self.team_weight != 0.0 or score.whole if owner == TEAM else owner == role
        return counted and self.weights.get(component, 1.0) != 0.0

    def reward(self, cell: Mapping[tuple[str, str], Score], role: str) -> float | None:
        """A role's reward from the scores of one place; None where a score that counts is missing."""
        total = 0.0
        for (owner, component), score in cell.items():
            if not self.counts(role, owner, component, score):
                continue
            if score.value is None:
                return None
            total += self.weight(owner, component) * score.value
        return total
