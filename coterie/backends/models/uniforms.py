"""The uniform numbers by which engines draw tokens: keyed by request and position, whatever the batch."""

from __future__ import annotations

import numpy as np

_MASK = (1 << 64) - 1


def uniforms(seeds: np.ndarray, position: int) -> np.ndarray:
    """One uniform number in [0, 1) per request, for the token at `position`: splitmix64 of a counter.

    Args:
        seeds: uint64, shape (B,): the seeds of the requests.
        position: index of the token in its call.

    Returns:
        float64, shape (B,). Row b depends on (seeds[b], position) alone, whatever the batch.
    """
    with np.errstate(over="ignore"):
        z = seeds + np.uint64(((position + 1) * 0x9E3779B97F4A7C15) & _MASK)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
