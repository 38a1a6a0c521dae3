"""What a submission is worth: the result of the metrics, and a number from 0 to 1 for the reward."""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from coterie.plugins.envs.data_science.metrics.answers import AnswerTable, read_answers
from coterie.plugins.envs.data_science.metrics.records import competition_of
from coterie.plugins.envs.data_science.metrics.scoring import SubmissionResult, failed, score
from coterie.plugins.envs.data_science.state import CompetitionTask

ANSWERS = "test_answer.csv"
"""In the folder `answer_dir` of a task."""
_TASKS = 32
"""Tasks whose answers are held in memory."""
_QUANTILES = 256
"""Answers that are tried as a constant."""
_READING = threading.Lock()
"""Submissions are scored in threads. No Scorer has it: environments are pickled, and a lock can't be."""


class SubmissionScorer:
    """Scores submissions; reads the answers of a task once."""

    def __init__(self) -> None:
        self._read: OrderedDict[str, tuple[AnswerTable, float | None]] = OrderedDict()

    def result(
        self, task: CompetitionTask, submission: Path | None, why: str
    ) -> tuple[SubmissionResult, float]:
        """The result of a submission, and its performance.

        Args:
            submission: None: there is none.
            why: said where there is none.

        Raises:
            DataError: the task's answers can't be scored with.
            MissingExtra: extra `data-science` is not installed.
        """
        with _READING:
            answers, constant = self._answers(task)
        if submission is None:
            return failed(answers.competition, answers.metric.direction, why), 0.0
        result = score(submission, answers)
        return result, performance(result, constant)

    def _answers(self, task: CompetitionTask) -> tuple[AnswerTable, float | None]:
        file = Path(task.metadata["answer_dir"]) / ANSWERS
        key = f"{task.metadata['task_id']}:{file}"
        if key not in self._read:
            competition = competition_of(task.metadata, file=key, line=0)  # its record was checked before
            answers = read_answers(competition, file, features=Path(task.metadata["test_file"]))
            self._read[key] = (answers, best_constant(answers))
        self._read.move_to_end(key)
        while len(self._read) > _TASKS:
            self._read.popitem(last=False)
        return self._read[key]


def performance(result: SubmissionResult, constant: float | None) -> float:
    """A submission's worth from 0 to 1; 0: it is invalid.

    It is the quality, at most 1, where the task has a baseline and a reference. Elsewhere it is the value of
    a metric whose higher values are better; of an error, its share that is saved over the best constant.

    Args:
        constant: `best_constant` of the task.
    """
    if result.value is None:
        return 0.0
    if result.quality is not None:
        return min(result.quality, 1.0)
    if result.direction == "higher":
        return float(np.clip(result.value, 0.0, 1.0))
    if not constant:  # every answer is equal
        return float(result.value <= 0.0)
    return float(np.clip(1.0 - result.value / constant, 0.0, 1.0))


def best_constant(answers: AnswerTable) -> float | None:
    """The least error of a submission with one prediction for all rows, made with the answers known.

    None: of the metric, higher values are better.
    """
    metric = answers.metric
    if metric.direction == "higher":
        return None
    if metric.joint:
        labels = len(answers.competition.targets)
        shares = np.bincount(answers.values[0], minlength=labels) / len(answers.values[0])
        return metric.measure(answers.values[0], np.tile(shares, (len(answers.values[0]), 1)))
    with np.errstate(all="ignore"):
        return float(np.mean([min(constant_errors(metric.measure, known)) for known in answers.values]))


def constant_errors(measure: Any, known: Any) -> list[float]:
    """The errors of the constants of which one is the best for an error of the table of metrics.

    The mean (squared errors), the median (absolute ones), the mean of logarithms (squared ones of them), the
    median weighted by 1 / |answer| (shares of the answer), the middle of the shortest interval with half of
    the answers (the median error), and quantiles of the answers (the symmetric share, whose best constant is
    an answer).
    """
    ordered = np.sort(known)
    guesses = [float(np.mean(known)), float(np.median(known))]
    if ordered[0] >= 0:
        guesses.append(float(np.expm1(np.mean(np.log1p(known)))))
    if np.all(ordered != 0):
        weights = np.cumsum(1.0 / np.abs(ordered))
        guesses.append(float(ordered[np.searchsorted(weights, weights[-1] / 2)]))
    for half in {len(ordered) // 2, len(ordered) // 2 + 1} - {0}:
        widths = ordered[half - 1 :] - ordered[: len(ordered) - half + 1]
        at = int(np.argmin(widths)) if len(widths) else 0
        guesses.append(float((ordered[at] + ordered[min(at + half, len(ordered)) - 1]) / 2))
    places = np.linspace(0, len(ordered) - 1, min(len(ordered), _QUANTILES)).astype(int)
    guesses += [float(guess) for guess in ordered[places]]
    return [measure(known, np.full(len(known), guess)) for guess in dict.fromkeys(guesses)]
