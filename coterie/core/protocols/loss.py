"""The protocol of kind `loss`, its input and its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable


@runtime_checkable
class Loss(Protocol):
    """A per-token surrogate, in any array library.

    `xp` is `numpy` or `torch`: the surrogate is written once in the functions that both have (exp,
    where, minimum, maximum, clip). It returns the value and the slope d sum(value) / d logprobs, so that a
    trainer without autograd uses the same loss; a test holds the slope against autograd. A token's value
    may depend on the tokens of its sequence (a span), which a trainer never splits, and on no others.
    """

    needs: tuple[str, ...]
    """Notes that its TokenBatch must have: "ref_logprobs", "old_logprobs"."""
    length: Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
    """How tokens are summed (see `core/training/samples.py`)."""
    entropy: float
    """Coefficient of the entropy bonus; the trainer adds it, for it needs the whole distribution."""

    # Optional: length_constant: float, what the length rule `constant` divides every sequence's sum by.

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Flat arrays over sampled tokens, shape (N,)."""

    logprobs: Any
    """Of the weights being trained."""
    behaviour: Any
    """Of the weights that sampled."""
    advantages: Any
    ref_logprobs: Any | None = None
    old: Any | None = None
    """Of the trainer's weights before the first optimiser step of this update; None: taken to be
    `behaviour`."""
    sequence: Any | None = None
    """Which sequence (span) each token is of: integers 0..sequences-1, for losses of whole sequences."""
    sequences: int = 0

    @property
    def proximal(self) -> Any:
        """What a trust region is around: the old policy where it was asked for, else the behaviour's."""
        return self.behaviour if self.old is None else self.old


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """What a loss says of every token, shape (N,)."""

    value: Any
    grad: Any
    """d sum(value) / d logprobs: of one token's own value where it depends on that token alone."""
    metrics: Mapping[str, Any]
    """Per-token quantities whose token mean is reported, e.g. `clip_fraction`."""
