"""What Sudoku pays: golden numbers, an independent formula, nothing pays twice."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.types import TEAM
from coterie.plugins.envs.sudoku import Sudoku
from coterie.plugins.envs.sudoku.messages import assignment_word
from tests.plugins.envs.players import SUDOKU
from tests.plugins.envs.sudokus import EASY, ORACLE, start
from tests.plugins.support import make

send = SUDOKU.send_one

LOCAL = ("format", "legal", "correct")


def local(step, role="executor"):
    return {name: value for (who, name), value in step.scores.items() if who == role}


def test_golden_numbers_of_an_episode():
    env = make(Sudoku)
    # Three right, one wrong, one given cell, one digit that doesn't exist: 3 of 6 cells are right.
    step = send(env, start(env, *EASY), "executor", "r0c2=3 r0c3=4 r1c2=1 r2c0=1 r0c0=1 r2c1=7")
    assert step.scores == {
        (TEAM, "team"): 0.5,
        (TEAM, "goal"): 0.0,
        (TEAM, "progress"): 0.5,
        ("executor", "format"): 1.0,
        ("executor", "legal"): pytest.approx(4 / 6),
        ("executor", "correct"): 0.5,
        ("executor", "illegal"): 1.0,
        ("executor", "empty"): 0.0,
    }
    assert env.outcome(step.state) == {"success": 0.0, "turns": 1.0, "cells_left": 3.0}
    # One right cell is written again (not counted), one is spoilt, the wrong one is fixed.
    two = send(env, step.state, "executor", "r0c2=3 r0c3=1 r2c0=2")
    assert (two.scores[TEAM, "team"], local(two)["correct"]) == (0.0, 0.5)
    three = send(env, two.state, "executor", "r2c1=1 r3c0=4 r0c3=4 r0c2=1 r1c2=4")
    assert three.scores[TEAM, "team"] == three.scores[TEAM, "goal"] == local(three)["correct"] == 1.0
    assert three.state.solved and env.acting_roles(three.state) == () and env.acting_roles(two.state) is None
    assert env.outcome(three.state) == {"success": 1.0, "turns": 3.0, "cells_left": 0.0}


def test_an_illegal_assignment_may_stop_the_message():
    env = make(Sudoku, illegal="stop")
    step = send(env, start(env, *EASY), "executor", "r0c2=3 r9c9=1 r0c3=4")
    assert step.scores[TEAM, "team"] == pytest.approx(1 / 6)
    assert (local(step)["legal"], local(step)["correct"]) == (0.5, 0.5)


# ---- an independent formula


def right(puzzle, grid):
    """Right cells that were empty at the start, as a set of (cell, digit)."""
    wanted = {(cell, digit) for cell, digit in enumerate(puzzle.solution) if not puzzle.clues[cell]}
    return wanted & set(enumerate(grid))


@pytest.mark.parametrize("size", [4, 9])
@pytest.mark.parametrize("form", ["progress", "potential"])
def test_rewards_of_oracle_states_agree_with_an_independent_formula(size, form):
    env, rng = make(Sudoku, size=size, team=form, max_cells=size), np.random.default_rng(0)
    for index in range(40 if size == 4 else 8):
        state = env.reset(env.tasks("train", 0)[index], 0)
        for turn in range(20):
            before = right(state.puzzle, state.grid)
            step = send(env, state, "executor", env.demonstrate(state, "executor", 0.4 * (turn < 6), rng))
            after, blanks = right(state.puzzle, step.state.grid), state.puzzle.clues.count(0)
            if form == "potential":
                wanted = (len(after) - len(before)) / blanks
            else:
                wanted = max(0, len(after) - len(before)) / (blanks - len(before))
            assert step.scores[TEAM, "team"] == pytest.approx(wanted)
            assert step.scores[TEAM, "goal"] == float(len(after) == blanks)
            # Of the oracle's digits, all of them new, those that are right.
            written = min(size, blanks - len(before))
            assert local(step)["correct"] == pytest.approx(len(after - before) / written)
            state = step.state
            if state.solved:
                break
        assert env.outcome(state)["success"] == 1.0


@pytest.mark.parametrize("form", ["progress", "potential"])
@pytest.mark.parametrize("settings_", [{}, {"illegal": "stop", "max_cells": 4}])
def test_the_planners_counterfactual_is_what_playing_its_plan_earns(form, settings_):
    env, rng, signs = make(Sudoku, team=form, **settings_), np.random.default_rng(0), set()
    for index in range(80):
        state = env.reset(env.tasks("train", 0)[index], 0)
        for _ in range(2):
            plan = send(env, state, "planner", env.demonstrate(state, "planner", 0.5, rng))
            assert plan.state.grid == state.grid
            assert {plan.scores[TEAM, name] for name in ("team", "goal", "progress")} == {0.0}
            words = " ".join(map(assignment_word, plan.state.plan.items))
            played = send(env, plan.state, "executor", words)
            for name in ("team", "goal", "progress"):
                assert plan.scores[TEAM, f"plan_{name}"] == played.scores[TEAM, name]
                assert (TEAM, f"plan_{name}") not in played.scores
            for name in LOCAL:
                assert plan.scores["planner", name] == played.scores["executor", name]
            signs.add(played.scores[TEAM, "progress"] > 0)
            state = played.state
            if state.solved:
                break
    assert signs == {True, False}


# ---- nothing pays twice


def summed(env, state, texts):
    """The return that is trained on where it sums over turns: increments, and differences of potentials."""
    total, potentials = 0.0, {}
    for text in texts:
        step = send(env, state, "executor", text)
        for (_, name), value in step.scores.items():
            total += env.weights[name] * (value - potentials.get(name, 0.0))
            if env.components[name] == "potential":
                potentials[name] = value
        state = step.state
        if state.solved:
            break
    return total, state


def test_refilling_earns_the_team_nothing():
    env = make(Sudoku)
    for text in ("r0c2=3 " * 10_000, "r0c2=3 r0c2=1 " * 5_000 + "r0c2=3", "r0c0=1 " * 9_999 + "r0c2=3"):
        step = send(env, start(env, *EASY), "executor", text)
        assert step.scores[TEAM, "team"] == pytest.approx(1 / 6) and step.state.left == 5
    again, _ = summed(env, step.state, ["r0c2=3"])  # it is right already
    assert again == pytest.approx(0.2)  # format and legal
    assert len(env.diagnose(send(env, step.state, "executor", "r0c0=1 " * 10_000).state, "executor")) < 1000


def test_the_oracle_earns_the_most_in_one_message():
    env = make(Sudoku, team="potential")
    assert summed(env, start(env, *EASY), [ORACLE])[0] == pytest.approx(2.0)
    slow, state = summed(env, start(env, *EASY), ORACLE.split())
    assert state.solved and slow == pytest.approx(2.0)  # in small steps no more
