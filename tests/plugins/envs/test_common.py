"""What is the same in the three games: states are values, messages, plans and their turns, components."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.core.errors import SystemFault
from coterie.core.types import TEAM
from tests.plugins.envs.players import GAMES, Game
from tests.plugins.envs.programs import answer

ROOT = Path(__file__).parents[3]


@dataclasses.dataclass(frozen=True)
class Drawn:
    """Messages in the drawn task, and what comes of them."""

    plan: str
    """Of two items or more."""
    forks: tuple[str, ...]
    """Messages of the executor that end in different states; the empty one last."""
    stays: str
    """The part of the state that no plan changes."""
    first: tuple[Any, ...]
    """The plan of one item, as the executor is shown it."""
    first_text: str
    moves: str
    """A message of the executor that ends the turn."""
    unplanned: Any
    """The plan that the executor is shown where there is none."""
    plan_of: str
    """The attribute of `last_plan` that holds it."""
    at_once: float
    """The team's reward where `moves` is played while the planner plans."""
    noise: tuple[str, ...]
    silent_plans: tuple[str, ...]
    """Messages of the planner that are empty plans."""
    weights: str
    """The component that weighs 0.8."""
    not_summable: tuple[str, ...]


DRAWN = {
    "plan_path": Drawn(
        plan="r0c1 r0c3",
        forks=("U", "D", "L D", "U R R", ""),
        stays="position",
        first=((0, 1),),
        first_text="r0c1",
        moves="U",
        unplanned=(),
        plan_of="waypoints",
        at_once=1 / 6,
        noise=("", "hello", "planner planner"),
        silent_plans=("",),
        weights="shortest",
        not_summable=("team", "progress"),
    ),
    "sudoku": Drawn(
        plan="3 4",
        forks=("r0c2=3", "r0c2=1", "r0c2=3 r0c2=1 r0c3=4", ""),
        stays="grid",
        first=((0, 2, 3),),
        first_text="3",
        moves="r0c3=4",
        unplanned=None,
        plan_of="items",
        at_once=1 / 6,
        noise=("", "hello", "- - -", "r0c1"),
        silent_plans=("", "- - -"),
        weights="correct",
        not_summable=("team", "progress"),
    ),
    "sokoban": Drawn(
        plan="r1c2L r1c1D",
        forks=("U", "R", "L U", "U R R D L", ""),
        stays="boxes",
        first=(((1, 2), "L"),),
        first_text="r1c2L",
        moves="U",
        unplanned=(),
        plan_of="pushes",
        at_once=0.0,
        noise=("", "hello", "planner planner"),
        silent_plans=("",),
        weights="safe",
        not_summable=("team", "progress", "pushed"),
    ),
}
games = pytest.mark.parametrize("name", list(GAMES))


# ---- states are values


@games
def test_a_step_never_mutates_the_state_and_forks_are_independent(name):
    game, drawn = GAMES[name], DRAWN[name]
    env = game.make()
    root = game.start(env)
    before = copy.deepcopy(root)
    planned = game.send(env, root, planner=drawn.plan).state
    ends = [game.send(env, planned, executor=moves).state for moves in drawn.forks]
    assert root == before and getattr(planned, drawn.stays) == getattr(root, drawn.stays)
    assert len({env.digest(end) for end in ends}) == len(ends)
    assert game.send(env, planned, executor=drawn.forks[-2]).state == ends[-2]
    assert game.send(env, planned, executor=drawn.forks[1]).state == ends[1]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(root, drawn.stays, getattr(root, drawn.stays))


def played(game: Game, drawn: Drawn) -> tuple[Any, Any]:
    """(environment, state) after a plan and a message."""
    env = game.make()
    planned = game.send(env, game.start(env), planner=drawn.plan).state
    return env, game.send(env, planned, executor=f"{drawn.moves} {drawn.moves}").state


@pytest.fixture(scope="module")
def digests_elsewhere() -> dict[str, str]:
    """The digest of each game's state, from a process with another hash seed."""
    code = (
        "import json; from tests.plugins.envs.test_common import *; "
        "states = {name: played(GAMES[name], DRAWN[name]) for name in GAMES}; "
        "print(json.dumps({name: env.digest(state) for name, (env, state) in states.items()}))"
    )
    other = {**os.environ, "PYTHONHASHSEED": "12345"}
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=other, cwd=ROOT, check=True
    )
    digests: dict[str, str] = json.loads(process.stdout)
    return digests


@games
def test_states_pickle_and_have_the_same_digest_in_another_process(name, digests_elsewhere):
    env, state = played(GAMES[name], DRAWN[name])
    again = pickle.loads(pickle.dumps(state))
    assert again == state and env.digest(again) == env.digest(state) == digests_elsewhere[name]


# ---- messages and plans


@games
def test_an_unreadable_message_changes_nothing_and_counts_as_a_turn(name):
    game, drawn = GAMES[name], DRAWN[name]
    env = game.make()
    state = game.start(env)
    step = game.send(env, state, executor="north of the corner")
    assert getattr(step.state, drawn.stays) == getattr(state, drawn.stays) and step.state.turn == 1
    if name != "sudoku":
        cell = {"plan_path": "cell", "sokoban": "player_cell"}[name]
        assert getattr(step.state, cell) == (1, 1)
    assert step.info == {"executor": {"readable": False}}
    assert "couldn't be read" in env.diagnose(step.state, "executor")


@games
def test_a_plan_is_for_the_turn_it_was_made_in(name):
    game, drawn = GAMES[name], DRAWN[name]
    env = game.make()
    state = game.send(env, game.start(env), planner=drawn.first_text).state
    assert env.observe(state, "executor").plan == drawn.first
    after = game.send(env, state, executor=drawn.moves).state
    assert env.observe(after, "executor").plan == drawn.unplanned
    assert getattr(after.last_plan, drawn.plan_of) == drawn.first


@games
def test_a_plan_made_while_the_executor_acts_is_for_the_next_turn(name):
    game, drawn = GAMES[name], DRAWN[name]
    env = game.make(["planner", "executor"])
    step = game.send(env, game.start(env), planner=drawn.first_text, executor=drawn.moves)
    assert env.observe(step.state, "executor").plan == drawn.first and step.state.last_plan is None
    assert step.scores[TEAM, "team"] == pytest.approx(drawn.at_once)
    assert (TEAM, "plan_team") not in step.scores


@games
def test_a_lost_sandbox_is_the_systems_fault(name):
    game = GAMES[name]
    env = game.tooled()
    with pytest.raises(SystemFault, match="the worker was lost"):
        game.send(env, game.start(env), tool=answer("# lost"))


# ---- what is paid


@pytest.mark.parametrize("role", ["planner", "executor", "solver"])
@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, drawn in DRAWN.items() for text in drawn.noise]
)
def test_silence_and_noise_earn_nothing(name, text, role):
    game, drawn = GAMES[name], DRAWN[name]
    env = game.make("planner", "solver") if role == "solver" else game.make()
    step = game.send_one(env, game.start(env), role, text)
    silent = text in drawn.silent_plans if role == "planner" else text == ""
    assert step.scores[role, "empty"] == float(silent)
    assert all(value == 0 for (_, component), value in step.scores.items() if component != "empty")


@games
def test_components_are_declared_and_the_defaults_are_the_papers(name):
    game, drawn = GAMES[name], DRAWN[name]
    env = game.make()
    texts = {"planner": drawn.first_text, "executor": drawn.moves}
    emitted = {
        component
        for role, text in texts.items()
        for _, component in game.send_one(env, game.start(env), role, text).scores
    }
    assert emitted == set(env.components) == set(env.weights)
    assert {component: weight for component, weight in env.weights.items() if weight} == {
        "team": 1.0,
        "plan_team": 1.0,
        "format": 0.1,
        "legal": 0.1,
        drawn.weights: 0.8,
    }
    assert env.not_summable == drawn.not_summable
    assert game.make(team="potential").not_summable == ()
