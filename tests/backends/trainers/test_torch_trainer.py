# ruff: noqa: E402 (torch is asked for first)
"""One update: the minimised loss and all of its settings."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie.backends.trainers import torch_trainer
from coterie.backends.trainers.devices import device_of
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import Surrogate, TokenBatch
from coterie.core.types import Span
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.plugins.losses.reinforce import ReinforceLoss
from tests.backends.trainers.tiny import (
    in_float64,
    independent_logprobs,
    opened,
    policy,
    sample,
    samples,
    update,
    with_old,
    with_reference,
    with_targets,
)  # fmt: skip

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)


def test_metrics_are_token_means_by_hand() -> None:
    rows = samples(groups=2)
    trainer = opened({"p": policy()})
    model = trainer.policies["p"].model
    with torch.no_grad():
        logprobs = torch.cat([independent_logprobs(model, row) for row in rows])
    behaviour = torch.cat([torch.from_numpy(row.logprobs[row.loss_mask]) for row in rows]).double()
    advantages = torch.cat([torch.from_numpy(row.advantages[row.loss_mask]) for row in rows]).double()
    wanted = PPOClip()(
        torch, TokenBatch(logprobs=logprobs, behaviour=behaviour, advantages=advantages)
    ).metrics
    metrics = update(trainer, {"p": rows})["p"]
    for name, value in wanted.items():
        assert metrics[name] == pytest.approx(float(value.double().mean())), name
    assert 0 < metrics["clip_fraction"] < 1
    assert metrics["samples"] == len(rows) and metrics["tokens"] == len(logprobs)
    assert metrics["optimizer_steps"] == 1 and metrics["skipped_steps"] == 0
    assert metrics["learning_rate"] == 1e-2
    assert not {"value", "value_loss", "explained_variance", "stale_samples"} & set(metrics)
    assert 0 < metrics["entropy"] <= math.log(32) + 1e-9
    assert "kl_ref" not in metrics
    assert "kl_ref" in update(trainer, {"p": with_reference(rows)}, 1)["p"]


def test_packing_and_micro_tokens_shape_the_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    def forwards(**settings: Any) -> tuple[int, bool]:
        trainer = opened({"p": policy()}, **settings)
        shapes: list[tuple[int, ...]] = []
        trainer.policies["p"].model.model.register_forward_pre_hook(
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
    trainer = opened({"p": policy()}, ReinforceLoss())
    rows = []
    for branch, advantage in ((0, 1.0), (1, -1.0)):
        row = sample("p", "t", branch, [3, 4, 5], [6 + branch, 1], [True, True])
        rows.append(replace(row, advantages=np.array([0, 0, 0, advantage, advantage], np.float32)))
    model = trainer.policies["p"].model
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
        trainer = opened(
            {name: policy("lora", lora={"rank": 4, "dropout": dropout})}, ReinforceLoss(), seed=seed
        )
        for parameter in trainer.policies[name].own_parameters().values():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
        # Weights and minibatches are the same for all, so that only the dropout can differ.
        source = opened({"source": policy()}).policies["source"].model
        with torch.no_grad():
            for mine, other in zip(
                trainer.initial_weights[0].weights().values(), source.parameters(), strict=True
            ):
                mine.copy_(other)
        before = torch.get_rng_state()
        metrics = update(trainer, {name: samples(name)}, step)[name]["loss"]
        assert torch.equal(torch.get_rng_state(), before)
        return metrics

    assert loss() == loss()
    assert len({loss(), loss(seed=1), loss(step=1), loss(name="q")}) == 4
    assert len({loss(dropout=0.0), loss(dropout=0.0, step=1)}) == 1


def test_a_policy_without_samples_is_not_stepped() -> None:
    trainer = opened({"p": policy(), "q": policy(), "r": policy("none")})
    before = trainer.digest()
    metrics = update(trainer, {"q": samples("q")})
    assert metrics["p"] == {"samples": 0, "tokens": 0, "optimizer_steps": 0, "skipped_steps": 0}
    assert trainer.digest()["p"] == before["p"] and trainer.digest()["q"] != before["q"]
    assert (trainer.weights("p").version, trainer.weights("q").version) == (0, 1)


def test_samples_without_a_trained_token_take_no_step() -> None:
    trainer = opened({"p": policy()})
    rows = [sample("p", "t", 0, [3, 4], [5, 6], [False, False])]
    assert update(trainer, {"p": rows})["p"]["optimizer_steps"] == 0
    assert update(trainer, {"p": [*rows, *samples(groups=1)]})["p"]["optimizer_steps"] == 1


def test_weights_that_are_not_finite_end_the_run_with_policy_and_step() -> None:
    """Decay of 1e300 at a rate of 1e18 leaves no weight finite, from gradients that are."""
    broken = policy(optimizer={"learning_rate": 1e18, "weight_decay": 1e300})
    trainer = opened({"p": policy(), "q": broken})
    with pytest.raises(UserError, match="policy 'q', step 3: the weights are not finite") as caught:
        update(trainer, {"p": samples(groups=1), "q": samples(groups=1, policy="q")}, step=2)
    assert caught.value.path == "policies.q.optimizer.learning_rate" and caught.value.fix


def test_a_loss_that_is_not_finite_is_told_though_its_gradient_is(caplog: pytest.LogCaptureFixture) -> None:
    class Infinite(PPOClip):
        def __call__(self, xp, tokens):
            surrogate = super().__call__(xp, tokens)
            return replace(surrogate, value=surrogate.value + float("inf"))

    trainer = opened({"p": policy()}, Infinite())
    metrics = update(trainer, {"p": samples(groups=1)}, step=4)["p"]
    assert metrics["optimizer_steps"] == 1 and metrics["loss"] == math.inf
    assert "policy 'p', step 5: the loss is inf" in caplog.text


def test_a_gradient_that_is_not_finite_skips_the_step_and_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    trainer = opened({"p": policy()}, minibatch_size=4)
    rows = samples(groups=3, siblings=4)
    rows[0] = replace(rows[0], advantages=np.where(rows[0].loss_mask, np.nan, 0).astype(np.float32))
    metrics = update(trainer, {"p": rows})["p"]
    assert (metrics["skipped_steps"], metrics["optimizer_steps"]) == (1, 2)
    assert math.isfinite(metrics["grad_norm"]) and "not finite" in caplog.text
    assert all(bool(p.isfinite().all()) for p in trainer.policies["p"].own_parameters().values())
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


def test_samples_whose_annotations_have_gaps_are_refused() -> None:
    rows = samples()
    trainer = opened({"p": policy()}, needs=("values",))
    for some in (with_reference, with_old):
        with pytest.raises(ValueError, match=r"1 of 12 samples of 'p' carry .*_logprobs: all, or none"):
            update(trainer, {"p": [*some(rows[:1]), *rows[1:]]})
    targeted = with_targets(rows)
    without = [replace(row, extras={"targets": row.extras["targets"]}) for row in targeted]
    with pytest.raises(ValueError, match="without the values they were made from"):
        update(trainer, {"p": without})
    with pytest.raises(ValueError, match="no value head"):
        update(opened({"p": policy()}), {"p": targeted})


class Seen(Plugin):
    """A loss that records its inputs."""

    Config = PluginConfig
    needs: tuple[str, ...] = ()
    length, entropy = "sequence_mean", 0.0

    def __init__(self) -> None:
        super().__init__(self.Config())
        self.batches: list[TokenBatch] = []

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        self.batches.append(tokens)
        return Surrogate(value=-tokens.logprobs, grad=-xp.ones_like(tokens.logprobs), metrics={})


@pytest.mark.parametrize("how", [{}, {"packing": False}, {"micro_tokens": 90}])
def test_a_loss_is_shown_which_tokens_belong_together(how: dict) -> None:
    loss = Seen()
    rows = with_old(with_reference(samples()))
    longest = max(rows, key=lambda row: int(row.loss_mask.sum()))
    (span,) = longest.spans
    middle = longest.prompt_tokens + 3
    parts = (span._replace(stop=middle), Span(middle, span.stop, span.branch._replace(branch=9), 1.0))
    rows = [replace(row, spans=parts) if row is longest else row for row in rows]
    update(opened({"p": policy()}, loss, **how), {"p": rows})
    assert (len(loss.batches) > 1) == ("micro_tokens" in how)
    assert sum(tokens.sequences for tokens in loss.batches) == len(rows) + 1
    by_sequence = {}
    for tokens in loss.batches:
        for number in range(tokens.sequences):
            at = tokens.sequence == number
            arrays = (tokens.behaviour, tokens.advantages, tokens.ref_logprobs, tokens.old)
            selected = tuple(np.asarray(values[at], dtype=np.float32) for values in arrays)
            by_sequence[selected[0].tobytes()] = selected
    for row in rows:
        for part in row.spans:
            at = np.flatnonzero(row.loss_mask[part.start : part.stop]) + part.start
            arrays = (row.logprobs, row.advantages, row.extras["ref_logprobs"], row.extras["old_logprobs"])
            for array, selected in zip(arrays, by_sequence.pop(row.logprobs[at].tobytes()), strict=True):
                np.testing.assert_array_equal(selected, array[at])
    assert not by_sequence


def test_annotations_that_samples_lack_are_absent() -> None:
    loss = Seen()
    update(opened({"p": policy()}, loss), {"p": samples()})
    assert loss.batches[0].ref_logprobs is None and loss.batches[0].old is None


def test_the_constant_of_a_length_rule_is_the_losss() -> None:
    losses = [
        update(opened({"p": policy()}, ReinforceLoss(config)), {"p": samples()})["p"]["loss"]
        for n in (8, 16)
        for config in [ReinforceLoss.Config(length="constant", length_constant=n)]
    ]  # fmt: skip
    assert losses[0] == pytest.approx(2 * losses[1])


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing reads these settings"):
        opened({"p": policy("full", lora={"rank": 2})})
    with pytest.raises(ConfigError, match="horizon"):
        opened({"p": policy(optimizer={"schedule": "linear"})})
    with pytest.raises(ConfigError, match=r"trainer\.value: .* has no effect"):
        opened({"p": policy()}, value={"clip": None})


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="no device"):
        device_of("cuda:99")
    assert device_of("auto").type in ("cpu", "cuda")


def test_a_loss_of_somebody_else_needs_only_value_and_metrics() -> None:
    class Square(Plugin):
        Config = PluginConfig
        needs: tuple[str, ...] = ()
        length, entropy = "token_mean", 0.0

        def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
            return Surrogate(
                value=tokens.logprobs**2, grad=2 * tokens.logprobs, metrics={"mine": tokens.logprobs}
            )

    assert update(opened({"p": policy()}, Square()), {"p": samples()})["p"]["mine"] < 0
