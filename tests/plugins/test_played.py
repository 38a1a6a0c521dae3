"""Plan-Path, Sokoban and team_task played through the core, on a scripted engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from coterie.core.rollout.rewards import branch_rewards
from coterie.testing import play_episode
from tests.plugins.support import team_run

PLANNER_AND_EXECUTOR: dict[str, Any] = {
    "plan_path": (
        {"size": 4, "min_distance": 3},
        {"planner": ["r0c0", "r0c1", "r9c9", "D"], "executor": ["U", "R R", "D", "L L L"]},
    ),
    "sokoban": (
        {"size": 4, "push_words": "directions", "views": "split"},
        {"planner": ["pU", "pD", "pL pL", "U"], "executor": ["U", "R R", "D L", "no"]},
    ),
}
"""Settings of the environment, and what each branch writes; the planner's last can't be read."""


def answerer(request: Any, text: str) -> str:
    """The writer repeats the question's number; branch 2 of the checker doubles it."""
    number = int("".join(mark for mark in text.split("?")[0] if mark.isdigit()))
    return str(number * 2 if request.key.role == "checker" and request.key.branch == 2 else number)


@pytest.mark.parametrize("name", list(PLANNER_AND_EXECUTOR))
def test_the_planners_branches_are_paid_by_their_own_plans(name):
    settings, answers = PLANNER_AND_EXECUTOR[name]
    roles = {role: {"type": f"{name}_{role}"} for role in answers}
    run = team_run(answers, env={"type": name, **settings}, roles=roles)
    trees, scores = play_episode(run, 8)
    spread = {"planner": 0, "executor": 0}
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                rewards = branch_rewards(node, role, scores, run.reward_weights)
                assert node.expanded == (rewards.index(max(rewards)),) and node.rule == "best"
                spread[role] += len(set(rewards)) > 1
                if role == "planner" or name == "sokoban":
                    assert decision.branches[3].fault is not None and rewards[3] == 0.0
                if role == "executor" and name == "sokoban":
                    words = decision.messages[-1]["content"].split()
                    assert not any(word.startswith("T") for word in words) and "plan" in words
    assert min(spread.values()) > 4  # no role's branches get identical rewards by construction
    last = [list(tree.nodes())[-1] for tree in trees]
    assert any(node.decisions and node.turn == 1 for node in last)


def test_a_team_of_templates_on_own_records(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(
        "".join(json.dumps({"question": f"double {i}?", "answer": 2 * i}) + "\n" for i in range(1, 40))
    )
    roles = {
        "writer": {"type": "template", "prompt": "{{ question }}"},
        "checker": {
            "type": "template",
            "prompt": "{{ question }} They said {{ actions.writer }}.",
            "parser": "number",
        },
    }
    run = team_run(
        answerer,
        env={"type": "team_task", "path": str(path), "stop_when": "agree", "success": {"match": "number"}},
        roles=roles,
    )
    trees, scores = play_episode(run, 3)
    for tree in trees:
        writer, checker, *_ = tree.nodes()
        assert branch_rewards(writer, "writer", scores, run.reward_weights) == [0.0] * 4
        assert branch_rewards(checker, "checker", scores, run.reward_weights) == [0.0, 0.0, 1.0, 0.0]
        assert (
            checker.decisions["checker"]
            .messages[0]["content"]
            .endswith(f"They said {writer.decisions['writer'].branches[0].text}.")
        )
        for _, leaf in tree.leaves():
            assert leaf.outcome["success"] == 1.0
    result = team_run(
        answerer,
        env={"type": "team_task", "path": str(path)},
        roles=roles,
        rewards={"mine": {"type": "function", "function": "tests.plugins.test_played:length"}},
    )
    trees, scores = play_episode(result, 1)
    assert {component for _, _, component, _ in scores} == {"mine"}


def length(view: Any) -> float:
    return float(sum(len(action.text) for action in view.actions.values()))


def test_the_diagnosis_reaches_prose_roles_in_the_second_turn():
    run = team_run(
        "[]",
        env={"type": "plan_path", "size": 6, "min_distance": 6, "rendering": "prose"},
        roles={"solver": {"type": "plan_path_solver"}},
        transition="diagnosis",
    )
    nodes = list(play_episode(run)[0][0].nodes())
    assert "Last turn" not in nodes[0].decisions["solver"].messages[-1]["content"]
    assert "You played no move last turn" in nodes[1].decisions["solver"].messages[-1]["content"]
