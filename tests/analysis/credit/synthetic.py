"""Recorded steps of a team that was never trained, with known credit: rows by hand, as a run records them.

Two roles, a and b, answer with words; each task has one right word a role. `form` says how they are sampled:
`branches` (b acts after a, K siblings a prompt, the best goes on), `together` (both at once, K joint actions)
and `chains` (b acts after a, the team is paid at the end). The pay is share * right_a + (1 - share) * right_b
+ noise; a free-rider's part is 0.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from coterie.analysis.credit.component_returns import Rules
from coterie.api.episodes import RecordedTree, trees_of

Row = dict[str, Any]
FORMS = ("branches", "together", "chains")


@dataclass(frozen=True)
class Team:
    form: str = "branches"
    free_rider: str = ""
    """The role whose answers don't matter; empty: none."""
    dead: bool = False
    """Whether the component `format` is 1 whatever is written."""
    noise: float = 0.0
    words: int = 4
    siblings: int = 6
    tasks: int = 8
    steps: int = 10
    share: float = 0.5
    rare: float = 0.1
    """How often a living `format` is 0."""


WEIGHTS = {"pay": 1.0, "format": 0.1}


def step_row(step: int) -> Row:
    return {"kind": "step", "step": step, "weights": WEIGHTS, "team_weight": 1.0, "kinds": {}, "state": None}


class Writer:
    """Writes the rows of one step."""

    def __init__(self, team: Team, step: int, draws: random.Random) -> None:
        self.team, self.step, self.draws = team, step, draws

    def rows(self) -> Iterator[Row]:
        for index in range(self.team.tasks):
            task = f"train-{index}"
            keys = random.Random(task)
            right = {role: keys.randrange(self.team.words) for role in "ab"}
            if self.team.form == "chains":
                for chain in range(self.team.siblings):
                    yield from self._chain(task, chain, right)
            elif self.team.form == "together":
                yield from self._together(task, right)
            else:
                yield from self._branches(task, right)

    def _word(self) -> int:
        return self.draws.randrange(self.team.words)

    def _pay(self, right: dict[str, int], **words: int) -> float:
        parts = {"a": self.team.share, "b": 1 - self.team.share}
        paid = sum(
            parts[role] * (word == right[role])
            for role, word in words.items()
            if role != self.team.free_rider
        )
        return paid + self.draws.gauss(0.0, self.team.noise) if self.team.noise else paid

    def _format(self) -> float:
        return 1.0 if self.team.dead or self.draws.random() >= self.team.rare else 0.0

    def _node(self, place: Row, role: str, turn: int, words: list[int], prompt: str) -> Iterator[Row]:
        node = {**place, "turn": turn, "stage": 0 if self.team.form == "together" else "ab".index(role)}
        yield {"kind": "node", **node, "role": role, "prompt": prompt, "prompt_sha256": prompt}
        for branch, word in enumerate(words):
            yield {
                "kind": "branch", **place, "role": role, "branch": branch, "policy": role, "weight": 1.0,
                "completion": f"word{word}", "calls": [{"token_ids": [1, 2]}], "fault": None, "return": None,
                "advantage": None, "scores": {}, "own_scores": {}, "reward": None,
            }  # fmt: skip

    def _joint(
        self, place: Row, index: int, branches: dict[str, int], scores: Row, child: str | None, expanded: bool
    ) -> Row:
        formats = {f"{role}.format": self._format() for role in branches}
        return {
            "kind": "joint", **place, "joint": index, "branches": branches, "scores": {**scores, **formats},
            "whole": [], "child": child, "expanded": expanded, "recombined": False, "fault": None,
            "rule": "best", "outcome": None, "reward": {},
        }  # fmt: skip

    def _place(self, task: str, chain: int, path: str) -> Row:
        return {"task_id": task, "epoch": 0, "chain": chain, "node": f"{self.step}/{task}/c{chain}/n{path}"}

    def _branches(self, task: str, right: dict[str, int]) -> Iterator[Row]:
        root, child = self._place(task, 0, ""), self._place(task, 0, "0")
        first = [self._word() for _ in range(self.team.siblings)]
        yield from self._node(root, "a", 0, first, task)
        for index, word in enumerate(first):
            goes_on = child["node"] if index == 0 else None
            pay = {"team.pay": self._pay(right, a=word)}
            yield self._joint(root, index, {"a": index}, pay, goes_on, index == 0)
        second = [self._word() for _ in range(self.team.siblings)]
        yield from self._node(child, "b", 0, second, f"{task} {first[0]}")
        for index, word in enumerate(second):
            yield self._joint(
                child, index, {"b": index}, {"team.pay": self._pay(right, b=word)}, None, index == 0
            )

    def _together(self, task: str, right: dict[str, int]) -> Iterator[Row]:
        root = self._place(task, 0, "")
        words = {role: [self._word() for _ in range(self.team.siblings)] for role in "ab"}
        for role in "ab":
            yield from self._node(root, role, 0, words[role], task)
        for index in range(self.team.siblings):
            pay = {"team.pay": self._pay(right, a=words["a"][index], b=words["b"][index])}
            yield self._joint(root, index, {"a": index, "b": index}, pay, None, index == 0)

    def _chain(self, task: str, chain: int, right: dict[str, int]) -> Iterator[Row]:
        root, child = self._place(task, chain, ""), self._place(task, chain, "0")
        a, b = self._word(), self._word()
        yield from self._node(root, "a", 0, [a], task)
        yield self._joint(root, 0, {"a": 0}, {}, child["node"], True)
        yield from self._node(child, "b", 0, [b], f"{task} {a}")
        yield self._joint(child, 0, {"b": 0}, {"team.pay": self._pay(right, a=a, b=b)}, None, True)


def recorded(team: Team, seed: int) -> tuple[dict[int, list[RecordedTree]], dict[int, Rules]]:
    """The trees and the rules of each step."""
    draws = random.Random(seed)
    steps = range(1, team.steps + 1)
    rules = Rules.of(step_row(1))
    return {
        step: trees_of([step_row(step), *Writer(team, step, draws).rows()]) for step in steps
    }, dict.fromkeys(steps, rules)


def drawn_team(seed: int, **planted: Any) -> Team:
    """A team whose sizes are drawn."""
    draws = random.Random(1000 + seed)
    form = FORMS[seed % 3]
    return Team(
        form=form,
        noise=draws.choice((0.0, 0.0, 0.2)),
        words=draws.randint(2, 4),
        siblings=draws.randint(4, 8) * (1 + (form == "chains")),
        tasks=draws.randint(6, 12),
        steps=draws.randint(8, 16),
        share=draws.uniform(0.3, 0.7),
        rare=draws.uniform(0.03, 0.3),
        **planted,
    )
