"""A tree whose nodes ask different roles, with scores and credit, for tests of rows and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from coterie.core.types import (
    TEAM,
    Action,
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
from coterie.testing.support import trees


def action(tokens: int, **fields: Any) -> Action:
    """An action of so many tokens, sampled by version 5."""
    return trees.action(*(-1 / (3 + i) for i in range(tokens)), prompt=(0, 1, 2), version=5, **fields)


def decision(role: str, *branches: Action) -> Decision:
    messages = ({"role": "system", "content": f"You are the {role}."}, {"role": "user", "content": "Go on."})
    return trees.decision(
        role, *branches, policy=f"p_{role}", messages=messages, prompt=(1, 2, 3), prompt_sha256="abc"
    )


def leaf(combination: Mapping[str, int], success: float | None, **fields: object) -> JointAction:
    outcome = None if success is None else {"success": success, "quality": success / 2}
    return JointAction(branches=combination, state_digest="end", terminated=True, outcome=outcome, **fields)  # type: ignore[arg-type]


def toy() -> tuple[Tree, Scores, Credit, RewardWeights]:
    """Planner and coder act at once with two branches each; `best` commits joint 1, then the planner acts."""
    root, second = Key("train-7"), Key("train-7").child(1)
    end = Node(
        key=second,
        turn=1,
        stage=0,
        state_digest="s1",
        decisions={"planner": decision("planner", action(2))},
        joints=(leaf({"planner": 0}, 1.0),),
        expanded=(0,),
        rule="only",
    )
    start = Node(
        key=root,
        turn=0,
        stage=0,
        state_digest="s0",
        rule="best",
        expanded=(1,),
        decisions={
            "planner": decision("planner", action(4), action(5, finish="length")),
            "coder": decision(
                "coder", action(1, text=" "), action(3, fault=Fault(kind="policy", reason="unparsable"))
            ),
        },
        joints=(
            JointAction(branches={"planner": 0, "coder": 0}, state_digest="s0a"),
            JointAction(branches={"planner": 1, "coder": 1}, state_digest="s1", child=end),
            JointAction(branches={"planner": 0, "coder": 1}, state_digest="s2", recombined=True),
        ),
    )
    scores = Scores()
    for joint, team in ((0, 0.25), (1, 1 / 3), (2, 9.0)):
        scores.add(root.of_joint(joint), TEAM, "progress", Score(team, "", "environment"))
        scores.add(root.of_joint(joint), "coder", "tests", Score(float(joint), "", "environment"))
    scores.add(root.of_branch("planner", 0), "planner", "format", Score(1.0, "", "format"))
    scores.add(root.of_branch("planner", 1), "planner", "format", Score(None, "503 from the judge", "format"))
    scores.add(second.of_joint(0), TEAM, "progress", Score(1.0, "", "environment"))
    credit = Credit(
        advantage={
            root.of_branch("planner", 0): 0.1 + 0.2,
            root.of_branch("coder", 0): -1.0,
            root.of_branch("coder", 1): np.array([0.5, 1.5, 1.0]),
        },
        weight={root.of_branch("coder", 0): 0.5},
        returns={root.of_branch("planner", 0): 1.25, root.of_branch("coder", 0): 0.25},
        metrics={"groups/coder/zero_variance": 0.0},
    )
    tree = Tree(task=Task(id="train-7"), chain=0, epoch=0, root=start)
    return tree, scores, credit, RewardWeights(weights={"format": 0.5}, team_weight=2.0)
