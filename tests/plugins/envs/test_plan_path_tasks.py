"""Mazes of Plan-Path as records: there and back, and what is no maze."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import ConfigError
from coterie.core.types import Task
from coterie.plugins.envs.plan_path import PlanPath
from tests.plugins.envs.mazes import WALLED, maze
from tests.plugins.support import make


@given(st.integers(0, 10**6), st.sampled_from(["train", "val", "test"]), st.integers(2, 7), st.integers(2, 7))
@settings(max_examples=60, deadline=None)
def test_a_record_is_the_whole_task(seed: int, split: Any, width: int, height: int):
    env = make(PlanPath, width=width, height=height)
    task = env.tasks(split, seed)[seed % 1000]
    assert env.task_of({"id": "other", **env.record(task)}, task.id) == task
    assert len(env.picture(task).splitlines()) == height


def test_a_record_is_a_picture_by_hand():
    env, task = make(PlanPath, size=4), Task(id="t", payload=maze(*WALLED))
    assert env.record(task) == {"grid": list(WALLED)}
    assert env.picture(task) == "....\n.S#.\n.#..\n...G"


def test_fingerprints_tell_mazes_apart_and_nothing_else_does():
    env = make(PlanPath, size=2)
    all_of_them = [maze("SG", ".."), maze("GS", ".."), maze("S.", "G."), maze("SG", "#."), maze("SG", ".#")]
    marks = [env.fingerprints(Task(id=str(at), payload=mark)) for at, mark in enumerate(all_of_them)]
    assert len({mark["content"] for mark in marks}) == len(all_of_them)
    assert env.fingerprints(Task(id="another", payload=maze("SG", ".."))) == marks[0]


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({}, "no field 'grid'"),
        ({"grid": "S..G"}, "a list of rows"),
        ({"grid": []}, "a list of rows"),
        ({"grid": ["S.", "G"]}, "a list of rows"),
        ({"grid": ["S.", 7]}, "a list of rows"),
        ({"grid": ["S.", "xG"]}, "not of x"),
        ({"grid": ["SS", ".G"]}, "not 2 and 1"),
        ({"grid": ["S.", ".."]}, "not 1 and 0"),
        ({"grid": ["S#", "#G"]}, "no way"),
        ({"grid": ["S..", "..G"]}, "2 rows and 3 columns, the environment 2 and 2"),
    ],
)
def test_what_is_no_maze_is_refused(record: dict[str, Any], why: str):
    with pytest.raises(ValueError, match=why):
        make(PlanPath, size=2).task_of(record, "t")


def test_tasks_of_a_file_are_played_in_its_order_whatever_the_seed():
    records = {"test": [{"grid": ["SG", ".."]}, {"grid": ["S#", "G."]}, {"grid": ["S#", "#G"]}]}
    env = make(PlanPath, size=2, data=SimpleNamespace(records=records.__getitem__))
    tasks = env.tasks("test", 5)
    assert len(tasks) == 3
    assert [tasks[at] for at in range(2)] == [
        Task(id="test-0", payload=maze("SG", "..")),
        Task(id="test-1", payload=maze("S#", "G.")),
    ]
    with pytest.raises(ConfigError, match="record 2 of the test split") as caught:
        tasks[2]
    assert "no way" in caught.value.why
    with pytest.raises(IndexError):
        tasks[3]
