# ruff: noqa: E402 (torch is asked for first)
"""One update: the loss that is minimised, and every setting of it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.trainers import torch_trainer
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.batching import token_coefficients
from coterie.core.config import PluginConfig
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.protocols import Surrogate, TokenBatch
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.losses.reinforce import Reinforce
from tests.backends.trainers.tiny import (
    gradients,
    in_float64,
    independent_logprobs,
    opened,
    policy,
    sample,
    samples,
    update,
)  # fmt: skip

pytestmark = pytest.mark.torch

LOSSES = [
    (PPOClip, {}),
    (PPOClip, {"length": "sequence_mean", "kl": 0.1, "entropy": 0.05}),
    (Reinforce, {"entropy": 0.1}),
]


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)


def with_reference(rows: list) -> list:
    rng = np.random.default_rng(7)
    found = []
    for row in rows:
        reference = row.logprobs + 0.1 * row.loss_mask * rng.normal(size=len(row.logprobs))
        found.append(replace(row, extras={"ref_logprobs": reference.astype(np.float32)}))
    return found


def gradient_of_update(
    monkeypatch: pytest.MonkeyPatch, rows: list, loss: Any, **settings: Any
) -> tuple[dict, dict]:
    """The summed gradients that reach the optimiser, and the update's metrics."""
    trainer = opened({"p": policy()}, loss, **settings)
    owner = trainer._policies["p"]
    seen: dict[str, torch.Tensor] = {}
    original = owner.optimizer.step

    def step() -> Any:
        seen.update(gradients(owner.model))
        return original()

    monkeypatch.setattr(owner.optimizer, "step", step)
    metrics = update(trainer, {"p": rows})["p"]
    return seen, metrics


def gradient_by_hand(rows: list, loss: Any) -> tuple[dict, float]:
    """The same, from the plain model, one row at a time, all in one graph."""
    model = opened({"p": policy()})._policies["p"].model
    total = torch.zeros((), dtype=torch.float64)
    for row, coefficient in zip(rows, token_coefficients(rows, loss.length), strict=True):
        at = torch.from_numpy(row.loss_mask)
        logprobs = independent_logprobs(model, row)
        tokens = TokenBatch(
            logprobs=logprobs,
            behaviour=torch.from_numpy(row.logprobs)[at].double(),
            advantages=torch.from_numpy(row.advantages)[at].double(),
            ref_logprobs=torch.from_numpy(row.extras["ref_logprobs"])[at].double() if row.extras else None,
        )
        share = torch.from_numpy(coefficient)[at].double()
        total = total + (share * loss(torch, tokens).value).sum()
        logits = model(torch.from_numpy(row.token_ids)[None]).logits[0, :-1] / row.temperature
        entropy = torch.distributions.Categorical(logits=logits).entropy()[at[1:]]
        total = total - loss.entropy * (share * entropy).sum()
    total.backward()
    return gradients(model), float(total.detach())


@pytest.mark.parametrize(("kind", "settings"), LOSSES)
@pytest.mark.parametrize(
    "how", [{}, {"packing": False}, {"micro_tokens": 70}, {"micro_tokens": 1, "packing": False}]
)
def test_the_gradient_is_the_loss_by_hand_whatever_the_split(
    monkeypatch: pytest.MonkeyPatch, kind: type, settings: dict, how: dict
) -> None:
    rows = with_reference(samples(groups=3, temperatures=(1.0, 0.8)))
    loss = kind(kind.Config(**settings))
    wanted, value = gradient_by_hand(rows, loss)
    found, metrics = gradient_of_update(monkeypatch, rows, loss, **how)
    assert set(found) == set(wanted)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-9)
    assert metrics["loss"] == pytest.approx(value, abs=1e-9)
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in wanted.values()))
    assert metrics["grad_norm"] == pytest.approx(norm)


def test_gradient_checkpointing_changes_no_gradient_and_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = samples(groups=2)
    wanted, _ = gradient_of_update(monkeypatch, rows, PPOClip())
    found, _ = gradient_of_update(monkeypatch, rows, PPOClip(), gradient_checkpointing=True)
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, wanted[name], rtol=1e-9, atol=1e-9)
    calls: list[int] = []
    trainer = opened({"p": policy()}, gradient_checkpointing=True)
    layer = trainer._policies["p"].model.model.layers[0]
    recompute = layer._gradient_checkpointing_func
    layer._gradient_checkpointing_func = lambda *args, **kwargs: (
        calls.append(1),
        recompute(*args, **kwargs),
    )[1]
    update(trainer, {"p": rows})
    assert calls and not layer.training


def test_metrics_are_token_means_by_hand() -> None:
    rows = samples(groups=2)
    trainer = opened({"p": policy()})
    model = trainer._policies["p"].model
    with torch.no_grad():
        logprobs = torch.cat([independent_logprobs(model, row) for row in rows])
    behaviour = torch.cat([torch.from_numpy(row.logprobs[row.loss_mask]) for row in rows]).double()
    advantages = torch.cat([torch.from_numpy(row.advantages[row.loss_mask]) for row in rows]).double()
    wanted = PPOClip()(
        torch, TokenBatch(logprobs=logprobs, behaviour=behaviour, advantages=advantages)
    ).metrics
    found = update(trainer, {"p": rows})["p"]
    for name, value in wanted.items():
        assert found[name] == pytest.approx(float(value.double().mean())), name
    assert 0 < found["clip_fraction"] < 1
    assert found["samples"] == len(rows) and found["tokens"] == len(logprobs)
    assert found["optimizer_steps"] == 1 and found["skipped_steps"] == 0
    assert found["learning_rate"] == 1e-2
    assert 0 < found["entropy"] <= math.log(32) + 1e-9
    assert "kl_ref" not in found
    assert "kl_ref" in update(trainer, {"p": with_reference(rows)}, 1)["p"]


def test_packing_and_micro_tokens_shape_the_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def forwards(**settings: Any) -> tuple[int, bool]:
        trainer = opened({"p": policy()}, **settings)
        shapes: list[tuple[int, ...]] = []
        trainer._policies["p"].model.model.register_forward_pre_hook(
            lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
        update(trainer, {"p": samples(groups=3)})
        return len(shapes), all(rows == 1 for rows, _ in shapes)

    assert forwards() == (1, True)
    assert forwards(packing=False) == (1, False)
    assert forwards(micro_tokens=1) == (12, True)


def test_minibatches_and_epochs_make_optimiser_steps() -> None:
    rows = samples(groups=4, siblings=4)
    steps = {
        (size, epochs): update(opened({"p": policy()}, minibatch_size=size, epochs=epochs), {"p": rows})["p"]
        for size, epochs in ((None, 1), (4, 1), (8, 1), (4, 3))
    }
    assert {key: m["optimizer_steps"] for key, m in steps.items()} == {
        (None, 1): 1, (4, 1): 4, (8, 1): 2, (4, 3): 12,
    }  # fmt: skip


def test_minibatches_are_drawn_anew_for_every_step_and_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []
    original = torch_trainer.minibatches

    def noted(rows: list, size: int | None, seed: int) -> list:
        seeds.append(seed)
        return original(rows, size, seed)

    monkeypatch.setattr(torch_trainer, "minibatches", noted)
    trainer = opened({"p": policy(), "q": policy()}, epochs=2)
    for step in range(2):
        update(trainer, {"p": samples("p"), "q": samples("q")}, step)
    assert len(set(seeds)) == 8


def test_an_update_raises_the_log_probs_of_what_was_good() -> None:
    trainer = opened({"p": policy()}, Reinforce())
    rows = []
    for branch, advantage in ((0, 1.0), (1, -1.0)):
        one = sample("p", "t", branch, [3, 4, 5], [6 + branch, 1], [True, True])
        rows.append(replace(one, advantages=np.array([0, 0, 0, advantage, advantage], np.float32)))
    model = trainer._policies["p"].model
    before = [independent_logprobs(model, row)[0].item() for row in rows]
    update(trainer, {"p": rows})
    after = [independent_logprobs(model, row)[0].item() for row in rows]
    assert after[0] > before[0] and after[1] < before[1]


def test_an_update_repeats_bit_for_bit() -> None:
    digests = []
    for _ in range(2):
        trainer = opened(
            {"p": policy(), "q": policy("lora", lora={"rank": 2, "dropout": 0.3})}, minibatch_size=4, epochs=2
        )
        update(trainer, {"p": samples("p"), "q": samples("q")})
        digests.append(trainer.digest())
    assert digests[0] == digests[1]


def test_lora_dropout_is_keyed_by_seed_step_and_policy_and_leaves_the_global_generator_alone() -> None:
    def loss(seed: int = 0, step: int = 0, name: str = "p", dropout: float = 0.5) -> float:
        trainer = opened({name: policy("lora", lora={"rank": 4, "dropout": dropout})}, Reinforce(), seed=seed)
        for parameter in trainer._policies[name].own().values():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
        # Weights and minibatches are the same for all, so that only the dropout can differ.
        source = opened({"source": policy()})._policies["source"].model
        with torch.no_grad():
            for mine, other in zip(trainer._starts[0].weights().values(), source.parameters(), strict=True):
                mine.copy_(other)
        before = torch.get_rng_state()
        found = update(trainer, {name: samples(name)}, step)[name]["loss"]
        assert torch.equal(torch.get_rng_state(), before)
        return found

    assert loss() == loss()
    assert len({loss(), loss(seed=1), loss(step=1), loss(name="q")}) == 4
    assert len({loss(dropout=0.0), loss(dropout=0.0, step=1)}) == 1


def test_a_policy_without_samples_is_not_stepped() -> None:
    trainer = opened({"p": policy(), "q": policy(), "r": policy("none")})
    before = trainer.digest()
    found = update(trainer, {"q": samples("q")})
    assert found["p"] == {"samples": 0, "tokens": 0, "optimizer_steps": 0, "skipped_steps": 0}
    assert trainer.digest()["p"] == before["p"] and trainer.digest()["q"] != before["q"]
    assert (trainer.weights("p").version, trainer.weights("q").version) == (0, 1)


def test_samples_without_a_trained_token_take_no_step() -> None:
    trainer = opened({"p": policy()})
    rows = [sample("p", "t", 0, [3, 4], [5, 6], [False, False])]
    assert update(trainer, {"p": rows})["p"]["optimizer_steps"] == 0
    assert update(trainer, {"p": [*rows, *samples(groups=1)]})["p"]["optimizer_steps"] == 1


def test_a_gradient_that_is_not_finite_skips_the_step_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = opened({"p": policy()}, minibatch_size=4)
    rows = samples(groups=3, siblings=4)
    rows[0] = replace(rows[0], advantages=np.where(rows[0].loss_mask, np.nan, 0).astype(np.float32))
    found = update(trainer, {"p": rows})["p"]
    assert (found["skipped_steps"], found["optimizer_steps"]) == (1, 2)
    assert math.isfinite(found["grad_norm"]) and "not finite" in caplog.text
    assert all(bool(p.isfinite().all()) for p in trainer._policies["p"].own().values())
    alone = opened({"p": policy()})
    before = alone.digest()
    assert "grad_norm" not in update(alone, {"p": rows[:4]})["p"]
    assert alone.digest() == before and alone.weights("p").version == 0


def test_versions_count_updates() -> None:
    trainer = opened({"p": policy()}, minibatch_size=4)
    for step in range(3):
        update(trainer, {"p": samples()}, step)
    assert trainer.weights("p").version == 3


def test_samples_of_another_policy_or_of_an_untrained_one_are_refused() -> None:
    trainer = opened({"p": policy(), "q": policy("none")})
    with pytest.raises(ValueError, match="a sample of 'q', given to 'p'"):
        update(trainer, {"p": samples("q")})
    with pytest.raises(ValueError, match="not trained"):
        update(trainer, {"q": samples("q")})
    with pytest.raises(ConfigError, match="no policy 'r'"):
        update(trainer, {"r": []})


def test_settings_that_nothing_reads_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing reads it"):
        opened({"p": policy("full", lora={"rank": 2})})
    with pytest.raises(ConfigError, match="horizon"):
        opened({"p": policy(optimizer={"schedule": "linear"})})


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="no device"):
        torch_trainer._device("cuda:99")
    assert torch_trainer._device("auto").type in ("cpu", "cuda")


# ------------------------------------------------------------------------------------------------ references


def annotate(trainer: TorchTrainer, rows: list) -> dict:
    return asyncio.run(trainer.annotate(rows, "ref_logprobs"))


@pytest.mark.parametrize("train", ["full", "lora", "none"])
def test_reference_log_probs_are_those_of_the_starting_weights(train: str) -> None:
    configs = {"p": policy(train), "other": policy("lora")}
    trainer = opened(configs, Reinforce(), needs=("ref_logprobs",))
    rows = samples(temperatures=(1.0, 0.6))
    start = opened({"p": policy("none")})._policies["p"].model
    with torch.no_grad():
        wanted = {row.key: independent_logprobs(start, row).numpy() for row in rows}
    for step in range(2):
        update(trainer, {"other": samples("other")} | ({"p": rows} if train != "none" else {}), step)
    found = annotate(trainer, [*rows, *samples("other", groups=1, seed=5)])
    assert all(values.dtype == np.float32 for values in found.values())
    for key, values in wanted.items():
        np.testing.assert_allclose(found[key], values, rtol=1e-6)


def test_the_reference_of_a_full_policy_is_kept_only_where_it_is_needed() -> None:
    trainer = opened({"p": policy()})
    assert trainer._starts[0].frozen is None
    with pytest.raises(ConfigError, match="no reference weights"):
        annotate(trainer, samples())
    with pytest.raises(ConfigError, match="has no values"):
        asyncio.run(trainer.annotate(samples(), "values"))


def test_parts_of_one_branch_are_joined_in_order() -> None:
    trainer = opened({"p": policy("none")})
    first, second = samples(groups=1, siblings=2)
    apart = annotate(trainer, [first, second])
    joined = annotate(trainer, [first, replace(second, key=first.key)])
    np.testing.assert_array_equal(joined[first.key], np.concatenate([apart[first.key], apart[second.key]]))


def test_a_loss_of_somebody_else_needs_only_value_and_metrics() -> None:
    class Square(Plugin):
        Config = PluginConfig
        needs: tuple[str, ...] = ()
        length, entropy = "token_mean", 0.0

        def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
            return Surrogate(
                value=tokens.logprobs**2, slope=2 * tokens.logprobs, metrics={"mine": tokens.logprobs}
            )

    assert update(opened({"p": policy()}, Square()), {"p": samples()})["p"]["mine"] < 0
