"""Synthetic trees and scores in every shape that an estimator may receive."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coterie.core.protocols import Plan
from coterie.core.types import TEAM, Annotations, Key, Node, RewardWeights, Score, Scores, Tree
from coterie.core.types.seeding import generator
from coterie.testing.support.trees import Forest, J, place

WEIGHTS = {"gain": 1.0, "progress": 0.5, "individual": 0.3, "style": 0.1}
PLANS: tuple[Plan, ...] = (
    Plan(chains=4, branches=1, expand="best", pairing="aligned"),
    Plan(chains=1, branches=4, expand="best", pairing="aligned"),
    Plan(chains=1, branches=3, expand="sampled", pairing="aligned"),
    Plan(chains=1, branches=2, expand="all", pairing="aligned"),
    Plan(chains=1, branches=2, expand="all", pairing="cross"),
)
"""Sampling plans to try; an estimator's `check` accepts those that it is defined for."""


@dataclass(slots=True)
class SyntheticStep:
    """One step's trees and scores, and the facts that a check needs about them."""

    trees: list[Tree]
    scores: Scores
    tokens: dict[Key, int]
    """Number of sampled tokens of each branch."""
    missing: set[Key]
    """Branches without any score: they may have no credit."""

    def annotations(self, names: tuple[str, ...]) -> Annotations:
        """Per-token arrays of every branch."""
        rng = np.random.default_rng(0)
        return {name: {key: -rng.random(count) for key, count in self.tokens.items()} for name in names}


def order(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Both roles in one stage where all joint actions are expanded; else one stage a role."""
    return (("planner", "executor"),) if plan.expand == "all" else (("planner",), ("executor",))


def reward_weights(team_weight: float, overrides: Mapping[str, float]) -> RewardWeights:
    """Reward weights of the forest's components."""
    return RewardWeights(
        weights={**WEIGHTS, **overrides}, team_weight=team_weight, kinds={"progress": "potential"}
    )


def grow(plan: Plan, seed: int, *, flat: bool = False, gaps: bool = True, tasks: int = 4) -> SyntheticStep:
    """Trees and scores with the shape that the plan gives.

    Args:
        flat: all episodes and all branches are worth the same.
        gaps: with missing scores and calls that a system fault lost.
    """
    grower = _Grower(plan, flat, gaps)
    for task, chain in itertools.product(range(tasks), range(plan.chains)):
        rng = generator(seed, f"{task}/{chain}", "forest")
        depth = int(rng.integers(1, 4)) * len(order(plan))  # some chains end early
        root = grower.node(Key(f"train-{task}", 0, chain), depth, rng)
        grower.forest.grow(root, task=f"train-{task}")
    forest = grower.forest
    tokens = {key: action.tokens for key, action in forest.actions()}
    missing = {
        key for tree in forest.trees for node in tree.nodes() for key in _unscored(node, forest.scores)
    }
    return SyntheticStep(forest.trees, forest.scores, tokens, missing)


class _Grower:
    """Draws the literals of a forest, node by node."""

    def __init__(self, plan: Plan, flat: bool, gaps: bool) -> None:
        self.plan, self.flat, self.gaps = plan, flat, gaps
        self.logprobs: dict[str, tuple[float, ...]] = {}
        self.forest = Forest(order=order(plan), pairing=plan.pairing, logprobs=self.logprobs)

    def node(self, key: Key, depth: int, rng: np.random.Generator) -> list[J]:
        """The joint actions of a node, given the number of nodes on the longest path from the root."""
        roles = self.forest.order[len(key.path) % len(self.forest.order)]
        lost = {branch for role in roles for branch in self._branches(key, role, rng)}
        combinations = self.forest.combinations(roles, self.plan.branches)
        lost_by = [
            tuple(role for role in roles if (role, combination[role]) in lost) for combination in combinations
        ]
        sound = [index for index, lost_roles in enumerate(lost_by) if not lost_roles]
        if self.plan.expand != "all" and sound:
            sound = [sound[int(rng.integers(len(sound)))]]
        joints = []
        for index, lost_roles in enumerate(lost_by):
            expands = index in sound and len(key.path) + 1 < depth
            unscored = self.gaps and (bool(lost_roles) or rng.random() < (0.05 if expands else 0.2))
            joint = self._joint(roles, unscored, rng)
            then = self.node(key.child(index), depth, rng) if expands else []
            committed = index in sound
            outcome = {"success": 1.0} if committed and not expands else None
            joints.append(replace(joint, then=then, lost=lost_roles, committed=committed, outcome=outcome))
        return joints

    def _branches(self, key: Key, role: str, rng: np.random.Generator) -> list[tuple[str, int]]:
        """Draw a role's branches and score their style; returns those that a system fault lost."""
        lost = []
        for branch in range(self.plan.branches):
            branch_key = key.of_branch(role, branch)
            count = int(rng.integers(1, 5))
            if self.gaps and rng.random() < 0.07:
                lost.append((role, branch))
                continue
            self.logprobs[place(branch_key)] = tuple(float(value) for value in -rng.random(count))
            if not self.flat:  # per-action scores add up over a chain, and chains differ in length
                self.forest.scores.add(branch_key, role, "style", Score(float(rng.random())))
        return lost

    def _joint(self, roles: Sequence[str], unscored: bool, rng: np.random.Generator) -> J:
        def value(number: float, flat: float = 0.0) -> float | None:
            return None if unscored else flat if self.flat else number

        gain, progress = value(float(rng.normal())), value(float(rng.integers(2)), 1.0)
        individual = {(role, "individual"): value(float(rng.normal())) for role in roles}
        return J(gain, scores={(TEAM, "progress"): progress, **individual})


def _unscored(node: Node, scores: Scores) -> Iterator[Key]:
    """Branches that the engine lost, or whose joint actions all end at this node without a score."""
    for role, decision in node.decisions.items():
        for branch, action in enumerate(decision.branches):
            joints = [index for index, joint in enumerate(node.joints) if joint.branches[role] == branch]
            ended = all(
                node.joints[index].child is None
                and all(score.value is None for score in scores.at(node.key.of_joint(index)).values())
                for index in joints
            )
            if not action.trainable or ended:
                yield node.key.of_branch(role, branch)
