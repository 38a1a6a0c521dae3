"""`schedule.stratify`: every batch keeps the mix of the set, and every pass plays each task once."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

import coterie
from coterie.api.rollouts import read_rollouts
from coterie.compose.strata import Quotas, StratifiedOrder, check_strata, mix, mix_lines, task_order
from coterie.core.errors import ConfigError
from coterie.core.training.curriculum import TaskOrder
from coterie.core.training.run import Run
from coterie.core.training.state import CurriculumState
from coterie.core.types import Task
from coterie.testing import coterie_run

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def tasks_of(sizes: list[int]) -> list[Task]:
    """Tasks by strata `a`, `b`, ...; those of one stratum stand together."""
    names = [chr(ord("a") + number) for number, size in enumerate(sizes) for _ in range(size)]
    return [
        Task(id=f"train-{number}", payload={"kind": name}, stratum=name) for number, name in enumerate(names)
    ]


def played(order: TaskOrder, steps: int, count: int) -> list[list[tuple[str, int]]]:
    return [[(task.id, epoch) for task, epoch in order.step(step, count)] for step in range(steps)]


@given(sizes=SIZES, batch=st.integers(1, 20))
@settings(max_examples=60)
@example(sizes=[2, 2, 1, 1], batch=5)  # fails by deadlines alone
@example(sizes=[3, 2, 7, 8, 4, 1, 8, 4, 9, 9], batch=12)  # fails without the groups' deadlines
@example(sizes=[30, 34], batch=16)
@example(sizes=[1, 1, 1], batch=20)
def test_every_batch_and_all_batches_so_far_hold_fair_shares_rounded(sizes: list[int], batch: int) -> None:
    quotas, total = Quotas(sizes, batch), sum(sizes)
    earlier = [0] * len(sizes)
    for number in range(1, 2 * total // math.gcd(total, batch) + 2):
        together = quotas.before(number).tolist()
        for size, before, after in zip(sizes, earlier, together, strict=True):
            share, so_far = Fraction(batch * size, total), Fraction(number * batch * size, total)
            assert math.floor(share) <= after - before <= math.ceil(share)
            assert math.floor(so_far) <= after <= math.ceil(so_far)
        assert sum(together) == number * batch
        earlier = together
    assert Quotas(sizes, batch).before(3).tolist() == quotas.before(3).tolist(), "asked for in any order"


@given(sizes=SIZES, batch=st.integers(1, 20), seed=st.integers(0, 3))
@settings(max_examples=40)
def test_a_pass_plays_each_task_once_and_ends_where_it_ends_without_strata(
    sizes: list[int], batch: int, seed: int
) -> None:
    tasks, total = tasks_of(sizes), sum(sizes)
    order = task_order(True, seed, None, tasks)  # type: ignore[arg-type]
    steps = played(order, 2 + 3 * total // batch, batch)
    flat = [pair for step in steps for pair in step]
    assert [epoch for _, epoch in flat] == [place // total for place in range(len(flat))]
    for epoch in range(len(flat) // total):
        assert sorted(id for id, of in flat if of == epoch) == sorted(task.id for task in tasks)


def test_the_order_depends_on_the_seed_and_follows_the_plain_permutation_within_a_stratum() -> None:
    tasks, strata = tasks_of([30, 34]), {task.id: task.stratum for task in tasks_of([30, 34])}
    first, again = (played(task_order("kind", 1, Records(), tasks), 12, 16) for _ in range(2))
    assert first == again and first != played(task_order("kind", 2, Records(), tasks), 12, 16)
    resumed = task_order("kind", 1, Records(), tasks)  # in the middle of a pass, without the steps before
    assert [(task.id, epoch) for task, epoch in resumed.step(7, 16)] == first[7]
    assert [(task.id, epoch) for task, epoch in resumed.step(2, 16)] == first[2]
    plain = played(TaskOrder(tasks, 1), 12, 16)
    for stratum in "ab":
        kept = [
            [pair for step in steps for pair in step if strata[pair[0]] == stratum]
            for steps in (first, plain)
        ]
        assert kept[0] == kept[1]
    for step in first:
        counts = Counter(strata[id] for id, _ in step)
        assert counts["a"] in (7, 8) and counts["b"] in (8, 9)  # of 7.5 and 8.5


def test_without_strata_the_order_is_what_it_was() -> None:
    """As versions before `stratify` took a key played them."""
    tasks = tasks_of([5, 2])
    plain = task_order(False, 0, None, tasks)  # type: ignore[arg-type]
    assert type(plain) is TaskOrder
    assert [(int(id[6:]), epoch) for step in played(plain, 3, 4) for id, epoch in step] == GOLDEN
    single = StratifiedOrder(tasks, 0, ["all"] * 7)
    assert played(single, 5, 4) == played(plain, 5, 4), "one stratum changes nothing"


GOLDEN = [(4, 0), (3, 0), (1, 0), (5, 0), (0, 0), (6, 0), (2, 0), (0, 1), (5, 1), (6, 1), (1, 1), (4, 1)]


class Records:
    """An environment whose tasks are their payloads."""


@pytest.mark.parametrize(
    ("payloads", "key", "what", "why", "fix"),
    [
        (
            [{"metadata": {"data_type": "a"}}, {"prompt": ""}, {"metadata": {"data_tipe": 1}}],
            "data_type",
            "2 of 3 train tasks have no 'data_type'",
            "such as train-1, train-2, whose record has prompt",
            "known: prompt; or set schedule.stratify=true",
        ),
        (
            [{"metadata": {"data_tipe": 1}}],
            "data_type",
            "1 of 1",
            "train-0, whose record has metadata, data_tipe",
            "did you mean 'data_tipe'?",
        ),
        (
            [{"kind": None}],
            "kind",
            "1 of 1 train tasks have no 'kind'",
            "where it is null",
            "set schedule.stratify=true",
        ),
        (
            [17],
            "kind",
            "1 of 1 train tasks have no 'kind'",
            "which has no record",
            "set schedule.stratify=true",
        ),
        (
            [{"kind": "a"}, {"kind": ["a"]}],
            "kind",
            "'kind' of 1 of 2 tasks is no text, number or truth value",
            "such as train-1, which has ['a']",
            "a few classes",
        ),
        ([{"kind": math.nan}], "kind", "is no text, number or truth value", "nan", "a few classes"),
    ],
)
def test_a_stratum_that_is_missing_or_no_scalar_is_named(
    payloads: list[Any], key: str, what: str, why: str, fix: str
) -> None:
    tasks = [Task(id=f"train-{number}", payload=payload) for number, payload in enumerate(payloads)]
    with pytest.raises(ConfigError) as error:
        task_order(key, 0, Records(), tasks)  # type: ignore[arg-type]
    assert error.value.path == "schedule.stratify"
    assert what in error.value.what and why in error.value.why and fix in error.value.fix


# ------------------------------------------------------------------------------------------------ in a run


def run_of(folder: Path, records: list[dict[str, Any]], stratify: Any, **env: Any) -> Run:
    """A run of `team_task` with these train tasks, four of them a step."""
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = {
        "type": "team_task",
        "train": str(folder / "train.jsonl"),
        "answer_field": None,
        "id_field": "id",
    }
    source |= {"success": "tests.compose.test_stratified:right", "fields": ["question"]}
    schedule = {"steps": 4, "tasks_per_step": 4, "stratify": stratify, "evaluate_every": 0}
    return coterie_run(env={**source, **env}, order=["one"], schedule=schedule)


def right(record: Any, transcript: Any) -> float:
    return 1.0


def records_of(kinds: str) -> list[dict[str, Any]]:
    return [
        {"id": n, "question": f"{n}?", "metadata": {"data_type": kind, "hard": kind == "b"}}
        for n, kind in enumerate(kinds)
    ]


def kinds_of(run: Run, step: int) -> str:
    return "".join(sorted(job.task.payload["metadata"]["data_type"] for job in run.jobs(step)))


@pytest.mark.parametrize("key", ["data_type", "hard"])
def test_a_run_keeps_the_mix_of_a_metadata_key_past_the_end_of_an_epoch(tmp_path: Path, key: str) -> None:
    run = run_of(tmp_path, records_of("aaaaabb"), key)  # shares of 2.86 and 1.14; an epoch ends in step 2
    batches = [kinds_of(run, step) for step in range(1, 8)]
    assert set(batches) == {"aaab", "aabb"} and "".join(batches).count("b") == 8
    assert all(job.epoch == (step * 4 - 4 + place) // 7 for step in range(1, 8) for place, job in
               enumerate(run.jobs(step)[:: run.sampler.plan.chains]))  # fmt: skip


def test_levels_of_a_curriculum_keep_the_mix_each(tmp_path: Path) -> None:
    levels = {"field": "fields", "values": [["question"], ["id", "question"]], "promote_at": 0.5}
    run = run_of(tmp_path, records_of("aabbbbbb"), "data_type", curriculum=levels)
    for level in (0, 1):
        run.state.curriculum = CurriculumState(level)
        assert [kinds_of(run, step) for step in (1, 2, 3)] == ["abbb"] * 3
        assert all(job.task.id.endswith(str(levels["values"][level])) for job in run.jobs(1))


def test_a_missing_key_is_told_before_there_is_a_folder(tmp_path: Path) -> None:
    run = run_of(tmp_path, records_of("aabb"), "data_type")
    with pytest.raises(ConfigError, match=r"schedule\.stratify: 4 of 4 train tasks have no 'data_typ'"):
        coterie.train(run.resolved.table, overrides=["schedule.stratify=data_typ"], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Said:
    """A display of progress that keeps what it is given to say."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def __call__(self, *args: Any, **kwargs: Any) -> None: ...


def test_a_run_prints_counts_and_mix_and_resumes_in_the_middle_of_a_pass(tmp_path: Path) -> None:
    table, said = run_of(tmp_path, records_of("aaaaabb"), "hard").resolved.table, Said()
    coterie.train(table, out=tmp_path / "whole", progress=said)  # type: ignore[arg-type]
    assert [line for line in said.lines if "train tasks" in line] == [
        "7 train tasks, by hard: false 5, true 2",
        "7 train tasks, by data_type: a 5, b 2",
    ]
    coterie.train(table, overrides=["schedule.steps=2"], out=tmp_path / "part")
    coterie.train(resume=tmp_path / "part", overrides=["schedule.steps=4"])
    whole, part = (
        [row.get("task_id") for file in sorted(folder.iterdir()) for row in read_rollouts(file)]
        for folder in (tmp_path / "whole" / "rollouts", tmp_path / "part" / "rollouts")
    )
    assert whole == part and len(set(whole)) == 1 + 7


class Unread:
    """A source that makes its tasks when it is asked, which nobody should."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Task:
        raise AssertionError("a task was made")


def test_tasks_that_are_made_when_asked_for_are_not_made_to_be_counted() -> None:
    check_strata(Records(), Unread(), True)  # type: ignore[arg-type]
    assert mix_lines(Records(), Unread(), False) == []  # type: ignore[arg-type]


def test_classes_are_short_values_that_are_neither_constant_nor_many() -> None:
    many = [
        {"constant": "x", "score": n / 2, "two": n % 2, "many": n, "long": "ab"[n % 2] * 41}
        for n in range(21)
    ]
    assert mix(many) == {"two": {"0": 11, "1": 10}}
    assert mix(many[:20]) == {"two": {"0": 10, "1": 10}}, "a value of each table is no class"
    assert mix([*many[:20], many[0]]).keys() == {"two", "many"}
    assert mix([{"hard": True}, {}, {}]) == {"hard": {"none": 2, "true": 1}}


def test_strata_that_are_all_alike_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = run_of(tmp_path, records_of("aaaa"), False).resolved.table
    coterie.train(table, overrides=["schedule.stratify=true", "schedule.steps=1"], out=tmp_path / "run")
    assert "schedule.stratify=true changes nothing: all 4 train tasks are of one stratum" in caplog.text
