"""Synthetic trees and scores in every shape that an estimator may receive."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from coterie.core.protocols import Plan
from coterie.core.types import (
    TEAM,
    Action,
    Annotations,
    Call,
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
from coterie.core.types.seeding import generator

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
class Forest:
    """One step's trees and scores, and the facts that a check needs about them."""

    trees: list[Tree] = field(default_factory=list)
    scores: Scores = field(default_factory=Scores)
    tokens: dict[Key, int] = field(default_factory=dict)
    """Number of sampled tokens of each branch."""
    missing: set[Key] = field(default_factory=set)
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


def grow(plan: Plan, seed: int, *, flat: bool = False, gaps: bool = True, tasks: int = 4) -> Forest:
    """A forest with the shape that the plan gives.

    Args:
        flat: all episodes and all branches are worth the same.
        gaps: with missing scores and calls that a system fault lost.
    """
    forest = Forest()
    grower = _Grower(plan, forest, flat, gaps)
    for task, chain in itertools.product(range(tasks), range(plan.chains)):
        rng = generator(seed, f"{task}/{chain}", "forest")
        depth = int(rng.integers(1, 4)) * len(order(plan))  # some chains end early
        root = grower.node(Key(f"train-{task}", 0, chain), 0, depth, rng)
        forest.trees.append(Tree(task=Task(id=f"train-{task}"), chain=chain, epoch=0, root=root))
    return forest


class _Grower:
    """Grows trees node by node and adds their scores to the forest."""

    def __init__(self, plan: Plan, forest: Forest, flat: bool, gaps: bool) -> None:
        self.plan, self.forest, self.flat, self.gaps = plan, forest, flat, gaps
        self.order = order(plan)

    def node(self, key: Key, position: int, depth: int, rng: np.random.Generator) -> Node:
        turn, stage = divmod(position, len(self.order))
        roles = self.order[stage]
        decisions = {role: self._decision(key, role, rng) for role in roles}
        combinations = [dict.fromkeys(roles, branch) for branch in range(self.plan.branches)]
        if self.plan.pairing == "cross":
            products = itertools.product(range(self.plan.branches), repeat=len(roles))
            combinations = [dict(zip(roles, combination, strict=True)) for combination in products]
        lost = [
            any(decisions[role].branches[branch].fault is not None for role, branch in combination.items())
            for combination in combinations
        ]
        sound = [index for index, is_lost in enumerate(lost) if not is_lost]
        if self.plan.expand != "all" and sound:
            sound = [sound[int(rng.integers(len(sound)))]]
        children = {}
        for index, combination in enumerate(combinations):
            expands = index in sound and position + 1 < depth
            unscored = self.gaps and (lost[index] or rng.random() < (0.05 if expands else 0.2))
            self._score(key.of_joint(index), combination, unscored, rng)
            if expands:
                children[index] = self.node(key.child(index), position + 1, depth, rng)
        joints = tuple(
            self._joint(combination, lost[index], index in sound, children.get(index))
            for index, combination in enumerate(combinations)
        )
        node = Node(
            key=key,
            turn=turn,
            stage=stage,
            decisions=decisions,
            joints=joints,
            expanded=tuple(sound),
            rule="synthetic",
        )
        self._mark_missing(node)
        return node

    def _decision(self, key: Key, role: str, rng: np.random.Generator) -> Decision:
        branches = []
        for branch in range(self.plan.branches):
            branch_key = key.of_branch(role, branch)
            count = int(rng.integers(1, 5))
            if self.gaps and rng.random() < 0.07:
                branches.append(
                    Action(calls=(), text="", fault=Fault(kind="system", reason="the connection was lost"))
                )
                self.forest.missing.add(branch_key)
                self.forest.tokens[branch_key] = 0
                continue
            ids = tuple(int(index) for index in rng.integers(3, 30, count))
            logprobs = tuple(float(value) for value in -rng.random(count))
            call = Call(prompt_ids=(1, 2), token_ids=ids, logprobs=logprobs, version=0, finish="stop")
            branches.append(Action(calls=(call,), text="answer", parsed="answer"))
            self.forest.tokens[branch_key] = count
            style = 0.5 if self.flat else float(rng.random())
            if not self.flat:  # per-action scores add up over a chain, and chains differ in length
                self.forest.scores.add(branch_key, role, "style", Score(style))
        return Decision(
            role=role,
            policy="policy",
            observation="",
            messages=({"role": "user", "content": "?"},),
            prompt_ids=(1, 2),
            prompt_sha256="",
            branches=tuple(branches),
        )

    def _score(
        self, joint_key: Key, combination: Mapping[str, int], unscored: bool, rng: np.random.Generator
    ) -> None:
        def value(number: float, flat: float = 0.0) -> Score:
            return Score(None, "missing") if unscored else Score(flat if self.flat else number)

        self.forest.scores.add(joint_key, TEAM, "gain", value(float(rng.normal())))
        self.forest.scores.add(joint_key, TEAM, "progress", value(float(rng.integers(2)), 1.0))
        for role in combination:
            self.forest.scores.add(joint_key, role, "individual", value(float(rng.normal())))

    @staticmethod
    def _joint(combination: Mapping[str, int], lost: bool, expanded: bool, child: Node | None) -> JointAction:
        if lost:
            fault = Fault(kind="system", reason="the connection was lost")
            return JointAction(branches=combination, state_digest="", truncated=True, fault=fault)
        ends = expanded and child is None
        return JointAction(
            branches=combination,
            state_digest="",
            terminated=ends,
            child=child,
            outcome={"success": 1.0} if ends else None,
        )

    def _mark_missing(self, node: Node) -> None:
        """Mark the branches whose joint actions all end at this node without a score."""
        for role, decision in node.decisions.items():
            for branch in range(len(decision.branches)):
                joints = [index for index, joint in enumerate(node.joints) if joint.branches[role] == branch]
                if all(node.joints[index].child is None and self._unscored(node, index) for index in joints):
                    self.forest.missing.add(node.key.of_branch(role, branch))

    def _unscored(self, node: Node, index: int) -> bool:
        scores = self.forest.scores.at(node.key.of_joint(index))
        return all(score.value is None for score in scores.values())
