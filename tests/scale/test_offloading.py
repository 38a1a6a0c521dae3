"""Trainer `deepspeed` leaves its device in rollouts, and computes the same at every stage."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pytest
import torch
from safetensors.torch import load_file

from coterie.backends.models import device_memory
from coterie.backends.trainers.offloading import weights_of
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers import tiny
from tests.backends.trainers.poisoned import PoisonedDeepSpeed, freed

pytestmark = pytest.mark.scale
NEEDS = ("ref_logprobs", "values")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_memory, "_occupied", WeakKeyDictionary())
    monkeypatch.setattr(device_memory, "_lenders", WeakSet())
    yield


def room() -> None:
    asyncio.run(device_memory.make_room())


def played(folder: Path, offload: str, dtype: str, **settings: Any) -> dict[str, torch.Tensor]:
    """The states after three updates, with a resume after the second."""
    configs = {"full": tiny.policy(dtype=dtype), "a": tiny.policy("lora"), "b": tiny.policy("lora")}

    def opened() -> PoisonedDeepSpeed:
        made = tiny.opened(
            configs,
            PPOClip(),
            needs=NEEDS,
            trainer=PoisonedDeepSpeed,
            offload_in_rollouts=offload,
            **settings,
        )
        assert isinstance(made, PoisonedDeepSpeed)
        return made

    def step(trainer: PoisonedDeepSpeed, number: int) -> None:
        room()
        assert bool(min(freed(trainer))) == (offload != "none")
        for what in NEEDS:
            tiny.annotate(trainer, tiny.samples("a", seed=number), what)
        names = ("full", "a", "b") if number != 1 else ("full", "a")
        rows = {
            name: tiny.with_targets(tiny.with_reference(tiny.samples(name, seed=number))) for name in names
        }
        tiny.update(trainer, rows, number)
        room()
        away = freed(trainer)
        for name in names:  # as an engine reads them, at stage 3 by gathering
            handle = trainer.weights(name)
            read = (
                dict(handle.tensors())
                if handle.tensors is not None
                else dict(handle.module.named_parameters())
            )
            assert not any(tensor.isnan().any() for tensor in read.values())
        trainer.digest()
        trainer.save(folder / str(number))
        assert freed(trainer) == away, "a save in rollouts leaves the trainer where it was"

    trainer = opened()
    for number in (0, 1):
        step(trainer, number)
    trainer.load(folder / "1")
    step(trainer, 2)
    left = [t for t in weights_of(trainer._initial_weights, trainer._policies) if not t.numel()]
    assert left == [] or settings["stage"] == 3
    asyncio.run(trainer.close())
    files = sorted((folder / "2").glob("**/*.safetensors"))
    return {f"{path.name}/{name}": t for path in files for name, t in load_file(str(path)).items()}


@pytest.mark.parametrize(
    ("stage", "dtype", "ranks"),
    [
        (0, "float32", 1),
        (2, "bfloat16", 1),
        (3, "float32", 1),
        pytest.param(1, "bfloat16", 1, marks=pytest.mark.long),
        pytest.param(3, "bfloat16", 1, marks=pytest.mark.long),
        pytest.param(2, "float32", 2, marks=pytest.mark.long),
        pytest.param(3, "float32", 2, marks=pytest.mark.long),
    ],
)
def test_a_trainer_that_leaves_has_the_same_state_bit_for_bit(
    stage: int, dtype: str, ranks: int, tmp_path: Path
) -> None:
    settings = {"stage": stage, "ranks": ranks, "micro_tokens": 64, "minibatch_size": 8}
    stays, leaves = (played(tmp_path / offload, offload, dtype, **settings) for offload in ("none", "all"))
    assert stays.keys() == leaves.keys() and len(stays) > 20
    for name, tensor in stays.items():
        assert torch.equal(tensor, leaves[name]) and not tensor.isnan().any(), name
