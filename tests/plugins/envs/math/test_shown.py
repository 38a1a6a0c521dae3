"""What environment `math` tells a coach of an action."""

from __future__ import annotations

import asyncio

import pytest

from coterie.core.protocols import StepContext
from coterie.core.types import Action
from coterie.plugins.envs.math.shown import brief_of
from coterie.testing import build

ORDER = ["problem_solver", "code_executor", "verifier"]


def game():
    return build("environment", {"type": "math", "rendering": "compact"}, order=ORDER)


def acted(env, task, last):
    """The infos of an episode whose verifier answers `last`."""
    state, infos = env.reset(task, 0), []
    while roles := env.acting_roles(state):
        text = last if roles == ("verifier",) else task.answer
        ctx = StepContext(task=task, turn=0, seed=len(infos))
        step = asyncio.run(env.step(state, {roles[0]: Action(calls=(), text=text)}, ctx))
        infos.append((roles[0], step.info))
        state = step.state
    return infos


@pytest.mark.parametrize(("wrong", "says"), [(False, "right"), (True, "wrong")])
def test_the_outcome_comes_with_the_last_action_alone(wrong, says):
    env = game()
    task = env.tasks("train", 0)[0]
    infos = acted(env, task, "-7" if wrong else task.answer)
    *earlier, (role, info) = infos
    assert not any(env.work(who, each).outcome for who, each in earlier) and len(earlier) >= 2
    answer = "-7" if wrong else task.answer
    assert env.work(role, info).outcome == f"the team's answer {answer} is {says}"


def test_a_team_without_an_answer_and_a_program_that_failed():
    env = game()
    assert env.work("verifier", {"outcome": {"answer": None, "right": False}}).outcome == (
        "the team gave no answer"
    )
    info = {"code_executor": {"ran": True, "output": "3", "problem": "out of time"}}
    assert env.work("code_executor", info).output == "3\nout of time"
    assert env.work("verifier", info).output == env.work("verifier", {}).output == ""


def test_the_brief_has_the_problem_and_no_answer():
    env = game()
    task = env.tasks("train", 0)[0]
    brief = env.brief(task)
    assert brief.problem == task.payload.text and set(brief.duties) == set(ORDER)
    assert brief.limits == {"code_executor": "at most 2 actions"}
    assert brief_of("p", ["solver"], 1, programs=True).limits == {}
