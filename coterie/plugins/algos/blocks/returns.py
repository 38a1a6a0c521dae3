"""Returns: what an action, or a whole chain, is worth to a role.

There are four. `immediate` is the action's own reward. `tree` adds the mean return of the action's children.
`to_go` is the same along a chain without siblings. `episode` is one number for a whole path. The last three
sum rewards over turns, and all of them use `gain`: an increment counts as it is, a potential counts by its
*difference* to the one before it (Ng et al. 1999; invariant 10), and a `counterfactual` doesn't count, since
no role earned it.
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
"""(owner, component) -> the last potential on the path, times its weight; None where that one is missing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A value, and the branches that get its credit."""

    role: str
    value: float | None
    """None: missing; the row is left out of the baseline, the loss and every denominator."""
    branches: tuple[Key, ...]
    turn: int = 0
    """Turn of the first branch."""
    paid: tuple[float, ...] = ()
    """By branch, its part of `value`; empty where `value` is worth every branch."""


@dataclass(frozen=True, slots=True)
class Horizon:
    """Settings of the returns that sum over turns."""

    gamma: float = 1.0
    """Discount per turn: stages of one turn are not discounted against each other."""
    fill: Fill = "difference"
    """What potentials pay: their difference, or (`repeat`) their value at every turn. Under `repeat` an
    episode that ends early earns its last potential for the remaining turns too, so that stopping never
    costs."""
    max_turns: int = 1
    """Turns of a full episode, for `repeat`."""


def gain(
    node: Node,
    index: int,
    role: str,
    scores: Scores,
    reward_weights: RewardWeights,
    potentials: Potentials,
    fill: Fill = "difference",
) -> tuple[float | None, Potentials]:
    """(what one played joint action pays a role, the potentials after it).

    The pay is None where a component with weight is missing. A potential that follows a missing one pays an
    unknown difference, so that pay is missing too.

    Args:
        potentials: those before the joint action; a component without an earlier score starts at 0.
    """
    joint = node.joints[index]
    cells = [scores.at(node.key.of_joint(index))]
    if role in joint.branches:
        cells.append(scores.at(node.key.of_branch(role, joint.branches[role])))
    paid, missing = 0.0, joint.fault is not None
    scored: dict[tuple[str, str], float | None] = {}
    for cell in cells:
        for (owner, component), score in cell.items():
            weight = reward_weights.weight(owner, component)
            kind = reward_weights.kinds.get(component, "increment")
            if owner not in (role, TEAM) or weight == 0.0 or kind == "counterfactual":
                continue
            value = None if score.value is None else weight * score.value
            before: float | None = 0.0
            if kind == "potential":
                scored[owner, component] = value
                before = 0.0 if fill == "repeat" else potentials.get((owner, component), 0.0)
            if value is None or before is None:
                missing = True
            else:
                paid += value - before
    return (None if missing else paid), _potentials_after(potentials, scored, role)


def _potentials_after(potentials: Potentials, scored: Potentials, role: str) -> Potentials:
    """The potentials before a joint action, updated with the joint action's own."""
    components = {component for _, component in scored}
    kept = {
        (owner, component): potential
        for (owner, component), potential in potentials.items()
        if potential is not None or component not in components
    }
    # A reward source that failed as a whole leaves its missing scores under TEAM, whatever their owners are.
    lost = {
        (role, component): None
        for (owner, component), potential in scored.items()
        if owner == TEAM and potential is None
    }
    return {**kept, **lost, **scored}


def repeated(potentials: Potentials, turn: int, horizon: Horizon) -> float | None:
    """What an episode that ended in `turn` earns in the remaining turns under `fill: repeat`.

    Discounted to `turn`; None where a potential is missing.
    """
    remaining = range(1, horizon.max_turns - turn) if horizon.fill == "repeat" else range(0)
    if not remaining:
        return 0.0
    last = [potential for potential in potentials.values() if potential is not None]
    known = len(last) == len(potentials)
    return sum(last) * sum(horizon.gamma**ahead for ahead in remaining) if known else None


def episode_return(
    path: Sequence[tuple[Node, int]],
    role: str,
    scores: Scores,
    reward_weights: RewardWeights,
    horizon: Horizon = Horizon(),
) -> float | None:
    """What a whole path pays a role, discounted from its first turn.

    With `fill: difference` and gamma 1 potentials telescope to the last one: an unsolved task never pays, and
    an early success loses nothing for the turns that it didn't need.
    """
    total = 0.0
    potentials: Potentials = {}
    for node, index in path:
        paid, potentials = gain(node, index, role, scores, reward_weights, potentials, horizon.fill)
        if paid is None:
            return None
        total += horizon.gamma**node.turn * paid
    last_turn = path[-1][0].turn
    later = repeated(potentials, last_turn, horizon)
    return None if later is None else total + horizon.gamma**last_turn * later


# ------------------------------------------------------------------------------------------------- rows


def immediate(batch: Batch, horizon: Horizon = Horizon()) -> Iterator[Row]:
    """One row per branch: its own reward, whatever follows (AT-GRPO, arXiv 2510.11062)."""
    for tree in batch.trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                rewards = branch_rewards(node, role, batch.scores, batch.reward_weights)
                for branch, reward in enumerate(rewards):
                    value = reward if decision.branches[branch].trainable else None
                    yield Row(role, value, (node.key.of_branch(role, branch),), node.turn)


def episode(batch: Batch, horizon: Horizon = Horizon()) -> Iterator[Row]:
    """One row per (path, role): the path's return credits every action of the role (GRPO, arXiv 2402.03300).

    A path that a system fault ended gives missing rows.
    """
    for tree in batch.trees:
        for path in (*tree.chains(), *lost_chains(tree)):
            for role in sorted({role for node, _ in path for role in node.decisions}):
                actions = [
                    (node, node.joints[index].branches[role])
                    for node, index in path
                    if role in node.decisions
                ]
                value = episode_return(path, role, batch.scores, batch.reward_weights, horizon)
                if not all(node.decisions[role].branches[branch].trainable for node, branch in actions):
                    value = None
                keys = tuple(node.key.of_branch(role, branch) for node, branch in actions)
                yield Row(role, value, keys, actions[0][0].turn)


def lost_chains(tree: Tree) -> Iterator[tuple[tuple[Node, int], ...]]:
    """Every path from the root to a joint action that failed with a system fault, as `Tree.chains`."""
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
    """One row per branch: r + gamma * mean of the children's returns (MAGRPO, arXiv 2508.04652).

    A branch in several joint actions (`pairing: cross`) is worth the mean of their returns. Means leave
    missing returns out.
    """
    for tree in batch.trees:
        for role in sorted({role for node in tree.nodes() for role in node.decisions}):
            rows: list[Row] = []
            _visit(tree.root, role, batch, horizon, {}, rows)
            yield from rows


def _visit(
    node: Node, role: str, batch: Batch, horizon: Horizon, potentials: Potentials, rows: list[Row]
) -> list[float | None]:
    """The returns of a node's joint actions; appends the rows of the role's decisions in this subtree."""
    start = len(rows)
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
        branch_rows = []
        for branch, action in enumerate(node.decisions[role].branches):
            joint_returns = [value for value, joint in zip(returns, node.joints, strict=True)
                             if joint.branches[role] == branch]  # fmt: skip
            value = mean_of(joint_returns) if action.trainable else None
            branch_rows.append(Row(role, value, (node.key.of_branch(role, branch),), node.turn))
        rows[start:start] = branch_rows  # a parent's rows come before its children's
    return returns


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of the present values; None where all are missing."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


Return = Callable[[Batch, Horizon], Iterator[Row]]
RETURNS: dict[str, Return] = {
    "immediate": immediate,
    "episode": episode,
    "tree": tree_return,
    "to_go": tree_return,  # a chain is a tree without siblings
}
"""The returns by name: each makes the rows of a step."""


def token_counts(trees: Sequence[Tree]) -> dict[Key, int]:
    """The number of sampled tokens of every branch."""
    return {
        node.key.of_branch(role, branch): sum(len(call.token_ids) for call in action.calls)
        for tree in trees
        for node in tree.nodes()
        for role, decision in node.decisions.items()
        for branch, action in enumerate(decision.branches)
    }
