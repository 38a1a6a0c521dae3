# ruff: noqa: E402 (torch is asked for first)
"""Warm starts: supervised steps on initial weights, once for all policies that share them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from coterie.backends.chat_formats.formats import AutoChat
from coterie.backends.models.policy import OptimizerSettings, WarmStart
from coterie.backends.trainers import warm_start
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.errors import ConfigError
from coterie.core.protocols import Demonstration
from tests.backends.trainers.tiny import MODEL, in_float64, opened, policy, samples, update

pytestmark = pytest.mark.torch


def demonstrations(step: int, policies: Sequence[str] = ("a",), count: int = 16) -> list[Demonstration]:
    """Repeat the first word of the prompt, then the word after it."""
    made = []
    for number in range(count):
        word = (7 * number + step) % 20
        messages = ({"role": "user", "content": f"w{word} w28"},)
        made.append(Demonstration(policy=policies[number % len(policies)], messages=messages,
                                   completion=f"w{word} w{word + 1}"))  # fmt: skip
    return made


def warm(trainer: TorchTrainer, policy: str = "a", steps: int = 40, **settings: object) -> dict[str, float]:
    config = WarmStart.model_validate({"steps": steps, "learning_rate": 1e-2, "warmup_steps": 5, **settings})
    return asyncio.run(trainer.warm_start(policy, demonstrations, config))


def test_a_warm_start_learns_the_demonstrations() -> None:
    trainer = opened({"a": policy()})
    metrics = warm(trainer)
    assert metrics["loss"] < 0.3 * metrics["loss_first"]
    assert metrics["tokens"] == 40 * 16 * 3  # two words and the stop token
    assert metrics["steps"] == 40 and metrics["skipped_steps"] == 0
    assert trainer.weights("a").version == 0


def test_a_warm_start_that_leaves_no_numbers_is_refused() -> None:
    trainer = opened({"a": policy()})
    with pytest.raises(ConfigError, match="policy 'a' can't be trained on after its warm start") as caught:
        warm(trainer, steps=4, learning_rate=1e18)
    assert caught.value.path == "policies.a.warm_start.learning_rate"
    assert "steps had a gradient that is not finite" in caught.value.why


def test_the_loss_is_the_token_mean_of_the_plain_models(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)
    trainer = opened({"a": policy()}, micro_tokens=20)
    trained = trainer.policies["a"]
    codec = AutoChat().codec(trained.initial.tokenizer, trained.initial.context)
    losses = []
    with torch.no_grad():
        for shown in demonstrations(0):
            prompt, completion = codec.encode(shown.messages).ids, codec.encode_completion(shown.completion)
            logprobs = trained.model(torch.tensor([[*prompt, *completion]])).logits[0].log_softmax(-1)
            losses += [-float(logprobs[len(prompt) - 1 + at, token]) for at, token in enumerate(completion)]
    assert warm(trainer, steps=1)["loss"] == pytest.approx(sum(losses) / len(losses), abs=1e-9)


def test_initial_weights_are_trained_once_for_all_their_policies() -> None:
    configs = {
        "a": policy("lora"),
        "b": policy(),
        "c": policy("none"),
        "d": policy("full", model=MODEL | {"layers": 1}),
    }
    trainer = opened(configs, needs=("ref_logprobs",))
    before = trainer.digest()
    warm(trainer, "c", steps=3)
    after = trainer.digest()
    assert after["a"] == before["a"] and after["d"] == before["d"]  # an adapter, and other initial weights
    assert after["b"] == after["c"] != before["b"]
    assert all(p.grad is None and not p.requires_grad for p in trainer.initial_weights[0].weights().values())
    assert all(p.grad is None for p in trainer.policies["a"].own_parameters().values())
    rows = {name: samples(name) for name in ("a", "b")}
    assert set(update(trainer, rows)) == {"a", "b", "d"}
    assert trainer.digest()["c"] == after["c"]


def test_a_warm_start_does_not_depend_on_the_policies_that_share_the_weights() -> None:
    digests = set()
    for configs in (
        {"a": policy()},
        {"a": policy(), "b": policy("lora")},
        {"a": policy("none"), "b": policy()},
    ):
        trainer = opened(configs)
        warm(trainer, steps=3)
        digests.add(trainer.digest()["a"])
    assert len(digests) == 1


def test_references_are_the_warm_weights() -> None:
    trainer = opened({"a": policy(), "b": policy("lora")}, needs=("ref_logprobs",))
    warm(trainer, steps=3)
    rows = samples("a")
    reference = asyncio.run(trainer.annotate(rows, "ref_logprobs"))
    with trainer.policies["a"].scoring() as scorer, torch.no_grad():
        logprobs = scorer(rows).logprobs
    assert torch.equal(torch.cat([torch.from_numpy(reference[row.key]) for row in rows]), logprobs)


@pytest.mark.parametrize(
    "change",
    [
        {"learning_rate": 2e-2},
        {"weight_decay": 0.5},
        {"warmup_steps": 0},
        {"final_share": 1.0},
        {"clip": 1e-3},
        {"steps": 5},
    ],
)
def test_every_setting_is_felt(change: dict) -> None:
    plain, changed = opened({"a": policy()}), opened({"a": policy()})
    warm(plain, **{"steps": 6, "warmup_steps": 2})
    warm(changed, **{"steps": 6, "warmup_steps": 2, **change})
    assert plain.digest() != changed.digest()


def test_the_optimiser_is_adamw_with_a_linear_decay(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[OptimizerSettings] = []
    original = warm_start.PolicyOptimizer
    monkeypatch.setattr(warm_start, "PolicyOptimizer", lambda w, s: (seen.append(s), original(w, s))[1])
    warm(opened({"a": policy()}), steps=2)
    assert seen == [
        OptimizerSettings(
            learning_rate=1e-2,
            weight_decay=0.01,
            betas=(0.9, 0.95),
            schedule="linear",
            warmup_steps=5,
            horizon=2,
        )
    ]


def test_bf16_weights_are_warmed_through_masters_and_trained_from_there() -> None:
    trainer = opened({"a": policy(dtype="bfloat16")})
    metrics = warm(trainer)
    assert metrics["loss"] < 0.5 * metrics["loss_first"]
    owner = trainer.policies["a"]
    assert all(
        torch.equal(m.bfloat16(), owner.own_parameters()[n]) for n, m in owner.optimizer.masters().items()
    )


def test_a_warm_start_survives_a_checkpoint(tmp_path: Path) -> None:
    configs = {"a": policy("lora"), "b": policy(), "c": policy("none")}
    trainer = opened(configs)
    warm(trainer, steps=3)
    trainer.save(tmp_path / "made")
    other = opened(configs)
    other.load(tmp_path / "made")
    assert other.digest() == trainer.digest()
    trainer.export("c", tmp_path / "model")
    fetched = {"a": policy("lora", model=str(tmp_path / "model"))}
    first = opened(fetched)
    warm(first, steps=2)
    first.save(tmp_path / "fetched")
    second = opened(fetched)
    second.load(tmp_path / "fetched")
    assert second.initial_weights[0].warmed
    assert all(
        torch.equal(p, second.initial_weights[0].weights()[n])
        for n, p in first.initial_weights[0].weights().items()
    )


def test_a_policy_that_was_updated_is_not_warm_started() -> None:
    trainer = opened({"a": policy()})
    update(trainer, {"a": samples("a")})
    with pytest.raises(ValueError, match="updated already"):
        warm(trainer)


def test_a_demonstration_past_the_context_is_refused() -> None:
    trainer = opened({"a": policy(model=MODEL | {"context": 4})})
    with pytest.raises(ConfigError, match="the context is 4"):
        warm(trainer)
