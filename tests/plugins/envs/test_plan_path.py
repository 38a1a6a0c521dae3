"""The game: states are values, positions are present, roles see what they should."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.errors import ConfigError
from coterie.core.types import TEAM
from coterie.plugins.envs.plan_path import PlanPath
from tests.plugins.envs.mazes import WALLED, start
from tests.plugins.envs.players import PLAN_PATH
from tests.plugins.support import Build, make

send, prompt = PLAN_PATH.send, PLAN_PATH.prompt

# ---- who sees what


def test_the_present_position_is_shown_after_a_move():
    for rendering in ("compact", "prose"):
        env = make(PlanPath, size=4, rendering=rendering)
        state = send(
            env, start(env, *WALLED), executor="U R R" if rendering == "compact" else "[U, R, R]"
        ).state
        for role in ("planner", "executor", "solver"):
            prompt_text = prompt(env, state, role)
            assert "r0c3" in prompt_text and "r1c1" not in prompt_text
            assert env.observe(state, role).position == (0, 3)


def test_compact_prompts_golden():
    env = make(PlanPath, size=4)
    state = start(env, *WALLED)
    assert env.observe(state, "planner").compact() == "planner r1c1 G+2+2 #+0+1 #+1+0 :"
    assert env.observe(state, "solver").compact() == "solver r1c1 G+2+2 #+0+1 #+1+0 :"
    assert env.observe(state, "executor").compact() == "executor r1c1 G+2+2 #+0+1 #+1+0 plan :"
    planned = send(env, state, planner="r0c1 r0c3").state
    assert PLAN_PATH.messages(env, planned, "executor") == [
        {"role": "user", "content": "executor r1c1 G+2+2 #+0+1 #+1+0 plan r0c1 r0c3 :"}
    ]
    moved = send(env, planned, executor="U R R").state
    assert env.observe(moved, "planner").compact() == "planner r0c3 G+3+0 #+1-1 #+2-2 :"
    assert env.observe(moved, "executor").compact() == "executor r0c3 G+3+0 #+1-1 #+2-2 plan :"


def test_compact_prompts_golden_in_the_language_of_moves():
    env = make(PlanPath, size=4, plan_language="moves")
    planned = send(env, start(env, *WALLED), planner="U R R").state
    assert env.observe(planned, "executor").compact() == "executor r1c1 G+2+2 #+0+1 #+1+0 plan U R R :"


def test_split_views_tell_the_executor_its_plan_and_the_walls_beside_it_only():
    env = make(PlanPath, size=4, views="split", waypoint_words="offsets")
    state = send(env, start(env, "....", ".S#.", "....", ".#.G"), planner="-1+0 -1+2").state
    assert state.plan.waypoints == ((0, 1), (0, 3))
    assert env.observe(state, "planner").compact() == "planner r1c1 G+2+2 #+0+1 #+2+0 :"
    assert env.observe(state, "executor").compact() == "executor r1c1 #+0+1 plan -1+0 -1+2 :"
    prose = make(PlanPath, size=4, views="split", rendering="prose")
    prompt_text = prompt(prose, state, "executor")
    assert (
        "goal" not in prompt_text
        and "r3c3" not in prompt_text
        and "walls: R (wall)" in prompt_text
        and "r0c1, r0c3" in prompt_text
    )
    assert "The goal is r3c3" in prompt(prose, state, "planner")


def test_compact_prompts_are_short_and_in_the_vocabulary():
    rng = np.random.default_rng(0)
    for more in ({}, {"views": "split", "waypoint_words": "offsets"}, {"plan_language": "moves"}):
        env = make(PlanPath, size=4, wall_density=0.2, min_distance=3, max_moves=4, **more)
        words, counts = set(env.vocabulary()), []
        assert len(list(env.vocabulary())) == len(words)
        for index in range(300):
            state = env.reset(env.tasks("train", 0)[index], 0)
            for role in ("planner", "executor"):
                prompt = env.observe(state, role).compact().split()
                message = env.demonstrate(state, role, 0.3, rng)
                assert {*prompt, *message.split()} <= words
                assert 1 <= len(message.split()) <= 4
                counts.append(len(prompt))
                state = send(env, state, **{role: message}).state
                if state.solved:
                    break
        assert min(counts) >= 3 and np.mean(counts) < 10 and np.quantile(counts, 0.95) <= 14


def test_prose_golden():
    env = make(PlanPath, size=4, rendering="prose", max_moves=4)
    state = send(env, start(env, *WALLED), planner="[r0c1, r0c3]").state
    system, user = PLAN_PATH.messages(env, state, "executor", feedback=("Last turn you slept.",))
    assert system["role"] == "system" and "executor" in system["content"]
    assert (
        user["content"]
        == """\
Turn 1. The grid has 4 rows (r0 at the top) and 4 columns (c0 at the left).
'#' is a wall, '.' is free, '@' is where you are now, 'G' is the goal.

. . . .
. @ # .
. # . .
. . . G

You are at r1c1. The goal is r3c3.
The planner's way-points: r0c1, r0c3.
Last turn you slept.
Your moves (U, D, L, R, at most 4) as a list such as [U, R, R]:"""
    )


# ---- feedback


def test_the_diagnosis_says_what_happened():
    env = make(PlanPath, size=4, max_moves=3)
    state = start(env, *WALLED)
    assert env.diagnose(state, "executor") == ""
    state = send(env, send(env, state, planner="r0c1 r1c2").state, executor="U R D L").state
    assert env.diagnose(state, "executor") == (
        "Last turn you played 2 of 4 moves from r1c1. Move 3 (D) hit a wall. The walk stopped there. "
        "Only the first 3 moves of a message are played. Your walk ended at r0c2."
    )
    assert env.diagnose(state, "planner") == (
        "Your way-point 2 (r1c2) is a wall. Last turn the executor played 2 of 4 moves from r1c1. "
        "Move 3 (D) hit a wall. The walk stopped there. Only the first 3 moves of a message are played. "
        "The executor's walk ended at r0c2."
    )
    state = send(env, state, executor="U").state
    assert "Move 1 (U) would have left the grid." in env.diagnose(state, "executor")
    assert "played no move" in env.diagnose(send(env, state, executor="").state, "executor")


def test_the_diagnosis_never_tells_the_distance():
    env = make(PlanPath, size=4, max_moves=2)
    state = send(env, send(env, start(env, *WALLED), planner="r0c1").state, executor="U R").state
    assert not {"goal", "steps", "away"} & set(
        env.diagnose(state, "executor").lower().replace(".", "").split()
    )


# ---- the oracle's messages


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"views": "split"},
        {"views": "split", "waypoint_words": "offsets"},
        {"plan_language": "moves"},
        {"rendering": "prose"},
        {"rendering": "prose", "plan_language": "moves", "views": "split"},
    ],
)
def test_demonstrations_without_noise_solve_the_game(more):
    env = make(PlanPath, size=5, max_moves=3, **more)
    rng = np.random.default_rng(0)
    for index in range(100):
        state = env.reset(env.tasks("train", 0)[index], 0)
        for _ in range(-(-state.first // 3)):
            planned = send(env, state, planner=env.demonstrate(state, "planner", 0.0, rng))
            assert planned.scores["planner", "shortest"] == planned.scores["planner", "legal"] == 1.0
            state = send(
                env, planned.state, executor=env.demonstrate(planned.state, "executor", 0.0, rng)
            ).state
        assert env.outcome(state)["success"] == 1.0


def test_noise_replaces_moves_at_its_rate():
    env = make(PlanPath, size=6, min_distance=4)
    rng, kept, total = np.random.default_rng(0), 0, 0
    for index in range(400):
        state = env.reset(env.tasks("train", 0)[index], 0)
        clean = env.demonstrate(state, "executor", 0.0, rng).split()
        noisy = env.demonstrate(state, "executor", 0.6, rng).split()
        assert len(clean) == len(noisy)
        kept += sum(clean_word == other for clean_word, other in zip(clean, noisy, strict=True))
        total += len(clean)
    assert kept / total == pytest.approx(0.4 + 0.6 / 4, abs=0.03)  # a random move may be the right one


# ---- configurations that make no sense


def test_offsets_in_prose_are_refused():
    with pytest.raises(ConfigError, match="prose names cells"):
        make(PlanPath, size=4, rendering="prose", waypoint_words="offsets")


def test_the_solver_plays_alone():
    env = make(PlanPath, Build(order=["solver"]), size=4)
    step = send(env, start(env, *WALLED), solver="U R R D D D")
    assert step.scores[TEAM, "team"] == 1.0 and step.scores["solver", "shortest"] == 1.0


def test_a_planner_that_walks_its_way_points_gets_feedback_on_them():
    env = make(PlanPath, Build(order=["planner"]), size=4, plan_moves=True)
    state = send(env, start(env, *WALLED), planner="r0c1 r0c3 r1c2 r3c3").state
    assert state.cell == (0, 3)
    assert env.diagnose(state, "planner") == (
        "Last turn you went for 2 of 4 way-points from r1c1. Your walk ended at r0c3. "
        "Your way-point 3 (r1c2) is a wall."
    )
    legs = make(PlanPath, Build(order=["planner"]), size=4, plan_moves=True, plan_language="legs")
    state = send(legs, start(legs, *WALLED), planner="U1 R3").state
    assert legs.diagnose(state, "planner") == (
        "Last turn you played 3 of 4 moves from r1c1. Move 4 (R) would have left the grid. "
        "The walk stopped there. Your walk ended at r0c3."
    )
