"""Sums over the rows of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def tokens_so_far(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Tokens generated in training up to each row.

    A row says the total itself, so that lost rows before it don't matter; those of the first versions don't.
    """
    totals: list[float] = []
    for row in rows:
        before = totals[-1] if totals else 0.0
        totals.append(float(row.get("tokens/total") or before + float(row.get("tokens/generated") or 0)))
    return totals
