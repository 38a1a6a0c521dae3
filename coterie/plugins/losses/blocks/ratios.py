"""Parts of the losses: log-ratios, the clipped surrogate, KL estimates, means over a sequence.

Each is written once, with functions that numpy and torch share; `xp` is either module. Where the two differ
(factors without gradient, sums over sequences) a function here covers both.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from coterie.core.protocols import TokenBatch

WIDEST = 20.0
"""The bound of log-ratios: exp(20) is past any clip range, and exp(90) would be infinite in float32."""


def log_ratio(xp: Any, logprobs: Any, other: Any) -> tuple[Any, Any]:
    """(log pi - log other, bounded so that its exponential is finite; whether it was within the bounds).

    Both have shape (N,). Outside the bounds the gradient of the ratio is zero, as under autograd.
    """
    return within(xp, logprobs - other)


def within(xp: Any, difference: Any) -> tuple[Any, Any]:
    """(A log-ratio clipped to [-WIDEST, WIDEST]; whether it was within these bounds)."""
    inside = (difference >= -WIDEST) & (difference <= WIDEST)
    return xp.clip(difference, -WIDEST, WIDEST), inside


def clipped_term(xp: Any, ratio: Any, advantages: Any, low: float, high: float) -> tuple[Any, Any]:
    """(PPO's pessimistic surrogate min(r A, clip(r, 1 - low, 1 + high) A); where it is clipped).

    Where it is clipped the surrogate is a constant; elsewhere it is r A.
    """
    unclipped = ratio * advantages
    clipped = xp.clip(ratio, 1.0 - low, 1.0 + high) * advantages
    return xp.minimum(unclipped, clipped), clipped < unclipped


def k2(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """(Half the squared log-ratio; its gradient).

    On-policy its gradient is, in expectation, the gradient of KL(pi || ref).
    """
    difference = logprobs - ref
    return 0.5 * difference * difference, difference


def k3(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """(r - 1 - log r for r = ref / pi, never negative; its gradient 1 - r)."""
    difference, inside = log_ratio(xp, logprobs, ref)
    ratio = xp.exp(-difference)
    return ratio - 1.0 + difference, xp.where(inside, 1.0 - ratio, 0.0 * ratio)


def detached(xp: Any, values: Any) -> Any:
    """The same values without gradient."""
    return values if xp is np else values.detach()


def sequence_sums(xp: Any, values: Any, tokens: TokenBatch) -> Any:
    """At every token the sum over its sequence, shape (N,).

    Raises:
        ValueError: the batch has no `sequence`, the index of each token's sequence.
    """
    if tokens.sequence is None:
        raise ValueError("a loss of whole sequences needs `sequence`, the index of each token's sequence")
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
