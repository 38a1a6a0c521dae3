"""A loss: what a trainer minimises, one value for each sampled token, in numpy or torch.

Simple Policy Optimization (arXiv 2401.16025, equation 10): where PPO clips the ratio r of the present to the
sampling policy, a square pulls it back to 1. The least value is at r = 1 + clip for a positive advantage.
"""

from typing import Any

from pydantic import Field

from coterie import LossConfig, Register, Surrogate, TokenBatch, TokenLoss, hookimpl, log_ratio


class ExampleNameLoss(TokenLoss):
    """-A r + |A| (r - 1)^2 / (2 clip) for each token."""

    class Config(LossConfig):
        clip: float = Field(0.2, gt=0, description="How far from 1 the ratio is pushed.")

    config: Config

    # `xp` is numpy or torch: use functions that both have. All arrays have shape (N,), one entry a token.
    # A trainer without autograd follows `grad`, d value / d logprobs; check_loss compares it with `value`.
    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        difference, inside = log_ratio(xp, tokens.logprobs, tokens.proximal)
        ratio, gain = xp.exp(difference), tokens.advantages
        pull = xp.abs(gain) * (ratio - 1.0) / self.config.clip
        value = -gain * ratio + 0.5 * pull * (ratio - 1.0)
        grad = xp.where(inside, (pull - gain) * ratio, 0.0 * ratio)
        return self.surrogate(xp, tokens, value, grad)


@hookimpl
def register_losses(register: Register) -> None:
    register("example_name", ExampleNameLoss)
