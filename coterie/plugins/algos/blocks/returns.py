"""Returns: what an action, or a whole chain, is worth to a role.

Four of them. `immediate` looks at the action's own reward; `tree` adds the mean of what its children are
worth; `to_go` is the same along a chain without siblings; `episode` is one number for a whole path. The
last three add up what was earned in several turns, and all of them do so through `gain`: increments count
as they are, a level counts by its *difference* to the one before it (invariant 10), and a `counterfactual`,
which nobody was paid, doesn't count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from coterie.core.protocols import Batch
from coterie.core.rollout.rewards import branch_rewards
from coterie.core.types import TEAM, Key, Node, RewardWeights, Scores, Tree

Fill = Literal["difference", "repeat"]
Potentials = Mapping[tuple[str, str], float | None]
"""(owner, component) -> the last level on the way here, times its weight; None where that one is missing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A value, and the branches that it credits."""

    role: str
    value: float | None
    """None: missing; the row is out of the baseline, the loss and every denominator."""
    branches: tuple[Key, ...]
    turn: int = 0
    """Of the first branch."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """How what comes later is weighed."""

    gamma: float = 1.0
    """Per turn: stages of one turn are not discounted against each other."""
    fill: Fill = "difference"
    """What levels pay: their difference, or (`repeat`) their value at every turn, in which case an episode
    that ends early goes on being paid its last one, so that stopping never costs."""
    max_turns: int = 1
    """For `repeat`: how long an episode would have been."""


def gain(
    node: Node,
    index: int,
    role: str,
    scores: Scores,
    reward_weights: RewardWeights,
    potentials: Potentials,
    fill: Fill = "difference",
) -> tuple[float | None, Potentials]:
    """(what one played joint pays a role, the levels after it); None where a part with weight is missing.

    A level that follows a missing one pays an unknown difference, so that is missing too.

    Args:
        levels: those before the joint; a component that was never scored starts at 0.
    """
    joint = node.joints[index]
    cells = [scores.at(node.key.of_joint(index))]
    if role in joint.branches:
        cells.append(scores.at(node.key.of_branch(role, joint.branches[role])))
    paid, missing = 0.0, joint.fault is not None
    found: dict[tuple[str, str], float | None] = {}
    for cell in cells:
        for (owner, component), score in cell.items():
            weight = reward_weights.weight(owner, component)
            kind = reward_weights.kinds.get(component, "increment")
            if owner not in (role, TEAM) or weight == 0.0 or kind == "counterfactual":
                continue
            value = None if score.value is None else weight * score.value
            before: float | None = 0.0
            if kind == "potential":
                found[owner, component] = value
                before = 0.0 if fill == "repeat" else potentials.get((owner, component), 0.0)
            if value is None or before is None:
                missing = True
            else:
                paid += value - before
    return (None if missing else paid), _potentials_after(potentials, found, role)


def _potentials_after(potentials: Potentials, found: Potentials, role: str) -> Potentials:
    """The levels before a joint, with those that it was scored with."""
    scored = {component for _, component in found}
    kept = {
        place: level for place, level in potentials.items() if level is not None or place[1] not in scored
    }
    # A source that failed as a whole says so under TEAM, whoever its components belong to.
    lost = {(role, name): None for (owner, name), level in found.items() if owner == TEAM and level is None}
    return {**kept, **lost, **found}


def repeated(potentials: Potentials, turn: int, horizon: Horizon) -> float | None:
    """What an episode that ended in `turn` goes on earning under `fill: repeat`, seen from that turn."""
    left = range(1, horizon.max_turns - turn) if horizon.fill == "repeat" else range(0)
    if not left:
        return 0.0
    last = [level for level in potentials.values() if level is not None]
    known = len(last) == len(potentials)
    return sum(last) * sum(horizon.gamma**ahead for ahead in left) if known else None


def episode_return(
    path: Sequence[tuple[Node, int]],
    role: str,
    scores: Scores,
    reward_weights: RewardWeights,
    horizon: Horizon = Horizon(),
) -> float | None:
    """What a whole path pays a role, discounted from its first turn.

    With `fill: difference` and gamma 1 levels telescope to the last one: staying unsolved never pays, and an
    early success is not punished for the turns it didn't need.
    """
    total = 0.0
    potentials: Potentials = {}
    for node, index in path:
        paid, potentials = gain(node, index, role, scores, reward_weights, potentials, horizon.fill)
        if paid is None:
            return None
        total += horizon.gamma**node.turn * paid
    last = path[-1][0].turn
    later = repeated(potentials, last, horizon)
    return None if later is None else total + horizon.gamma**last * later


# ------------------------------------------------------------------------------------------------- rows


def immediate(batch: Batch, horizon: Horizon = Horizon()) -> Iterator[Row]:
    """One row a branch: its reward at once, without a look at what it led to (AT-GRPO, arXiv 2510.11062)."""
    for tree in batch.trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                rewards = branch_rewards(node, role, batch.scores, batch.reward_weights)
                for branch, reward in enumerate(rewards):
                    value = reward if decision.branches[branch].trainable else None
                    yield Row(role, value, (node.key.of_branch(role, branch),), node.turn)


def episode(batch: Batch, horizon: Horizon = Horizon()) -> Iterator[Row]:
    """One row a (path, role): the path's return credits all that the role did on it (GRPO, arXiv 2402.03300).

    A path that a system fault ended gives missing rows.
    """
    for tree in batch.trees:
        for path in (*tree.chains(), *lost_chains(tree)):
            for role in sorted({role for node, _ in path for role in node.decisions}):
                taken = [
                    (node, node.joints[index].branches[role])
                    for node, index in path
                    if role in node.decisions
                ]
                value = episode_return(path, role, batch.scores, batch.reward_weights, horizon)
                if not all(node.decisions[role].branches[branch].trainable for node, branch in taken):
                    value = None
                keys = tuple(node.key.of_branch(role, branch) for node, branch in taken)
                yield Row(role, value, keys, taken[0][0].turn)


def lost_chains(tree: Tree) -> Iterator[tuple[tuple[Node, int], ...]]:
    """Every path from the root to a joint that a system fault kept from being played, as `Tree.chains`."""
    stack: list[tuple[Node, tuple[tuple[Node, int], ...]]] = [(tree.root, ())]
    while stack:
        node, before = stack.pop()
        for index, joint in enumerate(node.joints):
            path = (*before, (node, index))
            if joint.fault is not None:
                yield path
            elif joint.child is not None:
                stack.append((joint.child, path))


def tree_return(batch: Batch, horizon: Horizon = Horizon()) -> Iterator[Row]:
    """One row a branch: r + gamma * mean of the children's returns (MAGRPO, arXiv 2508.04652).

    A branch of several joints (`pairing: cross`) is worth the mean of theirs. Means are over what is present.
    """
    for tree in batch.trees:
        for role in sorted({role for node in tree.nodes() for role in node.decisions}):
            rows: list[Row] = []
            _visit(tree.root, role, batch, horizon, {}, rows)
            yield from rows


def _visit(
    node: Node, role: str, batch: Batch, horizon: Horizon, potentials: Potentials, rows: list[Row]
) -> list[float | None]:
    """The returns of a node's joints; appends the rows of the role's decisions from here on."""
    place = len(rows)
    returns: list[float | None] = []
    for index, joint in enumerate(node.joints):
        paid, after = gain(node, index, role, batch.scores, batch.reward_weights, potentials, horizon.fill)
        if joint.child is None:
            later: float | None = repeated(after, node.turn, horizon)
        else:
            later = mean_of(_visit(joint.child, role, batch, horizon, after, rows))
            if later is not None:
                later *= horizon.gamma ** (joint.child.turn - node.turn)
        returns.append(None if paid is None or later is None or joint.recombined else paid + later)
    if role in node.decisions:
        own = []
        for branch, action in enumerate(node.decisions[role].branches):
            with_it = [value for value, joint in zip(returns, node.joints, strict=True)
                       if joint.branches[role] == branch]  # fmt: skip
            value = mean_of(with_it) if action.trainable else None
            own.append(Row(role, value, (node.key.of_branch(role, branch),), node.turn))
        rows[place:place] = own  # a parent's before its children's
    return returns


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of what is present; None where nothing is."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


Return = Callable[[Batch, Horizon], Iterator[Row]]
RETURNS: dict[str, Return] = {
    "immediate": immediate,
    "episode": episode,
    "tree": tree_return,
    "to_go": tree_return,  # a chain is a tree without siblings
}


def token_counts(trees: Sequence[Tree]) -> dict[Key, int]:
    """By branch: how many tokens were sampled for it."""
    return {
        node.key.of_branch(role, branch): sum(len(call.token_ids) for call in action.calls)
        for tree in trees
        for node in tree.nodes()
        for role, decision in node.decisions.items()
        for branch, action in enumerate(decision.branches)
    }
