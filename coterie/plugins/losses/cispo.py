"""CISPO: clipped importance weights instead of clipped updates (MiniMax-M1, arXiv 2506.13585, equation 4)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coterie.core.protocols import Surrogate, TokenBatch
from coterie.plugins.losses.blocks.common import LossConfig, TokenLoss, detached, log_ratio


class CISPO(TokenLoss):
    """-stop_gradient(clip(r, 1 - low, 1 + high)) A log pi, with r = pi / old of one token.

    PPO's clip removes the gradient of a token whose ratio has left the range. Those tokens were improbable
    before the update: rare words at which a line of reasoning forks, which then never become likelier. Here
    the ratio is a weight without gradient. Its bound bounds the variance, and every token keeps its gradient.

    The lower bound is off, as in the paper, which tunes the upper one. The default weighs a token up to five
    times; PPO's .2 would make it REINFORCE with weights between 0 and 1.2. When it degenerates: with one
    optimiser step per batch of samples every weight is 1 and this is REINFORCE with a token mean. Only the
    gradient of the loss has a meaning, not its value.
    """

    class Config(LossConfig):
        clip_low: float | None = Field(
            None, ge=0, lt=1, description="Weights are raised to at least 1 - this; null: no lower bound."
        )
        clip_high: float = Field(4.0, ge=0, description="Weights are clipped above 1 + this.")

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        ratio = detached(xp, xp.exp(log_ratio(xp, tokens.logprobs, tokens.proximal)[0]))
        low = None if self.config.clip_low is None else 1.0 - self.config.clip_low
        bounded = xp.clip(ratio, low, 1.0 + self.config.clip_high)
        grad = -bounded * tokens.advantages
        clipped = xp.where(bounded != ratio, 1.0, 0.0)
        return self.surrogate(xp, tokens, grad * tokens.logprobs, grad, clip_fraction=clipped)
