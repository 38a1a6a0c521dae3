"""What losses are made of: log-ratios, the clipped surrogate, KL estimates, means over a sequence.

Everything is written once, in the functions that numpy and torch both have; `xp` is either module. Where the
two differ (no gradient through a factor, sums over sequences) there is one function here for both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.core.protocols import TokenBatch

WIDEST = 20.0
"""Log-ratios are cut here: exp(20) is past any clip range, and exp(90) would be infinite in float32."""


def log_ratio(xp: Any, logprobs: Any, other: Any) -> tuple[Any, Any]:
    """log pi - log other, cut to where its exponential stays finite, and where it was not cut; shape (N,).

    Beyond the cut the slope of the ratio is zero, as autograd has it.
    """
    return within(xp, logprobs - other)


def within(xp: Any, difference: Any) -> tuple[Any, Any]:
    """A log-ratio cut to [-WIDEST, WIDEST], and where it was not cut."""
    inside = (difference >= -WIDEST) & (difference <= WIDEST)
    return xp.clip(difference, -WIDEST, WIDEST), inside


def clipped_term(xp: Any, ratio: Any, advantages: Any, low: float, high: float) -> tuple[Any, Any]:
    """PPO's pessimistic surrogate min(r A, clip(r, 1 - low, 1 + high) A), and where the clip took hold.

    There the surrogate is a constant; elsewhere it is r A.
    """
    free = ratio * advantages
    cut = xp.clip(ratio, 1.0 - low, 1.0 + high) * advantages
    return xp.minimum(free, cut), cut < free


def k2(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """Half the squared log-ratio, and its slope.

    On-policy the slope is, in expectation, the gradient of KL(pi || ref).
    """
    difference = logprobs - ref
    return 0.5 * difference * difference, difference


def k3(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """r - 1 - log r for r = ref / pi, never negative, and its slope 1 - r."""
    difference, inside = log_ratio(xp, logprobs, ref)
    ratio = xp.exp(-difference)
    return ratio - 1.0 + difference, xp.where(inside, 1.0 - ratio, 0.0 * ratio)


def detached(xp: Any, values: Any) -> Any:
    """The same numbers, and no gradient flows through them."""
    return values if xp is np else values.detach()


def sequence_sums(xp: Any, values: Any, tokens: TokenBatch) -> Any:
    """At every token the sum over its sequence, shape (N,).

    Raises:
        ValueError: the batch doesn't say which tokens belong together.
    """
    if tokens.sequence is None:
        raise ValueError("a loss of whole sequences needs to know which tokens belong together (`sequence`)")
    if xp is np:
        sums = np.bincount(tokens.sequence, weights=values, minlength=tokens.sequences).astype(values.dtype)
    else:
        sums = values.new_zeros(tokens.sequences).index_add(0, tokens.sequence, values)
    return sums[tokens.sequence]


def sequence_means(xp: Any, values: Any, tokens: TokenBatch) -> Any:
    """At every token the mean over its sequence, shape (N,).

    Raises:
        ValueError: as `sequence_sums`.
    """
    ones = xp.ones_like(detached(xp, values))
    return sequence_sums(xp, values, tokens) / sequence_sums(xp, ones, tokens)
