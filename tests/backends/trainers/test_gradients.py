# ruff: noqa: E402 (torch is asked for first)
"""The gradient of an update is that of the loss by hand, however the samples are split, packed or padded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.backends.models.minibatches import token_coefficients
from coterie.backends.trainers.policies import PolicyWeights
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.protocols import TokenBatch
from coterie.core.types import Sample, Span
from coterie.plugins.losses.cispo import CISPO
from coterie.plugins.losses.gspo import GSPO
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.losses.reinforce import ReinforceLoss
from tests.backends.trainers.tiny import (
    in_float64,
    opened,
    policy,
    samples,
    turn_heads,
    update,
    with_old,
    with_reference,
    with_targets,
)

pytestmark = pytest.mark.torch

LOSSES = [
    (PPOClip, {}),
    (PPOClip, {"length": "sequence_mean", "kl": 0.1, "entropy": 0.05}),
    (PPOClip, {"length": "constant", "length_constant": 7, "correction": {"level": "token", "cap": 1.1}}),
    (ReinforceLoss, {"entropy": 0.1}),
    (ReinforceLoss, {"correction": {"level": "sequence", "cap": 1.2}, "kl": 0.2, "kl_form": "k2"}),
    (GSPO, {"clip_low": 0.05, "clip_high": 0.1}),
    (GSPO, {"length": "token_mean", "kl": 0.1, "correction": {"level": "sequence", "cap": 1.2}}),
    (CISPO, {"clip_low": 0.1, "clip_high": 0.1}),
]
SPLITS: list[dict[str, Any]] = [
    {},
    {"packing": False},
    {"micro_tokens": 70},
    {"micro_tokens": 1, "packing": False},
]
VALUE = {"coefficient": 0.7, "clip": 0.3}


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)


def rows_of(loss: Any, values: bool) -> list[Sample]:
    """Ragged groups; one row is two spans with a gap, and some have no value targets."""
    rows = with_reference(samples(groups=3, temperatures=(1.0, 0.8)))
    number = max(range(len(rows)), key=lambda index: len(rows[index].token_ids) - rows[index].prompt_tokens)
    whole = rows[number]
    (span,), middle = whole.spans, whole.prompt_tokens + 3
    other = span.branch._replace(branch=77)
    parts = (span._replace(stop=middle), Span(middle, span.stop, other, 2.5))
    rows[number] = replace(whole, spans=parts)
    rows = with_old(rows) if "old_logprobs" in loss.needs else rows
    return with_targets(rows, without=3) if values else rows


def make(loss: Any, values: bool, train: str = "full", **how: Any) -> TorchTrainer:
    settings = {"value": VALUE, "needs": ("values",)} if values else {}
    trainer = opened({"p": policy(train)}, loss, **settings, **how)
    turn_heads(trainer)
    if train == "lora":
        for parameter in trainer.policies["p"].own_parameters().values():  # a fresh adapter's B is 0
            torch.nn.init.normal_(parameter, std=0.2, generator=torch.Generator().manual_seed(1))
    return trainer


def gradients_of(owner: PolicyWeights) -> dict[str, torch.Tensor]:
    return {n: p.grad.detach().clone() for n, p in owner.weights().items() if p.grad is not None}


def of_update(
    monkeypatch: pytest.MonkeyPatch, trainer: TorchTrainer, rows: Sequence[Sample]
) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """The summed gradients that reach the optimiser, and the update's metrics."""
    owner = trainer.policies["p"]
    seen: dict[str, torch.Tensor] = {}
    original = owner.optimizer.step

    def step() -> Any:
        seen.update(gradients_of(owner))
        return original()

    monkeypatch.setattr(owner.optimizer, "step", step)
    return seen, update(trainer, {"p": list(rows)})["p"]


def by_hand(trainer: TorchTrainer, rows: Sequence[Sample], loss: Any) -> tuple[dict, float]:
    """The same from the plain model: one row at a time, span by span, all in one graph."""
    owner = trainer.policies["p"]
    shares = token_coefficients(rows, loss.length, loss.length_constant)
    with owner.scoring():
        total = sum(_row_by_hand(owner, row, share, loss) for row, share in zip(rows, shares, strict=True))
        total.backward()
    return gradients_of(owner), float(total.detach())


def _row_by_hand(owner: PolicyWeights, row: Sample, coefficients: np.ndarray, loss: Any) -> torch.Tensor:
    ids = torch.from_numpy(row.token_ids)
    found = owner.model(ids[None], output_hidden_states=True)
    everything = (found.logits[0] / row.temperature).log_softmax(-1)
    total = torch.zeros((), dtype=torch.float64)
    for span in row.spans:
        at = torch.tensor([t for t in range(span.start, span.stop) if row.loss_mask[t]])

        def of(array: np.ndarray, at: torch.Tensor = at) -> torch.Tensor:
            return torch.from_numpy(array)[at].double()

        tokens = TokenBatch(
            logprobs=everything[at - 1, ids[at]],
            behaviour=of(row.logprobs),
            advantages=of(row.advantages),
            ref_logprobs=of(row.extras["ref_logprobs"]),
            old=of(row.extras["old_logprobs"]) if "old_logprobs" in row.extras else None,
            sequence=torch.zeros(len(at), dtype=torch.int64),
            sequences=1,
        )
        entropy = -(everything[at - 1].exp() * everything[at - 1]).sum(-1)
        total = total + (of(coefficients) * (loss(torch, tokens).value - loss.entropy * entropy)).sum()
        if "targets" in row.extras:
            values = found.hidden_states[-1][0, at - 1] @ owner.value_head
            old, target = of(row.extras["values"]), of(row.extras["targets"])
            near = old + (values - old).clamp(-VALUE["clip"], VALUE["clip"])
            worse = torch.maximum((values - target) ** 2, (near - target) ** 2)
            total = total + VALUE["coefficient"] * (of(coefficients) * worse).sum()
    return total


@pytest.mark.parametrize(
    ("kind", "settings", "values", "splits"),
    [
        (*LOSSES[0], False, SPLITS),
        *((*loss, True, SPLITS if loss in (LOSSES[0], LOSSES[5]) else SPLITS[2:]) for loss in LOSSES),
    ],
    ids=lambda found: getattr(found, "__name__", ""),
)
def test_the_gradient_is_the_loss_by_hand_whatever_the_split(
    monkeypatch: pytest.MonkeyPatch, kind: type, settings: dict, values: bool, splits: list
) -> None:
    """A loss of tokens and one of sequences by every split, the others by the two that divide most."""
    loss = kind(kind.Config(**settings))
    rows = rows_of(loss, values)
    wanted, value = by_hand(make(loss, values), rows, loss)
    assert ("value_head" in wanted) == values
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in wanted.values()))
    for how in splits:
        found, metrics = of_update(monkeypatch, make(loss, values, **how), rows)
        assert set(found) == set(wanted)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-9)
        assert metrics["loss"] == pytest.approx(value, abs=1e-9)
        assert metrics["grad_norm"] == pytest.approx(norm)
        # Clips and caps take hold in these samples; otherwise the comparison would not reach them.
        for name in ("clip_fraction", "correction_capped", "value_clipped"):
            assert 0 < metrics.get(name, 0.5) < 1, name


def test_adapters_have_the_same_gradients_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    loss = GSPO(GSPO.Config(clip_low=0.05, clip_high=0.1))
    rows = rows_of(loss, values=True)
    wanted, _ = by_hand(make(loss, True, "lora"), rows, loss)
    for how in SPLITS:
        found, _ = of_update(monkeypatch, make(loss, True, "lora", **how), rows)
        assert set(found) == set(wanted) and any("lora_B" in name for name in found)
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-9)
