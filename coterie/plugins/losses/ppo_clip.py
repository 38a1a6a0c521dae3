"""PPO's clipped surrogate, per token (arXiv 1707.06347), with separate bounds and an optional dual clip."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coterie.core.protocols import Surrogate, TokenBatch
from coterie.plugins.losses.common import LossConfig, TokenLoss, divergences, log_ratio


class PPOClip(TokenLoss):
    """-min(r A, clip(r, 1 - low, 1 + high) A), with r = pi / behaviour of one token.

    The minimum makes the surrogate pessimistic: once the ratio has left the range in the direction that
    the advantage asks for, the token has no gradient left. In the other direction it is never cut, so
    for A < 0 a large ratio gives an unbounded loss; `dual_clip` c bounds it: max(min(...), c A)
    (Ye et al., arXiv 1912.09729). With one optimiser step per batch of samples the ratio is 1 and this
    is REINFORCE with a token mean.
    """

    class Config(LossConfig):
        clip_low: float = Field(0.2, ge=0, lt=1, description="The ratio is cut below 1 - this.")
        clip_high: float = Field(0.2, ge=0, description="The ratio is cut above 1 + this.")
        dual_clip: float | None = Field(
            None, gt=1, description="For A < 0, the loss is at most this times -A."
        )

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        advantages = tokens.advantages
        difference, inside = log_ratio(xp, tokens.logprobs, tokens.behaviour)
        ratio = xp.exp(difference)
        free = ratio * advantages
        cut = xp.clip(ratio, 1.0 - self.config.clip_low, 1.0 + self.config.clip_high) * advantages
        surrogate = xp.minimum(free, cut)
        clipped = cut < free
        if self.config.dual_clip is not None:
            floor = self.config.dual_clip * advantages
            negative = advantages < 0
            clipped = clipped | (negative & (free < floor))
            surrogate = xp.where(negative, xp.maximum(surrogate, floor), surrogate)
        value, slope = -surrogate, xp.where(inside & ~clipped, -free, 0.0 * free)
        penalty = self.kl_term(xp, tokens)
        if penalty is not None:
            value, slope = value + penalty[0], slope + penalty[1]
        metrics = {"clip_fraction": xp.where(clipped, 1.0, 0.0), **divergences(xp, tokens)}
        return Surrogate(value=value, slope=slope, metrics=metrics)
