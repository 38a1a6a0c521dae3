# ruff: noqa: E402 (torch is asked for first)
"""The mismatch between engine and trainer: in the first optimiser step, for samples of its weights only; and
what is counted by the age of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.trainers import torch_trainer
from coterie.core.types import Sample
from coterie.plugins.losses.cispo import CISPO
from coterie.plugins.losses.gspo import GSPO
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.losses.reinforce import ReinforceLoss
from tests.backends.trainers.tiny import (
    annotate,
    in_float64,
    independent_logprobs,
    opened,
    policy,
    samples,
    update,
)

pytestmark = pytest.mark.torch
NAMES = {"mismatch", "mismatch_max", "mismatch_kl"}


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)


def by_hand(rows: Sequence[Sample]) -> dict[str, float]:
    model = opened({"p": policy()}).policies["p"].model
    with torch.no_grad():
        present = np.concatenate([independent_logprobs(model, row).numpy() for row in rows])
    difference = present - np.concatenate([row.logprobs[row.loss_mask] for row in rows]).astype(np.float64)
    return {
        "mismatch": float(np.abs(difference).mean()),
        "mismatch_max": float(np.abs(difference).max()),
        "mismatch_kl": float((np.exp(difference) - 1.0 - difference).mean()),
    }


@pytest.mark.parametrize("how", [{}, {"micro_tokens": 60}, {"packing": False, "epochs": 2}])
def test_it_is_that_of_the_first_minibatch_by_hand(monkeypatch: pytest.MonkeyPatch, how: dict) -> None:
    rows, batches = samples(groups=4), []
    original = torch_trainer.minibatches

    def noted(*args: object) -> list:
        batches.append(original(*args))
        return batches[-1]

    monkeypatch.setattr(torch_trainer, "minibatches", noted)
    metrics = update(opened({"p": policy()}, minibatch_size=4, **how), {"p": rows})["p"]
    first = batches[0][0]
    assert 0 < len(first) < len(rows)
    wanted = by_hand(first)
    assert {name: metrics[name] for name in NAMES} == pytest.approx(wanted)
    assert wanted["mismatch"] != pytest.approx(by_hand(rows)["mismatch"], rel=1e-3)
    assert "stale_samples" not in metrics


def test_an_engine_that_agrees_with_the_trainer_has_none_however_far_the_update_goes() -> None:
    trainer = opened({"p": policy()}, minibatch_size=4, epochs=2)
    update(trainer, {"p": samples(seed=5)})
    rows = []
    drawn = [replace(row, version=1) for row in samples()]
    for row, values in zip(drawn, annotate(trainer, drawn, "old_logprobs").values(), strict=True):
        logprobs = np.zeros(len(row.token_ids), np.float32)
        logprobs[row.loss_mask] = values
        rows.append(replace(row, logprobs=logprobs))
    metrics = update(trainer, {"p": rows}, 1)["p"]
    assert metrics["mismatch_max"] < 1e-6 and metrics["approx_kl"] > 1e-3


def test_staleness_is_not_mismatch() -> None:
    """Samples of other weights: their difference is not the engine's, so they are left out and counted."""
    rows = samples(groups=2)
    stale = [replace(row, version=7) for row in rows[:3]]
    metrics = update(opened({"p": policy()}), {"p": [*stale, *rows[3:]]})["p"]
    assert {name: metrics[name] for name in NAMES} == pytest.approx(by_hand(rows[3:]))
    assert metrics["stale_samples"] == 3
    metrics = update(opened({"p": policy()}), {"p": [replace(row, version=7) for row in rows]})["p"]
    assert not NAMES & set(metrics) and metrics["stale_samples"] == len(rows)
    trainer = opened({"p": policy()})
    assert set(update(trainer, {"p": rows})["p"]) >= NAMES
    assert not NAMES & set(update(trainer, {"p": rows}, 1)["p"])  # the weights have moved on since


def aged(rows: Sequence[Sample], version: int) -> tuple[list[Sample], np.ndarray]:
    """Samples of one version, of the one before and of several; and how old each token is."""
    given, ages = [], []
    for number, row in enumerate(rows):
        count = int(row.loss_mask.sum())
        runs = [(version, count)] if number % 3 == 0 else [(version - 1, count)]
        if number % 3 == 2 and count > 2:
            runs = [(version - 2, 1), (version - 1, count - 2), (version, 1)]
        several = {"version_runs": tuple(runs)} if len(runs) > 1 else {}
        given.append(replace(row, version=runs[0][0], **several))
        ages += [version - drawn for drawn, tokens in runs for _ in range(tokens)]
    return given, np.array(ages)


def test_tokens_of_each_age_have_a_mismatch_and_a_clip_fraction_of_their_own(monkeypatch: Any) -> None:
    """Version runs, two minibatches and two epochs: the mismatch is of the first minibatch, clips of all."""
    trainer = opened({"p": policy()}, minibatch_size=8, epochs=2)
    for step in range(2):
        update(trainer, {"p": samples(seed=5 + step)}, step)
    rows, ages = aged(samples(groups=4), version=2)
    assert set(ages.tolist()) == {0, 1, 2}
    seen: list[tuple[list[Sample], Any, Any]] = []
    batch, loss = torch_trainer.token_batch, torch_trainer.surrogate_of

    def noted(given: list[Sample], logprobs: Any) -> Any:
        seen.append((given, batch(given, logprobs), None))
        return seen[-1][1]

    def answered(objective: Any, xp: Any, tokens: Any) -> Any:
        seen[-1] = (*seen[-1][:2], loss(objective, xp, tokens))
        return seen[-1][2]

    monkeypatch.setattr(torch_trainer, "token_batch", noted)
    monkeypatch.setattr(torch_trainer, "surrogate_of", answered)
    metrics = update(trainer, {"p": rows}, 2)["p"]
    assert metrics["optimizer_steps"] == len(seen) == 4
    bounds = np.cumsum([0, *(int(row.loss_mask.sum()) for row in rows)])
    age = {row.key: ages[begin:end] for row, begin, end in zip(rows, bounds, bounds[1:], strict=False)}
    gaps: dict[int, list[float]] = {0: [], 1: [], 2: []}
    clips: dict[int, list[float]] = {0: [], 1: [], 2: []}
    for number, (given, tokens, surrogate) in enumerate(seen):
        of = np.concatenate([age[row.key] for row in given]).tolist()
        differences = (tokens.logprobs.detach() - tokens.behaviour).abs().tolist()
        for k, gap, clip in zip(of, differences, surrogate.metrics["clip_fraction"].tolist(), strict=True):
            clips[k].append(clip)
            if number == 0:
                gaps[k].append(gap)
    for k in range(3):
        assert metrics[f"mismatch/staleness/{k}"] == pytest.approx(float(np.mean(gaps[k])))
        assert metrics[f"clip_fraction/staleness/{k}"] == pytest.approx(float(np.mean(clips[k])))
    assert len({metrics[f"clip_fraction/staleness/{k}"] for k in range(3)}) > 1
    whole = sum(metrics[f"clip_fraction/staleness/{k}"] * (ages == k).mean() for k in range(3))
    assert whole == pytest.approx(metrics["clip_fraction"])


@pytest.mark.parametrize("how", [{"micro_tokens": 60}, {"packing": False}])
def test_micro_batches_do_not_change_what_is_counted_by_age(how: dict) -> None:
    found = []
    for settings in ({}, how):
        trainer = opened({"p": policy()}, minibatch_size=8, epochs=2, **settings)
        trainer.policies["p"].version = 2
        rows, _ = aged(samples(groups=4), version=2)
        metrics = update(trainer, {"p": rows})["p"]
        found.append({name: value for name, value in metrics.items() if "/staleness/" in name})
    assert len(found[0]) == 6 and found[1] == pytest.approx(found[0])


def test_only_old_tokens_are_counted_by_age_and_only_of_losses_that_clip() -> None:
    rows, _ = aged(samples(groups=2), version=2)
    fresh = update(opened({"p": policy()}, epochs=2), {"p": samples()})["p"]
    assert not any("/staleness/" in name for name in fresh)
    for kind, clips in ((PPOClip, 3), (GSPO, 3), (CISPO, 3), (ReinforceLoss, 0)):
        trainer = opened({"p": policy()}, kind(kind.Config()))
        trainer.policies["p"].version = 2
        metrics = update(trainer, {"p": rows})["p"]
        assert sum(name.startswith("clip_fraction/staleness/") for name in metrics) == clips
        assert sum(name.startswith("mismatch/staleness/") for name in metrics) == 3


def test_log_probs_worlds_apart_stay_finite() -> None:
    rows = [replace(row, logprobs=row.logprobs - 500 * row.loss_mask) for row in samples(groups=1)]
    metrics = update(opened({"p": policy()}), {"p": rows})["p"]
    assert metrics["mismatch_max"] > 490 and np.isfinite(metrics["mismatch_kl"])
