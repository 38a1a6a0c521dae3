"""What is wrong in the public code's games (PettingLLMs), each held against ours.

What is wrong there about credit is in `tests/plugins/algos/test_originals.py`.
"""

from __future__ import annotations

import numpy as np
import pytest

from coterie.core.types import TEAM
from coterie.plugins.envs.sudoku.grid import solutions
from tests.plugins.envs import mazes, sokobans, sudokus
from tests.plugins.envs.paying import game, oracle, send
from tests.plugins.envs.players import GAMES
from tests.plugins.support import role_input

games = pytest.mark.parametrize("name", list(GAMES))


def states(env, split, count, seed=0):
    tasks = env.tasks(split, seed)
    return [env.reset(tasks[index], 0) for index in range(count)]


# ---- Sudoku: clues aren't checked there, so one full grid "solves" all 400 puzzles


def test_one_grid_does_not_solve_all_puzzles():
    env = game("sudoku")
    tests = states(env, "test", 100)
    grid = tests[0].puzzle.solution
    words = " ".join(f"r{cell // 4}c{cell % 4}={digit}" for cell, digit in enumerate(grid))
    ends = [send(env, "sudoku", state, words).state for state in tests]
    won = [env.outcome(end)["success"] == 1.0 for end in ends]
    assert won == [state.puzzle.solution == grid for state in tests] and 1 <= sum(won) < 20
    for state, end in zip(tests, ends, strict=True):
        assert all(clue in (0, end.grid[cell]) for cell, clue in enumerate(state.puzzle.clues))


# ---- Sudoku: 324 of 400 puzzles have no solution


@pytest.mark.parametrize("size", [4, 9])
def test_every_puzzle_has_a_solution_and_one_only(size):
    for state in states(game("sudoku", size=size), "test", 100 if size == 4 else 20):
        assert list(solutions(size, state.puzzle.clues)) == [state.puzzle.solution]


# ---- Sudoku: the test set is the training set. Sokoban: 11 of 100 test grids are training grids


@games
def test_no_test_task_is_a_training_task(name):
    env = game(name)
    marks = {
        split: [set(env.fingerprints(env.tasks(split, 0)[index]).items()) for index in range(count)]
        for split, count in (("train", 400), ("test", 100))
    }
    met = set().union(*marks["train"])
    assert [mark & met for mark in marks["test"]] == [set()] * 100


# ---- Plan-Path: the prompt keeps showing the start after the agent has moved


@games
def test_the_present_is_shown_after_a_move(name):
    """In the prompt of every role of every game."""
    start, rows, text, shown, gone = {
        "plan_path": (mazes.start, mazes.WALLED, "U R R", "r0c3", "r1c1"),
        "sudoku": (sudokus.start, sudokus.EASY, "r0c2=3", "1 2 3 r0c3", "r0c2"),
        "sokoban": (sokobans.start, sokobans.CORNER, "R", "r1c2", "r1c1"),
    }[name]
    env = game(name, **({"boxes": 1} if name == "sokoban" else {}))
    after = send(env, name, start(env, *rows), text).state
    for role_name in ("planner", "executor", "solver"):
        prompt_text = (
            GAMES[name]
            .role_plugin(role_name)
            .render(role_input(env.observe(after, role_name), role_name))[-1]["content"]
        )
        assert shown in prompt_text and gone not in prompt_text.split()


def test_a_digit_that_was_filled_in_is_shown_apart_from_the_given():
    env = game("sudoku", rendering="prose")
    state = sudokus.start(env, *sudokus.EASY)
    step = send(env, "sudoku", state, "[r0c2=3]", "executor")
    prompt_text = (
        GAMES["sudoku"]
        .role_plugin("executor")
        .render(role_input(env.observe(step.state, "executor"), "executor"))[-1]["content"]
    )
    assert "1 2 | 3 ." in prompt_text and "Filled in so far, and open to change: r0c2=3." in prompt_text


# ---- Plan-Path: shaping by a discounted potential pays for bumping into walls


@games
@pytest.mark.parametrize("team", ["progress", "potential"])
def test_staying_where_one_is_pays_the_team_nothing(name, team):
    """Bumps, given digits and silence; in every state along a noisy oracle's way."""
    env, rng = game(name, team=team), np.random.default_rng(0)
    stayed = 0
    for state in states(env, "train", 20):
        for _ in range(3):
            if env.acting_roles(state) == ():
                break
            for text in ("", "U", "D", "L", "R", "r9c9=1", "r0c0=9", "nonsense"):
                step = send(env, name, state, text)
                if all(
                    getattr(step.state, what, None) == getattr(state, what, None)
                    for what in ("position", "grid", "boxes", "player")
                ):
                    stayed += 1
                    assert {value for (who, _), value in step.scores.items() if who == TEAM} == {0.0}
            state = send(env, name, state, env.demonstrate(state, "solver", 0.5, rng)).state
    assert stayed > 100


# ---- several environments never set success, so that they score 0


@games
def test_success_is_set_when_it_is_reached_and_only_then(name):
    env = game(name)
    for state in states(env, "val", 20):
        assert env.outcome(state)["success"] == 0.0 and env.acting_roles(state) is None
        end = send(env, name, state, oracle(env, state)).state
        assert env.outcome(end)["success"] == 1.0 and env.acting_roles(end) == ()
