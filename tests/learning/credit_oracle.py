"""An independent oracle of credit: scores, rewards, pay and returns, in plain float64, from a specification.

It reads the played trees (nodes, decisions, joint actions, calls, faults) and knows what each source answers.
It imports no estimator, no return, no grouping and none of the framework's scores or weights.

**Scores.** A source of scope action or siblings scores a branch, and everything it says belongs to the acting
role: a number, a missing score, a floor. A source of scope joint scores a played joint action, one of scope
episode the last joint action of a path; a table names its owners, and a failure of the call (a floor, or
missing) is *whole*: the team's, and in place of every owner's score. A number that isn't finite is missing.
At a joint action with a system fault everything is missing.

**Reward** of a role at a joint action: the sum of w * v over its own scores and alpha * w * v over the
team's, missing where a score that counts is missing. A score counts where w != 0 and it is the role's own, or
the team's and alpha != 0, or whole. A whole floor at alpha 0 adds 0.

**Pay** is the reward as sums over turns see it: a potential pays its difference to the value before on the
path, a counterfactual nothing. A whole score stands for all owners of its component: it pays its value less
the sum of theirs, and they pay the sum of theirs less its value when they are next scored. The difference to
a missing value is missing. With `fill: repeat` a potential pays its value every turn.

**Returns** are rows (role, value, branches): `immediate_rows`, `tree_rows` and `episode_rows`.
`tests/learning/credit_estimators.py` turns rows into advantages.
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


@dataclass(eq=False)
class Played:
    """One joint action that was played, with all scores at its place and at its branches' places."""

    tree: Tree
    node: Node
    index: int
    before: Played | None
    """The joint action that led to the node."""
    after: list[Played] = field(default_factory=list)
    """The joint actions of its child."""
    joint_scores: list[Score] = field(default_factory=list)
    branch_scores: dict[str, list[Score]] = field(default_factory=dict)
    """By role that acts."""

    @property
    def branches(self) -> Mapping[str, int]:
        return self.node.joints[self.index].branches

    @property
    def faulty(self) -> bool:
        return self.node.joints[self.index].fault is not None

    @property
    def counts(self) -> bool:
        """False for a recombination."""
        return not self.node.joints[self.index].recombined

    @property
    def path(self) -> list[Played]:
        return [*(self.before.path if self.before else []), self]

    def key(self, role: str) -> Key:
        return self.node.key.of_branch(role, self.branches[role])

    def action(self, role: str) -> Any:
        return self.node.decisions[role].branches[self.branches[role]]


@dataclass(frozen=True)
class Row:
    """A value of a role, and the branches that get its credit."""

    role: str
    value: float | None
    branches: tuple[Key, ...]
    task: str
    epoch: int
    chain: int
    turn: int = -1


# --------------------------------------------------------------------------------------------------- scores


def played(trees: Iterable[Tree], sources: Sequence[SourceSpec], voice: Voice = answer) -> list[Played]:
    """Every joint action of these trees, parents first, scored by what `voice` says for the sources."""
    found: list[Played] = []
    for tree in trees:
        todo: list[tuple[Node, Played | None]] = [(tree.root, None)]
        while todo:
            node, before = todo.pop()
            for index, joint in enumerate(node.joints):
                one = Played(tree, node, index, before)
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


def _texts(one: Played) -> tuple[tuple[str, str], ...]:
    return tuple((role, one.action(role).text) for role in sorted(one.branches))


def _joint_scores(one: Played, sources: Sequence[SourceSpec], voice: Voice) -> list[Score]:
    ended = one.index in one.node.expanded and one.node.joints[one.index].child is None
    scores = []
    for source in sources:
        if source.scope == "joint":
            said = voice(source, one.tree.task.id, one.node.turn, _texts(one))
        elif source.scope == "episode" and ended:
            said = voice(source, one.tree.task.id, one.node.turn, *map(_texts, one.path))
        else:
            continue
        if said.failure:
            value = source.floor if said.failure == "floor" else None
            scores += [Score(component, TEAM, value, True, said.failure) for component in source.kinds]
        else:
            scores += [Score(name, owner, _finite(v)) for (owner, name), v in said.tables[0].items()]
    return scores


def _branch_scores(one: Played, role: str, sources: Sequence[SourceSpec], voice: Voice) -> list[Score]:
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

    def relevant(self, one: Played, role: str) -> list[Score]:
        """The scores at a joint action that are the role's or the team's."""
        every = [*one.joint_scores, *one.branch_scores.get(role, [])]
        return [score for score in every if score.owner in (TEAM, role) and self.weights[score.component]]

    def counts(self, score: Score) -> bool:
        return score.whole or score.owner != TEAM or self.alpha != 0.0

    def weighted(self, score: Score) -> float | None:
        if score.value is None:
            return None
        return self.weights[score.component] * score.value * (self.alpha if score.owner == TEAM else 1.0)

    def reward(self, one: Played, role: str) -> float | None:
        if one.faulty:
            return None
        return total(self.weighted(score) for score in self.relevant(one, role) if self.counts(score))

    def pay(self, one: Played, role: str, counterfactuals: bool = False) -> float | None:
        """The pay; `counterfactuals` says whether they are paid too, as for immediate returns."""
        if one.faulty:
            return None
        before = self.held(one.before, role)
        parts: list[float | None] = []
        for component in dict.fromkeys(score.component for score in one_scores(one, role)):
            if not self.weights[component]:
                continue
            kind = self.kinds[component]
            scores = [score for score in self.relevant(one, role) if score.component == component]
            if kind == "increment" or (kind == "counterfactual" and counterfactuals):
                parts += [self.weighted(score) for score in scores if self.counts(score)]
            elif kind == "potential":
                now = {WHOLE if s.whole else s.owner: self.weighted(s) for s in scores if self.counts(s)}
                parts.append(self._gain(before.get(component, {}), now))
        return total(parts)

    def _gain(self, before: Mapping[str, float | None], now: Mapping[str, float | None]) -> float | None:
        """What a potential pays whose owners held `before` and hold `now`."""
        if self.repeat:
            return total(now.values())
        if WHOLE in now or WHOLE in before:
            gone = total(before.values())
        else:
            gone = total(before.get(owner, 0.0) for owner in now)
        new = total(now.values())
        return None if new is None or gone is None else new - gone

    def held(self, one: Played | None, role: str) -> Held:
        """The role's and the team's potentials after a joint action."""
        if one is None:
            return {}
        if (id(one), role) in self._held:
            return self._held[id(one), role]
        held = {name: dict(owners) for name, owners in self.held(one.before, role).items()}
        for component in dict.fromkeys(score.component for score in one_scores(one, role)):
            if self.kinds[component] != "potential" or not self.weights[component]:
                continue
            scores = [score for score in self.relevant(one, role) if score.component == component]
            now = {WHOLE if s.whole else s.owner: self.weighted(s) for s in scores if self.counts(s)}
            replaced = WHOLE in now or WHOLE in held.get(component, {})
            held[component] = now if replaced else {**held.get(component, {}), **now}
        self._held[id(one), role] = held
        return held

    def rest(self, one: Played, role: str) -> float | None:
        """What an episode that ended with a joint action earns in the turns that are left, discounted."""
        if not self.repeat:
            return 0.0
        last = total(value for owners in self.held(one, role).values() for value in owners.values())
        left = range(1, self.turns - one.node.turn)
        return total(None if last is None else last * self.gamma**k for k in left)

    # ------------------------------------------------------------------------------------------- returns

    def sum_of(self, one: Played, role: str) -> float | None:
        """The pay, and gamma times the mean of what comes after."""
        if (id(one), role) not in self._sums:
            self._sums[id(one), role] = self._sum_of(one, role)
        return self._sums[id(one), role]

    def _sum_of(self, one: Played, role: str) -> float | None:
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

    def over_path(self, leaf: Played, role: str) -> float | None:
        """The discounted sum of the pay over the path to a leaf."""
        parts = [
            None if (pay := self.pay(one, role)) is None else self.gamma**one.node.turn * pay
            for one in leaf.path
        ]
        rest = self.rest(leaf, role)
        return total([*parts, None if rest is None else self.gamma**leaf.node.turn * rest])


def one_scores(one: Played, role: str) -> list[Score]:
    """The scores at a joint action, whoever owns them, and those of the role's branch."""
    return [*one.joint_scores, *one.branch_scores.get(role, [])]


# ------------------------------------------------------------------------------------------------------ rows


def trained(one: Played, role: str) -> bool:
    return one.node.decisions[role].trainable


def immediate_values(joints: Sequence[Played], role: str, book: Book) -> list[float | None]:
    """The rewards of the branches of a role's decision, given all joint actions of its node."""
    return _branch_values(joints, role, book.reward)


def _branch_values(joints: Sequence[Played], role: str, value_of: Any) -> list[float | None]:
    """By branch the mean of the values of the joint actions that contain it, missing if any is."""
    values: list[float | None] = []
    for branch, action in enumerate(joints[0].node.decisions[role].branches):
        of = [one for one in joints if one.counts and one.branches[role] == branch]
        sum_ = total(value_of(one, role) for one in of)
        lost = not of or sum_ is None or not action.trainable
        values.append(None if lost or sum_ is None else sum_ / len(of))
    return values


def _branch_rows(every: Sequence[Played], value_of: Any, frozen: bool = False) -> list[Row]:
    """A row per branch."""
    nodes: dict[int, list[Played]] = {}
    for one in every:
        nodes.setdefault(id(one.node), []).append(one)
    rows = []
    for joints in nodes.values():
        node, tree = joints[0].node, joints[0].tree
        for role, decision in node.decisions.items():
            if not (decision.trainable or frozen):
                continue
            for branch, value in enumerate(_branch_values(joints, role, value_of)):
                key = node.key.of_branch(role, branch)
                rows.append(Row(role, value, (key,), tree.task.id, tree.epoch, tree.chain, node.turn))
    return rows


def immediate_rows(every: Sequence[Played], book: Book, spans: bool) -> list[Row]:
    """Rewards; where the groups span chains (`spans`), potentials by their differences."""
    if spans:
        return _branch_rows(every, lambda one, role: book.pay(one, role, counterfactuals=True))
    return _branch_rows(every, book.reward)


def rewards_of(every: Sequence[Played], book: Book) -> dict[str, list[float]]:
    """The rewards of the branches that have one, by role; of frozen roles too."""
    rewards: dict[str, list[float]] = {}
    for row in _branch_rows(every, book.reward, frozen=True):
        rewards.setdefault(row.role, []).extend(() if row.value is None else (row.value,))
    return rewards


def tree_rows(every: Sequence[Played], book: Book) -> list[Row]:
    """What a branch earned at once, and on average after it."""
    return _branch_rows(every, book.sum_of)


def episode_rows(every: Sequence[Played], book: Book) -> list[Row]:
    """A row per path and role that acted on it; missing where it holds a lost branch.

    A branch is lost if one of the joint actions that contain it has no path with a value.
    """
    leaves = [one for one in every if not one.after and (one.faulty or one.index in one.node.expanded)]
    alive: dict[int, set[str]] = {}
    values: dict[tuple[int, str], float | None] = {}
    for leaf in leaves:
        for role in {role for one in leaf.path for role in one.branches}:
            values[id(leaf), role] = book.over_path(leaf, role)
            if values[id(leaf), role] is not None:
                for one in leaf.path:
                    alive.setdefault(id(one), set()).add(role)
    lost = {
        one.key(role)
        for one in every
        for role in one.branches
        if one.counts and role not in alive.get(id(one), set())
    }
    rows = []
    for leaf in leaves:
        for role in {role: 0 for one in leaf.path for role in one.branches}:
            acted = [one for one in leaf.path if role in one.branches]
            if not trained(acted[0], role):
                continue
            keys = tuple(one.key(role) for one in acted)
            sound = all(one.action(role).trainable for one in acted) and not lost & set(keys)
            value = values[id(leaf), role] if sound else None
            tree = leaf.tree
            rows.append(Row(role, value, keys, tree.task.id, tree.epoch, tree.chain))
    return rows
