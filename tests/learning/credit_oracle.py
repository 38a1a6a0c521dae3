"""An independent oracle of credit: scores, rewards, pay and returns, in plain float64, from a specification.

It reads the played trees (nodes, decisions, joint actions, calls, faults) and knows what each source answers.
It imports no estimator, no return, no grouping and none of the framework's scores or weights.

**Scores.** A source of scope action or siblings scores a branch, and everything it says belongs to the acting
role: a number, a missing score, a floor. A source of scope joint scores a played joint action, one of scope
episode the last joint action of a path; a table names its owners, and a failure of the call (a floor, or
missing) is *whole*: the team's, and in place of every owner's score; of a component that is scored for roles
alone, it is each role's own. A number that isn't finite is missing. At a joint action with a system fault
everything is missing; where the output brought the game down, sources of scope joint give their floors.

**Reward** of a role at a joint action: the sum of w * v over its own scores and alpha * w * v over the
team's, missing where a score that counts is missing. A score counts where w != 0 and it is the role's own, or
the team's and alpha != 0, or whole. A whole floor at alpha 0 adds 0.

**Pay** is the reward as sums over turns see it: a potential pays its difference to the value before on the
path, a counterfactual nothing. A whole score stands for the role's and the team's potentials of its
component: it pays its value less the sum of theirs. After a whole floor, where one of them is next scored and
counts, it pays less the floor, and the other is gone. A whole score that is missing leaves each of them
unknown until it is scored itself. The difference to a missing value is missing. With `fill: repeat` a
potential pays its value every turn.

`credit_rows.py` makes rows of values from these, and `credit_estimators.py` advantages from rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.types import TEAM, Key, Node, Tree
from tests.learning.credit_sources import Answer, SourceSpec, answer

Voice = Callable[..., Answer]
"""(source, task id, turn, *texts) -> what the source answers, as `credit_sources.answer`."""
WHOLE = "whole"
"""The owner, in the table of held potentials, of a whole score."""


@dataclass(frozen=True)
class Score:
    """One number that a source says at a place."""

    component: str
    owner: str
    value: float | None
    """None: missing."""
    whole: bool = False
    failure: str = ""
    """The source's failure, where the whole call failed."""


def standing(held: Mapping[str, float | None]) -> Mapping[str, float | None]:
    """The potentials of a component that stand: those of its owners, or the whole one where there is none."""
    owners = {owner: value for owner, value in held.items() if owner != WHOLE}
    return owners or held


def after(before: Mapping[str, float | None], now: Mapping[str, float | None]) -> dict[str, float | None]:
    """The potentials of one component after `now` was scored."""
    if WHOLE in now:
        unknown = dict.fromkeys(set(before) - {WHOLE}) if now[WHOLE] is None else {}
        return {**unknown, **now}
    return dict(now) if before.get(WHOLE) is not None else {**before, **now}


@dataclass(eq=False)
class PlayedJoint:
    """One joint action that was played, with all scores at its place and at its branches' places."""

    tree: Tree
    node: Node
    index: int
    before: PlayedJoint | None
    """The joint action that led to the node."""
    after: list[PlayedJoint] = field(default_factory=list)
    """The joint actions of its child."""
    joint_scores: list[Score] = field(default_factory=list)
    branch_scores: dict[str, list[Score]] = field(default_factory=dict)
    """By role that acts."""

    @property
    def branches(self) -> Mapping[str, int]:
        return self.node.joints[self.index].branches

    @property
    def faulty(self) -> bool:
        """Whether a system fault kept it from being played."""
        fault = self.node.joints[self.index].fault
        return fault is not None and fault.kind == "system"

    @property
    def counts(self) -> bool:
        """False for a recombination."""
        return not self.node.joints[self.index].recombined

    @property
    def path(self) -> list[PlayedJoint]:
        return [*(self.before.path if self.before else []), self]

    def key(self, role: str) -> Key:
        return self.node.key.of_branch(role, self.branches[role])

    def action(self, role: str) -> Any:
        return self.node.decisions[role].branches[self.branches[role]]


# --------------------------------------------------------------------------------------------------- scores


def played(trees: Iterable[Tree], sources: Sequence[SourceSpec], voice: Voice = answer) -> list[PlayedJoint]:
    """Every joint action of these trees, parents first, scored by what `voice` says for the sources."""
    found: list[PlayedJoint] = []
    for tree in trees:
        todo: list[tuple[Node, PlayedJoint | None]] = [(tree.root, None)]
        while todo:
            node, before = todo.pop()
            for index, joint in enumerate(node.joints):
                one = PlayedJoint(tree, node, index, before)
                if before is not None:
                    before.after.append(one)
                if not one.faulty:
                    one.joint_scores = _joint_scores(one, sources, voice)
                    for role in joint.branches:
                        one.branch_scores[role] = _branch_scores(one, role, sources, voice)
                found.append(one)
                if joint.child is not None:
                    todo.append((joint.child, one))
    return found


def _texts(one: PlayedJoint) -> tuple[tuple[str, str], ...]:
    return tuple((role, one.action(role).text) for role in sorted(one.branches))


def _joint_scores(one: PlayedJoint, sources: Sequence[SourceSpec], voice: Voice) -> list[Score]:
    ended = one.index in one.node.expanded and one.node.joints[one.index].child is None
    scores = []
    for source in sources:
        roles = list(one.branches)
        if source.scope == "joint" and one.node.joints[one.index].fault is not None:
            said = Answer("floor")  # the output brought the game down
        elif source.scope == "joint":
            said = voice(source, one.tree.task.id, one.node.turn, _texts(one))
        elif source.scope == "episode" and ended:
            said = voice(source, one.tree.task.id, one.node.turn, *map(_texts, one.path))
            roles = list({role: 0 for passed in one.path for role in passed.branches})
        else:
            continue
        if said.failure:
            value = source.floor if said.failure == "floor" else None
            for component in source.kinds:
                if component in source.per_role:
                    scores += [Score(component, role, value, False, said.failure) for role in roles]
                else:
                    scores.append(Score(component, TEAM, value, True, said.failure))
        else:
            scores += [Score(name, owner, _finite(v)) for (owner, name), v in said.tables[0].items()]
    return scores


def _branch_scores(one: PlayedJoint, role: str, sources: Sequence[SourceSpec], voice: Voice) -> list[Score]:
    decision, branch = one.node.decisions[role], one.branches[role]
    scores = []
    for source in sources:
        if source.scope == "action":
            said = voice(source, one.tree.task.id, one.node.turn, ((role, one.action(role).text),))
            at = 0
        elif source.scope == "siblings":
            views = tuple((role, action.text) for action in decision.branches)
            said, at = voice(source, one.tree.task.id, one.node.turn, views), branch
        else:
            continue
        if said.failure:
            value = source.floor if said.failure == "floor" else None
            scores += [Score(component, role, value, False, said.failure) for component in source.kinds]
        else:
            scores += [Score(name, owner, _finite(v)) for (owner, name), v in said.tables[at].items()]
    return scores


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# --------------------------------------------------------------------------------------------- reward and pay


def total(values: Iterable[float | None]) -> float | None:
    """The sum; missing where one is missing."""
    found = list(values)
    return None if any(value is None for value in found) else math.fsum(v for v in found if v is not None)


Held = dict[str, dict[str, float | None]]
"""component -> owner -> the weighted potential that was last scored on a path; None: missing."""


@dataclass
class Book:
    """Rewards and pay, by the weights of components and the factor on the team's."""

    sources: Sequence[SourceSpec]
    alpha: float
    gamma: float = 1.0
    repeat: bool = False
    """Whether `fill` is `repeat`."""
    turns: int = 1
    """`team.max_turns`."""
    _held: dict[tuple[int, str], Held] = field(default_factory=dict)
    _sums: dict[tuple[int, str], float | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.kinds = {name: kind for source in self.sources for name, kind in source.kinds.items()}
        self.weights = {name: source.weights[name] for source in self.sources for name in source.kinds}

    def counted(self, one: PlayedJoint, role: str) -> dict[str, list[Score]]:
        """The scores that count for a role at a joint action, by component."""
        scores: dict[str, list[Score]] = {}
        for score in [*one.joint_scores, *one.branch_scores.get(role, [])]:
            of_team = score.owner == TEAM and (score.whole or self.alpha != 0.0)
            if self.weights[score.component] != 0.0 and (score.owner == role or of_team):
                scores.setdefault(score.component, []).append(score)
        return scores

    def weighted(self, score: Score) -> float | None:
        if score.value is None:
            return None
        return self.weights[score.component] * score.value * (self.alpha if score.owner == TEAM else 1.0)

    def reward(self, one: PlayedJoint, role: str) -> float | None:
        if one.faulty:
            return None
        return total(self.weighted(score) for scores in self.counted(one, role).values() for score in scores)

    def pay(self, one: PlayedJoint, role: str, counterfactuals: bool = False) -> float | None:
        """The pay; `counterfactuals` says whether they are paid too, as for immediate returns."""
        if one.faulty:
            return None
        before = self.held(one.before, role)
        parts: list[float | None] = []
        for component, scores in self.counted(one, role).items():
            kind = self.kinds[component]
            if kind == "potential":
                parts.append(self._gain(before.get(component, {}), self._now(scores)))
            elif kind == "increment" or counterfactuals:
                parts += map(self.weighted, scores)
        return total(parts)

    def _now(self, scores: Iterable[Score]) -> dict[str, float | None]:
        """The weighted potentials that are scored at one place, by owner."""
        return {WHOLE if score.whole else score.owner: self.weighted(score) for score in scores}

    def _gain(self, before: Mapping[str, float | None], now: Mapping[str, float | None]) -> float | None:
        """What a potential pays whose owners held `before` and hold `now`."""
        if self.repeat:
            return total(now.values())
        if WHOLE in now:
            gone = total(standing(before).values())
        elif before.get(WHOLE) is not None:  # a floor
            gone = total(before.values())
        else:
            gone = total(before.get(owner, before.get(WHOLE, 0.0)) for owner in now)
        new = total(now.values())
        return None if new is None or gone is None else new - gone

    def held(self, one: PlayedJoint | None, role: str) -> Held:
        """The role's and the team's potentials after a joint action."""
        if one is None:
            return {}
        if (id(one), role) not in self._held:
            held = dict(self.held(one.before, role))
            for component, scores in self.counted(one, role).items():
                if self.kinds[component] == "potential":
                    before, now = held.get(component, {}), self._now(scores)
                    held[component] = after(before, now)
            self._held[id(one), role] = held
        return self._held[id(one), role]

    def rest(self, one: PlayedJoint, role: str) -> float | None:
        """What an episode that ended with a joint action earns in the turns that are left, discounted."""
        if not self.repeat:
            return 0.0
        held = self.held(one, role).values()
        last = total(value for owners in held for value in standing(owners).values())
        left = range(1, self.turns - one.node.turn)
        return total(None if last is None else last * self.gamma**k for k in left)

    # ------------------------------------------------------------------------------------------- returns

    def sum_of(self, one: PlayedJoint, role: str) -> float | None:
        """The pay, and gamma times the mean of what comes after."""
        if (id(one), role) not in self._sums:
            self._sums[id(one), role] = self._sum_of(one, role)
        return self._sums[id(one), role]

    def _sum_of(self, one: PlayedJoint, role: str) -> float | None:
        pay = self.pay(one, role)
        if pay is None:
            return None
        if not one.after:
            return total((pay, self.rest(one, role)))
        later = [value for child in one.after if (value := self.sum_of(child, role)) is not None]
        if not later:
            return None
        discount = self.gamma ** (one.after[0].node.turn - one.node.turn)
        return pay + discount * math.fsum(later) / len(later)

    def over_path(self, leaf: PlayedJoint, role: str) -> float | None:
        """The discounted sum of the pay over the path to a leaf."""
        parts = [
            None if (pay := self.pay(one, role)) is None else self.gamma**one.node.turn * pay
            for one in leaf.path
        ]
        rest = self.rest(leaf, role)
        return total([*parts, None if rest is None else self.gamma**leaf.node.turn * rest])
