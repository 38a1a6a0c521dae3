"""The game: states are values, clues stay, roles see what they should."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from coterie.core.types import TEAM
from coterie.plugins.envs.sudoku import Sudoku
from coterie.testing import play_episode
from tests.plugins.envs.players import SUDOKU
from tests.plugins.envs.sudokus import EASY, ORACLE, start
from tests.plugins.support import Build, make, team_run

send, prompt = SUDOKU.send, SUDOKU.prompt

# ---- states are values


def test_clues_are_never_overwritten_and_fills_may_be():
    env = make(Sudoku)
    wrong = send(env, start(env, *EASY), executor="r0c0=2 r0c2=1 r0c3=4").state
    assert wrong.grid[:4] == (1, 2, 1, 4)
    fixed = send(env, wrong, executor="r0c2=3").state
    assert fixed.grid[:4] == (1, 2, 3, 4) and fixed.puzzle == wrong.puzzle
    # A full valid grid that doesn't keep the clues is no success, however it came about.
    other = tuple(digit % 4 + 1 for digit in fixed.puzzle.solution)
    assert env.outcome(dataclasses.replace(fixed, grid=other))["success"] == 0.0
    assert env.outcome(dataclasses.replace(fixed, grid=fixed.puzzle.solution))["success"] == 1.0


def test_a_message_ends_with_the_solution():
    env = make(Sudoku)
    step = send(env, start(env, *EASY), solver=f"{ORACLE} r0c2=1 r9c9=9")
    assert step.state.solved and step.scores["solver", "legal"] == 1.0


# ---- who sees what


def test_compact_prompts_golden():
    env = make(Sudoku, plan_language="letters")
    state = start(env, *EASY)
    grid = "1 2 r0c2 r0c3 3 4 r1c2 2 r2c0 r2c1 4 3 r3c0 3 2 1"
    assert env.observe(state, "planner").compact() == f"planner {grid} :"
    assert env.observe(state, "solver").compact() == f"solver {grid} :"
    planned = send(env, state, planner="c d - b").state
    plan = "r0c2 c r0c3 d r1c2 - r2c0 b r2c1 - r3c0 -"
    assert prompt(env, planned, "executor") == f"executor {grid} plan {plan} :"
    split = make(Sudoku, plan_language="letters", views="split")
    assert prompt(split, planned, "executor") == f"executor {plan} :"
    # A fill that clashes is marked and open again; one that is wrong and doesn't clash is not.
    moved = send(env, planned, executor="r0c2=4 r0c3=4 r2c0=1").state
    grid = "1 2 ?4 ?4 3 4 r1c2 2 ?1 r2c1 4 3 r3c0 3 2 1"
    assert prompt(env, moved, "planner") == f"planner {grid} :"
    assert prompt(split, moved, "executor") == "executor r0c2 - r0c3 - r1c2 - r2c0 - r2c1 - r3c0 - :"


def test_what_the_oracle_knows_is_not_shown():
    """A wrong digit that clashes with nothing looks like a right one."""
    env = make(Sudoku)
    state = start(env, "....", "..1.", ".4..", "2..3")
    right, wrong, clashing = (send(env, state, solver=f"r0c0={digit}").state for digit in (1, 4, 2))
    assert [state_.left for state_ in (right, wrong, clashing)] == [11, 12, 12]
    assert [0 in state_.open for state_ in (right, wrong, clashing)] == [False, False, True]
    shown = [env.observe(state_, "planner").compact().split() for state_ in (right, wrong, clashing)]
    assert [words[1] for words in shown] == ["1", "4", "?2"] and shown[0][2:] == shown[1][2:]
    assert env.diagnose(wrong, "solver") == env.diagnose(right, "solver") != env.diagnose(clashing, "solver")


@pytest.mark.parametrize("rendering", ["compact", "prose"])
def test_a_split_executor_sees_nothing_of_the_grid(rendering):
    """Two states with the same open cells and the same plan look the same to it, whatever the digits."""
    env = make(Sudoku, views="split", rendering=rendering)
    rows = ("12..", "34.2", "..43", ".321")
    renamed = [row.translate(str.maketrans("1234", "3142")) for row in rows]
    plan = "[r0c2=3, r2c0=2]" if rendering == "prose" else "3 - - 2"
    seen, shown = [], []
    for drawn in (rows, renamed):
        state = send(env, start(env, *drawn), planner=plan).state
        observation = env.observe(state, "executor")
        assert observation.grid is observation.clues is observation.clashing is None
        seen.append((observation, prompt(env, state, "executor")))
        shown.append(prompt(env, state, "planner"))
    assert shown[0] != shown[1]
    assert seen[0] == seen[1]
    step = send(env, state, executor="[r0c0=1]" if rendering == "prose" else "r0c0=1").state
    assert env.diagnose(step, "executor") == (
        "Last turn you played 0 of 1 assignment. Assignment 1 (r0c0=1) would change a given digit."
    )


def test_compact_prompts_are_in_the_vocabulary():
    rng = np.random.default_rng(0)
    for more in ({}, {"views": "split", "plan_language": "letters"}, {"size": 9, "max_cells": 5}):
        env = make(Sudoku, **more)
        words = list(env.vocabulary())
        assert len(words) == len(set(words))
        for index in range(60 if env.size == 4 else 5):
            state = env.reset(env.tasks("train", 0)[index], 0)
            for role in ("planner", "executor") * 3:
                message = env.demonstrate(state, role, 0.3, rng)
                assert {*env.observe(state, role).compact().split(), *message.split()} <= set(words)
                state = send(env, state, **{role: message}).state
                if state.solved:
                    break


def test_prose_golden():
    env = make(Sudoku, rendering="prose", max_cells=9)
    state = send(env, start(env, *EASY), executor="[r0c2=4, r0c3=4]").state
    state = send(env, state, planner="[r0c2=3, r2c0=2]").state
    assert (
        prompt(env, state, "executor", feedback=("You slept.",))
        == """\
Turn 2. A Sudoku of 4 rows (r0 at the top) and 4 columns (c0 at the left), with boxes of 2 by 2 and the \
digits 1 to 4.
'.' is an empty cell.

1 2 | 4 4
3 4 | . 2
----+----
. . | 4 3
. 3 | 2 1

Filled in so far, and open to change: r0c2=4, r0c3=4. The others are given.
These clash with an equal digit: r0c2, r0c3.
The planner says: r0c2=3, r2c0=2.
You slept.
Your assignments as a list such as [r0c1=3, r2c3=1] (at most 9):"""
    )
    system = SUDOKU.messages(env, state, "executor")[0]
    assert system["role"] == "system" and "executor" in system["content"]


def test_a_planner_that_plays_alone_fills():
    env = make(Sudoku, Build(order=["planner"]), plan_moves=True)
    step = send(env, start(env, *EASY), planner="3 4 1 2 1 4")
    assert step.state.solved and step.scores[TEAM, "team"] == 1.0 and (TEAM, "plan_team") not in step.scores
    step = send(env, start(env, *EASY), planner="3 3")
    assert env.diagnose(step.state, "planner") == (
        "Last turn you played 2 of 2 assignments. Of these cells clash with an equal digit now: "
        "r0c2 (3), r0c3 (3)."
    )


# ---- feedback


def test_the_diagnosis_says_what_happened():
    env = make(Sudoku, max_cells=4)
    state = start(env, *EASY)
    assert env.diagnose(state, "executor") == ""
    state = send(env, state, planner="3 4").state
    state = send(env, state, executor="r0c2=3 r0c3=3 r4c0=1 r2c0=5 r2c1=1").state
    fate = (
        "played 2 of 5 assignments. Assignment 3 (r4c0=1) names a cell outside the grid. "
        "Assignment 4 (r2c0=5) is no digit of this grid. Only the first 4 assignments of a message are "
        "played. Of these cells clash with an equal digit now: r0c2 (3), r0c3 (3)."
    )
    assert env.diagnose(state, "executor") == f"Last turn you {fate}"
    assert env.diagnose(state, "planner") == f"Last turn the executor {fate}"
    silent = send(env, send(env, state, planner="x").state, executor="").state
    assert env.diagnose(silent, "planner") == (
        "Your last plan couldn't be read. The executor filled no cell last turn."
    )


# ---- the oracle's messages


@pytest.mark.parametrize("more", [
    {}, {"views": "split", "plan_language": "letters"}, {"rendering": "prose", "views": "split"},
    {"rendering": "prose"}, {"illegal": "stop"}, {"size": 9},
])  # fmt: skip
def test_demonstrations_without_noise_solve_the_game(more):
    env, rng = make(Sudoku, max_cells=4, **more), np.random.default_rng(0)
    for index in range(40 if env.size == 4 else 3):
        state = env.reset(env.tasks("train", 0)[index], 0)
        for turn in range(30):
            noise = 0.5 * (turn == 0)  # it repairs what went wrong in the first turn
            planned = send(env, state, planner=env.demonstrate(state, "planner", noise, rng))
            if turn:
                assert planned.scores["planner", "correct"] == planned.scores["planner", "legal"] == 1.0
            state = send(
                env, planned.state, executor=env.demonstrate(planned.state, "executor", noise, rng)
            ).state
            if state.solved:
                break
        assert env.outcome(state)["success"] == 1.0 and turn <= (2 if env.size == 4 else 11)


def test_an_executor_that_does_not_see_the_grid_is_shown_writing_down_its_plan():
    rng = np.random.default_rng(0)
    for views, message in (("split", "r0c2=1 r1c2=2"), ("full", ORACLE)):
        env = make(Sudoku, views=views)
        planned = send(env, start(env, *EASY), planner="1 - 2").state
        assert env.demonstrate(planned, "executor", 0.0, rng) == message
        assert env.demonstrate(start(env, *EASY), "executor", 0.0, rng) == ORACLE


def test_noise_replaces_digits_at_its_rate_and_keeps_the_cells():
    env, rng, kept, total = make(Sudoku), np.random.default_rng(0), 0, 0
    for index in range(300):
        state = env.reset(env.tasks("train", 0)[index], 0)
        clean = env.demonstrate(state, "executor", 0.0, rng).split()
        noisy = env.demonstrate(state, "executor", 0.6, rng).split()
        assert [word[:4] for word in clean] == [word[:4] for word in noisy]
        kept += sum(clean_word == other for clean_word, other in zip(clean, noisy, strict=True))
        total += len(clean)
    assert kept / total == pytest.approx(0.4 + 0.6 / 4, abs=0.04)  # a random digit may be the right one


# ---- whole runs


def team_player(request, text):
    """The planner's branches name 1, 2, 3, 4 for the first cell; the executor writes down its plan."""
    if request.key.role == "planner":
        return "1234"[request.key.branch]
    cell, digit = text.split()[1:3]
    return f"{cell}={digit}" if request.key.branch == 2 else "r9c9=1"


def test_a_team_is_played_and_the_best_plan_is_committed():
    roles = {name: {"type": f"sudoku_{name}"} for name in ("planner", "executor")}
    run = team_run(team_player, env={"type": "sudoku", "views": "split"}, roles=roles)
    trees, _ = play_episode(run, 4)
    for tree in trees:
        solution = tree.task.payload.solution
        for node in tree.nodes():
            if "planner" in node.decisions:
                seen = node.decisions["planner"].observation
                row, column = seen.open[0]
                assert node.expanded == (solution[row * 4 + column] - 1,)
            elif "executor" in node.decisions:
                assert node.expanded == (2,)
        assert [leaf.outcome["cells_left"] for _, leaf in tree.leaves()] == [4.0]  # two turns, a cell each
