"""Trees from nested literals: `J`, `chain` and `Forest`, and the actions and decisions they are made of.

A node is a list of the joint actions that were played there: `[J(0, [J(2), J(0)]), J(1)]` is a root with two
joint actions, of which the first was played on and the second ended the episode. Joint action i plays branch
i of every role; with `pairing="cross"` the joint actions are all combinations of branches, and the branch of
the last role changes fastest.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import EllipsisType
from typing import Any, Literal

import numpy as np

from coterie.core.errors import UserError, did_you_mean
from coterie.core.types import (
    TEAM,
    Action,
    Annotations,
    Call,
    Decision,
    Fault,
    JointAction,
    Key,
    Message,
    Node,
    Score,
    Scores,
    Task,
    Tree,
    as_tuple,
)

Number = float | None | EllipsisType
"""None: missing; ...: there is no such score."""


def action(
    *logprobs: float,
    text: str = "go",
    finish: Literal["stop", "length", "abort"] = "stop",
    fault: Fault | None = None,
    prompt: Sequence[int] = (1,),
    version: int = 0,
) -> Action:
    """An action of one call, given the log-probs of its sampled tokens; without any, of no call."""
    ids = tuple(range(2, 2 + len(logprobs)))
    call = Call(prompt_ids=tuple(prompt), token_ids=ids, logprobs=logprobs, version=version, finish=finish)
    return Action(calls=(call,) if logprobs else (), text=text, parsed=None if fault else text, fault=fault)


def lost_action() -> Action:
    """An action whose call the engine lost."""
    return action(text="", fault=Fault(kind="system", reason="the connection was lost"))


def decision(
    role: str,
    *branches: Action,
    policy: str = "p",
    messages: Sequence[Message] = (),
    trainable: bool = True,
    prompt: Sequence[int] = (1,),
    prompt_sha256: str = "",
) -> Decision:
    """A role's decision with these branches."""
    return Decision(
        role=role,
        policy=policy,
        observation="",
        messages=tuple(messages),
        prompt_ids=tuple(prompt),
        prompt_sha256=prompt_sha256,
        branches=branches,
        trainable=trainable,
    )


@dataclass(frozen=True)
class J:
    """One joint action that was played: its scores, and the node that came after it."""

    gain: Number = ...
    """An increment of the team's."""
    then: Sequence[J] = ()
    potential: Number = ...
    """The value of the state reached."""
    role_gain: Mapping[str, Number] = field(default_factory=dict)
    """Increments of single roles, scored at their branches; the component `own`."""
    role_potential: Mapping[str, Number] = field(default_factory=dict)
    """Values of the state for single roles, scored at their branches; the component `own_potential`."""
    fork: Number = ...
    """A counterfactual."""
    scores: Mapping[tuple[str, str], Number] = field(default_factory=dict)
    """Other scores at the joint action, by role (or `coterie.TEAM`) and component."""
    lost: bool | Sequence[str] = False
    """A system fault kept it from being played: it lost the calls of these roles; True: of all that act."""
    recombined: Mapping[str, int] | None = None
    """Played once more from these branches, outside every baseline."""
    committed: bool = True
    """Whether the episode went on from it or ended with it."""
    outcome: Mapping[str, float] | None = None
    """The environment's outcome, where the episode ended."""


def chain(*joints: J | Number) -> list[J]:
    """A path without siblings, root first; a number is a joint action with this gain."""
    node: list[J] = []
    for pay in reversed(joints):
        joint = pay if isinstance(pay, J) else J(pay)
        node = [J(**{**vars(joint), "then": node})]
    return node


@dataclass
class Forest:
    """The trees and scores of one step, made of literals.

    Args:
        order: `team.order`, as stages.
        pairing: `aligned`, or `cross`: the joint actions of a node are all combinations of branches.
    """

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
    rule: str = ""
    """`Node.rule` of every node."""
    trees: list[Tree] = field(default_factory=list)
    scores: Scores = field(default_factory=Scores)

    def grow(self, *roots: Sequence[J], task: str = "t") -> Forest:
        """Add one tree a root: the chains of a task. Returns this forest.

        Raises:
            UserError: a node is no list of `J`, or has a number of them that its pairing can't have.
        """
        before = sum(tree.task.id == task for tree in self.trees)
        for index, root in enumerate(roots, start=before):
            node = self._node(Key(task, 0, index), root)
            self.trees.append(Tree(task=Task(id=task), chain=index, epoch=0, root=node))
        return self

    def _node(self, key: Key, joints: Sequence[J]) -> Node:
        turn, stage = divmod(len(key.path), len(self.order))
        roles = self.order[stage]
        _check_node(joints, key)
        combinations = self._combinations(roles, joints)
        count = 1 + max(branch for combination in combinations for branch in combination.values())
        joint_actions = tuple(
            self._joint(key, index, joint, combination)
            for index, (joint, combination) in enumerate(zip(joints, combinations, strict=True))
        )
        lost = {
            (role, combination[role])
            for joint, combination in zip(joints, combinations, strict=True)
            for role in combination
            if joint.lost is True or (joint.lost and role in joint.lost)
        }
        return Node(
            key=key,
            turn=turn,
            stage=stage,
            decisions={role: self._decision(key, role, count, lost) for role in roles},
            joints=joint_actions,
            expanded=tuple(index for index, joint in enumerate(joints) if joint.committed and not joint.lost),
            rule=self.rule,
        )

    def combinations(self, roles: Sequence[str], branches: int) -> list[Mapping[str, int]]:
        """The combinations of branches that a node's joint actions play, in their order."""
        if self.pairing == "cross":
            every = itertools.product(range(branches), repeat=len(roles))
            return [dict(zip(roles, combination, strict=True)) for combination in every]
        return [dict.fromkeys(roles, branch) for branch in range(branches)]

    def _combinations(self, roles: Sequence[str], joints: Sequence[J]) -> list[Mapping[str, int]]:
        plain = [joint for joint in joints if joint.recombined is None]
        width = len(plain)
        if self.pairing == "cross":
            width = round(len(plain) ** (1 / len(roles)))
            if width ** len(roles) != len(plain):
                raise UserError(
                    f"{len(plain)} joint actions are not all combinations of {len(roles)} roles' branches",
                    fix=f"with b branches a role: b to the power of {len(roles)} joint actions",
                )
        return self.combinations(roles, width) + [
            joint.recombined for joint in joints if joint.recombined is not None
        ]

    def _joint(self, key: Key, index: int, joint: J, combination: Mapping[str, int]) -> JointAction:
        at = key.of_joint(index)
        for component, value in (("gain", joint.gain), ("potential", joint.potential), ("fork", joint.fork)):
            self._score(at, TEAM, component, value)
        for (role, component), value in joint.scores.items():
            self._score(at, role, component, value)
        for component, table in (("own", joint.role_gain), ("own_potential", joint.role_potential)):
            for role, value in table.items():
                self._score(key.of_branch(role, combination[role]), role, component, value)
        fault = Fault(kind="system", reason="the connection was lost") if joint.lost else None
        child = self._node(key.child(index), joint.then) if joint.then else None
        return JointAction(
            branches=combination,
            state_digest="",
            terminated=child is None and fault is None and joint.committed,
            truncated=fault is not None,
            child=child,
            outcome=joint.outcome,
            recombined=joint.recombined is not None,
            fault=fault,
        )

    def _score(self, at: Key, role: str, component: str, value: Number) -> None:
        if not isinstance(value, EllipsisType):
            self.scores.add(at, role, component, Score(value, "" if value is not None else "503"))

    def _decision(self, key: Key, role: str, count: int, lost: set[tuple[str, int]]) -> Decision:
        branches = [
            self._action(place(key.of_branch(role, branch)), (role, branch) in lost)
            for branch in range(count)
        ]
        return decision(role, *branches, trainable=role not in self.untrained)

    def _action(self, name: str, lost: bool) -> Action:
        if lost or name in self.aborted:
            return lost_action()
        finish: Literal["stop", "length"] = "length" if name in self.truncated else "stop"
        return action(*self.logprobs.get(name, (-0.5,)), finish=finish)

    def annotations(self, name: str, numbers: Mapping[str, Sequence[float]]) -> Annotations:
        """Per-token annotations by branch; default: zeros; none for untrained roles."""
        table = {}
        for key, action in self.actions():
            count = action.tokens
            if count and key.role not in self.untrained:
                table[key] = np.array(numbers.get(place(key), [0.0] * count), dtype=np.float64)
        return {name: table}

    def actions(self) -> list[tuple[Key, Action]]:
        """Every branch with its action."""
        return [(key, action) for tree in self.trees for key, _, action in tree.actions()]


def place(key: Key) -> str:
    """A branch by a short name: `0:one0` is branch 0 of role `one` at the root of chain 0, `0.1:one0` is the
    same after joint 1; another task than `t` stands in front."""
    task = "" if key.task == "t" else f"{key.task}/"
    return f"{task}{'.'.join(map(str, (key.chain, *key.path)))}:{key.role}{key.branch}"


def places(table: Mapping[Key, Any]) -> dict[str, Any]:
    """A table of the credit, with short names."""
    return {place(key): value for key, value in table.items()}


def tree_literals(
    *roots: Sequence[J], order: Sequence[str | Sequence[str]] = ("one",), **settings: Any
) -> Forest:
    """A step's trees and scores from literals: one tree a root, all of them chains of the task `t`.

        tree_literals([J(0, [J(2), J(0)]), J(1)]).trees[0]

    Args:
        order: `team.order`.
        settings: fields of `Forest`, such as `pairing="cross"`.

    Raises:
        UserError: see `Forest.grow`; or a setting names a branch that isn't there.
    """
    forest = Forest(order=as_tuple(order), **settings).grow(*roots)
    names = [place(key) for key, _ in forest.actions()]
    for name in (*forest.logprobs, *forest.truncated, *forest.aborted):
        if name not in names:
            raise UserError(f"the literals have no branch '{name}'", fix=did_you_mean(name, names))
    return forest


def _check_node(joints: Any, key: Key) -> None:
    """Require of a literal that it is a list of `J`."""
    where = ".".join(map(str, (key.chain, *key.path)))
    if isinstance(joints, J) or not isinstance(joints, Sequence) or not joints:
        raise UserError(f"the node at {where} is {joints!r}", fix="a list of `J`: [J(1.0), J(0.0)]")
    for index, joint in enumerate(joints):
        if not isinstance(joint, J):
            raise UserError(
                f"item {index} of the node at {where} is {joint!r}",
                fix="a `J`; chain(1, 0) makes a path of numbers",
            )
