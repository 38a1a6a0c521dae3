"""GSPO: group sequence policy optimisation (arXiv 2507.18071, equations 5 to 7)."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coterie.core.protocols import Length, Surrogate, TokenBatch
from coterie.plugins.losses.blocks.common import LossConfig, TokenLoss, clipped_term, sequence_means, within


class GSPO(TokenLoss):
    """-min(s A, clip(s, 1 - low, 1 + high) A), with s = exp(mean over the sequence of log pi - log old).

    The reward is of the whole answer, and so is the ratio here: the geometric mean of the tokens' ratios. A
    token's own ratio, which PPO uses, corrects one draw from a distribution by one weight, and its noise
    grows with the length of the answer (and with the routing of a mixture of experts). A mean over hundreds
    of tokens changes little, so the range is hundreds of times narrower than PPO's. All tokens of a sequence
    are clipped together.

    Every token of a sequence has the sequence's value, and A is the mean of its tokens' advantages. A
    sequence is a span: an action whose prompt could not be continued verbatim has several. When it
    degenerates: on sequences of one token it is PPO's clip; with one optimiser step per batch of samples s is
    1 and this is REINFORCE with a sequence mean.
    """

    class Config(LossConfig):
        length: Length = Field("sequence_mean", description="How tokens are summed to one loss.")
        clip_low: float = Field(
            3e-4, ge=0, lt=1, description="The sequence's ratio is clipped below 1 - this."
        )
        clip_high: float = Field(4e-4, ge=0, description="Sequence ratios are clipped above 1 + this.")

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        difference, inside = within(xp, sequence_means(xp, tokens.logprobs - tokens.proximal, tokens))
        ratio = xp.exp(difference)
        advantages = sequence_means(xp, tokens.advantages, tokens)
        term, clipped = clipped_term(xp, ratio, advantages, self.config.clip_low, self.config.clip_high)
        # n tokens have this value, and log s has derivative 1/n in each, so the sum's gradient is that of
        # one value.
        grad = xp.where(inside & ~clipped, -ratio * advantages, 0.0 * ratio)
        metrics = {"sequence_ratio": ratio, "clip_fraction": xp.where(clipped, 1.0, 0.0)}
        return self.surrogate(xp, tokens, -term, grad, **metrics)

    def weights(self, xp: Any, tokens: TokenBatch) -> Any | None:
        """One weight per sequence, as the term: the mean of its tokens' corrections."""
        weights = super().weights(xp, tokens)
        return None if weights is None else sequence_means(xp, weights, tokens)
