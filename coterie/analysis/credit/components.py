"""Whether the components of a reward say anything: the range of each one's scores."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coterie.analysis.credit.component_returns import Component, Rules
from coterie.api.episodes import RecordedTree

LEAST_SCORES = 32
"""Fewest scores of a component that is called dead."""


@dataclass(slots=True)
class ScoreRange:
    """The scores of one component, over all joint actions and single actions that have one."""

    owner: str
    """A role, or `team`."""
    component: str
    weight: float
    known: int = 0
    missing: int = 0
    lo: float = math.inf
    hi: float = -math.inf

    @property
    def name(self) -> str:
        return f"{self.owner}.{self.component}"

    @property
    def dead(self) -> bool:
        """Whether it counts in rewards and all of its scores, 32 or more, are one number.

        It then moves every reward by the same, which no comparison of siblings sees.
        """
        equal = self.hi - self.lo <= 1e-12 * max(1.0, abs(self.hi))
        return self.weight != 0 and self.known >= LEAST_SCORES and equal

    def add(self, score: float | None) -> None:
        if score is None:
            self.missing += 1
        else:
            self.known, self.lo, self.hi = self.known + 1, min(self.lo, score), max(self.hi, score)

    def as_dict(self) -> dict[str, Any]:
        return {
            "owner": self.owner,
            "component": self.component,
            "weight": self.weight,
            "scores": self.known + self.missing,
            "missing": self.missing,
            "lo": self.lo if self.known else None,
            "hi": self.hi if self.known else None,
            "dead": self.dead,
        }


def add_ranges(ranges: dict[Component, ScoreRange], trees: Iterable[RecordedTree], rules: Rules) -> None:
    """Add the scores of a step's trees to the ranges."""
    for tree in trees:
        for (owner, component), score in _scores(tree):
            if (owner, component) not in ranges:
                ranges[owner, component] = ScoreRange(owner, component, rules.weight(owner, component))
            ranges[owner, component].add(score)


def _scores(tree: RecordedTree) -> Iterator[tuple[Component, float | None]]:
    for node in tree.nodes.values():
        tables = [joint["scores"] for joint in node.joints]
        tables += [row["own_scores"] for each in node.decisions.values() for row in each.branches]
        for table in tables:
            for name, score in table.items():
                owner, _, component = name.partition(".")
                yield (owner, component), score
