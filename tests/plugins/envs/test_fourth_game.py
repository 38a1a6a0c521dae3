"""A fourth grid game is one file of rules: `lights_out.py` is short, and plays as the three others do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie.core.types import TEAM, Task
from coterie.data.leaks import leaks
from coterie.testing import build, check_environment, check_role, play_episode
from tests.plugins.envs.lights_out import Lights, LightsOutExecutor, LightsOutPlanner
from tests.plugins.support import Build, action, context, make, role_input, team_run, wait

FILE = Path(__file__).with_name("lights_out.py")
MODULE = "tests.plugins.envs.lights_out"
ROLES = {"planner": f"{MODULE}:LightsOutPlanner", "executor": f"{MODULE}:LightsOutExecutor"}
DRAWN = Lights(3, 3, 0b100_000_001)
"""To press: the corners r0c0 and r2c2."""


def env(**settings):
    return build("environment", {"type": f"{MODULE}:LightsOut", **settings}, order=list(ROLES))


def start(game):
    return game.reset(Task(id="t", payload=DRAWN), 0)


def send(game, state, role, text):
    plugin = {"planner": LightsOutPlanner, "executor": LightsOutExecutor}[role]
    written = action(text, make(plugin, Build(name=role)), game.observe(state, role))
    return wait(game.step(state, {role: written}, context()))


def test_it_is_one_file_of_fewer_than_150_lines():
    assert len(FILE.read_text().splitlines()) < 150


def test_it_conforms_and_so_do_its_roles():
    game = env()
    team = {"env": f"{MODULE}:LightsOut", "order": list(ROLES)}
    roles = {role: build("role", target, name=role, **team) for role, target in ROLES.items()}
    check_environment(game, roles=list(ROLES), act=["r0c0", "r0c0 r2c2", "r9c9", "no"], role_plugins=roles)
    seen = [game.observe(start(game), "executor")]
    check_role(roles["executor"], observations=seen, good=["r0c0"])


def test_prompts_in_both_renderings():
    game = env()
    state = send(game, start(game), "planner", "r0c0 r2c2").state
    assert game.observe(state, "planner").compact() == "planner r0c0 r0c1 r1c0 r1c2 r2c1 r2c2 :"
    assert game.observe(state, "executor").compact().endswith("plan r0c0 r2c2 :")
    prose = env(rendering="prose")
    state = send(prose, start(prose), "planner", "[r0c0]").state
    role = make(LightsOutExecutor, Build(name="executor"))
    system, user = role.render(role_input(prose.observe(state, "executor"), "executor", feedback=("Well.",)))
    assert system["content"].startswith("You are the executor of a team of two that puts all lights out.")
    assert (
        user["content"]
        == """\
Turn 1. The grid has 3 rows (r0 at the top) and 3 columns (c0 at the left).
'*' is a light, '.' is dark.

* * .
* . *
. * *

The planner's presses: r0c0.
Well.
Your presses as a list such as [r0c1, r2c2]:"""
    )


def test_rewards_feedback_and_outcome():
    game = env()
    planned = send(game, start(game), "planner", "r0c0 r3c0")
    assert planned.scores[TEAM, "plan_team"] == 0.5 and planned.state.lights == DRAWN
    assert planned.info["planner"]["illegal"] == [[2, "edge"]]
    step = send(game, planned.state, "executor", "r0c0 r1c1 r0c9 r2c2")
    assert game.diagnose(step.state, "executor") == (
        "Last turn you played 2 of 4 presses. Press 3 (r0c9) is outside the grid. The rest was not pressed."
    )
    assert game.diagnose(step.state, "planner").startswith("Press 2 of your plan (r3c0) is outside the grid.")
    assert game.outcome(step.state) == {"success": 0.0, "turns": 1.0, "presses_left": 2.0}
    assert send(game, step.state, "executor", "r1c1 r2c2").scores[TEAM, "goal"] == 1.0


def test_demonstrations_solve_it_and_records_keep_it():
    game, rng = env(), np.random.default_rng(0)
    for index in range(20):
        task = game.tasks("train", 0)[index]
        assert game.task_of(game.record(task), task.id) == task
        state = game.reset(task, 0)
        assert set(game.demonstrate(state, "planner", 0.5, rng).split()) <= set(game.vocabulary())
        solved = send(game, state, "executor", game.demonstrate(state, "executor", 0.0, rng)).state
        assert game.outcome(solved)["success"] == 1.0 and game.acting_roles(solved) == ()
    tasks = {
        split: [game.tasks(split, 0)[index] for index in range(60)] for split in ("train", "val", "test")
    }
    named = {split: [(task.id, game.fingerprints(task)) for task in drawn] for split, drawn in tasks.items()}
    assert not leaks(named).shared


@pytest.mark.parametrize("settings", [{}, {"team": "potential"}])
def test_a_run_plays_it(settings):
    answers = {"planner": ["r0c0", "r1c1", "r2c2 r0c1", "no"], "executor": ["r0c0", "r1c1", "r9c9", ""]}
    roles = {role: {"type": target} for role, target in ROLES.items()}
    run = team_run(answers, env={"type": f"{MODULE}:LightsOut", **settings}, roles=roles)
    trees, scores = play_episode(run, 4)
    assert len(trees) == 4 and all(node.decisions for tree in trees for node in tree.nodes()) and scores
