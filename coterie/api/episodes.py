"""Rollout rows as trees again, and the episodes in them: what people and trackers look at.

Rows are those of `api/rollouts.py`, of a file or just made. Nothing is computed here that a row doesn't say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from coterie.core.training.metrics import UNSELECTED
from coterie.core.types import Node

Row = Mapping[str, Any]
TreeId = tuple[str, int, int]
"""Task, epoch, chain."""
N = TypeVar("N", Node, "RecordedNode")


@dataclass(slots=True)
class RecordedDecision:
    """One role's prompt at a node, and the actions that were sampled for it."""

    prompt: Row
    """Row of kind `node`."""
    branches: list[Row] = field(default_factory=list)
    """Rows of kind `branch`, by branch."""


@dataclass(slots=True)
class RecordedNode:
    """A node of a recorded tree."""

    key: str
    turn: int = 0
    stage: int = 0
    decisions: dict[str, RecordedDecision] = field(default_factory=dict)
    """By role; empty where a prompt outgrew the context."""
    joints: list[Row] = field(default_factory=list)
    """Rows of kind `joint`, by joint action."""
    children: dict[int, RecordedNode] = field(default_factory=dict)
    """By joint action."""

    @property
    def expanded(self) -> list[int]:
        """The joint actions from which the episode goes on, or with which it ended."""
        return [index for index, joint in enumerate(self.joints) if joint["expanded"]]

    @property
    def selected(self) -> bool:
        """Whether the joint action that goes on was chosen by reward."""
        return bool(self.joints) and self.joints[0]["rule"] not in UNSELECTED


@dataclass(frozen=True, slots=True)
class RecordedAction:
    """One role's action on the path of an episode."""

    node: RecordedNode
    joint: Row
    role: str
    prompt: Row
    branch: Row

    @property
    def reward(self) -> float | None:
        """What the joint action on the path paid the role; None: missing."""
        reward: float | None = self.joint["reward"].get(self.role)
        return reward

    @property
    def siblings(self) -> Sequence[Row]:
        """All branches of the prompt, this one included."""
        return self.node.decisions[self.role].branches


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """A path from the root of a tree to a joint action that ended it, or to a node where all were lost."""

    tree: RecordedTree
    index: int
    """Among the episodes of its tree, from 0."""
    path: tuple[tuple[RecordedNode, int | None], ...]
    """(node, its joint action on the path); None at the end: no joint action of the last node could go on."""
    share: float
    """Probability of this path within its tree, if one walked from the root at random."""

    @property
    def key(self) -> str:
        """The key of its last joint action, which names the episode within a step."""
        node, joint = self.path[-1]
        return node.key if joint is None else f"{node.key}.{joint}"

    @property
    def end(self) -> Row | None:
        """Row of the joint action that ended it."""
        node, joint = self.path[-1]
        return None if joint is None else node.joints[joint]

    @property
    def outcome(self) -> Mapping[str, float]:
        """What the environment says of its end; {} where a fault ended it."""
        return (self.end or {}).get("outcome") or {}

    @property
    def success(self) -> float | None:
        """`outcome["success"]`; None where a fault ended the episode."""
        return self.outcome.get("success")

    @property
    def turns(self) -> int:
        """Turns begun, the last one included."""
        return self.path[-1][0].turn + 1

    @property
    def selected(self) -> bool:
        """A choice by reward lies on the path: the best of several, not the policy."""
        return any(node.selected for node, _ in self.path)

    @property
    def actions(self) -> Iterator[RecordedAction]:
        """The committed actions, in the order of play."""
        for node, index in self.path:
            if index is not None:
                joint = node.joints[index]
                for role, branch in joint["branches"].items():
                    decision = node.decisions[role]
                    yield RecordedAction(node, joint, role, decision.prompt, decision.branches[branch])


@dataclass(slots=True)
class RecordedTree:
    """The rollout of one task in one chain."""

    step: int
    """0: the rows don't say."""
    task_id: str
    epoch: int
    chain: int
    stratum: str
    root: RecordedNode
    nodes: dict[str, RecordedNode] = field(default_factory=dict)
    """By key, parents before children."""

    def episodes(self) -> Iterator[RecordedEpisode]:
        """Every path, as `core/training/metrics.episodes` has them; depth first, by joint action."""
        walk = paths_of(self.root, lambda node, index: node.children.get(index))
        for index, (path, share) in enumerate(walk):
            yield RecordedEpisode(self, index, path, share)


def paths_of(
    root: N, child: Callable[[N, int], N | None]
) -> Iterator[tuple[tuple[tuple[N, int | None], ...], float]]:
    """Every path of a tree, recorded or just played, with the probability of a walk from the root.

    A path is (node, its joint action on the path); None at the end: no joint action of the last node could
    go on.

    Args:
        child: the node after a joint action; None: it ended the episode.
    """
    node: Any
    path: tuple[Any, ...]
    stack: list[tuple[N | None, tuple[Any, ...], float]] = [(root, (), 1.0)]
    while stack:
        node, path, share = stack.pop()
        if node is None:
            yield path, share
            continue
        following: list[int | None] = [*node.expanded] or [None]
        for index in reversed(following):
            after = None if index is None else child(node, index)
            stack.append((after, (*path, (node, index)), share / len(following)))


def trees_of(rows: Iterable[Row], step: int = 0) -> list[RecordedTree]:
    """The trees of rollout rows, in the order of the rows.

    Args:
        step: of rows without one of kind `step` (of evaluations).
    """
    nodes: dict[str, RecordedNode] = {}
    places: dict[str, Row] = {}
    for row in rows:
        kind = row["kind"]
        if kind == "step":
            step = int(row["step"])
            continue
        node = nodes.setdefault(row["node"], RecordedNode(row["node"]))
        places.setdefault(row["node"], row)
        if "turn" in row:
            node.turn, node.stage = row["turn"], row["stage"]
        if kind == "node":
            node.decisions[row["role"]] = RecordedDecision(row)
        elif kind == "branch":
            node.decisions[row["role"]].branches.append(row)
        elif kind == "joint":
            node.joints.append(row)
    parents = {
        joint["child"]: (node, index)
        for node in nodes.values()
        for index, joint in enumerate(node.joints)
        if joint["child"] is not None
    }
    trees: list[RecordedTree] = []
    tree_of: dict[str, RecordedTree] = {}
    for key, node in nodes.items():
        if key in parents:
            parent, index = parents[key]
            parent.children[index] = node
            tree = tree_of[parent.key]
        else:
            place = places[key]
            names = place["task_id"], place.get("epoch", 0), place["chain"], place.get("stratum", "")
            tree = RecordedTree(step, *names, node)
            trees.append(tree)
        tree.nodes[key] = node
        tree_of[key] = tree
    return trees


def tree_id(row: Row) -> TreeId:
    """The tree that a row is of."""
    return row["task_id"], row["epoch"], row["chain"]


def is_lost(row: Row) -> bool:
    """Whether a system fault lost an action or a joint action."""
    return row["fault"] is not None and row["fault"]["kind"] == "system"


def answer_text(branch: Row) -> str:
    """What an action wrote; spaces don't count."""
    return " ".join(branch["completion"].split())


def mean_advantage(branch: Row) -> float | None:
    """A branch's advantage, of one per token their mean; None where it is not trained."""
    advantage = branch["advantage"]
    if isinstance(advantage, list):
        return float(np.mean(advantage)) if advantage else None
    return None if advantage is None else float(advantage)


def tokens_of(branch: Row) -> int:
    """Tokens that were sampled for an action, over all its calls."""
    return sum(len(call["token_ids"]) for call in branch["calls"])


def action_rows(episode: RecordedEpisode) -> Iterator[dict[str, Any]]:
    """An episode as flat rows, one an action, for tables (`action_row`)."""
    for action in episode.actions:
        node, row = action.node, action_row(action.joint, action.role, action.prompt, action.branch)
        of = {"step": episode.tree.step, "episode": episode.index, "turn": node.turn, "stage": node.stage}
        yield {**row, **of, "success": episode.success}


def action_row(joint: Row, role: str, prompt: Row, branch: Row) -> dict[str, Any]:
    """An action as a row of a table, in the order of its columns; step, episode and success are open.

    `reward` is what the joint action on the path paid; `scores` are the branch's, as in its row; `advantage`
    is the mean over its tokens.
    """
    return {
        "step": 0,
        "task": branch["task_id"],
        "epoch": branch.get("epoch", 0),
        "chain": branch["chain"],
        "episode": 0,
        "turn": prompt.get("turn", 0),
        "stage": prompt.get("stage", 0),
        "role": role,
        "policy": branch["policy"],
        "branch": branch["branch"],
        "prompt": prompt["prompt"],
        "thought": branch.get("thought", ""),
        "completion": branch["completion"],
        "tool_results": list(branch.get("tool_results", ())),
        "fault": branch["fault"]["reason"] if branch["fault"] else None,
        "scores": dict(branch["scores"]),
        "reward": joint["reward"].get(role),
        "advantage": mean_advantage(branch),
        "tokens": tokens_of(branch),
        "success": None,
    }
