"""The digits of a rollout file's per-token numbers: those that a float32 needs, where they are float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def shortened(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row with the digits that float32 needs, where its per-token numbers are exactly float32.

    A model's log-probs are, and as float64 half of a file would be digits that say nothing. `float32` names
    what was shortened: `calls` (their log-probs) and annotations.
    """
    calls, annotations = row.get("calls", ()), row.get("annotations", {})
    short = {name: digits for name, values in annotations.items() if (digits := _digits(values))}
    logprobs = [_digits(call["logprobs"]) for call in calls]
    changed: dict[str, Any] = {"annotations": {**annotations, **short}} if short else {}
    if calls and None not in logprobs:
        changed["calls"] = [{**call, "logprobs": of} for call, of in zip(calls, logprobs, strict=True)]
    return {**row, **changed, "float32": [*short, *changed.keys() & {"calls"}]} if changed else row


def _digits(values: Sequence[float]) -> list[float] | None:
    """The float64 numbers that have the nine digits of each float32; None: one of them is no float32."""
    exact = np.asarray(values, dtype=np.float64)
    if exact.ndim != 1:
        return None
    with np.errstate(over="ignore"):  # what is too large is no float32
        narrow = exact.astype(np.float32)
    if not np.array_equal(narrow, exact, equal_nan=True):
        return None
    return [float(f"{value:.9g}") for value in exact.tolist()]


def lengthened(row: dict[str, Any], names: Sequence[str]) -> None:
    """Undo `shortened` in place."""
    for name in names:
        if name == "calls":
            for call in row["calls"]:
                call["logprobs"] = _float32(call["logprobs"])
        else:
            row["annotations"][name] = _float32(row["annotations"][name])


def _float32(values: Sequence[float | None]) -> list[float | None]:
    """The numbers of float32 digits; null, which stands for NaN, stays null."""
    return [None if value is None else float(np.float32(value)) for value in values]
