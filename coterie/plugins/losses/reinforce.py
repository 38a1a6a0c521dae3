"""REINFORCE: the plain policy gradient, as MAGRPO uses it (arXiv 2508.04652)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coterie.core.protocols import Length, Surrogate, TokenBatch
from coterie.plugins.losses.blocks.common import LossConfig, TokenLoss


class ReinforceLoss(TokenLoss):
    """-A log pi(token): no ratio and no clip, so it is exact only on samples of the current weights.

    A second optimiser step on the same samples is off-policy, and this loss doesn't correct for it, so more
    than one step an update is refused. With `correction` it isn't, though that covers only the difference
    between the engine and the first step: the metric `ratio` shows how far off-policy later ones are. The
    default length rule sums over a sequence without a mean, so the gradient is that
    of the sequence's log-probability.
    """

    class Config(LossConfig):
        length: Length = Field("sequence_sum", description="How tokens are summed to one loss.")

    @property
    def fresh_samples(self) -> bool:
        """Whether samples must be those of the current weights: without a correction."""
        return self.config.correction is None

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        return self.surrogate(xp, tokens, -tokens.advantages * tokens.logprobs, -tokens.advantages)
