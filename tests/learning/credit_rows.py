"""The oracle's second part: returns, as rows of a role, a value and the branches that get its credit.

An immediate row and a row of a tree belong to one branch: the mean over the joint actions that contain it,
or missing where one of them is. Where groups span chains, an immediate potential is its difference to the
path before. A tree's value is the pay and gamma times the mean of what comes after. An episode's row belongs
to a path: the discounted sum of the pay. Roles whose policy isn't trained have no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coterie.core.types import Key
from tests.learning.credit_oracle import Book, PlayedJoint, total


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


def trained(one: PlayedJoint, role: str) -> bool:
    return one.node.decisions[role].trainable


def immediate_values(joints: Sequence[PlayedJoint], role: str, book: Book) -> list[float | None]:
    """The rewards of the branches of a role's decision, given all joint actions of its node."""
    return _branch_values(joints, role, book.reward)


def _branch_values(joints: Sequence[PlayedJoint], role: str, value_of: Any) -> list[float | None]:
    """By branch the mean of the values of the joint actions that contain it, missing if any is."""
    values: list[float | None] = []
    for branch, action in enumerate(joints[0].node.decisions[role].branches):
        of = [one for one in joints if one.counts and one.branches[role] == branch]
        sum_ = total(value_of(one, role) for one in of)
        lost = not of or sum_ is None or not action.trainable
        values.append(None if lost or sum_ is None else sum_ / len(of))
    return values


def _branch_rows(every: Sequence[PlayedJoint], value_of: Any, frozen: bool = False) -> list[Row]:
    """A row per branch."""
    nodes: dict[int, list[PlayedJoint]] = {}
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


def immediate_rows(every: Sequence[PlayedJoint], book: Book, spans: bool) -> list[Row]:
    """Rewards; where the groups span chains (`spans`), potentials by their differences."""
    if spans:
        return _branch_rows(every, lambda one, role: book.pay(one, role, counterfactuals=True))
    return _branch_rows(every, book.reward)


def rewards_of(every: Sequence[PlayedJoint], book: Book) -> dict[str, list[float]]:
    """The rewards of the branches that have one, by role; of frozen roles too."""
    rewards: dict[str, list[float]] = {}
    for row in _branch_rows(every, book.reward, frozen=True):
        rewards.setdefault(row.role, []).extend(() if row.value is None else (row.value,))
    return rewards


def tree_rows(every: Sequence[PlayedJoint], book: Book) -> list[Row]:
    """What a branch earned at once, and on average after it."""
    return _branch_rows(every, book.sum_of)


def episode_rows(every: Sequence[PlayedJoint], book: Book) -> list[Row]:
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
