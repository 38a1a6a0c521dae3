"""The losses: golden numbers by hand, gradients against autograd, and the effect of every setting."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pydantic
import pytest

from coterie.core.errors import ConfigError, PluginError
from coterie.core.protocols import Loss, TokenBatch
from coterie.plugins.losses.blocks.common import TokenLoss
from coterie.plugins.losses.cispo import CISPO
from coterie.plugins.losses.gspo import GSPO
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.losses.reinforce import ReinforceLoss
from coterie.testing import build

LOSSES: tuple[type, ...] = (CISPO, GSPO, PPOClip, ReinforceLoss)
CASES: list[tuple[type, dict[str, Any]]] = [
    (PPOClip, {"clip_low": 0.1, "clip_high": 0.4}),
    (PPOClip, {"dual_clip": 3.0}),
    (PPOClip, {"kl": 0.3, "kl_form": "k2", "dual_clip": 1.5}),
    (GSPO, {"clip_low": 0.2, "clip_high": 0.3}),
    (CISPO, {"clip_low": 0.3, "clip_high": 0.5}),
    *[
        (kind, settings)
        for kind in LOSSES
        for settings in (
            {},
            {"kl": 0.7},
            {"kl": 0.7, "kl_form": "k2"},
            {"correction": {}},
            {"correction": {"level": "sequence", "cap": 3.0}, "kl": 0.3},
        )
    ],
]


def make(kind: type, settings: dict[str, Any]) -> Any:
    return kind(kind.Config(**settings))


def batch(
    ratios: list[float],
    advantages: list[float],
    *,
    ref: list[float] | None = None,
    engine: list[float] | None = None,
    lengths: list[int] | None = None,
) -> TokenBatch:
    """Tokens of old probability e^-2.

    Args:
        ratios: pi / old.
        ref: reference / pi.
        engine: old / behaviour; None: there is no old policy besides the behaviour's.
        lengths: of the sequences, one after another.
    """
    logprobs = np.log(np.array(ratios)) - 2.0
    old = np.full(len(ratios), -2.0)
    return TokenBatch(
        logprobs=logprobs,
        behaviour=old if engine is None else old - np.log(np.array(engine)),
        advantages=np.array(advantages, dtype=np.float64),
        ref_logprobs=None if ref is None else logprobs + np.log(np.array(ref)),
        old=None if engine is None else old,
        sequence=None if lengths is None else np.repeat(np.arange(len(lengths)), lengths),
        sequences=len(lengths or ()),
    )


def random_batch(count: int, seed: int) -> TokenBatch:
    """Sequences of 1 to 9 tokens, some of them moved past any ratio, some hardly."""
    rng = np.random.default_rng(seed)
    sequence = np.repeat(np.arange(count), rng.integers(1, 10, count))[:count]
    logprobs = -rng.exponential(size=count)
    wide = rng.normal(scale=np.where(rng.random(count) < 0.1, 15.0, 0.7), size=count)
    old = logprobs - wide * np.where(rng.random(count) < 0.3, 1e-3, 1.0)[sequence]
    return TokenBatch(
        logprobs=logprobs,
        behaviour=old - rng.normal(scale=0.5, size=count),
        advantages=np.where(rng.random(count) < 0.1, 0.0, rng.normal(size=count)),
        ref_logprobs=logprobs + rng.normal(scale=0.5, size=count),
        old=old,
        sequence=sequence,
        sequences=int(sequence[-1]) + 1,
    )


def in_torch(tokens: TokenBatch, **changed: Any) -> TokenBatch:
    import torch

    arrays = {
        field.name: torch.from_numpy(value)
        for field in dataclasses.fields(tokens)
        if isinstance(value := getattr(tokens, field.name), np.ndarray)
    }
    return dataclasses.replace(tokens, **{**arrays, **changed})


def test_ppo_clip_by_hand() -> None:
    #            inside  cut above  pessimistic  cut below  pessimistic
    tokens = batch([1.1, 1.5, 1.5, 0.5, 0.5], [2.0, 2.0, -2.0, -2.0, 2.0])
    surrogate = make(PPOClip, {})(np, tokens)
    np.testing.assert_allclose(surrogate.value, [-2.2, -2.4, 3.0, 1.6, -1.0], atol=1e-12)
    np.testing.assert_allclose(surrogate.grad, [-2.2, 0.0, 3.0, 0.0, -1.0], atol=1e-12)
    np.testing.assert_array_equal(surrogate.metrics["clip_fraction"], [0, 1, 0, 1, 0])
    np.testing.assert_allclose(surrogate.metrics["ratio"], [1.1, 1.5, 1.5, 0.5, 0.5], atol=1e-12)
    np.testing.assert_allclose(surrogate.metrics["approx_kl"][1], 0.5 - math.log(1.5), atol=1e-12)


def test_the_two_bounds_are_separate() -> None:
    tokens = batch([1.3, 0.7], [1.0, -1.0])
    np.testing.assert_allclose(make(PPOClip, {"clip_high": 0.4})(np, tokens).value, [-1.3, 0.8], atol=1e-12)
    np.testing.assert_allclose(make(PPOClip, {"clip_low": 0.4})(np, tokens).value, [-1.2, 0.7], atol=1e-12)


def test_dual_clip_bounds_the_loss_of_bad_tokens_only() -> None:
    tokens = batch([5.0, 5.0, 2.0], [-1.0, 1.0, -1.0])
    surrogate = make(PPOClip, {"dual_clip": 3.0})(np, tokens)
    np.testing.assert_allclose(surrogate.value, [3.0, -1.2, 2.0], atol=1e-12)
    np.testing.assert_allclose(surrogate.grad, [0.0, 0.0, 2.0], atol=1e-12)
    np.testing.assert_array_equal(surrogate.metrics["clip_fraction"], [1, 1, 0])
    np.testing.assert_allclose(make(PPOClip, {})(np, tokens).value, [5.0, -1.2, 2.0], atol=1e-12)


def test_reinforce_by_hand() -> None:
    surrogate = make(ReinforceLoss, {})(np, batch([1.0, 2.0], [0.5, -3.0]))
    np.testing.assert_allclose(surrogate.value, [1.0, 3.0 * (math.log(2.0) - 2.0)], atol=1e-12)
    np.testing.assert_allclose(surrogate.grad, [-0.5, 3.0], atol=1e-12)
    assert "clip_fraction" not in surrogate.metrics


def test_kl_terms_by_hand() -> None:
    tokens = batch([1.0], [0.0], ref=[2.0])
    k3 = make(ReinforceLoss, {"kl": 0.5})(np, tokens)
    np.testing.assert_allclose(k3.value, [0.5 * (2.0 - 1.0 - math.log(2.0))], atol=1e-12)
    np.testing.assert_allclose(k3.grad, [0.5 * (1.0 - 2.0)], atol=1e-12)
    np.testing.assert_allclose(k3.metrics["kl_ref"], [1.0 - math.log(2.0)], atol=1e-12)
    k2 = make(PPOClip, {"kl": 0.5, "kl_form": "k2"})(np, tokens)
    np.testing.assert_allclose(k2.value, [0.25 * math.log(2.0) ** 2], atol=1e-12)
    np.testing.assert_allclose(k2.grad, [-0.5 * math.log(2.0)], atol=1e-12)


def test_gspo_by_hand() -> None:
    """Geometric means of the ratios: 1.2, .5, 1.05 and 2; mean advantages: 2, -1, -2 and -1."""
    tokens = batch(
        [1.44, 1.0, 0.5, 1.0, 0.25, 1.05, 4.0, 1.0],
        [1.0, 3.0, -1.0, -1.0, -1.0, -2.0, 0.0, -2.0],
        lengths=[2, 3, 1, 2],
    )
    surrogate = make(GSPO, {"clip_low": 0.2, "clip_high": 0.1})(np, tokens)
    #                                             cut above   cut below   inside  pessimistic
    np.testing.assert_allclose(surrogate.value, [-2.2, -2.2, 0.8, 0.8, 0.8, 2.1, 2.0, 2.0], atol=1e-12)
    np.testing.assert_allclose(surrogate.grad, [0.0, 0.0, 0.0, 0.0, 0.0, 2.1, 2.0, 2.0], atol=1e-12)
    np.testing.assert_array_equal(surrogate.metrics["clip_fraction"], [1, 1, 1, 1, 1, 0, 0, 0])
    ratios = [1.2, 1.2, 0.5, 0.5, 0.5, 1.05, 2.0, 2.0]
    np.testing.assert_allclose(surrogate.metrics["sequence_ratio"], ratios, atol=1e-12)
    np.testing.assert_allclose(surrogate.metrics["ratio"][:3], [1.44, 1.0, 0.5], atol=1e-12)


def test_the_range_of_gspo_is_that_of_the_paper() -> None:
    """Cut above 1 + 4e-4 and below 1 - 3e-4; a hundred tokens of one ratio have that ratio."""
    ratios = [1.00035, 1.00045, 0.99975, 0.99965]
    lengths = [100] * 4
    tokens = batch(np.repeat(ratios, 100).tolist(), np.repeat([1, 1, -1, -1], 100).tolist(), lengths=lengths)
    surrogate = make(GSPO, {})(np, tokens)
    np.testing.assert_allclose(surrogate.value[::100], [-1.00035, -1.0004, 0.99975, 0.9997], atol=1e-12)
    np.testing.assert_allclose(surrogate.grad[::100], [-1.00035, 0.0, 0.99975, 0.0], atol=1e-12)
    assert make(GSPO, {}).length == "sequence_mean"


@pytest.mark.parametrize("library", ["numpy", pytest.param("torch", marks=pytest.mark.torch)])
@pytest.mark.parametrize("settings", [{}, {"correction": {"level": "sequence"}}])
def test_what_else_is_in_the_batch_does_not_change_a_sequence(settings: Any, library: str) -> None:
    xp = pytest.importorskip(library)
    tokens = random_batch(60, seed=5)
    loss = make(GSPO, settings)
    together = loss(xp, in_torch(tokens) if library == "torch" else tokens)
    for number in range(tokens.sequences):
        members = tokens.sequence == number
        arrays = {
            field.name: getattr(tokens, field.name)[members]
            for field in dataclasses.fields(tokens)
            if field.name != "sequences"
        }
        alone = TokenBatch(**{**arrays, "sequence": np.zeros(members.sum(), np.int64), "sequences": 1})
        surrogate = loss(xp, in_torch(alone) if library == "torch" else alone)
        for part in ("value", "grad"):
            np.testing.assert_array_equal(getattr(surrogate, part), getattr(together, part)[members])


def test_a_loss_of_whole_sequences_needs_to_know_them() -> None:
    for kind, settings in ((GSPO, {}), (ReinforceLoss, {"correction": {"level": "sequence"}})):
        with pytest.raises(ValueError, match="needs `sequence`"):
            make(kind, settings)(np, batch([1.0], [1.0], engine=[1.0]))


def test_cispo_by_hand() -> None:
    tokens = batch([0.1, 1.5, 9.0], [2.0, -1.0, 1.0])
    surrogate = make(CISPO, {})(np, tokens)
    grad = np.array([-0.2, 1.5, -5.0])  # weights .1, 1.5 and, of 9, the bound 5
    np.testing.assert_allclose(surrogate.grad, grad, atol=1e-12)
    np.testing.assert_allclose(surrogate.value, grad * (np.log([0.1, 1.5, 9.0]) - 2.0), atol=1e-12)
    np.testing.assert_array_equal(surrogate.metrics["clip_fraction"], [0, 0, 1])
    both = make(CISPO, {"clip_low": 0.2, "clip_high": 0.3})(np, tokens)
    np.testing.assert_allclose(both.grad, [-1.6, 1.3, -1.3], atol=1e-12)
    np.testing.assert_array_equal(both.metrics["clip_fraction"], [1, 1, 1])


def test_cispo_keeps_the_gradient_that_the_clip_takes() -> None:
    tokens = batch([1.5, 0.5], [1.0, -1.0])
    np.testing.assert_array_equal(make(PPOClip, {})(np, tokens).grad, [0.0, 0.0])
    np.testing.assert_allclose(make(CISPO, {})(np, tokens).grad, [-1.5, 0.5], atol=1e-12)


def test_a_correction_by_hand() -> None:
    """old / behaviour is .5, 3 and 1.6; pi / old is 1.1 and two that PPO clips."""
    tokens = batch([1.1, 1.5, 0.5], [1.0, 2.0, -1.0], engine=[0.5, 3.0, 1.6], lengths=[2, 1])
    surrogate = make(PPOClip, {"correction": {}})(np, tokens)
    np.testing.assert_allclose(surrogate.value, [-0.5 * 1.1, -2.0 * 2.4, 1.6 * 0.8], atol=1e-12)
    np.testing.assert_allclose(surrogate.grad, [-0.5 * 1.1, 0.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(surrogate.metrics["correction"], [0.5, 2.0, 1.6], atol=1e-12)
    np.testing.assert_array_equal(surrogate.metrics["correction_capped"], [0, 1, 0])
    gaps = np.log([2.0, 3.0, 1.6])
    np.testing.assert_allclose(surrogate.metrics["correction_mismatch"], gaps, atol=1e-12)
    kl = [0.5 - 1 + math.log(2), 3 - 1 - math.log(3), 1.6 - 1 - math.log(1.6)]
    np.testing.assert_allclose(surrogate.metrics["correction_kl"], kl, atol=1e-12)
    np.testing.assert_allclose(surrogate.metrics["ratio"], [1.1, 1.5, 0.5], atol=1e-12)


def test_a_correction_of_sequences_by_hand() -> None:
    """The ratios' products are 1.5 and 1.6."""
    tokens = batch([1.0, 1.0, 1.0], [1.0, 2.0, -1.0], engine=[0.5, 3.0, 1.6], lengths=[2, 1])
    surrogate = make(ReinforceLoss, {"correction": {"level": "sequence"}})(np, tokens)
    np.testing.assert_allclose(surrogate.grad, [-1.5, -3.0, 1.6], atol=1e-12)
    np.testing.assert_allclose(surrogate.value, [3.0, 6.0, -3.2], atol=1e-12)
    capped = make(ReinforceLoss, {"correction": {"level": "sequence", "cap": 1.55}})(np, tokens)
    np.testing.assert_allclose(capped.grad, [-1.5, -3.0, 1.55], atol=1e-12)
    np.testing.assert_array_equal(capped.metrics["correction_capped"], [0, 0, 1])


def test_a_correction_by_tokens_counts_in_gspo_with_its_mean() -> None:
    tokens = batch([1.0, 1.0, 1.0], [1.0, 1.0, -1.0], engine=[0.5, 3.0, 1.6], lengths=[2, 1])
    surrogate = make(GSPO, {"correction": {}})(np, tokens)
    np.testing.assert_allclose(surrogate.grad, [-1.25, -1.25, 1.6], atol=1e-12)  # (.5 + 2) / 2


@pytest.mark.parametrize("kind", LOSSES)
def test_a_correction_leaves_the_kl_term_alone(kind: type) -> None:
    tokens = batch([1.0, 1.0], [0.0, 0.0], ref=[2.0, 2.0], engine=[3.0, 0.5], lengths=[2])
    surrogate = make(kind, {"kl": 0.5, "correction": {}})(np, tokens)
    np.testing.assert_allclose(surrogate.grad, [-0.5, -0.5], atol=1e-12)


def test_without_a_correction_the_old_policy_is_the_behaviour_policy() -> None:
    tokens = random_batch(50, seed=1)
    for kind in LOSSES:
        same = dataclasses.replace(tokens, old=tokens.behaviour)
        alone = make(kind, {})(np, dataclasses.replace(tokens, old=None))
        np.testing.assert_array_equal(alone.grad, make(kind, {})(np, same).grad)
        weighed = make(kind, {"correction": {}})(np, same)  # weights of 1
        np.testing.assert_allclose(weighed.grad, alone.grad, rtol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(("kind", "settings"), CASES)
def test_grad_is_that_of_autograd(kind: type, settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    tokens = random_batch(400, seed=3)
    in_numpy = make(kind, settings)(np, tokens)
    logprobs = torch.tensor(tokens.logprobs, dtype=torch.float64, requires_grad=True)
    surrogate = make(kind, settings)(torch, in_torch(tokens, logprobs=logprobs))
    (gradient,) = torch.autograd.grad(surrogate.value.sum(), logprobs)
    np.testing.assert_allclose(surrogate.grad.detach().numpy(), gradient.numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(in_numpy.value, surrogate.value.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(in_numpy.grad, surrogate.grad.detach().numpy(), rtol=1e-10, atol=1e-12)
    assert set(in_numpy.metrics) == set(surrogate.metrics)
    for name, values in in_numpy.metrics.items():
        np.testing.assert_allclose(values, surrogate.metrics[name].detach().numpy(), rtol=1e-10, atol=1e-12)


def test_a_ratio_past_float_range_stays_finite() -> None:
    far, near = np.array([-1.0, -900.0], np.float32), np.array([-900.0, -1.0], np.float32)
    tokens = TokenBatch(
        logprobs=far,
        behaviour=near,
        advantages=np.array([-1.0, 1.0], np.float32),
        ref_logprobs=near,
        old=far,
        sequence=np.array([0, 1]),
        sequences=2,
    )
    for kind, settings in CASES:
        surrogate = make(kind, settings)(np, tokens)
        assert np.isfinite(surrogate.value).all() and np.isfinite(surrogate.grad).all()
        assert surrogate.value.dtype == surrogate.grad.dtype == np.float32


def test_needs_are_what_the_settings_read() -> None:
    assert make(PPOClip, {}).needs == ()
    assert make(PPOClip, {"kl": 0.1}).needs == ("ref_logprobs",)
    assert make(GSPO, {"correction": {}}).needs == ("old_logprobs",)
    assert make(CISPO, {"correction": {}, "kl": 0.1}).needs == ("ref_logprobs", "old_logprobs")
    with pytest.raises(ValueError, match="ref_logprobs"):
        make(ReinforceLoss, {"kl": 0.1})(np, batch([1.0], [1.0]))
    with pytest.raises(ValueError, match="old_logprobs"):
        make(ReinforceLoss, {"correction": {}})(np, batch([1.0], [1.0]))


def test_k1_is_refused_with_the_reason() -> None:
    with pytest.raises(pydantic.ValidationError, match="expectation of its gradient is zero"):
        PPOClip.Config(kl=0.1, kl_form="k1")


@pytest.mark.parametrize(
    "settings",
    [
        {"clip_low": 1},
        {"dual_clip": 1},
        {"entropy": -0.1},
        {"clip": 0.2},
        {"correction": {"cap": 0.9}},
        {"correction": {"level": "turn"}},
        {"length": "constant", "length_constant": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(pydantic.ValidationError):
        PPOClip.Config(**settings)


@pytest.mark.parametrize("name", ["cispo", "gspo", "ppo_clip", "reinforce"])
def test_the_constant_goes_with_its_rule(name: str) -> None:
    with pytest.raises(ConfigError, match="divides every sequence's sum by this number") as missing:
        build("loss", {"type": name, "length": "constant"})
    with pytest.raises(ConfigError, match="the length `sequence_mean` doesn't use it") as idle:
        build("loss", {"type": name, "length": "sequence_mean", "length_constant": 64})
    assert missing.value.path == idle.value.path == "loss.length_constant"
    loss = build("loss", {"type": name, "length": "constant", "length_constant": 64})
    assert (loss.length, loss.length_constant) == ("constant", 64.0)


def test_length_and_entropy_reach_the_protocol() -> None:
    defaults = {kind: make(kind, {}).length for kind in LOSSES}
    assert defaults == {
        CISPO: "token_mean", GSPO: "sequence_mean", PPOClip: "token_mean", ReinforceLoss: "sequence_sum",
    }  # fmt: skip
    for kind in LOSSES:
        loss: Loss = make(kind, {"length": "token_mean", "entropy": 0.01})
        assert (loss.length, loss.entropy) == ("token_mean", 0.01)


@pytest.mark.parametrize("name", ["length", "length_constant", "entropy", "needs"])
def test_a_class_attribute_that_the_base_would_overwrite_is_refused(name):
    with pytest.raises(PluginError, match=f"sets `{name}`, which TokenLoss takes from its Config"):
        type("Own", (TokenLoss,), {name: "constant"})()
