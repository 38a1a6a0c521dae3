"""Scores beside the trees, and the weights that make them *the* reward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from coterie.core.types.keys import TEAM, Key


@dataclass(frozen=True, slots=True)
class Score:
    """One component's value for a place and a role. None = missing, never a stand-in number."""

    value: float | None
    reason: str = ""
    source: str = ""


class Scores:
    """The table beside the trees: (place, role or TEAM, component) -> Score. Late writers only add."""

    __slots__ = ("_by_place",)

    def __init__(self) -> None:
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
        """All scores of a place: {(role, component): Score}."""
        return self._by_place.get(key, {})

    def merge(self, other: Scores) -> None:
        for key, cell in other._by_place.items():
            for (role, component), score in cell.items():
                self.add(key, role, component, score)

    def __iter__(self) -> Iterator[tuple[Key, str, str, Score]]:
        for key, cell in self._by_place.items():
            for (role, component), score in cell.items():
                yield key, role, component, score

    def __len__(self) -> int:
        return sum(len(cell) for cell in self._by_place.values())


ComponentKind = Literal["increment", "potential", "counterfactual"]
"""A gain; the value of a state; or what a proposal would have earned on a fork. Returns that sum over turns
add increments, use differences of potentials, and leave counterfactuals out (invariant 10)."""


@dataclass(frozen=True, slots=True)
class RewardWeights:
    """The weighted sum of components that is *the* reward, for selection and for credit alike.

    reward(role) = team_weight * sum of weight * team component + sum of weight * the role's own component.
    """

    weights: Mapping[str, float] = field(default_factory=dict)
    """Per component; 1 where absent."""
    team_weight: float = 1.0
    """Weight of everything that belongs to the team (arXiv 2510.11062, Algorithm 1)."""
    kinds: Mapping[str, ComponentKind] = field(default_factory=dict)
    """Per component; increment where absent."""

    def weight(self, role: str, component: str) -> float:
        own = self.weights.get(component, 1.0)
        return own * self.team_weight if role == TEAM else own

    def reward(self, cell: Mapping[tuple[str, str], Score], role: str) -> float | None:
        """The role's reward for a place with these scores; None where a part with weight is missing."""
        total = 0.0
        for (owner, component), score in cell.items():
            if owner not in (role, TEAM):
                continue
            weight = self.weight(owner, component)
            if weight == 0.0:
                continue
            if score.value is None:
                return None
            total += weight * score.value
        return total
