"""Environment `code_game`: its words, its problems, and what it shares with `code_collab`."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from coterie.api.train import train
from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.types import RoleInput, all_passed
from coterie.plugins.envs.code.game import (
    Formula,
    Operation,
    answer_code,
    demonstration,
    formulas,
    read_formula,
)
from coterie.testing import build, check_environment, check_role, coterie_run, play_episode
from coterie.testing.support.opening import opened
from tests.plugins.envs.code.warm import WARM
from tests.plugins.support import action, context

PAIR = [["aux", "main"]]
PROBLEM = "+ 3 then * 4"
ACT = ["+ 3", "* 4", "aux * 4", "+ 3 aux", "+ 3 * 4", "nothing", "aux", "+ 3 aux * 4"]


def made(order=None, **settings):
    return build("environment", {"type": "code_game", **settings}, order=order or PAIR, sandbox=WARM)


def outcome_of(answers, problem=PROBLEM, order=None):
    async def go():
        env = made(order)
        async with opened(env, None):
            task = env.task_of({"prompt": problem}, "t")
            texts = {role: action(text) for role, text in answers.items()}
            step = await env.step(env.reset(task, 0), texts, context(task))
            told = await env.findings(step.state, "main", 0)
            assert all_passed(tuple(told)) is bool(env.outcome(step.state)["success"])
            return env.outcome(step.state)["success"], [finding.summary for finding in told]

    return asyncio.run(go())


@pytest.mark.parametrize("order", [PAIR, ["aux", "main"], ["solver"]])
def test_the_environment_conforms(order):
    roles = ["solver"] if order == ["solver"] else ["aux", "main"]
    check_environment(made(order), roles=roles, order=order, act=ACT, episodes=4, turns=2, disjoint="content")


@pytest.mark.parametrize(("name", "good"), [("aux", "+ 3"), ("main", "aux * 4"), ("solver", "+ 3 * 4")])
def test_roles_conform(name, good):
    order = ["solver"] if name == "solver" else PAIR
    env = made(order)
    role = build("role", f"code_game_{name}", name=name, order=order, env={"type": "code_game"}, sandbox=WARM)
    seen = env.observe(env.reset(env.tasks("train", 0)[0], 0), name)
    check_role(role, observations=[seen], good=[good], feedback=["tests 0 of 5 passed"], name=name)
    asked = RoleInput(observation=seen, history=(), feedback=("tests 0",), role=name, turn=1)
    assert role.render(asked) == [{"role": "user", "content": f"{name} {seen.prompt} tests 0 :"}]
    with pytest.raises(PolicyFault):
        role.parse("then", seen)


@pytest.mark.parametrize(("aux", "main", "solved"), [
    ("+ 3", "aux * 4", 1.0), ("* 4", "+ 3 aux", 1.0),  # the two ways of dividing the work
    ("+ 3", "+ 3 aux", 0.0), ("* 4", "aux * 4", 0.0),  # both do the same part
    ("* 4", "aux + 3", 0.0), ("+ 4", "aux * 4", 0.0), ("no", "aux * 4", 0.0), ("+ 3", "aux", 0.0),
])  # fmt: skip
def test_only_parts_that_complement_each_other_are_right(aux, main, solved):
    assert outcome_of({"aux": aux, "main": main})[0] == solved


def test_a_solver_writes_both_parts():
    assert outcome_of({"solver": "+ 3 * 4"}, order=["solver"])[0] == 1.0
    assert outcome_of({"solver": "* 4 + 3"}, order=["solver"])[0] == 0.0


def test_findings_are_a_few_words_of_the_vocabulary():
    _, told = outcome_of({"aux": "no", "main": "aux * 4"})
    assert told == ["aux missing", "main found", "tests 0 of 5 passed"]
    known = set(made().vocabulary())
    for texts in (told, [PROBLEM, *(text for text in ACT if text != "nothing")]):
        assert {word for text in texts for word in text.split()} <= known


def test_every_problem_is_in_one_split_and_occurs_once():
    env = made(largest=9)
    by_split = {split: [t.payload.prompt for t in env.tasks(split, 0)] for split in ("train", "val", "test")}
    every = [text for texts in by_split.values() for text in texts]
    assert len(every) == len(set(every)) == len(list(formulas(9))) == 24 * 23
    assert sorted(by_split["test"]) == sorted(t.payload.prompt for t in env.tasks("test", 5)), "of any seed"
    assert by_split["test"] != [t.payload.prompt for t in env.tasks("test", 5)]


def test_by_default_there_are_five_hundred_unseen_problems():
    assert len(made().tasks("test", 0)) >= 500


def test_tests_are_what_the_two_operations_give():
    problem = Formula(Operation("-", 2), Operation("*", 3))
    assert problem.tests().splitlines()[0] == "assert f(0) == (0 - 2) * 3"
    assert read_formula(str(problem)) == problem
    with pytest.raises(ValueError, match="is no problem"):
        read_formula("+ 3 and * 4")


@pytest.mark.parametrize(("role", "text"), [
    ("aux", "3 +"), ("aux", "+ 3 * 4"), ("aux", "+ x"), ("main", "* 4"), ("main", "aux aux * 4"),
    ("main", "+ 3 aux * 4"), ("main", "aux * 4; exit()"), ("solver", "+ 3"), ("solver", "+ 3 then * 4"),
    ("aux", "+ 3333"), ("aux", "__import__"),
])  # fmt: skip
def test_other_texts_are_no_code(role, text):
    assert answer_code(role, text) == ""


def test_demonstrations_are_right_and_divide_the_work_both_ways():
    rng = np.random.default_rng(0)
    texts = {
        role: {demonstration(role, read_formula(PROBLEM), 0.0, rng, 29) for _ in range(50)}
        for role in ("aux", "main")
    }
    assert texts == {"aux": {"+ 3", "* 4"}, "main": {"aux * 4", "+ 3 aux"}}
    assert demonstration("solver", read_formula(PROBLEM), 0.0, rng, 29) == "+ 3 * 4"
    noisy = [demonstration("solver", read_formula(PROBLEM), 1.0, rng, 9) for _ in range(200)]
    assert all(answer_code("solver", text) for text in noisy) and len(set(noisy)) > 100


def test_feedback_tests_are_refused():
    with pytest.raises(ConfigError, match="nothing reads this"):
        made(feedback_tests="tests.plugins.envs.code.test_collab:only_zero")


def test_the_reward_is_that_of_code_collab():
    run = coterie_run(
        {"aux": "+ 3", "main": "aux * 4"},
        env={"type": "code_game"},
        order=PAIR,
        roles={name: {"type": f"code_game_{name}"} for name in ("aux", "main")},
        rewards={"code_structure": {"type": "code_structure"}},
        sandbox=WARM,
        max_turns=2,
        transition={"type": "level_feedback"},
    )
    trees, scores = play_episode(run)
    values = [score.value for *_, name, score in scores if name == "code_structure"]
    assert values and all(1.5 <= value <= 4.0 for value in values)
    [told] = {
        decision.messages[-1]["content"]
        for node in trees[0].nodes()
        if node.turn == 1
        for role, decision in node.decisions.items()
        if role == "aux"
    }
    assert "aux found main found tests" in told and told.endswith(":")


@pytest.mark.parametrize("name", ["magrpo_code_game", "grpo_code_game"])
@pytest.mark.torch
def test_the_recipes_train(tmp_path, name):
    """The warm start of two turns plays games whose feedback the sandbox makes."""
    overrides = ["team.max_turns=2", "transition=level_feedback"] if name.startswith("magrpo") else []
    result = train(name, scale="smoke", overrides=overrides, out=tmp_path / "run")
    assert result.finished and result.step == 2
