"""Synthetic packs: the same bytes, honest baselines and references, traps that are traps."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import UserError
from coterie.core.types.seeding import generator
from coterie.data.ds_pack import TASKS, write_pack
from coterie.data.ds_solutions import METRICS, design, ridge
from coterie.data.ds_tables import FAMILIES, LEAK, TEST, TRAIN
from coterie.testing import build

HIGHER = {"accuracy", "auc", "f1_macro", "qwk", "map@3"}
FAMILY = {family.name: family for family in FAMILIES}


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packs") / "pack"
    write_pack(folder, ["train", "test"], 9, 5, force=False, facts={"made_by": "a test"})
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def column(file: str | Path, name: str = "target") -> list[str]:
    with open(file, newline="") as rows:
        return [row[name] for row in csv.DictReader(rows)]


def numbers(values: list[str]) -> Any:
    """Numbers where all are; else the texts."""
    try:
        return np.array([float(value) for value in values])
    except ValueError:
        return np.array(values)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_other_tables(pack: Path, tmp_path: Path) -> None:
    write_pack(tmp_path / "again", ["train", "test"], 9, 5, force=False, facts={"made_by": "a test"})
    assert contents(tmp_path / "again") == contents(pack)
    write_pack(tmp_path / "other", ["train"], 2, 6, force=False, facts={})
    for name, data in contents(tmp_path / "other").items():
        if name.endswith("train.csv"):
            assert data != contents(pack)[name]


def test_a_larger_pack_begins_with_the_tasks_of_a_smaller_one(pack: Path, tmp_path: Path) -> None:
    write_pack(tmp_path / "more", ["train"], 11, 5, force=False, facts={})
    more, lines = contents(tmp_path / "more"), (pack / "train.jsonl").read_bytes()
    assert more["train.jsonl"].startswith(lines)
    assert {name: data for name, data in contents(pack).items() if "/train-" in name}.items() <= more.items()


def test_an_older_packs_tasks_go_and_other_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "pack"
    write_pack(folder, ["train"], 3, 0, force=False, facts={})
    (folder / "data" / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="there is a data set"):
        write_pack(folder, ["train"], 1, 0, force=False, facts={})
    assert len(list((folder / "data").iterdir())) == 4
    write_pack(folder, ["val"], 1, 0, force=True, facts={})
    assert {path.name for path in (folder / "data").iterdir()} == {"notes.txt", "val-000-binary"}
    assert {path.name for path in (folder / "answers").iterdir()} == {"val-000-binary"}
    assert not (folder / "train.jsonl").exists()


def test_records_are_of_the_form_and_say_what_their_files_are_worth(pack: Path) -> None:
    source = build("data_source", {"type": "ds_pack", "path": str(pack)})
    records = source.records("train")
    families = Counter(record["metadata"]["family"] for record in records)
    assert families == dict.fromkeys(FAMILY, 1)
    for record in records:
        metadata, family = record["metadata"], FAMILY[record["metadata"]["family"]]
        assert {"task_type", "data_type", "url"} <= metadata.keys() and record["answer"] is None
        answers, data = Path(metadata["answer_dir"]), Path(metadata["train_file"]).parent
        assert not answers.is_relative_to(data) and sorted(path.name for path in data.iterdir()) == [
            "sample_submission.csv", "test.csv", "train.csv",
        ]  # fmt: skip
        truth = numbers(column(answers / "test_answer.csv"))
        ids = column(answers / "test_answer.csv", "id")
        for key, file in (
            ("baseline", data / "sample_submission.csv"),
            ("reference", answers / "reference.csv"),
        ):
            assert column(file, "id") == ids == column(data / "test.csv", "id")
            guess = numbers(column(file))
            assert METRICS[metadata["metric"]](truth, guess) == pytest.approx(metadata[key], abs=1e-6)
        assert len(set(column(data / "sample_submission.csv"))) == 1, "the baseline is constant"
        if family.name == "ranking":
            frequent = [label for label, _ in Counter(column(data / "train.csv")).most_common()]
            assert column(data / "sample_submission.csv")[0].split()[0] == frequent[0]
            assert frequent[-1] not in column(data / "sample_submission.csv")[0].split()
        if family.data_type == "regression":
            assert max(len(text.partition(".")[2]) for text in column(answers / "reference.csv")) <= 6
        assert (metadata["reference"] > metadata["baseline"]) is (family.metric in HIGHER)
        with open(metadata["test_file"]) as test:
            assert "target" not in test.readline()
        assert family.evaluation in record["prompt"] and "id,target\n" in record["prompt"]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_reference_is_clearly_better_than_its_baseline(family: Any) -> None:
    for seed in range(8):
        table = family.draw(generator(seed, "task", "ds pack"))
        baseline, reference = (
            family.score(table, each(table)) for each in (family.baseline, family.reference)
        )
        if family.metric in HIGHER:
            assert reference > baseline + 0.1
        else:
            assert reference < 0.7 * baseline


def test_a_model_that_trusts_the_leak_is_no_better_than_the_constant() -> None:
    family = FAMILY["leak"]
    for seed in range(8):
        table = family.draw(generator(seed, "task", "ds pack"))
        (train, targets), (test, _) = table.rows("train"), table.rows("test")
        assert np.array_equal(train[LEAK], targets) and LEAK in test
        features, others = design(train, test)
        assert np.abs(ridge(features, targets, features) - targets).mean() < 0.1, "perfect on train"
        assert family.score(table, ridge(features, targets, others)) > family.score(
            table, family.baseline(table)
        )


def test_missing_cells_say_something_of_the_target(pack: Path) -> None:
    table = FAMILY["missing"].draw(generator(0, "task", "ds pack"))
    blank = np.isnan(table.columns["f2"])
    assert 0.1 < blank.mean() < 0.35
    assert table.target[blank].mean() > table.target[~blank].mean() + 5
    assert "" in column(pack / "data" / "train-005-missing" / "train.csv", "f2")


def test_the_page_lists_the_families_with_their_metrics_and_the_number_of_rows() -> None:
    page = (Path(__file__).parents[2] / "docs" / "data_science.md").read_text(encoding="utf-8")
    section = page[page.index("### A synthetic pack") :]
    listed = re.findall(r"^\| `(\w+)` \| `([\w@]+)` \|", section, re.M)
    assert listed == [(family.name, family.metric) for family in FAMILIES]
    assert f"train.csv ({TRAIN} rows), test.csv ({TEST})" in section and f"with {TASKS} tasks each" in section


# ---------------------------------------------------------------------------------------------------- metrics


GRADES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=2, max_size=12)


@given(pairs=GRADES)
@settings(max_examples=30)
def test_the_kappa_is_that_of_its_matrix_of_weights(pairs: list[tuple[int, int]]) -> None:
    truth, guess = np.array(pairs).T
    weights = [[(a - b) ** 2 for b in range(1, 6)] for a in range(1, 6)]
    observed = sum(weights[a - 1][b - 1] for a, b in pairs) / len(pairs)
    rows, columns = Counter(truth.tolist()), Counter(guess.tolist())
    expected = sum(
        weights[a - 1][b - 1] * rows[a] * columns[b] / len(pairs) ** 2 for a in rows for b in columns
    )
    if expected:
        assert METRICS["qwk"](truth, guess) == pytest.approx(1 - observed / expected, abs=1e-12)


def test_metrics_by_hand() -> None:
    labels, guesses = np.array(["a", "b", "c", "a"]), np.array(["a", "a", "c", "a"])
    assert METRICS["accuracy"](labels, guesses) == 0.75
    assert METRICS["f1_macro"](labels, guesses) == pytest.approx((0.8 + 0 + 1) / 3)
    unseen = np.array(["a", "b", "c", "d"])  # a label that is only guessed counts as an F1 of 0
    assert METRICS["f1_macro"](labels, unseen) == pytest.approx((2 / 3 + 1 + 1 + 0) / 4)
    assert METRICS["auc"](np.array([1, 0, 1, 0]), np.array([0.9, 0.5, 0.5, 0.1])) == 3.5 / 4
    ranked = np.array(["a b c", "a b c", "a b", "b c d a"])
    assert METRICS["map@3"](labels, ranked) == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)
    assert METRICS["rmse"](np.array([1.0, 2.0]), np.array([1.0, 4.0])) == pytest.approx(math.sqrt(2))
    assert METRICS["mae"](np.array([1.0, 2.0]), np.array([1.0, 4.0])) == 1
    e = math.e
    assert METRICS["rmsle"](np.array([e - 1, 0]), np.array([e**3 - 1, 0])) == pytest.approx(math.sqrt(2))


def test_the_ridge_is_the_minimum_of_its_loss() -> None:
    """One feature, by hand: weight = sum(x y) / (sum(x x) + penalty), the intercept free."""
    features, targets = np.array([[0.0], [1.0], [2.0]]), np.array([1.0, 3.0, 8.0])
    weight = (1 * (8 - 4) - 1 * (1 - 4)) / (2 + 1)
    assert ridge(features, targets, np.array([[3.0]])) == pytest.approx([4 + 2 * weight])


def test_features_are_made_by_what_train_has() -> None:
    train = {"x": np.array([1.0, 3.0, np.nan]), "group": np.array(["a", "b", "a"])}
    test = {"x": np.array([5.0, np.nan]), "group": np.array(["b", "new"])}
    of_train, of_test = design(train, test)
    assert of_train.tolist() == [[-1, 0, 1, 0], [1, 0, 0, 1], [0, 1, 1, 0]]
    assert of_test.tolist() == [[3, 0, 0, 1], [0, 1, 0, 0]]
    assert json.dumps(of_test.tolist())
