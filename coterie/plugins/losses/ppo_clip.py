"""PPO's clipped surrogate, per token (arXiv 1707.06347), with separate bounds and an optional dual clip."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coterie.core.protocols import Surrogate, TokenBatch
from coterie.plugins.losses.blocks.common import LossConfig, TokenLoss, clipped_term, log_ratio


class PPOClip(TokenLoss):
    """-min(r A, clip(r, 1 - low, 1 + high) A), with r = pi / old of one token.

    The minimum makes the surrogate pessimistic: where the ratio has left the range in the direction of the
    advantage's sign, the token has no gradient. In the other direction nothing is clipped, so for A < 0 a
    large ratio gives an unbounded loss; `dual_clip` c bounds it: max(min(...), c A) (Ye et al., arXiv
    1912.09729). With one optimiser step per batch of samples the ratio is 1 and this is REINFORCE with a
    token mean. Without a correction the old policy is the behaviour policy.
    """

    class Config(LossConfig):
        clip_low: float = Field(0.2, ge=0, lt=1, description="The ratio is clipped below 1 - this.")
        clip_high: float = Field(0.2, ge=0, description="The ratio is clipped above 1 + this.")
        dual_clip: float | None = Field(
            None, gt=1, description="For A < 0, the loss is at most this times -A."
        )

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        advantages = tokens.advantages
        difference, inside = log_ratio(xp, tokens.logprobs, tokens.proximal)
        ratio = xp.exp(difference)
        free = ratio * advantages
        term, clipped = clipped_term(xp, ratio, advantages, self.config.clip_low, self.config.clip_high)
        if self.config.dual_clip is not None:
            floor = self.config.dual_clip * advantages
            negative = advantages < 0
            clipped = clipped | (negative & (free < floor))
            term = xp.where(negative, xp.maximum(term, floor), term)
        grad = xp.where(inside & ~clipped, -free, 0.0 * free)
        return self.surrogate(xp, tokens, -term, grad, clip_fraction=xp.where(clipped, 1.0, 0.0))
