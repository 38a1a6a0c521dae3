"""The base of the losses: their settings, the weights and penalties around their policy term, and metrics.

Losses distinguish three policies: the *behaviour* policy (which sampled, by the engine's log-probs), the
*old* policy (the trainer's weights before the first optimiser step of an update) and the *current* policy,
which is trained. A loss returns its gradient (d value / d logprobs) beside its value, for trainers without
autograd.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from coterie.core.errors import PluginError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import Length, Surrogate, TokenBatch

WIDEST = 20.0
"""The bound of log-ratios: exp(20) is past any clip range, and exp(90) would be infinite in float32."""


def log_ratio(xp: Any, logprobs: Any, other: Any) -> tuple[Any, Any]:
    """(log pi - log other, bounded so that its exponential is finite; whether it was within the bounds).

    Both have shape (N,). Outside the bounds the gradient of the ratio is zero, as under autograd.
    """
    return within(xp, logprobs - other)


def within(xp: Any, difference: Any) -> tuple[Any, Any]:
    """(A log-ratio clipped to [-WIDEST, WIDEST]; whether it was within these bounds)."""
    inside = (difference >= -WIDEST) & (difference <= WIDEST)
    return xp.clip(difference, -WIDEST, WIDEST), inside


def clipped_term(xp: Any, ratio: Any, advantages: Any, low: float, high: float) -> tuple[Any, Any]:
    """(PPO's pessimistic surrogate min(r A, clip(r, 1 - low, 1 + high) A); where it is clipped).

    Where it is clipped the surrogate is a constant; elsewhere it is r A.
    """
    unclipped = ratio * advantages
    clipped = xp.clip(ratio, 1.0 - low, 1.0 + high) * advantages
    return xp.minimum(unclipped, clipped), clipped < unclipped


def k2(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """(Half the squared log-ratio; its gradient).

    On-policy its gradient is, in expectation, the gradient of KL(pi || ref).
    """
    difference = logprobs - ref
    return 0.5 * difference * difference, difference


def k3(xp: Any, logprobs: Any, ref: Any) -> tuple[Any, Any]:
    """(r - 1 - log r for r = ref / pi, never negative; its gradient 1 - r)."""
    difference, inside = log_ratio(xp, logprobs, ref)
    ratio = xp.exp(-difference)
    return ratio - 1.0 + difference, xp.where(inside, 1.0 - ratio, 0.0 * ratio)


def detached(xp: Any, values: Any) -> Any:
    """The same values without gradient."""
    return values if xp is np else values.detach()


def sequence_sums(xp: Any, values: Any, tokens: TokenBatch) -> Any:
    """At every token the sum over its sequence, shape (N,).

    Raises:
        ValueError: the batch has no `sequence`, the index of each token's sequence.
    """
    if tokens.sequence is None:
        raise ValueError("a loss of whole sequences needs `sequence`, the index of each token's sequence")
    if xp is np:
        sums = np.bincount(tokens.sequence, weights=values, minlength=tokens.sequences).astype(values.dtype)
    else:
        sums = values.new_zeros(tokens.sequences).index_add(0, tokens.sequence, values)
    return sums[tokens.sequence]


def sequence_means(xp: Any, values: Any, tokens: TokenBatch) -> Any:
    """At every token the mean over its sequence, shape (N,).

    Raises:
        ValueError: as `sequence_sums`.
    """
    ones = xp.ones_like(detached(xp, values))
    return sequence_sums(xp, values, tokens) / sequence_sums(xp, ones, tokens)


class Correction(PluginConfig):
    """Truncated importance sampling between engine and trainer.

    An engine and a trainer with the same weights give a token different probabilities (other kernels, a
    quantised engine), and a stale engine has other weights. The correction multiplies every token's policy
    term with min(old / behaviour, cap), a constant; the trust region is then around the old policy, not
    around the behaviour policy. Source: Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"; the truncation is V-trace's (IMPALA, arXiv 1802.01561).
    """

    level: Literal["token", "sequence"] = Field(
        "token",
        description="The ratio: each `token`'s own, or the product over the `sequence`, which is unbiased "
        "up to the cap and varies more.",
    )
    cap: float = Field(2.0, ge=1, description="Ratios count at most this much.")


class LossConfig(PluginConfig):
    """Settings of every loss."""

    length: Length = Field("token_mean", description="How tokens are summed to one loss.")
    length_constant: float | None = Field(
        None,
        gt=0,
        validate_default=True,
        description="For the length `constant`: the divisor of every sequence's sum; usually the longest "
        "completion allowed.",
    )
    entropy: float = Field(0.0, ge=0, description="Coefficient of the entropy bonus.")
    kl: float = Field(0.0, ge=0, description="Coefficient of the KL term against the reference weights.")
    kl_form: Literal["k2", "k3"] = Field(
        "k3", description="Its estimator; see http://joschu.net/blog/kl-approx.html."
    )
    correction: Correction | None = Field(
        None, description="Importance weights for the difference of engine and trainer; null: none."
    )

    @field_validator("length_constant")
    @classmethod
    def _constant_goes_with_its_rule(cls, value: float | None, info: ValidationInfo) -> float | None:
        length = info.data.get("length")  # absent where its own value is invalid
        if length == "constant" and value is None:
            raise ValueError(
                "the length `constant` divides every sequence's sum by this number: set it, e.g. to the "
                "longest completion allowed"
            )
        if length not in ("constant", None) and value is not None:
            raise ValueError(f"the length `{length}` doesn't use it: set length to constant, or leave it out")
        return value

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
    """Base of the losses: the attributes of the Loss protocol, and the terms that all losses share."""

    Config = LossConfig

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        for name in ("length", "length_constant", "entropy", "needs"):
            if hasattr(type(self), name):
                raise PluginError(
                    f"{type(self).__name__} sets `{name}`, which TokenLoss takes from its Config",
                    fix=f"give `{name}` a default in `class Config(LossConfig)`"
                    if name != "needs"
                    else "extend `self.needs` in __init__",
                )
        self.length: Length = self.config.length
        self.length_constant: float | None = self.config.length_constant
        self.entropy: float = self.config.entropy
        annotations = {
            "ref_logprobs": self.config.kl > 0,
            "old_logprobs": self.config.correction is not None,
        }
        self.needs: tuple[str, ...] = tuple(name for name, needed in annotations.items() if needed)

    def surrogate(self, xp: Any, tokens: TokenBatch, value: Any, grad: Any, **metrics: Any) -> Surrogate:
        """The loss of a policy term `value` and its gradient `grad`, with the correction and the KL term."""
        weights = self.weights(xp, tokens)
        if weights is not None:
            value, grad = weights * value, weights * grad
            metrics |= self._mismatch(xp, tokens, weights)
        if self.config.kl:
            if tokens.ref_logprobs is None:
                raise ValueError("a loss with kl > 0 needs the samples' ref_logprobs")
            form = {"k2": k2, "k3": k3}[self.config.kl_form]
            penalty = form(xp, tokens.logprobs, tokens.ref_logprobs)
            value, grad = value + self.config.kl * penalty[0], grad + self.config.kl * penalty[1]
        return Surrogate(value=value, grad=grad, metrics={**metrics, **divergences(xp, tokens)})

    def weights(self, xp: Any, tokens: TokenBatch) -> Any | None:
        """The factor of every token's policy term, shape (N,); None without a correction."""
        if self.config.correction is None:
            return None
        return xp.clip(self._ratios(xp, tokens), None, self.config.correction.cap)

    def _ratios(self, xp: Any, tokens: TokenBatch) -> Any:
        """old / behaviour, per token or over its sequence, shape (N,)."""
        if tokens.old is None:
            raise ValueError("a loss with a correction needs the samples' old_logprobs")
        difference = tokens.old - tokens.behaviour
        if self.config.correction.level == "sequence":
            difference = sequence_sums(xp, difference, tokens)
        return xp.exp(within(xp, difference)[0])

    def _mismatch(self, xp: Any, tokens: TokenBatch, weights: Any) -> dict[str, Any]:
        """Metrics of the correction: the mean weight, the share of capped weights, and two distances of
        engine and trainer: the mean |log old - log behaviour| and the k3 estimate of KL(behaviour || old)."""
        capped = self._ratios(xp, tokens) > self.config.correction.cap
        return {
            "correction": weights,
            "correction_capped": xp.where(capped, 1.0, 0.0),
            "correction_mismatch": xp.abs(tokens.old - tokens.behaviour),
            "correction_kl": k3(xp, tokens.behaviour, tokens.old)[0],
        }


def divergences(xp: Any, tokens: TokenBatch) -> dict[str, Any]:
    """Metrics of every loss: the ratio to the policy at the start of the update, and k3 estimates.

    That policy is the old one where samples have old log-probs, else the behaviour policy. `approx_kl`
    estimates its KL to the current policy; `kl_ref` estimates KL(pi || ref) where the samples have reference
    log-probs.
    """
    difference, _ = log_ratio(xp, tokens.logprobs, tokens.proximal)
    ratio = xp.exp(difference)
    metrics = {"ratio": ratio, "approx_kl": ratio - 1.0 - difference}
    if tokens.ref_logprobs is not None:
        metrics["kl_ref"] = k3(xp, tokens.logprobs, tokens.ref_logprobs)[0]
    return metrics
