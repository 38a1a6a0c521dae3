"""Trees that were never played: every shape that an estimator may meet, with scores beside them."""

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

WEIGHTS = {"gain": 1.0, "level": 0.5, "own": 0.3, "style": 0.1}
PLANS: tuple[Plan, ...] = (
    Plan(chains=4, branches=1, expand="best", pairing="aligned"),
    Plan(chains=1, branches=4, expand="best", pairing="aligned"),
    Plan(chains=1, branches=3, expand="sampled", pairing="aligned"),
    Plan(chains=1, branches=2, expand="all", pairing="aligned"),
    Plan(chains=1, branches=2, expand="all", pairing="cross"),
)
"""Ways of sampling; an estimator's `check` says which of them mean something to it."""


@dataclass(slots=True)
class Forest:
    """One step's trees, and what is true of them."""

    trees: list[Tree] = field(default_factory=list)
    scores: Scores = field(default_factory=Scores)
    tokens: dict[Key, int] = field(default_factory=dict)
    """By branch: how many tokens were sampled."""
    missing: set[Key] = field(default_factory=set)
    """Branches that no score speaks for: they may have no credit."""

    def annotations(self, names: tuple[str, ...]) -> Annotations:
        """Per-token notes of every branch."""
        rng = np.random.default_rng(0)
        return {name: {key: -rng.random(count) for key, count in self.tokens.items()} for name in names}


def order(plan: Plan) -> tuple[tuple[str, ...], ...]:
    """Roles that act at once where all joints go on; else one after the other."""
    return (("planner", "executor"),) if plan.expand == "all" else (("planner",), ("executor",))


def reward_weights(alpha: float, own: Mapping[str, float]) -> RewardWeights:
    """The Mix of the forest's components."""
    return RewardWeights(weights={**WEIGHTS, **own}, team_weight=alpha, kinds={"level": "potential"})


def grow(plan: Plan, seed: int, *, flat: bool = False, gaps: bool = True, tasks: int = 4) -> Forest:
    """A forest that was sampled as planned.

    Args:
        flat: all episodes and all branches are worth the same.
        gaps: with missing scores and calls that the system lost.
    """
    forest = Forest()
    gardener = _Gardener(plan, forest, flat, gaps)
    for task, chain in itertools.product(range(tasks), range(plan.chains)):
        rng = generator(seed, f"{task}/{chain}", "forest")
        depth = int(rng.integers(1, 4)) * len(order(plan))  # some chains end early
        root = gardener.node(Key(f"train-{task}", 0, chain), 0, depth, rng)
        forest.trees.append(Tree(task=Task(id=f"train-{task}"), chain=chain, epoch=0, root=root))
    return forest


class _Gardener:
    def __init__(self, plan: Plan, forest: Forest, flat: bool, gaps: bool) -> None:
        self.plan, self.forest, self.flat, self.gaps = plan, forest, flat, gaps
        self.order = order(plan)

    def node(self, key: Key, place: int, depth: int, rng: np.random.Generator) -> Node:
        turn, stage = divmod(place, len(self.order))
        roles = self.order[stage]
        decisions = {role: self._decision(key, role, rng) for role in roles}
        combinations = [dict.fromkeys(roles, branch) for branch in range(self.plan.branches)]
        if self.plan.pairing == "cross":
            every = itertools.product(range(self.plan.branches), repeat=len(roles))
            combinations = [dict(zip(roles, combination, strict=True)) for combination in every]
        lost = [
            any(decisions[role].branches[branch].fault is not None for role, branch in combination.items())
            for combination in combinations
        ]
        sound = [index for index, gone in enumerate(lost) if not gone]
        if self.plan.expand != "all" and sound:
            sound = [sound[int(rng.integers(len(sound)))]]
        children = {}
        for index, combination in enumerate(combinations):
            goes_on = index in sound and place + 1 < depth
            unscored = self.gaps and (lost[index] or rng.random() < (0.05 if goes_on else 0.2))
            self._score(key.of_joint(index), combination, unscored, rng)
            if goes_on:
                children[index] = self.node(key.child(index), place + 1, depth, rng)
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
            rule="made",
        )
        self._note_missing(node)
        return node

    def _decision(self, key: Key, role: str, rng: np.random.Generator) -> Decision:
        branches = []
        for branch in range(self.plan.branches):
            place = key.of_branch(role, branch)
            count = int(rng.integers(1, 5))
            if self.gaps and rng.random() < 0.07:
                branches.append(
                    Action(calls=(), text="", fault=Fault(kind="system", reason="the wire was cut"))
                )
                self.forest.missing.add(place)
                self.forest.tokens[place] = 0
                continue
            ids = tuple(int(index) for index in rng.integers(3, 30, count))
            logprobs = tuple(float(value) for value in -rng.random(count))
            call = Call(prompt_ids=(1, 2), token_ids=ids, logprobs=logprobs, version=0, finish="stop")
            branches.append(Action(calls=(call,), text="said", parsed="said"))
            self.forest.tokens[place] = count
            style = 0.5 if self.flat else float(rng.random())
            if not self.flat:  # an action's own scores add up over a chain, whose length differs
                self.forest.scores.add(place, role, "style", Score(style))
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
        self, place: Key, combination: Mapping[str, int], unscored: bool, rng: np.random.Generator
    ) -> None:
        def value(number: float, flat: float = 0.0) -> Score:
            return Score(None, "missing") if unscored else Score(flat if self.flat else number)

        self.forest.scores.add(place, TEAM, "gain", value(float(rng.normal())))
        self.forest.scores.add(place, TEAM, "level", value(float(rng.integers(2)), 1.0))
        for role in combination:
            self.forest.scores.add(place, role, "own", value(float(rng.normal())))

    @staticmethod
    def _joint(combination: Mapping[str, int], lost: bool, expanded: bool, child: Node | None) -> JointAction:
        if lost:
            fault = Fault(kind="system", reason="the wire was cut")
            return JointAction(branches=combination, state_digest="", truncated=True, fault=fault)
        ends = expanded and child is None
        return JointAction(
            branches=combination,
            state_digest="",
            terminated=ends,
            child=child,
            outcome={"success": 1.0} if ends else None,
        )

    def _note_missing(self, node: Node) -> None:
        """Branches all of whose joints end here without a score."""
        for role, decision in node.decisions.items():
            for branch in range(len(decision.branches)):
                with_it = [index for index, joint in enumerate(node.joints) if joint.branches[role] == branch]
                if all(node.joints[index].child is None and self._unscored(node, index) for index in with_it):
                    self.forest.missing.add(node.key.of_branch(role, branch))

    def _unscored(self, node: Node, index: int) -> bool:
        cell = self.forest.scores.at(node.key.of_joint(index))
        return all(score.value is None for score in cell.values())
