"""The losses: golden numbers by hand, slopes against autograd, and every setting felt."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pydantic
import pytest

from coterie.core.protocols import Loss, TokenBatch
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.losses.reinforce import Reinforce

CASES: list[tuple[type, dict[str, Any]]] = [
    (PPOClip, {}),
    (PPOClip, {"clip_low": 0.1, "clip_high": 0.4}),
    (PPOClip, {"dual_clip": 3.0}),
    (PPOClip, {"kl": 0.3}),
    (PPOClip, {"kl": 0.3, "kl_form": "k2", "dual_clip": 1.5}),
    (Reinforce, {}),
    (Reinforce, {"kl": 0.7}),
    (Reinforce, {"kl": 0.7, "kl_form": "k2"}),
]


def make(kind: type, settings: dict[str, Any]) -> Any:
    return kind(kind.Config(**settings))


def batch(ratios: list[float], advantages: list[float], ref: list[float] | None = None) -> TokenBatch:
    """Tokens of behaviour probability e^-2 whose ratio to it, and to the reference, are given."""
    logprobs = np.log(np.array(ratios)) - 2.0
    return TokenBatch(
        logprobs=logprobs,
        behaviour=np.full(len(ratios), -2.0),
        advantages=np.array(advantages, dtype=np.float64),
        ref_logprobs=None if ref is None else logprobs + np.log(np.array(ref)),
    )


def random_batch(count: int, seed: int) -> TokenBatch:
    rng = np.random.default_rng(seed)
    logprobs = -rng.exponential(size=count)
    wide = rng.normal(scale=np.where(rng.random(count) < 0.1, 15.0, 0.7), size=count)
    return TokenBatch(
        logprobs=logprobs,
        behaviour=logprobs - wide,
        advantages=np.where(rng.random(count) < 0.1, 0.0, rng.normal(size=count)),
        ref_logprobs=logprobs + rng.normal(scale=0.5, size=count),
    )


def test_ppo_clip_by_hand() -> None:
    #            inside  cut above  pessimistic  cut below  pessimistic
    tokens = batch([1.1, 1.5, 1.5, 0.5, 0.5], [2.0, 2.0, -2.0, -2.0, 2.0])
    found = make(PPOClip, {})(np, tokens)
    np.testing.assert_allclose(found.value, [-2.2, -2.4, 3.0, 1.6, -1.0], atol=1e-12)
    np.testing.assert_allclose(found.slope, [-2.2, 0.0, 3.0, 0.0, -1.0], atol=1e-12)
    np.testing.assert_array_equal(found.metrics["clip_fraction"], [0, 1, 0, 1, 0])
    np.testing.assert_allclose(found.metrics["ratio"], [1.1, 1.5, 1.5, 0.5, 0.5], atol=1e-12)
    np.testing.assert_allclose(found.metrics["approx_kl"][1], 0.5 - math.log(1.5), atol=1e-12)


def test_the_two_bounds_are_separate() -> None:
    tokens = batch([1.3, 0.7], [1.0, -1.0])
    np.testing.assert_allclose(make(PPOClip, {"clip_high": 0.4})(np, tokens).value, [-1.3, 0.8], atol=1e-12)
    np.testing.assert_allclose(make(PPOClip, {"clip_low": 0.4})(np, tokens).value, [-1.2, 0.7], atol=1e-12)


def test_dual_clip_bounds_the_loss_of_bad_tokens_only() -> None:
    tokens = batch([5.0, 5.0, 2.0], [-1.0, 1.0, -1.0])
    found = make(PPOClip, {"dual_clip": 3.0})(np, tokens)
    np.testing.assert_allclose(found.value, [3.0, -1.2, 2.0], atol=1e-12)
    np.testing.assert_allclose(found.slope, [0.0, 0.0, 2.0], atol=1e-12)
    np.testing.assert_array_equal(found.metrics["clip_fraction"], [1, 1, 0])
    np.testing.assert_allclose(make(PPOClip, {})(np, tokens).value, [5.0, -1.2, 2.0], atol=1e-12)


def test_reinforce_by_hand() -> None:
    found = make(Reinforce, {})(np, batch([1.0, 2.0], [0.5, -3.0]))
    np.testing.assert_allclose(found.value, [1.0, 3.0 * (math.log(2.0) - 2.0)], atol=1e-12)
    np.testing.assert_allclose(found.slope, [-0.5, 3.0], atol=1e-12)
    assert "clip_fraction" not in found.metrics


def test_kl_terms_by_hand() -> None:
    tokens = batch([1.0], [0.0], ref=[2.0])  # ref / pi = 2
    k3 = make(Reinforce, {"kl": 0.5})(np, tokens)
    np.testing.assert_allclose(k3.value, [0.5 * (2.0 - 1.0 - math.log(2.0))], atol=1e-12)
    np.testing.assert_allclose(k3.slope, [0.5 * (1.0 - 2.0)], atol=1e-12)
    np.testing.assert_allclose(k3.metrics["kl_ref"], [1.0 - math.log(2.0)], atol=1e-12)
    k2 = make(PPOClip, {"kl": 0.5, "kl_form": "k2"})(np, tokens)
    np.testing.assert_allclose(k2.value, [0.25 * math.log(2.0) ** 2], atol=1e-12)
    np.testing.assert_allclose(k2.slope, [-0.5 * math.log(2.0)], atol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_slope_is_what_autograd_says(kind: type, settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    tokens = random_batch(400, seed=3)
    in_numpy = make(kind, settings)(np, tokens)
    logprobs = torch.tensor(tokens.logprobs, dtype=torch.float64, requires_grad=True)
    in_torch = make(kind, settings)(
        torch,
        TokenBatch(
            logprobs=logprobs,
            behaviour=torch.tensor(tokens.behaviour),
            advantages=torch.tensor(tokens.advantages),
            ref_logprobs=torch.tensor(tokens.ref_logprobs),
        ),
    )
    (gradient,) = torch.autograd.grad(in_torch.value.sum(), logprobs)
    np.testing.assert_allclose(in_torch.slope.detach().numpy(), gradient.numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(in_numpy.value, in_torch.value.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(in_numpy.slope, in_torch.slope.detach().numpy(), rtol=1e-10, atol=1e-12)
    assert set(in_numpy.metrics) == set(in_torch.metrics)
    for name, values in in_numpy.metrics.items():
        np.testing.assert_allclose(values, in_torch.metrics[name].detach().numpy(), rtol=1e-10, atol=1e-12)


def test_a_ratio_past_float_range_stays_finite() -> None:
    tokens = TokenBatch(
        logprobs=np.array([-1.0, -900.0], np.float32),
        behaviour=np.array([-900.0, -1.0], np.float32),
        advantages=np.array([-1.0, 1.0], np.float32),
        ref_logprobs=np.array([-900.0, -1.0], np.float32),
    )
    for kind, settings in CASES:
        found = make(kind, settings)(np, tokens)
        assert np.isfinite(found.value).all() and np.isfinite(found.slope).all()


def test_kl_is_what_asks_for_reference_logprobs() -> None:
    assert make(PPOClip, {}).needs == ()
    assert make(PPOClip, {"kl": 0.1}).needs == ("ref_logprobs",)
    with pytest.raises(ValueError, match="ref_logprobs"):
        make(Reinforce, {"kl": 0.1})(np, batch([1.0], [1.0]))


def test_k1_is_refused_with_the_reason() -> None:
    with pytest.raises(pydantic.ValidationError, match="expectation of its gradient is zero"):
        PPOClip.Config(kl=0.1, kl_form="k1")


@pytest.mark.parametrize("settings", [{"clip_low": 1}, {"dual_clip": 1}, {"entropy": -0.1}, {"clip": 0.2}])
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        PPOClip.Config(**settings)


def test_length_and_entropy_reach_the_protocol() -> None:
    assert make(PPOClip, {}).length == "token_mean"
    assert make(Reinforce, {}).length == "sequence_sum"
    found: Loss = make(PPOClip, {"length": "sequence_mean", "entropy": 0.01})
    assert (found.length, found.entropy) == ("sequence_mean", 0.01)
