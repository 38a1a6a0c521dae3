# ruff: noqa: E402 (torch is asked for first)
"""Routing: what one policy's update may move, for every pair of ways to train (invariant 5)."""

from __future__ import annotations

import itertools

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from coterie.backends.trainers import optim
from coterie.backends.trainers.parameters import adapter_parameters, digest, plain_parameters
from coterie.backends.trainers.policies import adapter_name
from coterie.backends.trainers.torch_trainer import TorchTrainer
from tests.backends.trainers.tiny import MODEL, opened, policy, samples, update

pytestmark = pytest.mark.torch
KINDS = ("full", "lora", "none")


def digests(trainer: TorchTrainer) -> dict[str, str]:
    """Of every policy's own weights, and of every frozen base."""
    bases = {
        f"base of {s.name}": digest(s.weights()) for s in trainer.initial_weights if s.frozen is not None
    }
    return trainer.digest() | bases


def moved(trainer: TorchTrainer, given: list[str], step: int = 0) -> set[str]:
    before = digests(trainer)
    update(trainer, {name: samples(name, seed=step) for name in given}, step)
    after = digests(trainer)
    return {name for name in after if after[name] != before[name]}


@pytest.mark.parametrize(("a", "b"), list(itertools.product(KINDS, KINDS)))
def test_an_update_moves_its_own_policy_only(a: str, b: str) -> None:
    trainer = opened({"a": policy(a), "b": policy(b)})
    trained = [name for name, kind in (("a", a), ("b", b)) if kind != "none"]
    for step, name in enumerate(trained):
        assert moved(trainer, [name], step) == {name}
    assert moved(trainer, trained, 2) == set(trained)
    sharing = {"lora", "none"}
    assert (trainer.policies["a"].model is trainer.policies["b"].model) == ({a, b} <= sharing)


def test_one_policy_may_be_played_by_several_roles() -> None:
    trainer = opened({"shared": policy()})
    rows = samples("shared", groups=2)
    assert moved(trainer, ["shared"]) == {"shared"}
    assert update(trainer, {"shared": [*rows, *samples("shared", seed=3)]}, 1)["shared"]["samples"] > len(
        rows
    )


def test_updates_are_those_of_the_policy_alone() -> None:
    """Sharing a base or a process with others changes no bit of what a policy becomes."""
    configs = {"a": policy("lora"), "b": policy("lora", lora={"rank": 2}), "c": policy(), "d": policy("none")}
    together = opened(configs)
    for step in range(2):
        update(together, {name: samples(name, seed=step) for name in ("a", "b", "c")}, step)
    for name in ("a", "b", "c"):
        alone = opened({name: configs[name]})
        for step in range(2):
            update(alone, {name: samples(name, seed=step)}, step)
        assert alone.digest()[name] == together.digest()[name]


def test_every_policy_has_its_own_learning_rate_and_optimiser() -> None:
    slow = policy(optimizer={"learning_rate": 1e-6})
    trainer = opened({"quick": policy(), "slow": slow})
    start = {n: p.detach().clone() for n, p in trainer.policies["slow"].own_parameters().items()}
    found = update(trainer, {name: samples(name) for name in ("quick", "slow")})
    assert (found["quick"]["learning_rate"], found["slow"]["learning_rate"]) == (1e-2, 1e-6)

    def distance(name: str) -> float:
        return max(
            float((p - start[n]).detach().abs().max())
            for n, p in trainer.policies[name].own_parameters().items()
        )

    assert 0 < distance("slow") < 2e-6 < 5e-3 < distance("quick")


def test_policies_of_one_start_begin_with_identical_weights() -> None:
    trainer = opened({"a": policy(), "b": policy(), "c": policy("none")})
    assert len(set(trainer.digest().values())) == 1
    assert trainer.bases() == {"a": ("a", "b", "c")}
    other = opened({"a": policy("none"), "b": policy("none", model=MODEL | {"layers": 1})})
    assert other.bases() == {"a": ("a",), "b": ("b",)}
    assert opened({"a": policy()}, seed=1).digest() != opened({"a": policy()}).digest()


def test_weights_hand_out_the_adapter_with_the_shared_module() -> None:
    trainer = opened({"a": policy("lora"), "b": policy("lora"), "c": policy("none"), "d": policy()})
    weights = {name: trainer.weights(name) for name in "abcd"}
    assert [weights[name].adapter for name in "abcd"] == [adapter_name("a"), "b", None, None]
    assert weights["a"].module is weights["b"].module is weights["c"].module
    assert weights["d"].module is not weights["a"].module
    assert all(found.tokenizer is not None and found.version == 0 for found in weights.values())


def test_adapter_settings_reach_peft() -> None:
    table = {"rank": 3, "alpha": 5, "dropout": 0.25, "target_modules": ["q_proj"]}
    trainer = opened({"a": policy("lora", lora=table), "b": policy("lora")})
    settings = trainer.initial_weights[0].peft.peft_config[adapter_name("a")]
    assert (settings.r, settings.lora_alpha, settings.lora_dropout) == (3, 5, 0.25)
    assert all(".q_proj." in name for name in trainer.policies["a"].own_parameters())
    assert any(".gate_proj." in name for name in trainer.policies["b"].own_parameters())  # all-linear


def test_an_adapter_without_settings_has_the_papers() -> None:
    settings = opened({"a": policy("lora", lora=None)}).initial_weights[0].peft.peft_config[adapter_name("a")]
    assert (settings.r, settings.lora_alpha, settings.lora_dropout) == (16, 32, 0)


@pytest.mark.parametrize("name", ["plain", "two words", "a.b", "keys", "lora_x", "lora", "7"])
def test_any_policy_name_can_have_an_adapter(name: str) -> None:
    trainer = opened({name: policy("lora"), "other": policy("lora")})
    assert len(trainer.policies[name].own_parameters()) == len(trainer.policies["other"].own_parameters()) > 0
    assert moved(trainer, [name]) == {name}
    assert adapter_name("plain") == "plain"


def test_adapters_of_a_bf16_base_are_fp32() -> None:
    trainer = opened({"a": policy("lora", dtype="bfloat16"), "b": policy("lora", dtype="bfloat16")})
    model = trainer.policies["a"].model
    assert {p.dtype for p in plain_parameters(model).values()} == {torch.bfloat16}
    for adapter in (adapter_name("a"), "b"):
        assert {p.dtype for p in adapter_parameters(model, adapter).values()} == {torch.float32}
    assert moved(trainer, ["a"]) == {"a"}


def moved_in_16_steps(trainer: TorchTrainer) -> float:
    """The share of what is optimised that is not as it was."""
    optimizer = trainer.policies["p"].optimizer
    before = {name: master.detach().clone() for name, master in optimizer.masters().items()}
    for step in range(16):
        update(trainer, {"p": samples(groups=2, seed=step)}, step)
    moved = [(master != before[name]).flatten() for name, master in optimizer.masters().items()]
    return float(torch.cat(moved).float().mean())


def test_bf16_policies_are_trained_through_fp32_masters(monkeypatch: pytest.MonkeyPatch) -> None:
    config = policy(dtype="bfloat16", optimizer={"learning_rate": 5e-6})
    trainer = opened({"p": config})
    assert moved_in_16_steps(trainer) >= 0.99
    for name, master in trainer.policies["p"].optimizer.masters().items():
        assert master.dtype == torch.float32
        assert torch.equal(trainer.policies["p"].own_parameters()[name], master.bfloat16())
    # Where the bf16 weights are optimised themselves, steps of 5e-6 are rounded away.
    monkeypatch.setattr(optim, "master", lambda weight: weight)
    bare = opened({"p": config})
    share = moved_in_16_steps(bare)
    assert all(m.dtype == torch.bfloat16 for m in bare.policies["p"].optimizer.masters().values())
    assert 0 < share < 0.2
