"""Puzzles: solvable, unique, and no two splits share a solution."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import ConfigError
from coterie.plugins.envs.sudoku import Sudoku
from coterie.plugins.envs.sudoku.grid import (
    FEWEST_CLUES,
    conflicts,
    solutions,
    solve,
    solved,
    split_of_solution,
)
from tests.plugins.envs.sudokus import EASY, completions, every_small_grid, puzzle, valid
from tests.plugins.support import make

SMALL = every_small_grid()
SPLITS = ("train", "val", "test")


def puzzles(env, split, count, seed=0):
    source = env.tasks(split, seed)
    return [source[index].payload for index in range(count)]


def test_the_solver_finds_all_grids_of_size_4():
    assert len(SMALL) == 288 == len(set(SMALL))  # a known number
    assert set(solutions(4, [0] * 16)) == set(SMALL)
    for split in SPLITS:
        assert sum(split_of_solution(grid) == split for grid in SMALL) > 20


def test_the_oracle_solves_a_hard_one_and_refuses_what_has_no_single_solution():
    # The example of Wikipedia's article on Sudoku, and its solution.
    rows = ("53..7....", "6..195...", ".98....6.", "8...6...3", "4..8.3..1",
            "7...2...6", ".6....28.", "...419..5", "....8..79")  # fmt: skip
    assert "".join(map(str, puzzle(*rows).solution)) == (
        "534678912672195348198342567859761423426853791713924856961537284287419635345286179"
    )
    with pytest.raises(ValueError, match="several"):
        solve(4, [0] * 16)
    for broken in ([1, 1] + [0] * 14, [1, 2, 3, 0, 0, 0, 0, 4] + [0] * 8):
        with pytest.raises(ValueError, match="no solution"):
            solve(4, broken)


@settings(max_examples=60, deadline=None)
@given(index=st.integers(0, 999), hidden=st.sets(st.integers(0, 15), max_size=14))
def test_the_solver_agrees_with_the_list_of_all_grids(index, hidden):
    grid = SMALL[index % 288]
    clues = [0 if cell in hidden else digit for cell, digit in enumerate(grid)]
    wanted = {full for full in SMALL if all(clue in (0, full[at]) for at, clue in enumerate(clues))}
    assert set(solutions(4, clues)) == wanted
    if len(wanted) == 1:
        assert solve(4, clues) == grid


@given(st.lists(st.integers(0, 4), min_size=16, max_size=16))
def test_conflicts_by_their_definition(grid):
    def meets(grid, other):
        (a, b), (c, d) = divmod(grid, 4), divmod(other, 4)
        return grid != other and (a == c or b == d or (a // 2, b // 2) == (c // 2, d // 2))

    wanted = {a for a in range(16) if grid[a] and any(meets(a, b) and grid[a] == grid[b] for b in range(16))}
    assert conflicts(4, grid) == wanted
    assert solved(4, grid, [0] * 16) == valid(grid, 4, 2)


# ---- a thousand of a size


def test_puzzles_of_size_4_have_one_solution_and_splits_share_none():
    env = make(Sudoku, size=4)
    contents, answers = {}, {}
    for split, count in (("train", 350), ("val", 75), ("test", 75)):
        for problem in puzzles(env, split, count):
            assert problem.clues.count(0) == 6 and valid(problem.solution, 4, 2)
            fitting = [
                grid for grid in SMALL if all(c in (0, d) for c, d in zip(problem.clues, grid, strict=True))
            ]
            assert fitting == [problem.solution] == [solve(4, problem.clues)]
            assert (
                contents.setdefault(problem.clues, split)
                == answers.setdefault(problem.solution, split)
                == split
            )
    assert len(contents) > 400 and len(answers) > 150  # no small set that is repeated


def check_large(count):
    env = make(Sudoku, size=9)
    answers = {}
    for split in SPLITS:
        for problem in puzzles(env, split, count):
            assert problem.clues.count(0) == 40 and valid(problem.solution, 9, 3)
            assert (
                list(islice(completions(problem.clues, 9, 3), 2))
                == [problem.solution]
                == [solve(9, problem.clues)]
            )
            assert all(clue in (0, problem.solution[cell]) for cell, clue in enumerate(problem.clues))
            assert answers.setdefault(problem.solution, split) == split
    assert len(answers) == 3 * count


def test_puzzles_of_size_9_have_one_solution_and_splits_share_none():
    check_large(12)


@pytest.mark.long
def test_a_thousand_puzzles_of_size_9_have_one_solution_and_splits_share_none():
    check_large(334)


def test_the_largest_size_and_hard_puzzles():
    puzzle = make(Sudoku, size=16).tasks("test", 0)[0].payload
    assert puzzle.clues.count(0) == 90 and valid(puzzle.solution, 16, 4)
    assert list(islice(completions(puzzle.clues, 16, 4), 2)) == [puzzle.solution]
    hard = make(Sudoku, size=9, blanks=52).tasks("train", 0)[0].payload
    assert list(islice(completions(hard.clues, 9, 3), 2)) == [hard.solution]
    fewest = make(Sudoku, blanks=12).tasks("val", 0)[0].payload
    assert fewest.clues.count(0) == 12 and solve(4, fewest.clues) == fewest.solution


# ---- a function of (split, seed, index)


def test_a_task_is_a_function_of_split_seed_and_index():
    env, same = make(Sudoku, size=9), make(Sudoku, size=9)
    source = env.tasks("val", 3)
    assert source[7] == same.tasks("val", 3)[7] and source[7].id == "val-7" and len(source) == 1000
    others = [env.tasks("val", 4)[7], env.tasks("test", 3)[7], source[8]]
    assert len({task.payload for task in [source[7], *others]}) == 4
    with pytest.raises(IndexError):
        source[1000]
    code = (
        "from coterie.plugins.envs.sudoku.grid import *; "
        "print(line(drawn_puzzle('sudoku|9|val|3|7|0', 'val', 9, 40).clues))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "777"}, cwd=Path(__file__).parents[3],
    )  # fmt: skip
    assert process.stdout.split() == [str(digit) if digit else "." for digit in source[7].payload.clues]
    # Golden: another value means that every published task has changed.
    first = make(Sudoku).tasks("test", 0)[0].payload
    assert "".join(map(str, first.clues)) == "0214000014232041"


def test_digits_are_renamed_and_solutions_spread():
    """All 37 solutions of the small test split occur, none much more often than others."""
    counts: dict[tuple[int, ...], int] = {}
    for problem in puzzles(make(Sudoku, test_tasks=1000), "test", 1000):
        counts[problem.solution] = counts.get(problem.solution, 0) + 1
    assert set(counts) == {grid for grid in SMALL if split_of_solution(grid) == "test"}
    assert min(counts.values()) > 5 and max(counts.values()) < 125


# ---- what can't be


def test_what_cannot_be_reached_is_an_error(monkeypatch):
    monkeypatch.setitem(FEWEST_CLUES, 4, 3)
    env = make(Sudoku, blanks=13)
    env.attempts = 100
    source = env.tasks("train", 0)
    with pytest.raises(ConfigError, match="no puzzle for split 'train'") as caught:
        source[0]
    assert caught.value.path == "env.blanks" and "fewer blanks" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"size": 5}, "one of 4, 9, 16"),
        ({"blanks": 13}, "at most 12 at size 4"),
        ({"size": 9, "blanks": 65}, "at most 64 at size 9"),
        ({"blanks": 0}, "greater than or equal to 1"),
        ({"plan_language": "letters", "rendering": "prose"}, "prose names digits"),
        ({"holes": 3}, "unknown"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, says):
    with pytest.raises(ConfigError, match=says):
        make(Sudoku, **settings)


def test_the_drawn_puzzle_of_the_other_tests():
    assert puzzle(*EASY).solution == (1, 2, 3, 4, 3, 4, 1, 2, 2, 1, 4, 3, 4, 3, 2, 1)
