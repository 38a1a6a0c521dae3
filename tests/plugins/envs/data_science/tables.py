"""Small CSV files, and submissions scored against them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.plugins.envs.data_science.metrics.answers import AnswerTable, read_answers
from coterie.plugins.envs.data_science.metrics.competition import Competition
from coterie.plugins.envs.data_science.metrics.records import competition_of
from coterie.plugins.envs.data_science.metrics.scoring import SubmissionResult, score


def csv_of(columns: Mapping[str, Sequence[Any]]) -> bytes:
    """A CSV file with a header."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def competition(metric: str, **metadata: Any) -> Competition:
    return competition_of({"metric": metric, **metadata}, file="tasks.json", line=3)


def answers_of(
    folder: Path, columns: Mapping[str, Sequence[Any]], metric: str, **metadata: Any
) -> AnswerTable:
    """Answers in a file `answers.csv`, whose first column is the id."""
    file = folder / "answers.csv"
    file.write_bytes(csv_of(columns))
    return read_answers(competition(metric, **metadata), file)


def scored(
    folder: Path, metric: str, truth: Sequence[Any], predicted: Sequence[Any], **metadata: Any
) -> SubmissionResult:
    """One target `y`; the submission's rows are in the opposite order."""
    rows = range(len(truth))
    answers = answers_of(folder, {"id": rows, "y": truth}, metric, **metadata)
    return score(csv_of({"id": rows[::-1], "y": list(predicted)[::-1]}), answers)


def value_of(
    folder: Path, metric: str, truth: Sequence[Any], predicted: Sequence[Any], **metadata: Any
) -> float:
    """The value of a submission that is valid."""
    result = scored(folder, metric, truth, predicted, **metadata)
    assert result.why == "" and result.value is not None
    return result.value


def why_of(folder: Path, metric: str, truth: Sequence[Any], predicted: Sequence[Any], **metadata: Any) -> str:
    """Why a submission is invalid."""
    result = scored(folder, metric, truth, predicted, **metadata)
    assert not result.valid and result.value is None
    return result.why
