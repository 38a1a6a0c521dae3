"""REINFORCE: the plain policy gradient, as MAGRPO uses it (arXiv 2508.04652)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coterie.core.protocols import Length, Surrogate, TokenBatch
from coterie.plugins.losses.blocks.common import LossConfig, TokenLoss


class Reinforce(TokenLoss):
    """-A log pi(token): no ratio and no clip, so it is exact only on samples of the current weights.

    A second optimiser step on the same samples is off-policy, and this loss doesn't correct for it; the
    metric `ratio` shows how far off-policy it is. (`correction` covers only the difference between the engine
    and the first step.) The default length rule sums over a sequence without a mean, so the gradient is that
    of the sequence's log-probability.
    """

    class Config(LossConfig):
        length: Length = Field("sequence_sum", description="How tokens are summed to one loss.")

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        return self.surrogate(xp, tokens, -tokens.advantages * tokens.logprobs, -tokens.advantages)
