"""A curve in one line of text."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

BLOCKS = "▁▂▃▄▅▆▇█"
ASCII = "_.-~=*#"


def sparkline(
    values: Sequence[float],
    width: int,
    *,
    low: float | None = None,
    high: float | None = None,
    ascii: bool = False,
) -> str:
    """Values as characters of rising height, at most `width` of them, the latest last.

    A longer sequence is shown whole: each character is the mean of as many neighbours. A gap (NaN) is a
    space. Equal values are drawn at the bottom.

    Args:
        low, high: the values of the lowest and the highest character; None: those of the means drawn.
    """
    means = buckets(values, width)
    there = [mean for mean in means if not math.isnan(mean)]
    if not there:
        return " " * len(means)
    low, high = min(there) if low is None else low, max(there) if high is None else high
    levels = ASCII if ascii else BLOCKS
    return "".join(
        " " if math.isnan(mean) else levels[_level(mean, low, high, len(levels))] for mean in means
    )


def _level(value: float, low: float, high: float, levels: int) -> int:
    if high - low <= 1e-12 * max(abs(low), abs(high)):
        return 0
    return min(max(int((value - low) / (high - low) * levels), 0), levels - 1)


def buckets(values: Sequence[float], width: int) -> list[float]:
    """At most `width` means of neighbouring values, those that are NaN left out."""
    array = np.asarray(values, dtype=np.float64)
    if len(array) <= width:
        return array.tolist()
    edges = np.round(np.arange(width) * len(array) / width).astype(int)
    there = ~np.isnan(array)
    counts = np.add.reduceat(there, edges, dtype=np.float64)
    sums = np.add.reduceat(np.where(there, array, 0.0), edges)
    return [
        total / count if count else math.nan
        for total, count in zip(sums.tolist(), counts.tolist(), strict=True)
    ]
