"""What a submission is worth to the reward, where the task has a scale and where it has none."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coterie.core.errors import DataError
from coterie.plugins.envs.data_science.metrics.answers import read_answers
from coterie.plugins.envs.data_science.metrics.competition import Competition
from coterie.plugins.envs.data_science.metrics.scoring import SubmissionResult, score
from coterie.plugins.envs.data_science.worth import best_constant, performance
from tests.plugins.envs.data_science.teams import environment, pack

pytest.importorskip("sklearn")


def answers_of(folder: Path, metric: str, *columns: list[Any], **more: Any) -> Any:
    names = [f"t{number}" for number in range(len(columns))]
    rows = [",".join(["id", *names])] + [
        ",".join(map(str, (at, *row))) for at, row in enumerate(zip(*columns, strict=True))
    ]
    (folder / "answers.csv").write_text("\n".join(rows) + "\n")
    return read_answers(Competition(metric=metric, targets=tuple(names), **more), folder / "answers.csv")


@pytest.mark.parametrize(
    ("metric", "columns", "constant"),
    [
        ("rmse", [[0, 0, 6]], math.sqrt(8)),  # the mean, 2
        ("mae", [[0, 0, 6]], 2.0),  # the median, 0
        ("mae", [[0, 0, 6], [1, 1, 1]], 1.0),  # the mean over targets of 2 and 0
        ("rmsle", [[0, 0, math.e - 1]], math.sqrt(2) / 3),  # the mean of logarithms, 1/3
        ("log_loss", [[1, 0, 0, 0]], -0.25 * math.log(0.25) - 0.75 * math.log(0.75)),
        ("auc", [[1, 0, 0, 0]], None),
        ("qwk", [[1, 2, 3, 3]], None),
    ],
)
def test_the_best_constant_by_hand(tmp_path: Path, metric: str, columns: Any, constant: float | None) -> None:
    value = best_constant(answers_of(tmp_path, metric, *columns))
    assert value is None if constant is None else value == pytest.approx(constant, abs=1e-12)


def test_the_best_constant_of_several_labels_is_their_shares(tmp_path: Path) -> None:
    answers = answers_of(tmp_path, "multi_log_loss", [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1])
    shares = [0.5, 0.25, 0.25]
    assert best_constant(answers) == pytest.approx(-sum(share * math.log(share) for share in shares))


def result(value: float | None, direction: Any = "lower", quality: float | None = None) -> SubmissionResult:
    why = "" if value is not None else "there is none"
    return SubmissionResult(metric="m", direction=direction, value=value, quality=quality, why=why)


@pytest.mark.parametrize(
    ("submission", "constant", "worth"),
    [
        (result(None, quality=0.0), 2.0, 0.0),
        (result(None), None, 0.0),
        (result(0.5, quality=0.25), 2.0, 0.25),  # the task's own scale counts first
        (result(0.5, quality=1.5), 2.0, 1.0),
        (result(0.5), 2.0, 0.75),  # three quarters of the error are saved
        (result(2.5), 2.0, 0.0),
        (result(0.0), 0.0, 1.0),  # every answer is equal
        (result(0.1), 0.0, 0.0),
        (result(0.8, "higher"), None, 0.8),
        (result(-0.2, "higher"), None, 0.0),
    ],
)
def test_performance_by_hand(submission: SubmissionResult, constant: float | None, worth: float) -> None:
    assert performance(submission, constant) == pytest.approx(worth)


@settings(max_examples=40)
@given(st.lists(st.integers(-50, 50), min_size=2, max_size=12), st.sampled_from(["rmse", "mae", "smape"]))
def test_performance_is_from_a_constant_to_the_answers(
    tmp_path_factory: pytest.TempPathFactory, truth: list[int], metric: str
) -> None:
    answers = answers_of(tmp_path_factory.mktemp("answers"), metric, truth)
    constant = best_constant(answers)

    def worth(guesses: list[float]) -> float:
        lines = "".join(f"{at},{guess!r}\n" for at, guess in enumerate(guesses))
        return performance(score(f"id,t0\n{lines}".encode(), answers), constant)

    mean, perfect = sum(truth) / len(truth), worth([float(value) for value in truth])
    assert perfect == 1.0
    if len(set(truth)) > 1:
        assert 0.0 <= worth([mean] * len(truth)) <= 1e-9
    assert 0.0 <= worth([value + 1.0 for value in truth]) <= 1.0


def test_a_task_that_nothing_says_how_to_score_is_an_error_with_its_line(tmp_path: Path) -> None:
    place = pack(tmp_path)
    lines = (place / "train.jsonl").read_text().splitlines()
    record = json.loads(lines[1])
    del record["metadata"]["metric"]
    (place / "train.jsonl").write_text("\n".join([lines[0], json.dumps(record)]) + "\n")
    with pytest.raises(DataError) as caught:
        environment(place).tasks("train", 0)
    assert caught.value.file.endswith("train.jsonl") and caught.value.line == 2
    assert "metadata.metric" in str(caught.value) and "names no metric" in str(caught.value)
