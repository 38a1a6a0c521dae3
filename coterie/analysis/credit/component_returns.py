"""What each score component adds to the value of a recorded action, by kind of return; and whether it varies.

A value is a weighted sum of components, so it splits into them exactly. There are four kinds, each the return
of the same name (`plugins/algos/blocks/returns.py`): `immediate` is the action's reward as it is; in
`differences` potentials pay their difference; `to_go` adds the mean of what follows; `episode` also adds what
came before.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from coterie.api.episodes import RecordedNode, RecordedTree, Row, is_lost
from coterie.core.types import RewardWeights, Score

ReturnKind = Literal["immediate", "differences", "to_go", "episode"]
RETURN_KINDS: tuple[ReturnKind, ...] = ("immediate", "differences", "to_go", "episode")
Component = tuple[str, str]
"""(owner, component): the owner is a role or TEAM."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A value by the components that it sums, each times its weight."""

    by_component: Mapping[Component, float] = field(default_factory=dict)
    missing: bool = False
    """Whether a score that counts is missing, so that there is no value."""

    @property
    def value(self) -> float | None:
        return None if self.missing else math.fsum(self.by_component.values())

    def plus(self, other: Parts, scale: float = 1.0) -> Parts:
        """This and `scale` times another value; missing where one of them is."""
        total = dict(self.by_component)
        for component, part in other.by_component.items():
            total[component] = total.get(component, 0.0) + scale * part
        return Parts(total, self.missing or other.missing)


@dataclass(frozen=True, slots=True)
class Rules(RewardWeights):
    """How the scores of a step become rewards: its row of kind `step`, and the discount."""

    gamma: float = 1.0

    @classmethod
    def of(cls, step_row: Row, gamma: float = 1.0) -> Rules:
        return cls(step_row["weights"], step_row["team_weight"], step_row["kinds"], gamma)


def differ(values: Sequence[float]) -> bool:
    """Whether values differ by more than rounding, as sums of the same scores in another order do."""
    return max(values) - min(values) > 1e-12 * max(1.0, *map(abs, values))


Branch = tuple[str, str, int]
"""(key of the node, role, branch)."""


def component_returns(tree: RecordedTree, rules: Rules) -> dict[Branch, dict[ReturnKind, Parts]]:
    """The value of every action of a tree, by kind of return and component.

    An action in several joint actions has the mean of theirs, and none where one of them has none; recombined
    joint actions are outside. `to_go` and `episode` are those of what was played: where `expand: best` leaves
    a branch, nothing follows it.
    """
    result: dict[Branch, dict[ReturnKind, Parts]] = {}
    for role in dict.fromkeys(role for node in tree.nodes.values() for role in node.decisions):
        for node, by_joint in _joint_returns(tree, role, rules):
            for branch, joints in _joints_by_branch(node, role).items():
                result[node.key, role, branch] = {
                    kind: _mean([by_joint[kind][at] for at in joints]) for kind in RETURN_KINDS
                }
    return result


def _joints_by_branch(node: RecordedNode, role: str) -> dict[int, list[int]]:
    """By branch of a role: its joint actions that a baseline counts."""
    if role not in node.decisions:
        return {}
    joints: dict[int, list[int]] = {branch: [] for branch in range(len(node.decisions[role].branches))}
    for index, joint in enumerate(node.joints):
        if role in joint["branches"] and not joint["recombined"]:
            joints[joint["branches"][role]].append(index)
    return joints


def _mean(several: Sequence[Parts]) -> Parts:
    if len(several) == 1:
        return several[0]
    total: dict[Component, float] = {}
    for parts in several:
        for component, part in parts.by_component.items():
            total[component] = total.get(component, 0.0) + part / len(several)
    return Parts(total, not several or any(parts.missing for parts in several))


def _joint_returns(
    tree: RecordedTree, role: str, rules: Rules
) -> Iterator[tuple[RecordedNode, dict[ReturnKind, list[Parts]]]]:
    """Every node with the values of its joint actions for a role, children before parents."""
    visited: list[tuple[RecordedNode, Parts, list[Parts]]] = []
    stack: list[tuple[RecordedNode, dict[Component, float], Parts]] = [(tree.root, {}, Parts())]
    while stack:
        node, before, earlier = stack.pop()
        gains: list[Parts] = []
        for index, joint in enumerate(node.joints):
            gain, after = _gain(node, joint, role, rules, before)
            gains.append(gain)
            if index in node.children:
                upto = earlier.plus(gain, rules.gamma**node.turn)
                stack.append((node.children[index], after, upto))
        visited.append((node, earlier, gains))
    to_go: dict[str, list[Parts]] = {}
    for node, earlier, gains in reversed(visited):  # a loop from the leaves up: an episode may be long
        to_go[node.key] = [
            gain if index not in node.children else _with_later(node, index, gain, to_go, rules)
            for index, gain in enumerate(gains)
        ]
        yield (
            node,
            {
                "immediate": [_reward(node, joint, role, rules) for joint in node.joints],
                "differences": gains,
                "to_go": to_go[node.key],
                "episode": [earlier.plus(later, rules.gamma**node.turn) for later in to_go[node.key]],
            },
        )


def _with_later(
    node: RecordedNode, index: int, gain: Parts, to_go: Mapping[str, Sequence[Parts]], rules: Rules
) -> Parts:
    """A joint action's gain and the mean over its child's joint actions; missing ones are left out."""
    child = node.children[index]
    pairs = zip(child.joints, to_go[child.key], strict=True)
    known = [parts for joint, parts in pairs if not joint["recombined"] and not parts.missing]
    later = _mean(known) if known else Parts(missing=True)
    return gain.plus(later, rules.gamma ** (child.turn - node.turn))


def _scores(
    node: RecordedNode, joint: Row, role: str, rules: Rules
) -> Iterator[tuple[Component, float | None]]:
    """((owner, component), score) of what counts in a role's reward of a joint action."""
    tables = [joint["scores"]]
    if role in joint["branches"] and role in node.decisions:
        tables.append(node.decisions[role].branches[joint["branches"][role]]["own_scores"])
    whole = set(joint.get("whole", ()))
    for table in tables:
        for name, score in table.items():
            owner, _, component = name.partition(".")
            if rules.counts(role, owner, component, Score(score, whole=component in whole)):
                yield (owner, component), score


def _reward(node: RecordedNode, joint: Row, role: str, rules: Rules) -> Parts:
    """What a joint action pays a role, as its row's `reward` has it."""
    parts, missing = dict[Component, float](), is_lost(joint)
    for (owner, component), score in _scores(node, joint, role, rules):
        if score is None:
            missing = True
        else:
            place = owner, component
            parts[place] = parts.get(place, 0.0) + rules.weight(owner, component) * score
    return Parts(parts, missing)


def _gain(
    node: RecordedNode, joint: Row, role: str, rules: Rules, before: Mapping[Component, float]
) -> tuple[Parts, dict[Component, float]]:
    """What a joint action adds on its path, and the potentials after it.

    A missing potential leaves the one before it in place: the sum over the path is that of the last ones.
    """
    parts, missing, after = dict[Component, float](), is_lost(joint), dict(before)
    for (owner, component), score in _scores(node, joint, role, rules):
        kind = rules.kinds.get(component, "increment")
        if kind == "counterfactual":
            continue
        if score is None:
            missing = True
            continue
        place, value = (owner, component), rules.weight(owner, component) * score
        if kind == "potential":
            value, after[place] = value - after.get(place, 0.0), value
        parts[place] = parts.get(place, 0.0) + value
    return Parts(parts, missing), after


# ------------------------------------------------------------------------------ do components vary

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
        for (owner, component), score in _every_score(tree):
            if (owner, component) not in ranges:
                ranges[owner, component] = ScoreRange(owner, component, rules.weight(owner, component))
            ranges[owner, component].add(score)


def _every_score(tree: RecordedTree) -> Iterator[tuple[Component, float | None]]:
    for node in tree.nodes.values():
        tables = [joint["scores"] for joint in node.joints]
        tables += [row["own_scores"] for each in node.decisions.values() for row in each.branches]
        for table in tables:
            for name, score in table.items():
                owner, _, component = name.partition(".")
                yield (owner, component), score
