"""Returns: what an action, or a whole chain, is worth to a role.

There are four. `immediate` is the action's own reward. `tree` adds the mean return of the action's children.
`to_go` is the same along a chain without siblings. `episode` is one number for a whole path. The last three
sum rewards over turns, and all of them use `gain`: an increment counts as it is, a potential counts by its
*difference* to the one before it (Ng et al. 1999; invariant 10), and a `counterfactual` doesn't count, since
no role earned it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from coterie.core.protocols import Batch
from coterie.core.rollout.rewards import branch_rewards, mean_by_branch
from coterie.core.types import TEAM, Key, Node, RewardWeights, Score, Scores, Tree

Fill = Literal["difference", "repeat"]
Potentials = Mapping[tuple[str, str], float | None]
"""(owner, component) -> the last potential on the path, times its weight; None where that one is missing. The
owner of a whole score is WHOLE."""
WHOLE = ""

Path = tuple[tuple[Node, int], ...]
"""Nodes from the root on, each with the index of the joint action taken."""


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
    differences: bool = False
    """Of the return `immediate`: whether potentials pay their difference."""


def gain(
    node: Node,
    index: int,
    role: str,
    scores: Scores,
    reward_weights: RewardWeights,
    potentials: Potentials,
    fill: Fill = "difference",
    counterfactuals: bool = False,
) -> tuple[float | None, Potentials]:
    """(what one played joint action pays a role, the potentials after it).

    The pay is None where a component with weight is missing. A potential that follows a missing one pays an
    unknown difference, so that pay is missing too.

    Args:
        potentials: those before the joint action; a component without an earlier score starts at 0.
        counterfactuals: whether they count, as in a reward that is not summed.
    """
    joint = node.joints[index]
    cells = [scores.at(node.key.of_joint(index))]
    if role in joint.branches:
        cells.append(scores.at(node.key.of_branch(role, joint.branches[role])))
    paid, missing = 0.0, joint.lost
    after = dict(potentials)
    for cell in cells:
        for (owner, component), score in cell.items():
            kind = reward_weights.kinds.get(component, "increment")
            if kind == "counterfactual" and not counterfactuals:
                continue
            if not reward_weights.counts(role, owner, component, score):
                continue
            value = None if score.value is None else reward_weights.weight(owner, component) * score.value
            before: float | None = 0.0
            if kind == "potential":
                before = _replaced(after, owner, component, role, score)
                after[WHOLE if score.whole else owner, component] = value
                before = 0.0 if fill == "repeat" else before
            if value is None or before is None:
                missing = True
            else:
                paid += value - before
    return (None if missing else paid), after


def _replaced(
    potentials: dict[tuple[str, str], float | None], owner: str, component: str, role: str, score: Score
) -> float | None:
    """The potential that a score replaces; None where it is missing.

    A whole score replaces those of the team and of the role. A whole floor stands until one of them is scored
    again. A whole score that is missing leaves each of them unknown until it is scored itself.
    """
    if score.whole:
        owners = [each for each in (TEAM, role) if (each, component) in potentials] or [WHOLE]
        before = [potentials.pop((each, component), 0.0) for each in owners]
        if score.value is None:
            potentials.update({(each, component): None for each in owners if each != WHOLE})
        return None if None in before else sum(before)  # type: ignore[arg-type]
    if (owner, component) in potentials:
        return potentials[owner, component]
    whole = potentials.get((WHOLE, component), 0.0)
    if whole is not None:  # a floor is replaced at once
        potentials.pop((WHOLE, component), None)
    return whole


def repeated(potentials: Potentials, turn: int, horizon: Horizon) -> float | None:
    """What an episode that ended in `turn` earns in the remaining turns under `fill: repeat`.

    Discounted to `turn`; None where a potential is missing.
    """
    remaining = range(1, horizon.max_turns - turn) if horizon.fill == "repeat" else range(0)
    if not remaining:
        return 0.0
    owned = {component for owner, component in potentials if owner != WHOLE}
    last = [
        potential
        for (owner, component), potential in potentials.items()
        if owner != WHOLE or component not in owned  # where an owner has been scored since, that counts
    ]
    known = [potential for potential in last if potential is not None]
    return sum(known) * sum(horizon.gamma**ahead for ahead in remaining) if len(known) == len(last) else None


def episode_return(
    path: Path,
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
    """One row per branch: its own reward, whatever follows (AT-GRPO, arXiv 2510.11062).

    With `horizon.differences` potentials pay their difference to the turn before, as rows of several turns or
    tasks are compared: a branch that keeps a high value has done nothing for it. Inside one decision all
    branches start from the same value, so they are paid it as it is.
    """
    for tree in batch.trees:
        paid = _differences(tree, batch) if horizon.differences else {}
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                rewards = paid.get(node.key.of_role(role))
                if rewards is None:
                    rewards = branch_rewards(node, role, batch.scores, batch.reward_weights)
                for branch, reward in enumerate(rewards):
                    value = reward if decision.branches[branch].trainable else None
                    yield Row(role, value, (node.key.of_branch(role, branch),), node.turn)


def _differences(tree: Tree, batch: Batch) -> dict[Key, list[float | None]]:
    """By decision, the immediate rewards of its branches, with the differences of potentials."""
    rewards: dict[Key, list[float | None]] = {}
    for role in sorted({role for node in tree.nodes() for role in node.decisions}):
        stack: list[tuple[Node, Potentials]] = [(tree.root, {})]
        while stack:
            node, before = stack.pop()
            pays: list[float | None] = []
            for index, joint in enumerate(node.joints):
                pay, after = gain(
                    node, index, role, batch.scores, batch.reward_weights, before, counterfactuals=True
                )
                pays.append(pay)
                if joint.child is not None:
                    stack.append((joint.child, after))
            if role in node.decisions:
                count = len(node.decisions[role].branches)
                rewards[node.key.of_role(role)] = mean_by_branch(node.joints, role, count, pays)
    return rewards


def episode(batch: Batch, horizon: Horizon = Horizon()) -> Iterator[Row]:
    """One row per (path, role): the path's return credits every action of the role (GRPO, arXiv 2402.03300).

    A path that a system fault ended gives missing rows. So does one with a branch that another of its joint
    actions lost (`pairing: cross`), as in `mean_by_branch`.
    """
    for tree in batch.trees:
        rows = [
            (path, _path_row(path, role, batch, horizon))
            for path in (*tree.chains(), *lost_chains(tree))
            for role in sorted({role for node, _ in path for role in node.decisions})
        ]
        lost = _lost_branches(rows)
        for _, row in rows:
            yield row if lost.isdisjoint(row.branches) else replace(row, value=None)


def _path_row(path: Path, role: str, batch: Batch, horizon: Horizon) -> Row:
    actions = [(node, node.joints[index].branches[role]) for node, index in path if role in node.decisions]
    value = episode_return(path, role, batch.scores, batch.reward_weights, horizon)
    if not all(node.decisions[role].branches[branch].trainable for node, branch in actions):
        value = None
    keys = tuple(node.key.of_branch(role, branch) for node, branch in actions)
    return Row(role, value, keys, actions[0][0].turn)


def _lost_branches(rows: Sequence[tuple[Path, Row]]) -> set[Key]:
    """The branches of which a joint action has no path with a value."""
    known: dict[tuple[Key, int], bool] = {}
    for path, row in rows:
        for node, index in path:
            if row.role in node.decisions and len(node.joints) > 1:
                place = (node.key.of_branch(row.role, node.joints[index].branches[row.role]), index)
                known[place] = known.get(place, False) or row.value is not None
    return {branch for (branch, _), has_value in known.items() if not has_value}


def lost_chains(tree: Tree) -> Iterator[Path]:
    """Every path from the root to a joint action that failed with a system fault, as `Tree.chains`."""
    stack: list[tuple[Node, Path]] = [(tree.root, ())]
    while stack:
        node, before = stack.pop()
        for index, joint in enumerate(node.joints):
            path = (*before, (node, index))
            if joint.lost:
                yield path
            elif joint.child is not None:
                stack.append((joint.child, path))


def tree_return(batch: Batch, horizon: Horizon = Horizon()) -> Iterator[Row]:
    """One row per branch: r + gamma * mean of the children's returns (MAGRPO, arXiv 2508.04652).

    A branch in several joint actions (`pairing: cross`) is worth the mean of their returns, and missing where
    one of them is. The mean over children leaves missing returns out.
    """
    for tree in batch.trees:
        for role in sorted({role for node in tree.nodes() for role in node.decisions}):
            visited = _gains(tree, role, batch, horizon)
            returns: dict[int, list[float | None]] = {}
            for node, gains in reversed(visited):  # a loop from the leaves up: an episode may be long
                returns[id(node)] = _returns(node, gains, returns, horizon)
            for node, _ in visited:
                if role in node.decisions:
                    yield from _branch_rows(node, role, returns[id(node)])


Gains = list[tuple[float | None, Potentials]]
"""By joint action of a node: what it pays a role, and the potentials after it."""


def _gains(tree: Tree, role: str, batch: Batch, horizon: Horizon) -> list[tuple[Node, Gains]]:
    """Every node with its gains, parents before children."""
    visited: list[tuple[Node, Gains]] = []
    stack: list[tuple[Node, Potentials]] = [(tree.root, {})]
    while stack:
        node, before = stack.pop()
        gains = [
            gain(node, index, role, batch.scores, batch.reward_weights, before, horizon.fill)
            for index in range(len(node.joints))
        ]
        visited.append((node, gains))
        pairs = zip(reversed(node.joints), reversed(gains), strict=True)
        stack.extend((joint.child, after) for joint, (_, after) in pairs if joint.child is not None)
    return visited


def _returns(
    node: Node, gains: Gains, below: Mapping[int, Sequence[float | None]], horizon: Horizon
) -> list[float | None]:
    """The returns of a node's joint actions.

    Args:
        below: the returns of its children's joint actions, by the child's `id`.
    """
    returns: list[float | None] = []
    for joint, (paid, after) in zip(node.joints, gains, strict=True):
        child = joint.child
        if child is None:
            later: float | None = repeated(after, node.turn, horizon)
        else:
            counted = zip(child.joints, below[id(child)], strict=True)
            later = mean_of([None if each.recombined else value for each, value in counted])
            if later is not None:
                later *= horizon.gamma ** (child.turn - node.turn)
        returns.append(None if paid is None or later is None else paid + later)
    return returns


def _branch_rows(node: Node, role: str, returns: Sequence[float | None]) -> Iterator[Row]:
    actions = node.decisions[role].branches
    means = mean_by_branch(node.joints, role, len(actions), returns)
    for branch, (action, value) in enumerate(zip(actions, means, strict=True)):
        key = node.key.of_branch(role, branch)
        yield Row(role, value if action.trainable else None, (key,), node.turn)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of the present values; None where all are missing."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def trained(rows: Iterable[Row], batch: Batch) -> Iterable[Row]:
    """The rows of actions whose policy is trained: a frozen partner is in no statistic and gets no credit.

    In a step that trains nothing, as one that is only looked at, all rows stay.
    """
    decisions = {
        node.key.of_role(role): decision.trainable
        for tree in batch.trees
        for node in tree.nodes()
        for role, decision in node.decisions.items()
    }
    if not any(decisions.values()):
        return rows
    return (row for row in rows if all(decisions[key.decision] for key in row.branches))


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
    return {key: action.tokens for tree in trees for key, _, action in tree.actions()}
