"""Mazes: solvable, split by content, cheap; walks and the oracle."""

from __future__ import annotations

import itertools
import pickle
import time

import pytest

from coterie.core.errors import ConfigError
from coterie.plugins.envs.common.generated import split_of
from coterie.plugins.envs.plan_path import PlanPath
from coterie.plugins.envs.plan_path.grid import Maze, along, corners, shortest_path, walk
from tests.plugins.envs.mazes import WALLED, distance_by_the_book, maze
from tests.plugins.support import make

SMALL = {"size": 4, "wall_density": 0.2, "min_distance": 3}
SPLITS = ("train", "val", "test")


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (SMALL, 300),
        ({"size": 10}, 200),
        ({"width": 7, "height": 3}, 100),
        ({"size": 20}, 30),
        pytest.param({"size": 10}, 1000, marks=pytest.mark.long),
    ],
)
def test_mazes_of_every_split_are_solvable_and_far_enough(settings, count):
    env = make(PlanPath, **settings)
    for split in SPLITS:
        tasks = env.tasks(split, seed=3)
        for index in range(count):
            problem = tasks[index].payload
            distance = distance_by_the_book(problem, problem.cell(problem.start))
            assert distance == problem.left(problem.start) >= settings.get("min_distance", 1)
            assert not problem.wall(problem.start) and not problem.wall(problem.goal)
            assert len(shortest_path(problem, problem.start)) == distance


def test_splits_share_no_maze_under_any_seeds():
    env = make(PlanPath, **SMALL)
    contents = {
        split: {env.tasks(split, seed)[index].payload.content for seed in (0, 99) for index in range(250)}
        for split in SPLITS
    }
    for first, other in itertools.combinations(SPLITS, 2):
        assert not contents[first] & contents[other]
    assert all(len(mazes) > 250 for mazes in contents.values())


def test_the_split_of_a_maze_is_a_function_of_its_content():
    # Written down: these must never change, or old runs would have trained on new test mazes.
    grid = maze(*WALLED)
    assert grid.content == "4x4:240:5:15"
    assert [split_of(Maze(4, 4, walls, 0, 15).content) for walls in (0, 2, 4, 6, 16, 18, 64, 66)] == [
        "train",
        "train",
        "test",
        "train",
        "train",
        "train",
        "train",
        "train",
    ]


def test_tasks_are_keyed_by_split_seed_and_index():
    env = make(PlanPath, **SMALL)
    tasks = env.tasks("train", 5)
    assert tasks[17] == env.tasks("train", 5)[17] == pickle.loads(pickle.dumps(tasks[17]))
    assert tasks[17].id == "train-17" and len(tasks) == 1_000_000 and len(env.tasks("val", 5)) == 1000
    assert tasks[17].payload != env.tasks("train", 6)[17].payload
    with pytest.raises(IndexError):
        tasks[1_000_000]


def test_a_training_maze_costs_less_than_200_microseconds():
    tasks = make(PlanPath, **SMALL).tasks("train", 0)
    best = min(timed(tasks, first) for first in range(0, 1500, 300))
    assert best < 200e-6


def timed(tasks, first):
    begin = time.process_time()  # other processes share the cores
    for index in range(first, first + 300):
        tasks[index]
    return (time.process_time() - begin) / 300


def test_a_maze_that_cannot_be_is_an_error_and_no_endless_loop(monkeypatch):
    monkeypatch.setattr(PlanPath, "attempts", 200)
    with pytest.raises(ConfigError, match="min_distance"):
        make(PlanPath, size=3, min_distance=9).tasks("train", 0)[0]


def test_the_oracle_by_hand():
    grid = maze(*WALLED)
    assert grid.left(grid.start) == 6
    assert shortest_path(grid, grid.start) == ("U", "R", "R", "D", "D", "D")
    assert corners(grid, grid.start, shortest_path(grid, grid.start)) == ((0, 1), (0, 3), (3, 3))


def test_corners_name_a_path_exactly():
    env = make(PlanPath, size=6)
    for index in range(200):
        problem = env.tasks("train", 1)[index].payload
        path = shortest_path(problem, problem.start)
        assert along(problem, problem.start, corners(problem, problem.start, path), skip=False) == (
            path,
            (),
            len(corners(problem, problem.start, path)),
        )


@pytest.mark.parametrize(
    ("moves", "skip", "end", "played", "illegal", "tried", "shortest"),
    [
        ("URR", False, (0, 3), 3, (), 3, True),
        ("RU", False, (1, 1), 0, ((1, "wall"),), 1, False),
        ("RU", True, (0, 1), 1, ((1, "wall"),), 2, False),
        ("UUR", False, (0, 1), 1, ((2, "edge"),), 2, False),
        ("UL", False, (0, 0), 2, (), 2, False),
        ("URRDDDD", False, (3, 3), 6, (), 6, True),
        ("URRDDDL", True, (3, 3), 6, (), 6, True),
        ("", False, (1, 1), 0, (), 0, False),
    ],
)
def test_walks_by_hand(moves, skip, end, played, illegal, tried, shortest):
    grid = maze(*WALLED)
    effect = walk(grid, grid.start, tuple(moves), limit=None, skip=skip)
    assert (grid.cell(effect.end), effect.played, effect.illegal, effect.tried, effect.shortest) == (
        end,
        played,
        illegal,
        tried,
        shortest,
    )


def test_moves_beyond_the_limit_are_not_played():
    grid = maze(*WALLED)
    effect = walk(grid, grid.start, tuple("URRDDD"), limit=2, skip=False)
    assert (grid.cell(effect.end), effect.items, effect.written) == ((0, 2), ("U", "R"), 6)


@pytest.mark.parametrize(
    ("waypoints", "moves", "illegal"),
    [
        (((0, 1), (0, 3)), "URR", ()),
        (((0, 3), (3, 3), (0, 0)), "URRDDD", ()),  # the walk ends at the goal
        (((0, 1), (1, 2), (0, 3)), "U", ((2, "wall"),)),
        (((4, 0),), "", ((1, "edge"),)),
        (((1, 1), (0, 1)), "", ((1, "here"),)),
    ],
)
def test_waypoints_by_hand(waypoints, moves, illegal):
    grid = maze(*WALLED)
    assert along(grid, grid.start, waypoints, skip=False)[:2] == (tuple(moves), illegal)


def test_a_waypoint_that_is_walled_in_is_cut_off():
    grid = maze("S..G", "..##", "..#.")
    assert along(grid, grid.start, ((2, 3), (0, 1)), skip=False)[1] == ((1, "cut off"),)
    assert along(grid, grid.start, ((2, 3), (0, 1)), skip=True) == (("R",), ((1, "cut off"),), 2)
