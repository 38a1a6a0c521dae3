"""Every loss with every setting against a plain reference: a loop over tokens in float64, and autograd.

The reference knows neither coefficients nor gradients. Held against it is what a trainer with autograd gets,
and what the tabular trainer gets without it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest

from coterie.backends.models.minibatches import span_ids, token_coefficients
from coterie.backends.models.policy import TabularPolicy
from coterie.backends.models.table import LogitTable, log_softmax, table_words
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.protocols import TokenBatch, TrainerContext
from coterie.core.types import Key, Sample, Span
from coterie.testing import build

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

WORDS = ("left", "right", "up")
COLUMNS = LogitTable(table_words(WORDS)).columns
LENGTHS = ("token_mean", "sequence_mean", "sequence_sum", "constant")
CORRECTIONS = (None, {"level": "token"}, {"level": "sequence", "cap": 1.4})
BOUNDS = {
    "ppo_clip": {"clip_low": 0.1, "clip_high": 0.3},
    "gspo": {"clip_low": 0.05, "clip_high": 0.1},
    "cispo": {"clip_low": 0.6, "clip_high": 0.2},
    "reinforce": {},
}
ANSWERS = ((2, 1.0, 1.0), (3, 2.0, 0.8), (1, 0.5, 1.0), (5, 1.0, 1.3), (4, 1.0, 1.0))
"""Tokens, weight and temperature of each sequence."""


def opened(loss: Any) -> TabularTrainer:
    trainer = TabularTrainer(TabularTrainer.Config(learning_rate=1.0))
    ctx = TrainerContext(
        policies={"p": TabularPolicy(model={"init": "tabular"})},
        loss=loss,
        chat=None,  # type: ignore[arg-type]
        seed=0,
        deterministic=True,
        vocabulary=WORDS,
    )
    asyncio.run(trainer.open(ctx))
    return trainer


def played(trainer: TabularTrainer) -> list[Sample]:
    """Answers of a table that is not uniform; the behaviour, old and reference policies lie around it."""
    rng = np.random.default_rng(7)
    table = trainer.policies["p"].table
    samples = []
    for number, (count, weight, temperature) in enumerate(ANSWERS):
        ids = np.concatenate([[900 + number, 901], rng.choice(table.ids, count)])
        mask = np.arange(len(ids)) >= 2
        now = np.zeros(len(ids))
        for at in range(2, len(ids)):
            context = tuple(ids[:at].tolist())
            table.rows[context] = rng.normal(size=len(table.ids))
            now[at] = log_softmax(table.rows[context] / temperature)[table.columns[int(ids[at])]]

        def near(scale: float, base: np.ndarray, mask: np.ndarray = mask) -> np.ndarray:
            return np.where(mask, base + rng.normal(scale=scale, size=len(mask)), 0).astype(np.float32)

        old = near(0.3, now)
        key = Key("t").of_branch("solver", number)
        samples.append(
            Sample(
                key=key,
                policy="p",
                token_ids=ids,
                loss_mask=mask,
                logprobs=near(0.4, old),
                advantages=np.where(mask, rng.normal(size=len(ids)), 0).astype(np.float32),
                spans=(Span(2, len(ids), key, weight),),
                version=0,
                temperature=temperature,
                prompt_tokens=2,
                extras={"ref_logprobs": near(0.5, now), "old_logprobs": old},
            )
        )
    return samples


# ------------------------------------------------------------------------------------------------ reference


def reference(name: str, settings: dict[str, Any], samples: list[Sample], rows: list[Any]) -> Any:
    """The whole loss, one number; `rows` are the logits, shape (tokens, V) a sample."""
    total, denominator = 0.0, 0.0
    for sample, logits in zip(samples, rows, strict=True):
        at = np.flatnonzero(sample.loss_mask)
        logprobs = torch.log_softmax(logits / sample.temperature, dim=-1)
        behaviour, advantages, ref, old = (
            [float(array[place]) for place in at]
            for array in (
                sample.logprobs,
                sample.advantages,
                sample.extras["ref_logprobs"],
                sample.extras["old_logprobs"],
            )
        )
        current = [logprobs[index, columns(sample)[index]] for index in range(len(at))]
        objectives = policy_terms(name, current, old if settings["correction"] else behaviour, advantages)
        per_token = []
        for index, term in enumerate(objectives):
            weight = importance(settings["correction"], old, behaviour, index)
            pull = current[index] - ref[index]
            kl = {"k2": pull**2 / 2, "k3": torch.exp(-pull) - 1 + pull}[settings["kl_form"]]
            entropy = -(logprobs[index].exp() * logprobs[index]).sum()
            per_token.append(weight * term + settings["kl"] * kl - settings["entropy"] * entropy)
        weight, count = sample.spans[0].weight, len(at)
        match settings["length"]:
            case "token_mean":
                total, denominator = total + weight * sum(per_token), denominator + weight * count
            case "sequence_mean":
                total, denominator = total + weight * sum(per_token) / count, denominator + weight
            case "sequence_sum":
                total, denominator = total + weight * sum(per_token), denominator + weight
            case "constant":
                total, denominator = total + weight * sum(per_token), denominator + weight * 6.0
    return total / denominator


def columns(sample: Sample) -> list[int]:
    """Which column of its row each sampled token is."""
    return [COLUMNS[index] for index in sample.token_ids[sample.loss_mask].tolist()]


def importance(correction: Any, old: list[float], behaviour: list[float], index: int) -> float:
    if correction is None:
        return 1.0
    gaps = [mine - theirs for mine, theirs in zip(old, behaviour, strict=True)]
    gap = gaps[index] if correction["level"] == "token" else sum(gaps)
    return min(float(np.exp(gap)), correction.get("cap", 2.0))


def policy_terms(name: str, current: list[Any], center: list[float], advantages: list[float]) -> list[Any]:
    low, high = (BOUNDS[name].get(side, 0.0) for side in ("clip_low", "clip_high"))
    ratios = [torch.exp(mine - other) for mine, other in zip(current, center, strict=True)]
    if name == "reinforce":
        return [-advantage * mine for mine, advantage in zip(current, advantages, strict=True)]
    if name == "cispo":
        bounded = [float(ratio.detach().clamp(1 - low, 1 + high)) for ratio in ratios]
        return [-w * a * mine for w, a, mine in zip(bounded, advantages, current, strict=True)]
    if name == "gspo":
        whole = torch.exp(
            sum(mine - other for mine, other in zip(current, center, strict=True)) / len(current)
        )
        ratios, advantages = [whole] * len(current), [sum(advantages) / len(current)] * len(current)
    return [
        -torch.minimum(ratio * a, ratio.clamp(1 - low, 1 + high) * a)
        for ratio, a in zip(ratios, advantages, strict=True)
    ]


# ------------------------------------------------------------------------------------------------ the tests


def logits_of(trainer: TabularTrainer, samples: list[Sample]) -> list[np.ndarray]:
    table = trainer.policies["p"].table
    return [
        np.stack([table.logits(tuple(s.token_ids[:at].tolist())) for at in np.flatnonzero(s.loss_mask)])
        for s in samples
    ]


def by_autograd(loss: Any, samples: list[Sample], rows: list[Any]) -> Any:
    """As a trainer with autograd has it, in one batch."""
    logprobs = [torch.log_softmax(row / s.temperature, dim=-1) for s, row in zip(samples, rows, strict=True)]
    current = [part[torch.arange(len(part)), columns(s)] for s, part in zip(samples, logprobs, strict=True)]
    entropy = torch.cat([-(part.exp() * part).sum(-1) for part in logprobs])

    def trained(arrays: list[np.ndarray]) -> Any:
        parts = [array[s.loss_mask] for s, array in zip(samples, arrays, strict=True)]
        return torch.from_numpy(np.concatenate(parts).astype(np.float64))

    sequence, sequences = span_ids(samples)
    tokens = TokenBatch(
        logprobs=torch.cat(current),
        behaviour=trained([s.logprobs for s in samples]),
        advantages=trained([s.advantages for s in samples]),
        ref_logprobs=trained([s.extras["ref_logprobs"] for s in samples]),
        old=trained([s.extras["old_logprobs"] for s in samples]) if "old_logprobs" in loss.needs else None,
        sequence=torch.from_numpy(sequence),
        sequences=sequences,
    )
    shares = trained(token_coefficients(samples, loss.length, loss.length_constant))
    return (shares * (loss(torch, tokens).value - loss.entropy * entropy)).sum()


def without_old(sample: Sample) -> Sample:
    """What a run without a correction gives a trainer."""
    return dataclasses.replace(sample, extras={"ref_logprobs": sample.extras["ref_logprobs"]})


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda one: one["level"] if one else "uncorrected")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", BOUNDS)
def test_values_and_gradients_are_those_of_the_reference(name: str, length: str, correction: Any) -> None:
    for (kl, kl_form), entropy in (((0.0, "k3"), 0.0), ((0.4, "k3"), 0.3), ((0.4, "k2"), 0.0)):
        settings = {
            "length": length, "kl": kl, "kl_form": kl_form, "entropy": entropy, "correction": correction,
        }  # fmt: skip
        constant = {"length_constant": 6.0} if length == "constant" else {}
        loss = build("loss", {"type": name, **BOUNDS[name], **settings, **constant})
        trainer = opened(loss)
        samples = played(trainer)
        before = logits_of(trainer, samples)

        wanted, logprobs = (
            [torch.tensor(row, requires_grad=True) for row in before] for _ in ("reference", "found")
        )
        value = reference(name, settings, samples, wanted)
        value.backward()
        number = float(value.detach())
        gradients = [row.grad.numpy() for row in wanted]
        own = by_autograd(loss, samples, logprobs)
        own.backward()
        assert float(own.detach()) == pytest.approx(number, rel=1e-6, abs=1e-7)
        for row, gradient in zip(logprobs, gradients, strict=True):
            np.testing.assert_allclose(row.grad.numpy(), gradient, rtol=1e-6, atol=1e-7)

        given = samples if correction else [without_old(sample) for sample in samples]
        metrics = asyncio.run(trainer.update({"p": given}, 1))["p"]
        assert metrics["loss"] == pytest.approx(number, rel=1e-6, abs=1e-7)
        for row, after, gradient in zip(before, logits_of(trainer, samples), gradients, strict=True):
            np.testing.assert_allclose(row - after, gradient, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["ppo_clip", "gspo", "cispo"])
def test_the_samples_lie_on_both_sides_of_every_bound(name: str) -> None:
    trainer = opened(build("loss", {"type": name, **BOUNDS[name], "correction": CORRECTIONS[2]}))
    metrics = asyncio.run(trainer.update({"p": played(trainer)}, 1))["p"]
    assert 0 < metrics["clip_fraction"] < 1
    assert 0 < metrics["correction_capped"] < 1
