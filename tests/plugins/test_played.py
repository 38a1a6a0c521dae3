"""Plan-Path and team_task played through the core, on a scripted engine."""

from __future__ import annotations

import json
from typing import Any

from coterie.compose import compose
from coterie.core.rollout.rewards import branch_rewards
from coterie.recipes import load
from tests.games import play


def walker(request: Any, text: str) -> str:
    """Every branch says something else; the planner's last can't be read."""
    if request.key.role == "planner":
        return ["r0c0", "r0c1", "r9c9", "D"][request.key.branch]
    return ["U", "R R", "D", "L L L"][request.key.branch]


def answerer(request: Any, text: str) -> str:
    """The writer repeats the question's number; branch 2 of the checker doubles it."""
    number = int("".join(mark for mark in text.split("?")[0] if mark.isdigit()))
    return str(number * 2 if request.key.role == "checker" and request.key.branch == 2 else number)


def run_of(env: dict[str, Any], roles: dict[str, dict[str, Any]], play_: str, **more: Any) -> Any:
    return compose(
        load(
            {
                "env": env,
                "team": {
                    "order": list(roles),
                    "max_turns": 2,
                    "roles": {name: {"policy": "p", **table} for name, table in roles.items()},
                },
                "policies": {"p": {"model": {"init": "none"}, "train": "none"}},
                "sampler": {"branches": 4},
                "algorithm": {"type": "at_grpo"},
                "engine": {"type": "scripted", "play": play_},
                "trainer": {"type": "none"},
                "schedule": {"steps": 1, "tasks_per_step": 2},
                **more,
            }
        )
    )


def test_the_planners_branches_are_paid_by_their_own_plans():
    run = run_of(
        {"type": "plan_path", "size": 4, "min_distance": 3},
        {"planner": {"type": "plan_path_planner"}, "executor": {"type": "plan_path_executor"}},
        "tests.plugins.test_played:walker",
    )
    trees, scores = play(run, 8)
    spread = {"planner": 0, "executor": 0}
    for tree in trees:
        for node in tree.nodes():
            for role, decision in node.decisions.items():
                rewards = branch_rewards(node, role, scores, run.reward_weights)
                assert node.expanded == (rewards.index(max(rewards)),) and node.rule == "best"
                spread[role] += len(set(rewards)) > 1
                if role == "planner":
                    assert decision.branches[3].fault is not None and rewards[3] == 0.0
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
    run = run_of(
        {"type": "team_task", "path": str(path), "stop_when": "agree", "success": {"match": "number"}},
        roles,
        "tests.plugins.test_played:answerer",
    )
    trees, scores = play(run, 3)
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
    result = run_of(
        {"type": "team_task", "path": str(path)},
        roles,
        "tests.plugins.test_played:answerer",
        rewards={"mine": {"type": "function", "function": "tests.plugins.test_played:length"}},
    )
    trees, scores = play(result, 1)
    assert {component for _, _, component, _ in scores} == {"mine"}


def length(view: Any) -> float:
    return float(sum(len(action.text) for action in view.actions.values()))


def test_the_diagnosis_reaches_prose_roles_in_the_second_turn():
    run = run_of(
        {"type": "plan_path", "size": 6, "min_distance": 6, "rendering": "prose"},
        {"solver": {"type": "plan_path_solver"}},
        "tests.plugins.test_played:sleeper",
        transition="diagnosis",
    )
    nodes = list(play(run)[0][0].nodes())
    assert "Last turn" not in nodes[0].decisions["solver"].messages[-1]["content"]
    assert "You played no move last turn" in nodes[1].decisions["solver"].messages[-1]["content"]


def sleeper(request: Any, text: str) -> str:
    return "[]"
