# ruff: noqa: E402 (torch is asked for first)
"""The mismatch between engine and trainer: in the first optimiser step, for samples of its weights only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.trainers import torch_trainer
from coterie.core.types import Sample
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
    model = opened({"p": policy()})._policies["p"].model
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


def test_log_probs_worlds_apart_stay_finite() -> None:
    rows = [replace(row, logprobs=row.logprobs - 500 * row.loss_mask) for row in samples(groups=1)]
    metrics = update(opened({"p": policy()}), {"p": rows})["p"]
    assert metrics["mismatch_max"] > 490 and np.isfinite(metrics["mismatch_kl"])
