"""Trees from nested literals, and the credit that an estimator gives them.

A node is a list of the joints that were played there: `[J(0, [J(2), J(0)]), J(1)]` is a root with two joints,
of which the first was played on and the second ended the episode. Joint i plays branch i of every role; with
`pairing="cross"` the joints are all combinations of branches, the last role's counting fastest.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any

import numpy as np

from coterie.core.protocols import Batch, Member, Plan, Team
from coterie.core.types import (
    TEAM,
    Action,
    Annotations,
    Call,
    Credit,
    Decision,
    Fault,
    JointAction,
    Key,
    Node,
    RewardWeights,
    Score,
    Scores,
    Task,
    Tree,
)
from coterie.testing import build
from coterie.testing.support.toys import EchoRole, NoFeedback

Number = float | None | EllipsisType
"""None: missing; ...: there is no such score."""

BRANCHES = Plan(chains=1, branches=4, expand="best", pairing="aligned")
CHAINS = Plan(chains=4, branches=1, expand="best", pairing="aligned")
ALL = Plan(chains=1, branches=2, expand="all", pairing="aligned")
CROSS = Plan(chains=1, branches=2, expand="all", pairing="cross")

TREES = ("magrpo", "marloo", "mareinforce", "maremax")
PLANS: dict[str, Plan] = {
    "at_grpo": BRANCHES,
    "grpo": CHAINS,
    "dr_grpo": CHAINS,
    "rloo": CHAINS,
    "reinforce": CHAINS,
    **dict.fromkeys(TREES, ALL),
    "reinforce_pp": CHAINS,
    "reinforce_pp_baseline": CHAINS,
    "rae": CHAINS,
    "gae": CHAINS,
}
"""Every estimator but `compose`, with a way of sampling that it accepts."""


@dataclass(frozen=True)
class J:
    """One played joint: what it paid, and the node that came after it."""

    gain: Number = ...
    """An increment of the team's."""
    then: Sequence[J] = ()
    potential: Number = ...
    """The value of the state reached."""
    own: Mapping[str, Number] = field(default_factory=dict)
    """Increments of the roles' own, scored at their branches."""
    own_potential: Mapping[str, Number] = field(default_factory=dict)
    fork: Number = ...
    """A counterfactual."""
    lost: bool = False
    """A system fault kept it from being played."""
    recombined: Mapping[str, int] | None = None
    """Played once more from these branches, outside every baseline."""


def chain(*joints: J | Number) -> list[J]:
    """A path without siblings, root first; a number is a joint that paid it."""
    node: list[J] = []
    for pay in reversed(joints):
        joint = pay if isinstance(pay, J) else J(pay)
        node = [J(**{**vars(joint), "then": node})]
    return node


@dataclass
class Forest:
    """One step: its trees and scores, and the token-potential numbers of its branches."""

    order: tuple[tuple[str, ...], ...] = (("one",),)
    pairing: str = "aligned"
    logprobs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """By branch (as `place` names it) the log-probs of the sampled tokens; default: one token."""
    truncated: Sequence[str] = ()
    """Branches that reached the token limit."""
    aborted: Sequence[str] = ()
    """Branches whose call the engine lost, though their joint action was scored."""
    untrained: Sequence[str] = ()
    """Roles whose policy isn't trained."""
    trees: list[Tree] = field(default_factory=list)
    scores: Scores = field(default_factory=Scores)

    def grow(self, *roots: Sequence[J], task: str = "t") -> Forest:
        """One tree a root: the chains of a task."""
        before = sum(tree.task.id == task for tree in self.trees)
        for index, root in enumerate(roots, start=before):
            node = self._node(Key(task, 0, index), root)
            self.trees.append(Tree(task=Task(id=task), chain=index, epoch=0, root=node))
        return self

    def _node(self, key: Key, joints: Sequence[J]) -> Node:
        turn, stage = divmod(len(key.path), len(self.order))
        roles = self.order[stage]
        combinations = self._combinations(roles, joints)
        count = 1 + max(branch for combination in combinations for branch in combination.values())
        joint_actions = tuple(
            self._joint(key, index, joint, combination)
            for index, (joint, combination) in enumerate(zip(joints, combinations, strict=True))
        )
        lost = {
            (role, combination[role])
            for joint, combination in zip(joints, combinations, strict=True)
            if joint.lost
            for role in combination
        }
        return Node(
            key=key,
            turn=turn,
            stage=stage,
            decisions={role: self._decision(key, role, count, lost) for role in roles},
            joints=joint_actions,
            expanded=tuple(index for index, joint in enumerate(joints) if not joint.lost),
        )

    def _combinations(self, roles: Sequence[str], joints: Sequence[J]) -> list[Mapping[str, int]]:
        plain = [joint for joint in joints if joint.recombined is None]
        if self.pairing == "cross":
            width = round(len(plain) ** (1 / len(roles)))
            every = itertools.product(range(width), repeat=len(roles))
            combinations: list[Mapping[str, int]] = [
                dict(zip(roles, combination, strict=True)) for combination in every
            ]
        else:
            combinations = [dict.fromkeys(roles, branch) for branch in range(len(plain))]
        return combinations + [joint.recombined for joint in joints if joint.recombined is not None]

    def _joint(self, key: Key, index: int, joint: J, combination: Mapping[str, int]) -> JointAction:
        at = key.of_joint(index)
        for component, value in (("gain", joint.gain), ("potential", joint.potential), ("fork", joint.fork)):
            self._score(at, TEAM, component, value)
        for component, table in (("own", joint.own), ("own_potential", joint.own_potential)):
            for role, value in table.items():
                self._score(key.of_branch(role, combination[role]), role, component, value)
        fault = Fault(kind="system", reason="the wire was cut") if joint.lost else None
        child = self._node(key.child(index), joint.then) if joint.then else None
        return JointAction(
            branches=combination,
            state_digest="",
            terminated=child is None and fault is None,
            child=child,
            recombined=joint.recombined is not None,
            fault=fault,
        )

    def _score(self, at: Key, role: str, component: str, value: Number) -> None:
        if not isinstance(value, EllipsisType):
            self.scores.add(at, role, component, Score(value, "" if value is not None else "503"))

    def _decision(self, key: Key, role: str, count: int, lost: set[tuple[str, int]]) -> Decision:
        return Decision(
            role=role,
            policy="p",
            observation="",
            messages=(),
            prompt_ids=(1,),
            prompt_sha256="",
            branches=tuple(
                self._action(place(key.of_branch(role, branch)), (role, branch) in lost)
                for branch in range(count)
            ),
            trainable=role not in self.untrained,
        )

    def _action(self, name: str, lost: bool) -> Action:
        if lost or name in self.aborted:
            return Action(calls=(), text="", fault=Fault(kind="system", reason="the wire was cut"))
        logprobs = self.logprobs.get(name, (-0.5,))
        finish: Any = "length" if name in self.truncated else "stop"
        ids = tuple(range(2, 2 + len(logprobs)))
        call = Call(prompt_ids=(1,), token_ids=ids, logprobs=logprobs, version=0, finish=finish)
        return Action(calls=(call,), text="said")

    def annotations(self, name: str, numbers: Mapping[str, Sequence[float]]) -> Annotations:
        """Per-token annotations by branch; default: zeros; none for untrained roles."""
        table = {}
        for key, action in self.actions():
            count = sum(len(call.token_ids) for call in action.calls)
            if count and key.role not in self.untrained:
                table[key] = np.array(numbers.get(place(key), [0.0] * count), dtype=np.float64)
        return {name: table}

    def actions(self) -> list[tuple[Key, Action]]:
        return [
            (node.key.of_branch(role, branch), action)
            for tree in self.trees
            for node in tree.nodes()
            for role, decision in node.decisions.items()
            for branch, action in enumerate(decision.branches)
        ]


def place(key: Key) -> str:
    """A branch by a short name: `0:one0` is branch 0 of role `one` at the root of chain 0, `0.1:one0` is the
    same after joint 1; another task than `t` stands in front."""
    task = "" if key.task == "t" else f"{key.task}/"
    return f"{task}{'.'.join(map(str, (key.chain, *key.path)))}:{key.role}{key.branch}"


def places(table: Mapping[Key, Any]) -> dict[str, Any]:
    """A table of the credit, with short names."""
    return {place(key): value for key, value in table.items()}


def estimator(
    name: str, *, plan: Plan | None = None, forest: Forest | None = None, turns: int = 4, **settings: Any
) -> Any:
    """One of the registered estimators, checked against a plan and a team."""
    algorithm = build("estimator", {"type": name, **settings})
    algorithm.check(plan or PLANS.get(name, ALL), team(forest.order if forest else (("one",),), turns))
    return algorithm


def team(order: Sequence[Sequence[str]] = (("one",),), turns: int = 4) -> Team:
    names = [role for stage in order for role in stage]
    return Team(
        members={name: Member(role=EchoRole(), policy="p") for name in names},
        order=tuple(tuple(stage) for stage in order),
        max_turns=turns,
        transition=NoFeedback(),
    )


def credit(
    algorithm: Any, forest: Forest, annotations: Annotations | None = None, state: Any = None
) -> Credit:
    """The credit of a checked estimator for a step."""
    return step(algorithm, forest, annotations, state)[0]


def step(
    algorithm: Any, forest: Forest, annotations: Annotations | None = None, state: Any = None
) -> tuple[Credit, Any]:
    """(credit, state)."""
    zeros = {name: table for need in algorithm.needs for name, table in forest.annotations(need, {}).items()}
    reward_weights = RewardWeights(
        team_weight=float(algorithm.weights.get(TEAM, 1.0)),
        kinds={"potential": "potential", "own_potential": "potential", "fork": "counterfactual"},
    )
    batch = Batch(
        trees=forest.trees,
        scores=forest.scores,
        annotations={**zeros, **(annotations or {})},
        reward_weights=reward_weights,
    )
    answer: tuple[Credit, Any] = algorithm(batch, state)
    return answer


def advantages(
    name: str, forest: Forest, *, annotations: Annotations | None = None, **settings: Any
) -> dict[str, Any]:
    """Advantages by place, from a registered estimator."""
    return places(credit(estimator(name, forest=forest, **settings), forest, annotations).advantage)
