"""What Plan-Path pays: golden numbers, nothing pays twice, the planner's counterfactual."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.types import TEAM
from coterie.plugins.envs.board.effects import team_rewards
from coterie.plugins.envs.plan_path import PlanPath
from tests.plugins.envs.mazes import WALLED, distance_by_the_book, start
from tests.plugins.envs.players import PLAN_PATH
from tests.plugins.support import make

send = PLAN_PATH.send_one


def team(step, component="team"):
    return step.scores[TEAM, component]


@pytest.mark.parametrize(
    ("form", "before", "after", "first", "reward", "progress"),
    [
        ("progress", 6, 3, 6, 0.5, 0.5),
        ("progress", 4, 1, 6, 0.75, 0.75),
        ("progress", 4, 6, 6, 0.0, 0.0),
        ("progress", 4, 0, 6, 1.0, 1.0),
        ("potential", 6, 3, 6, 0.5, 0.5),
        ("potential", 3, 6, 6, -0.5, -0.5),
        ("potential", 3, 0, 6, 0.5, 0.5),
        ("paper", 8, 1, 4, 1.75, 1.75),  # the defect: more than the goal
        ("paper", 1, 0, 4, 1.0, 0.25),
        ("paper", 1, 2, 4, 0.0, 0.0),
    ],
)
def test_golden_numbers_of_the_team_terms(form, before, after, first, reward, progress):
    assert team_rewards(form, before, after, first) == {
        "team": reward,
        "goal": float(after == 0),
        "progress": progress,
    }


def test_golden_numbers_of_an_episode():
    env = make(PlanPath, size=4, max_moves=4)
    step = send(env, start(env, *WALLED), "executor", "U R R")
    assert step.scores == {
        (TEAM, "team"): 0.5,
        (TEAM, "goal"): 0.0,
        (TEAM, "progress"): 0.5,
        ("executor", "format"): 1.0,
        ("executor", "legal"): 1.0,
        ("executor", "shortest"): 1.0,
        ("executor", "illegal"): 0.0,
        ("executor", "empty"): 0.0,
    }
    two = send(env, step.state, "executor", "D R D")
    assert (
        team(two),
        two.scores["executor", "legal"],
        two.scores["executor", "shortest"],
        two.scores["executor", "illegal"],
    ) == (pytest.approx(1 / 3), 0.5, 0.0, 1.0)
    three = send(env, two.state, "executor", "D D U")
    assert (team(three), team(three, "goal"), three.state.solved) == (1.0, 1.0, True)
    assert env.acting_roles(three.state) == () and env.acting_roles(two.state) is None
    assert env.outcome(three.state) == {"success": 1.0, "turns": 3.0, "distance_left": 0.0}
    assert env.outcome(two.state) == {"success": 0.0, "turns": 2.0, "distance_left": 2.0}


@pytest.mark.parametrize("form", ["progress", "potential", "paper"])
@pytest.mark.parametrize("plan_language", ["waypoints", "moves"])
@pytest.mark.parametrize("walk", ["stop", "skip"])
def test_the_planners_counterfactual_is_what_walking_its_plan_earns(form, plan_language, walk):
    env = make(PlanPath, size=5, max_moves=4, team=form, plan_language=plan_language, walk=walk)
    rng, seen = np.random.default_rng(0), set()
    for index in range(80):
        state = env.reset(env.tasks("train", 0)[index], 0)
        proposal = send(env, state, "planner", env.demonstrate(state, "planner", 0.4, rng))
        assert proposal.state.position == state.position
        assert {name: team(proposal, name) for name in ("team", "goal", "progress")} == {
            "team": 0.0,
            "goal": 0.0,
            "progress": 0.0,
        }
        walked = send(env, proposal.state, "executor", " ".join(proposal.state.plan.fork.items))
        for name in ("team", "goal", "progress"):
            assert team(proposal, f"plan_{name}") == team(walked, name)
            assert (TEAM, f"plan_{name}") not in walked.scores
        seen.add(team(walked) > 0)
    assert seen == {True, False}


@pytest.mark.parametrize("form", ["progress", "potential", "paper"])
@pytest.mark.parametrize(("size", "max_moves", "count"), [(4, 2, 30), (10, 3, 12), (20, 1, 3)])
def test_every_oracle_states_reward_agrees_with_an_independent_formula(form, size, max_moves, count):
    env = make(PlanPath, size=size, team=form, max_moves=max_moves)
    for index in range(count):
        state = env.reset(env.tasks("train", 1)[index], 0)
        first = before = distance_by_the_book(state.maze, state.cell)
        total = 0.0
        while before:
            step = send(
                env, state, "executor", env.demonstrate(state, "executor", 0.0, np.random.default_rng(0))
            )
            state = step.state
            after = distance_by_the_book(state.maze, state.cell)
            assert after == max(0, before - max_moves)  # no shorter way, and no detour
            gain = before - after
            wanted = {"progress": gain / before, "potential": gain / first, "paper": max(gain, 0) / first}[
                form
            ]
            if form != "potential" and after == 0:
                assert team(step) == 1.0
            else:
                assert team(step) == pytest.approx(wanted)
            assert team(step, "progress") == pytest.approx(wanted)
            assert team(step, "goal") == float(after == 0)
            executor_scores = {
                name: value for (role, name), value in step.scores.items() if role == "executor"
            }
            assert executor_scores == {
                "format": 1.0,
                "legal": 1.0,
                "shortest": 1.0,
                "illegal": 0.0,
                "empty": 0.0,
            }
            total += team(step)
            before = after
        assert state.solved and (form != "potential" or total == pytest.approx(1.0))


MOVES = st.lists(st.sampled_from("UDLR"), max_size=5)


@settings(max_examples=60, deadline=None)
@given(index=st.integers(0, 500), moves=MOVES, form=st.sampled_from(["progress", "potential", "paper"]))
def test_a_walk_that_gets_no_closer_never_pays(index, moves, form):
    env = make(PlanPath, size=4, wall_density=0.25, team=form)
    state = env.reset(env.tasks("train", 0)[index], 0)
    step = send(env, state, "executor", " ".join(moves))
    if step.state.left >= state.left:
        assert team(step) <= 0.0 and step.scores["executor", "shortest"] == 0.0
    if form == "progress":
        assert 0.0 <= team(step) < 1.0 or step.state.solved


def test_naming_the_own_cell_earns_no_local_reward_but_format():
    env = make(PlanPath, size=4)
    step = send(env, start(env, *WALLED), "planner", "r1c1")
    assert {name: value for (role, name), value in step.scores.items() if role == "planner" and value} == {
        "format": 1.0,
        "illegal": 1.0,
    }


def test_the_papers_form_warns(caplog):
    with caplog.at_level(logging.WARNING, "coterie"):
        make(PlanPath, size=4, team="paper")
    assert "earn it repeatedly" in caplog.text
    assert make(PlanPath, size=4, team="potential").not_summable == ()
    assert make(PlanPath, size=4).not_summable == ("team", "progress")
