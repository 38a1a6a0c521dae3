"""The paper's form of Sokoban: a program proposes, the plan role moves."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.types import TEAM
from coterie.plugins.envs.sokoban import Sokoban
from tests.plugins.envs.players import SOKOBAN
from tests.plugins.envs.programs import Inline, answer
from tests.plugins.envs.sokobans import CORNER, start
from tests.plugins.support import Build, make

send, prompt = SOKOBAN.send, SOKOBAN.prompt


def tooled(**more):
    return make(Sokoban, Build(order=["tool", "plan"]), size=4, rendering="prose", sandbox=Inline(), **more)


def test_a_program_proposes_and_the_plan_role_moves():
    env = tooled()
    state = start(env, *CORNER)
    step = send(env, state, tool=answer("print('so:')\nprint(list('URRDLULDD'))"))
    assert step.state.boxes == state.boxes and step.scores[TEAM, "team"] == 0.0
    assert step.scores[TEAM, "plan_team"] == step.scores[TEAM, "plan_goal"] == 1.0
    assert step.scores["tool", "safe"] == 1.0 and step.info["tool"]["problem"] == ""
    prompt_text = prompt(env, step.state, "plan")
    assert "The tool's program:\n```python\nprint('so:')" in prompt_text
    assert "It printed:\n```\nso:\n['U', 'R'" in prompt_text
    assert "It proposes: U, R, R, D, L, U, L, D, D." in prompt_text
    assert "program" not in prompt(env, state, "plan")
    assert prompt(env, state, "tool").splitlines()[-1].startswith("Your program, in one ```python block")
    after = send(env, step.state, plan="As it says: [U, R, R, D, L, U, L, D, D]")
    assert after.state.solved and after.scores[TEAM, "team"] == 1.0
    assert env.diagnose(after.state, "tool").startswith("Your last program proposed: U, R, R")
    oracle = send(env, state, tool=env.demonstrate(state, "tool", 0.0, np.random.default_rng(0)))
    assert oracle.scores[TEAM, "plan_goal"] == 1.0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (answer("1 / 0"), "Your last program did not finish: exit code 1: ZeroDivisionError"),
        (answer("x = 1"), "Your last program printed nothing."),
        (answer("print('no idea')"), "Your last program printed no list of moves."),
        (answer("# killer"), "did not finish: a program ended its worker twice"),
        ("I can't.", "Your last message held no program."),
        ("", "Your last message held no program."),
    ],
)
def test_a_program_that_proposes_nothing_earns_nothing(text, sentence):
    env = tooled()
    step = send(env, start(env, *CORNER), tool=text)
    assert all(value == 0 for (_, name), value in step.scores.items() if name != "empty")
    assert step.scores["tool", "empty"] == float(text == "")
    after = send(env, step.state, plan="[U]").state
    assert sentence in env.diagnose(after, "tool")


def test_a_tool_that_plays_alone_makes_the_moves_that_it_prints():
    env = make(
        Sokoban,
        Build(order=["tool"]),
        size=4,
        rendering="prose",
        sandbox=Inline(),
        plan_moves=True,
        max_moves=9,
    )
    step = send(env, start(env, *CORNER), tool=answer("print(list('URRDLULDD'))"))
    assert step.state.solved and step.scores[TEAM, "team"] == 1.0 and (TEAM, "plan_team") not in step.scores
    assert "Last turn you played 9 of 9 moves from r1c1." in env.diagnose(step.state, "tool")
