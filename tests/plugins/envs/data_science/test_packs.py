"""Packs and metrics agree: what a record promises of its files, and what the metric says of a task."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coterie.compose.strata import task_order
from coterie.core.errors import DataError
from coterie.core.types import Task
from coterie.data.ds_pack import write_pack
from coterie.plugins.envs.data_science.metrics.answers import read_answers
from coterie.plugins.envs.data_science.metrics.records import competition_of
from coterie.plugins.envs.data_science.metrics.scoring import score
from coterie.plugins.envs.data_science.packs import measured
from tests.cli.support import coterie


def test_a_packs_reference_has_quality_1_and_its_baseline_0(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    write_pack(tmp_path, ["train"], 9, 2, force=False, facts={})
    for line in (tmp_path / "train.jsonl").read_text().splitlines():
        metadata = json.loads(line)["metadata"]
        folder = tmp_path / metadata["answer_dir"]
        answers = read_answers(
            competition_of(metadata, file="train.jsonl", line=1), folder / "test_answer.csv"
        )
        sample = (tmp_path / metadata["train_file"]).with_name("sample_submission.csv")
        for file, name, quality in ((folder / "reference.csv", "reference", 1), (sample, "baseline", 0)):
            result = score(file, answers)
            assert result.why == "", metadata["task_id"]
            assert result.value == pytest.approx(metadata[name], abs=1e-6)
            assert result.quality == pytest.approx(quality, abs=1e-5)


def test_the_metric_says_the_kind_whatever_the_record_says() -> None:
    record = {
        "prompt": "Predict.",
        "metadata": {"task_id": "playground-series-s4e6", "data_type": "regression"},
    }
    metadata = measured(record, file="tasks.json", line=3)["metadata"]
    assert metadata == {**record["metadata"], "metric": "accuracy", "kind": "classification"}
    named = {**record, "metadata": {**record["metadata"], "metric": "RMSE"}}
    assert measured(named, file="", line=0)["metadata"]["kind"] == "regression"
    with pytest.raises(DataError, match=r"tasks\.json.*line 3"):
        measured({"metadata": {"task_id": "mine"}}, file="tasks.json", line=3)


@pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")
@pytest.mark.parametrize(
    ("name", "data_type", "kind"),
    [
        (
            "train",
            {"regression": 34, "classification": 30},
            {"classification": 34, "regression": 29, "text": 1},
        ),
        ("eval", {"classification": 4, "regression": 4}, {"classification": 6, "regression": 2}),
    ],
)
def test_mappas_tasks_are_counted_by_their_records_and_by_their_metrics(
    name: str, data_type: dict[str, int], kind: dict[str, int]
) -> None:
    file = Path(os.environ["COTERIE_TEST_DATA"]) / f"dsbench_modeling_{name}.json"
    done = coterie("data", "mix", file, "--json")
    [counted] = json.loads(done.stdout)["splits"].values()
    assert counted["mix"]["data_type"] == data_type and counted["mix"]["kind"] == kind
    assert sum(counted["mix"]["metric"].values()) == counted["tasks"] == sum(kind.values())
    if name == "train":  # the page shows it
        page = (Path(__file__).parents[4] / "docs" / "data_science.md").read_text(encoding="utf-8")
        header, by_record, by_metric, by_kind = coterie("data", "mix", file).stdout.splitlines()
        assert {header, by_record, by_kind} <= set(page.splitlines())
        assert f"\n{by_metric[:100]}" in page


@pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")
@pytest.mark.parametrize("key", ["data_type", "kind", "metric"])
def test_batches_of_mappas_tasks_keep_their_mix_past_the_end_of_a_pass(key: str) -> None:
    """16 tasks a step, as in the paper, and 15, which don't divide the 64."""
    file = Path(os.environ["COTERIE_TEST_DATA"]) / "dsbench_modeling_train.json"
    records = [measured(json.loads(line), file="", line=0) for line in file.read_text().splitlines()]
    tasks = [Task(id=record["metadata"]["task_id"], payload=record) for record in records]
    whole = Counter(record["metadata"][key] for record in records)
    for count in (16, 15):
        order: Any = task_order(key, 0, None, tasks)  # type: ignore[arg-type]
        for step in range(12):
            batch = Counter(task.payload["metadata"][key] for task, _ in order.step(step, count))
            assert all(abs(batch[name] - count * whole[name] / 64) < 1 for name in whole)
