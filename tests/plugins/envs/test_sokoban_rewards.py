"""What Sokoban pays: golden numbers, an independent formula, nothing pays twice, counterfactuals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.types import TEAM
from coterie.plugins.envs.sokoban import Sokoban
from coterie.plugins.envs.sokoban.solver import solve
from tests.plugins.envs.players import SOKOBAN
from tests.plugins.envs.sokobans import Slow, start
from tests.plugins.support import Build, make

send = SOKOBAN.send_one

ALONE = Build(order=["planner", "solver"])
TWO = ("------", "-@$-.-", "------", "--$--.", "------")
"""Two boxes, two pushes and three away."""


def team(step, component="team"):
    return step.scores[TEAM, component]


def game(**more):
    return make(Sokoban, ALONE, **more)


# ---- golden numbers


def test_golden_numbers_of_an_episode():
    env = game(size=5, width=6, boxes=2)
    step = send(env, start(env, *TWO), "solver", "R")
    assert step.scores == {
        (TEAM, "team"): 0.0,
        (TEAM, "goal"): 0.0,
        (TEAM, "progress"): 0.0,
        (TEAM, "pushed"): 0.2,
        ("solver", "format"): 1.0,
        ("solver", "legal"): 1.0,
        ("solver", "safe"): 1.0,
        ("solver", "illegal"): 0.0,
        ("solver", "empty"): 0.0,
    }
    two = send(env, step.state, "solver", "R")
    assert (team(two), team(two, "pushed"), team(two, "goal")) == (0.5, 0.25, 0.0)
    off = send(env, two.state, "solver", "R")  # on, off again, along the edge: r1c5 is in line with r3c5
    assert (team(off), team(off, "pushed"), off.scores["solver", "safe"]) == (0.0, 0.0, 1.0)
    bump = send(env, off.state, "solver", "L R R R")
    assert (bump.scores["solver", "legal"], bump.scores["solver", "safe"]) == (pytest.approx(2 / 3), 0.0)
    assert bump.scores["solver", "illegal"] == 1.0
    last = send(env, two.state, "solver", "D L L L D R R R R")
    assert (team(last), team(last, "pushed"), team(last, "goal")) == (1.0, 1.0, 1.0)
    assert last.state.solved and env.acting_roles(last.state) == ()
    assert env.outcome(last.state) == {"success": 1.0, "turns": 3.0, "boxes_left": 0.0, "deadlocked": 0.0}


def test_golden_numbers_of_the_potential():
    env = game(size=5, width=6, boxes=2, team="potential")
    state, paid = start(env, *TWO), []
    for moves in ("R", "R", "R", "D L L L D R R R R"):
        step = send(env, state, "solver", moves)
        paid.append((team(step), round(team(step, "pushed"), 9)))
        state = step.state
    assert paid == [(0.0, 0.2), (0.5, 0.2), (-0.5, -0.4), (0.5, 0.6)]


def test_a_deadlock_is_not_safe_and_counts_as_the_whole_board():
    env = game(size=4, team="potential")
    step = send(env, start(env, "----", "-@$-", "----", "-.--"), "solver", "R")
    assert step.scores["solver", "safe"] == 0.0 and step.scores["solver", "legal"] == 1.0
    assert team(step, "pushed") == pytest.approx((3 - 16) / 3)
    assert env.outcome(step.state)["deadlocked"] == 1.0
    assert env.acting_roles(step.state) is None  # it goes on
    assert make(Sokoban, ALONE, size=4, stop_at_deadlock=True).acting_roles(step.state) == ()


# ---- an independent formula, along the oracle's way


@pytest.mark.parametrize("form", ["progress", "potential"])
@pytest.mark.parametrize(("size", "boxes"), [(6, 1), (5, 2), (5, 3)])
def test_every_oracle_states_reward_agrees_with_an_independent_formula(form, size, boxes):
    env = game(size=size, boxes=boxes, team=form)
    for index in range(20):
        state = env.reset(env.tasks("train", 1)[index], 0)
        slow = Slow(state.board)
        placed, player, cap = slow.boxes, slow.player, size * size
        left0, far0 = slow.left(placed), slow.distance(placed, cap)
        total = dict.fromkeys(("team", "pushed"), 0.0)
        for move in solve(state.board, state.boxes, state.player).moves:
            after, player, _ = slow.moved(placed, player, move)
            left, far = slow.left(placed), slow.distance(placed, cap)
            gain, nearer = left - slow.left(after), far - slow.distance(after, cap)
            if form == "progress":
                wanted = {"team": max(0, gain) / left, "pushed": max(0, nearer) / far}
            else:
                wanted = {"team": gain / left0, "pushed": nearer / far0}
            step = send(env, state, "solver", move)
            solved = after == slow.targets
            assert {name: team(step, name) for name in wanted} == pytest.approx(wanted)
            assert team(step, "progress") == team(step) and team(step, "goal") == float(solved)
            assert {name: step.scores["solver", name] for name in ("format", "legal", "safe")} == {
                "format": 1.0,
                "legal": 1.0,
                "safe": 1.0,
            }
            for name in total:
                total[name] += team(step, name)
            state, placed = step.state, after
        assert state.solved
        if form == "potential":
            assert total == pytest.approx({"team": 1.0, "pushed": 1.0})


# ---- nothing pays twice

MOVES = st.lists(st.sampled_from("UDLR"), max_size=6).map(" ".join)
TRICKS = st.sampled_from(["L R", "U D", "U U U", "D L U R", "L R L R L R", "", "x", "R L", "R U L D"])


@settings(max_examples=60, deadline=None)
@given(index=st.integers(0, 300), text=MOVES | TRICKS, form=st.sampled_from(["progress", "potential"]))
def test_a_message_that_pushes_nothing_earns_the_team_nothing(index, text, form):
    env = game(size=4, boxes=2, team=form, walk="skip")
    state = env.reset(env.tasks("train", 0)[index], 0)
    step = send(env, state, "solver", text)
    if step.state.boxes == state.boxes:
        assert {team(step, name) for name in ("team", "progress", "pushed")} == {0.0}
    if form == "progress":
        assert step.state.solved or 0.0 <= team(step, "pushed") < 1.0 > team(step) >= 0.0


# ---- the planner's counterfactual


@pytest.mark.parametrize("form", ["progress", "potential"])
@pytest.mark.parametrize("walk", ["stop", "skip"])
@pytest.mark.parametrize("words", ["cells", "offsets"])
def test_the_planners_counterfactual_is_what_carrying_out_its_plan_earns(form, walk, words):
    env = game(size=5, boxes=2, team=form, walk=walk, push_words=words)
    rng, seen = np.random.default_rng(0), set()
    names = ("team", "goal", "progress", "pushed")
    for index in range(50):
        state = env.reset(env.tasks("train", 0)[index], 0)
        proposal = send(env, state, "planner", env.demonstrate(state, "planner", 0.3, rng))
        assert (proposal.state.boxes, proposal.state.player) == (state.boxes, state.player)
        assert {team(proposal, name) for name in names} == {0.0}
        fork = proposal.state.plan.fork
        carried = send(env, proposal.state, "solver", " ".join(fork.items))
        for name in names:
            assert team(proposal, f"plan_{name}") == team(carried, name)
            assert (TEAM, f"plan_{name}") not in carried.scores
        if not fork.illegal:
            assert proposal.scores["planner", "safe"] == carried.scores["solver", "safe"]
        seen.add(team(carried) > 0)
    assert seen == {True, False}
