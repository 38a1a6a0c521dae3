"""What an answer of each row is worth and costs: its return, its tokens and its seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coterie import clustered_bootstrap
from coterie.studies.runner import StudyOutcome

GAP = "–"
"""Shown in place of a missing value."""
HEAD = ("return", "tokens an answer", "ms an answer")
NOTE = (
    "An answer is an episode on the test split. Its return is the reward of its last joint action, with the "
    "95 % interval over tasks. Roles that act at once count once: its tokens are those of the longest action "
    "of each stage, and its milliseconds those of the evaluation, in which many answers are generated "
    "together, over the number of answers."
)


def measured(
    row: Mapping[str, Any],
    seeds: Sequence[int],
    returns: Mapping[tuple[str, int], Mapping[str, Sequence[float]] | None],
    outcome: StudyOutcome,
) -> dict[str, Any]:
    """Return with its interval, tokens and seconds of an answer, over all seeds; None: not known."""
    pooled = pooled_tasks({seed: returns.get((row["id"], seed)) for seed in seeds})
    results = [outcome.results.get(entry["jobs"][-1], {}) for entry in row["seeds"]]
    return {
        "return": clustered_bootstrap(pooled, seed=0).as_dict() if pooled else None,
        "tokens": mean([result.get("answer_tokens") for result in results]),
        "seconds": mean([result.get("answer_seconds") for result in results]),
    }


def pooled_tasks(by_seed: Mapping[int, Mapping[str, Sequence[float]] | None]) -> dict[str, Sequence[float]]:
    """The samples of all seeds. Each seed has its own tasks: one id in two seeds stands for two tasks."""
    return {
        f"{seed}/{task}": samples
        for seed, of_seed in by_seed.items()
        for task, samples in (of_seed or {}).items()
    }


def cells(answers: Mapping[str, Any]) -> list[str]:
    """The cells under `HEAD`."""
    value, tokens, seconds = (answers[name] for name in ("return", "tokens", "seconds"))
    shown = GAP
    if value is not None:
        low, high = (GAP if bound is None else f"{bound:.2f}" for bound in value["ci95"])
        shown = f"{value['mean']:.2f} [{low}, {high}]"
    return [
        shown,
        GAP if tokens is None else f"{tokens:,.0f}",
        GAP if seconds is None else f"{1000 * seconds:,.0f}",
    ]


def mean(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are known; None: none is."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
