"""What the losses share: settings, KL terms, and the metrics of a surrogate.

Everything is written once, in the functions that numpy and torch both have; `xp` is either module. A loss
says its slope (d value / d logprobs) beside its value, so that a trainer without autograd can use it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from coterie.core.config import PluginConfig
from coterie.core.plugins import Plugin
from coterie.core.protocols import TokenBatch

Length = Literal["token_mean", "sequence_mean", "sequence_sum"]

_WIDEST = 20.0
"""Log-ratios are cut here: exp(20) is past any clip range, and exp(90) would be infinite in float32."""


class LossConfig(PluginConfig):
    """Settings of every loss."""

    length: Length = Field("token_mean", description="How tokens are summed to one loss.")
    entropy: float = Field(0.0, ge=0, description="Coefficient of the entropy bonus.")
    kl: float = Field(0.0, ge=0, description="Coefficient of the KL term against the reference weights.")
    kl_form: Literal["k2", "k3"] = Field(
        "k3", description="Its estimator; see http://joschu.net/blog/kl-approx.html."
    )

    @field_validator("kl_form", mode="before")
    @classmethod
    def _no_k1(cls, value: Any) -> Any:
        if value == "k1":
            raise ValueError(
                "k1 (log pi - log ref) can't be a loss: the expectation of its gradient is zero, whatever "
                "the policy. Use k2 or k3 here, or put k1 into the reward (REINFORCE++ does)"
            )
        return value


class TokenLoss(Plugin):
    """Base of the losses: what the Loss protocol asks for besides the call itself."""

    Config = LossConfig

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.length: Length = self.config.length
        self.entropy: float = self.config.entropy
        self.needs: tuple[str, ...] = ("ref_logprobs",) if self.config.kl > 0 else ()

    def kl_term(self, xp: Any, tokens: TokenBatch) -> tuple[Any, Any] | None:
        """The weighted KL term and its slope, each of shape (N,), or None where it is off."""
        if not self.config.kl:
            return None
        if tokens.ref_logprobs is None:
            raise ValueError("a loss with kl > 0 needs the samples' ref_logprobs")
        value, slope = {"k2": k2, "k3": k3}[self.config.kl_form](xp, tokens.logprobs, tokens.ref_logprobs)
        return self.config.kl * value, self.config.kl * slope


def log_ratio(xp: Any, logprobs: Any, other: Any) -> tuple[Any, Any]:
    """log pi - log other, cut to where its exponential stays finite, and where it was not cut; shape (N,).

    Beyond the cut the slope of the ratio is zero, as autograd has it.
    """
    difference = logprobs - other
    inside = (difference >= -_WIDEST) & (difference <= _WIDEST)
    return xp.clip(difference, -_WIDEST, _WIDEST), inside


def k2(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """Half the squared log-ratio, and its slope.

    On-policy the slope is, in expectation, the gradient of KL(pi || ref).
    """
    difference = logprobs - ref
    return 0.5 * difference * difference, difference


def k3(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """r - 1 - log r for r = ref / pi, never negative, and its slope 1 - r."""
    difference, inside = log_ratio(xp, logprobs, ref)
    ratio = xp.exp(-difference)
    return ratio - 1.0 + difference, xp.where(inside, 1.0 - ratio, 0.0 * ratio)


def divergences(xp: Any, tokens: TokenBatch) -> dict[str, Any]:
    """Metrics of every loss: the ratio to the behaviour policy and k3 estimates of the divergences.

    `approx_kl` estimates KL(behaviour || pi) on tokens that the behaviour policy drew; `kl_ref`
    estimates KL(pi || ref) where the samples carry reference log-probs.
    """
    difference, _ = log_ratio(xp, tokens.logprobs, tokens.behaviour)
    ratio = xp.exp(difference)
    metrics = {"ratio": ratio, "approx_kl": ratio - 1.0 - difference}
    if tokens.ref_logprobs is not None:
        metrics["kl_ref"] = k3(xp, tokens.logprobs, tokens.ref_logprobs)[0]
    return metrics
