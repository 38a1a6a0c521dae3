"""All 72 tasks of DSBench have a metric, and it is the one that their prompts ask for."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from coterie.core.errors import DataError
from coterie.plugins.envs.data_science.metrics import dsbench
from coterie.plugins.envs.data_science.metrics.competition import Competition
from coterie.plugins.envs.data_science.metrics.dsbench import DSBENCH
from coterie.plugins.envs.data_science.metrics.metric import metric_named
from coterie.plugins.envs.data_science.metrics.records import competition_of

needs_data = pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")


def records(name: str) -> list[dict[str, Any]]:
    file = Path(os.environ["COTERIE_TEST_DATA"]) / f"dsbench_modeling_{name}.json"
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]


def of(**metadata: Any) -> Competition:
    return competition_of(metadata, file="tasks.json", line=3)


@pytest.mark.parametrize("task", DSBENCH)
def test_every_entry_is_whole(task):
    entry = of(task_id=task)
    assert entry == DSBENCH[task] and metric_named(entry.metric) is not None
    assert entry.id and entry.targets and entry.id not in entry.targets
    assert len(set(entry.targets)) == len(entry.targets)
    assert set(entry.also.values()) <= set(entry.targets)


def test_the_table_has_the_metrics_of_72_tasks():
    assert Counter(entry.metric for entry in DSBENCH.values()) == {
        "auc": 24,
        "rmsle": 10,
        "rmse": 9,
        "accuracy": 7,
        "smape": 4,
        "mae": 4,
        "qwk": 2,
        "normalised_gini": 1,
        "pearson": 1,
        "map@3": 1,
        "spearman": 1,
        "r2": 1,
        "f1": 1,
        "f1_micro": 1,
        "f1_macro": 1,
        "jaccard": 1,
        "log_loss": 1,
        "multi_log_loss": 1,
        "median_ae": 1,
    }


@needs_data
def test_the_table_has_exactly_mappa_s_tasks():
    train, evaluated = records("train"), records("eval")
    tasks = [record["metadata"]["task_id"] for record in (*train, *evaluated)]
    assert (len(train), len(evaluated)) == (64, 8)
    assert tasks == [*DSBENCH]


WORDS = {
    "auc": r"area under the ROC curve|AUC ROC",
    "normalised_gini": r"Normalized Gini Coefficient",
    "accuracy": r"known as accuracy|(classification|categorization) accuracy|using the accuracy score",
    "mae": r"mean absolute error",
    "median_ae": r"Median Absolute Error",
    "rmsle": r"root.mean.squared.log(?:arithmic)?.error",
    "rmse": r"root mean squared error",
    "smape": r"SMAPE",
    "qwk": r"quadratic weighted kappa",
    "pearson": r"Pearson correlation coefficient",
    "map@3": r"MPA@3",
    "spearman": r"mean column-wise Spearman",
    "r2": r"R2 score",
    "f1": r"evaluated using F1 between",
    "f1_micro": r"micro-averaged F1",
    "f1_macro": r"macro F1",
    "jaccard": r"Jaccard",
    "log_loss": r"scored on the log loss",
    "multi_log_loss": r"log loss between the predicted probabilities",
}
"""How prompts name a metric. Of two that fit, the longer text is the metric: RMSLE and RMSE, the three F1."""


@needs_data
@pytest.mark.parametrize("name", ["train", "eval"])
def test_each_metric_is_the_one_of_the_prompt_s_words(name):
    for record in records(name):
        task, prompt = record["metadata"]["task_id"], record["prompt"]
        fits = [metric for metric, words in WORDS.items() if re.search(words, prompt, re.IGNORECASE)]
        assert fits == [DSBENCH[task].metric], (task, fits)


OTHER_HEADERS = {
    "playground-series-s3e16": "id,yield",  # though the target is Age
    "google-quest-challenge": "qa_id,question_asker_intent_understanding,...,answer_well_written",
}


@needs_data
@pytest.mark.parametrize("name", ["train", "eval"])
def test_the_columns_are_those_of_the_prompt_s_example(name):
    for record in records(name):
        task = record["metadata"]["task_id"]
        header = ",".join((DSBENCH[task].id, *DSBENCH[task].targets))
        lines = {re.sub(r" *, *", ",", line.strip(" `")) for line in record["prompt"].splitlines()}
        assert OTHER_HEADERS.get(task, header) in lines, task


@needs_data
def test_the_metric_says_what_is_predicted_where_data_type_is_wrong():
    def wrong(records: list[dict[str, Any]]) -> tuple[dict[str, int], dict[str, int], set[str]]:
        """Counts by metric and by `data_type`, and the tasks for which these differ."""
        by_metric, by_type, differ = Counter(), Counter(), set()
        for record in records:
            task, data_type = record["metadata"]["task_id"], record["metadata"]["data_type"]
            metric = metric_named(DSBENCH[task].metric)
            assert metric is not None
            by_metric[metric.kind] += 1
            by_type[data_type] += 1
            if (metric.kind == "classification") != (data_type == "classification"):
                differ.add(task)
        return by_metric, by_type, differ

    by_metric, by_type, differ = wrong(records("train"))
    assert by_metric == {"classification": 34, "regression": 29, "text": 1}
    assert by_type == {"classification": 30, "regression": 34}
    assert differ == {
        "playground-series-s3e13",
        "playground-series-s3e22",
        "tabular-playground-series-feb-2022",
        "liverpool-ion-switching",
    }
    by_metric, by_type, differ = wrong(records("eval"))
    assert by_metric == {"classification": 6, "regression": 2} and by_type == {
        "classification": 4,
        "regression": 4,
    }
    assert differ == {"playground-series-s4e2", "playground-series-s4e6"}


def test_the_record_s_metric_comes_before_the_table():
    assert of(task_id="titanic").metric == "accuracy"
    changed = of(task_id="titanic", metric="ROC AUC", baseline=0.5, reference=1)
    assert (changed.metric, changed.id, changed.targets) == ("auc", "PassengerId", ("Survived",))
    assert (changed.baseline, changed.reference) == (0.5, 1.0)


def test_a_record_of_one_s_own_names_what_it_needs():
    assert of(metric="rmse", url="https://example.org", data_type=None) == Competition(metric="rmse")
    whole = of(
        metric="MAP@5",
        id_column="row",
        targets="y",
        labels=[1, "b", True],
        rows={"part": 2},
        positive=1,
        answer_column="won",
    )
    assert whole == Competition(
        metric="map@5",
        id="row",
        targets=("y",),
        labels=("1", "b", "True"),
        rows=("part", "2"),
        positive="1",
        answer="won",
    )


@pytest.mark.parametrize(
    ("metadata", "field", "words"),
    [
        ({"task_id": "mine"}, "metadata.metric", "'mine' names no metric"),
        ({}, "metadata.metric", "names no metric"),
        ({"metric": "rmes"}, "metadata.metric", "did you mean 'rmse'"),
        ({"metric": "map@k"}, "metadata.metric", "there is no metric 'map@k'"),
        ({"metric": 3}, "metadata.metric", "string"),
        ({"metric": "rmse", "targets": []}, "metadata.targets", "at least 1"),
        ({"metric": "rmse", "targets": [None]}, "metadata.targets.0", "string"),
        ({"metric": "rmse", "rows": {"a": 1, "b": 2}}, "metadata.rows", "at most 1"),
        ({"metric": "rmse", "rows": "a"}, "metadata.rows", "dictionary"),
        ({"metric": "rmse", "baseline": "low"}, "metadata.baseline", "number"),
        ({"metric": "rmse", "baseline": float("nan")}, "metadata.baseline", "finite"),
        (
            {"metric": "rmse", "baseline": 1, "reference": 1},
            "metadata.reference",
            "no better than the baseline",
        ),
        ({"metric": "rmse", "baseline": 1, "reference": 2}, "metadata.reference", "lower values of rmse"),
        ({"metric": "auc", "baseline": 0.8, "reference": 0.5}, "metadata.reference", "higher values of auc"),
    ],
)
def test_a_record_that_is_wrong_is_named_with_its_place(metadata, field, words):
    with pytest.raises(DataError, match=words) as caught:
        of(**metadata)
    assert (caught.value.file, caught.value.line, caught.value.field) == ("tasks.json", 3, field)


def test_the_extra_is_imported_when_it_is_needed():
    files = sorted(Path(dsbench.__file__).parent.glob("*.py"))
    imports = [
        (file.name, line)
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(import|from) (pandas|sklearn|scipy)\b", line)
    ]
    assert {name for name, _ in imports} == {"column.py"}
    assert len(imports) == 3 and all(line.startswith("        import ") for _, line in imports)
