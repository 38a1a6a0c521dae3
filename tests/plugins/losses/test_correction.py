"""The correction: a plain loop, finite differences, tokens of several versions, and updates of many steps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from coterie.core.protocols import TokenBatch
from coterie.plugins.losses.cispo import CISPO
from coterie.plugins.losses.gspo import GSPO
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.losses.reinforce import ReinforceLoss
from tests.core.training.steps_ahead import asynchronous
from tests.core.training.test_steps_in_play import MATRIX
from tests.plugins.losses.test_losses import make, random_batch

RANGES = {
    PPOClip: {"clip_low": 0.2, "clip_high": 0.3},
    GSPO: {"clip_low": 0.1, "clip_high": 0.2},
    CISPO: {"clip_low": 0.4, "clip_high": 0.5},
    ReinforceLoss: {},
}
CORRECTIONS = [{"level": level, "cap": cap} for level in ("token", "sequence") for cap in (1.0, 1.5, 1e9)]


def calm(seed: int) -> TokenBatch:
    """Sequences whose ratios lie on both sides of the bounds, and far from where log-ratios are cut."""
    tokens = random_batch(120, seed)
    drift, gap = np.random.default_rng(seed).normal(scale=[[0.25], [0.4]], size=(2, 120))
    old = tokens.logprobs - drift
    return dataclasses.replace(tokens, old=old, behaviour=old - gap)


def plainly(kind: type, correction: dict[str, Any], tokens: TokenBatch) -> list[Callable[[float], float]]:
    """Of each token, the sum of all values as a function of a change of its log-prob."""
    low, high = (RANGES[kind].get(side, 0.0) for side in ("clip_low", "clip_high"))
    members = [np.flatnonzero(tokens.sequence == number).tolist() for number in range(tokens.sequences)]

    def weight(at: int, mine: list[int]) -> float:
        gaps = {token: tokens.old[token] - tokens.behaviour[token] for token in mine}
        of = gaps[at] if correction["level"] == "token" else sum(gaps.values())
        return min(math.exp(of), correction["cap"])

    def clipped(ratio: float, advantage: float) -> float:
        return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)

    def total(mine: list[int], moved: int, change: float) -> float:
        now = {token: tokens.logprobs[token] + change * (token == moved) for token in mine}
        weights = [weight(token, mine) for token in mine]
        if kind is GSPO:
            ratio = math.exp(sum(now[token] - tokens.old[token] for token in mine) / len(mine))
            mean = sum(tokens.advantages[token] for token in mine) / len(mine)
            return -sum(weights) * clipped(ratio, mean)  # every token has the mean weight
        whole = 0.0
        for token, factor in zip(mine, weights, strict=True):
            advantage, ratio = tokens.advantages[token], math.exp(now[token] - tokens.old[token])
            if kind is PPOClip:
                whole -= factor * clipped(ratio, advantage)
            else:  # a weight without gradient, so that of the unmoved log-prob
                fixed = math.exp(tokens.logprobs[token] - tokens.old[token])
                bounded = min(max(fixed, 1 - low), 1 + high) if kind is CISPO else 1.0
                whole -= factor * bounded * advantage * now[token]
        return whole

    def of_token(at: int) -> Callable[[float], float]:
        return lambda change: total(members[tokens.sequence[at]], at, change)

    return [of_token(at) for at in range(len(tokens.logprobs))]


@pytest.mark.parametrize("correction", CORRECTIONS, ids=lambda one: f"{one['level']}-{one['cap']:g}")
@pytest.mark.parametrize("kind", RANGES)
def test_values_are_a_plain_loops_and_gradients_finite_differences(kind, correction):
    tokens = calm(seed=11)
    surrogate = make(kind, {**RANGES[kind], "correction": correction})(np, tokens)
    functions, tiny = plainly(kind, correction, tokens), 1e-6
    for number in range(tokens.sequences):
        mine = np.flatnonzero(tokens.sequence == number)
        assert surrogate.value[mine].sum() == pytest.approx(functions[mine[0]](0.0), rel=1e-9, abs=1e-9)
    differences = [(function(tiny) - function(-tiny)) / (2 * tiny) for function in functions]
    np.testing.assert_allclose(surrogate.grad, differences, rtol=1e-6, atol=1e-7)
    if kind is not ReinforceLoss:
        assert 0 < surrogate.metrics["clip_fraction"].mean() < 1
    capped = surrogate.metrics["correction_capped"].mean()
    assert capped == 0 if correction["cap"] == 1e9 else 0 < capped < 1


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("play", ["pinned", "in_flight"])
def test_the_centre_is_of_the_updates_start_in_every_minibatch_and_epoch(monkeypatch, play, level):
    """4 optimiser steps an update: the first begins at the old policy, later ones have left it."""
    seen: list[TokenBatch] = []
    plain = PPOClip.__call__

    def noted(self, xp, tokens):
        seen.append(tokens)
        return plain(self, xp, tokens)

    monkeypatch.setattr(PPOClip, "__call__", noted)
    loss = f"loss={{type: ppo_clip, correction: {{cap: 1.05, level: {level}}}}}"
    settings = ["schedule.steps=4", "schedule.evaluate_every=0", f"schedule.play={play}"]
    settings += ["trainer.epochs=2", "trainer.minibatch_size=8", loss]
    record = asynchronous(MATRIX, 2, 5, *settings, most=0.004)
    assert len(seen) == 4 * 2 * 4, "steps, policies, and 2 minibatches twice"
    policies = [name for name in ("row", "column") if f"policy/{name}/loss" in record.rows[0]]
    updates = [seen[begin : begin + 4] for begin in range(0, len(seen), 4)]
    moved = 0
    for number, batches in enumerate(updates):
        np.testing.assert_allclose(batches[0].logprobs, batches[0].old, atol=1e-6)
        assert sorted(np.concatenate([b.old for b in batches[:2]])) == sorted(
            np.concatenate([b.old for b in batches[2:]])
        ), "the second epoch has the same centre"
        moved += float(np.abs(batches[3].logprobs - batches[3].old).max()) > 1e-3
        row = record.rows[number // 2]
        weights = np.concatenate([np.exp(b.old - b.behaviour) for b in batches])  # sequences of one token
        found = [row[f"policy/{name}/correction"] for name in policies]
        assert any(value == pytest.approx(np.minimum(weights, 1.05).mean(), rel=1e-6) for value in found)
        if play == "pinned":
            stale = number >= 2
            assert (np.abs(weights - 1).max() > 1e-3) == stale, "the first step's tokens are fresh"
    assert moved > 4


@pytest.mark.torch
def test_each_token_of_a_sample_of_several_versions_is_corrected_from_its_own():
    """The behaviour log-probs of versions 0, 1 and 2 lie in one sample; the old policy is version 2."""
    pytest.importorskip("transformers")
    from coterie.backends.trainers.update_metrics import drawn_by
    from tests.backends.trainers.tiny import annotate, opened, policy, samples, update

    loss = make(PPOClip, {"correction": {"cap": 1.02}})
    trainer = opened({"p": policy()}, loss, needs=("old_logprobs",), minibatch_size=8, epochs=2)
    rows, of_version = [row for row in samples(groups=4) if row.loss_mask.sum() > 2], []

    def present(given: list[Any]) -> list[np.ndarray]:
        return [*annotate(trainer, given, "old_logprobs").values()]

    def with_extras(given: list[Any], old: list[np.ndarray]) -> list[Any]:
        spread = [np.zeros(len(row.token_ids), np.float32) for row in given]
        for row, array, values in zip(given, spread, old, strict=True):
            array[row.loss_mask] = values
        return [
            dataclasses.replace(row, extras={"old_logprobs": array})
            for row, array in zip(given, spread, strict=True)
        ]

    for step in range(2):
        of_version.append(present(rows))
        more = samples(seed=5 + step)
        update(trainer, {"p": with_extras(more, present(more))}, step)
    of_version.append(present(rows))
    mixed, expected = [], []
    for index, row in enumerate(rows):
        tokens = int(row.loss_mask.sum())
        runs = ((0, 1), (1, 1), (2, tokens - 2))
        logprobs = np.zeros(len(row.token_ids), np.float32)
        drawn = drawn_by([dataclasses.replace(row, version_runs=runs)])
        logprobs[row.loss_mask] = [of_version[version][index][at] for at, version in enumerate(drawn)]
        mixed.append(dataclasses.replace(row, logprobs=logprobs, version=0, version_runs=runs))
        gaps = [float(of_version[2][index][at] - of_version[v][index][at]) for at, v in enumerate(drawn)]
        assert all(gap == 0.0 for gap, version in zip(gaps, drawn, strict=True) if version == 2)
        expected += [min(math.exp(gap), 1.02) for gap in gaps]
    metrics = update(trainer, {"p": with_extras(mixed, of_version[2])}, 2)["p"]
    assert metrics["correction"] == pytest.approx(np.mean(expected), rel=1e-6)
    assert 0 < metrics["correction_capped"] < 1 and metrics["mismatch/staleness/2"] > 1e-4
