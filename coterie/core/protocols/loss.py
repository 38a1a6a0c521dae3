"""The protocol of kind `loss`, with its input and its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

Length = Literal["token_mean", "sequence_mean", "sequence_sum", "constant"]
"""How a loss sums its tokens (`coterie.token_coefficients`)."""


@runtime_checkable
class Loss(Protocol):
    """A per-token surrogate loss, in numpy or torch.

    `xp` is the module `numpy` or `torch`; use functions that both have (exp, where, minimum, maximum, clip).
    The loss also returns its gradient, for trainers without autograd; `check_loss` verifies it. The value of
    a token may depend on the tokens of its sequence (a span), which a trainer never splits, and on no others.
    """

    needs: tuple[str, ...]
    """Annotations it reads: "ref_logprobs", "old_logprobs"."""
    length: Length
    """Normalisation over tokens and sequences (`coterie.token_coefficients`)."""
    entropy: float
    """Coefficient of the entropy bonus. The trainer adds the bonus, which needs the whole distribution."""

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Input of a loss: flat arrays over N sampled tokens, shape (N,)."""

    logprobs: Any
    """Log-probabilities under the weights being trained."""
    behaviour: Any
    """Log-probabilities under the weights that sampled the tokens."""
    advantages: Any
    ref_logprobs: Any | None = None
    """Log-probabilities under the reference (initial) weights."""
    old: Any | None = None
    """Log-probabilities under the trainer's weights before the first optimiser step of this update."""
    sequence: Any | None = None
    """Index of each token's sequence (span), 0 to sequences - 1, for losses of whole sequences."""
    sequences: int = 0

    @property
    def proximal(self) -> Any:
        """Log-probabilities at the centre of the trust region: `old` if given, else `behaviour`."""
        return self.behaviour if self.old is None else self.old


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """Output of a loss, shape (N,)."""

    value: Any
    grad: Any
    """d sum(value) / d logprobs."""
    metrics: Mapping[str, Any]
    """Per-token quantities, reported as their mean over tokens, e.g. `clip_fraction`."""
