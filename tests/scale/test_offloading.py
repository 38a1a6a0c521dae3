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
from coterie.backends.trainers.deepspeed.engines import Engines
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers import tiny
from tests.backends.trainers.poisoned import Poisoned, PoisonedDeepSpeed, freed

pytestmark = pytest.mark.scale
NEEDS = ("ref_logprobs", "values")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(device_memory, "occupied", WeakKeyDictionary())
    monkeypatch.setattr(device_memory, "lenders", WeakSet())
    yield


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> list[Poisoned]:
    """Those of trainers that a test opens: all is back whenever ranks gather what they divide."""
    there: list[Poisoned] = []
    plain = Engines.gather

    def gather(engines: Engines, parameters: Any, write: bool) -> Any:
        assert not any(device.freed for device in there)
        return plain(engines, parameters, write)

    monkeypatch.setattr(Engines, "gather", gather)
    return there


def room() -> None:
    asyncio.run(device_memory.make_room())


def played(
    folder: Path, offload: str, dtype: str, devices: list[Poisoned], *, long: bool, **settings: Any
) -> dict[str, torch.Tensor]:
    """The last state of two updates of two policies; with `long` of three of three, with a resume between."""
    names = ("full", "a", "b") if long else ("full", "a")
    configs = {name: tiny.policy(dtype=dtype) if name == "full" else tiny.policy("lora") for name in names}

    def opened() -> PoisonedDeepSpeed:
        wanted = {**settings, "offload_in_rollouts": offload}
        made = tiny.opened(configs, PPOClip(), needs=NEEDS, trainer=PoisonedDeepSpeed, **wanted)
        assert isinstance(made, PoisonedDeepSpeed)
        devices.append(made.device)
        return made

    def step(trainer: PoisonedDeepSpeed, number: int) -> None:
        room()
        assert bool(min(freed(trainer))) == (offload != "none")
        for what in NEEDS:
            tiny.annotate(trainer, tiny.samples("a", seed=number), what)
        trained = names if number != 1 else names[:1]
        rows = {name: tiny.with_reference(tiny.samples(name, seed=number)) for name in trained}
        tiny.update(trainer, {name: tiny.with_targets(each) for name, each in rows.items()}, number)
        room()
        away = freed(trainer)
        for name in names:  # as an engine reads them, at stage 3 by gathering
            handle = trainer.weights(name)
            read = handle.module.named_parameters() if handle.tensors is None else handle.tensors()
            assert not any(tensor.isnan().any() for _, tensor in read)
        trainer.digest()
        trainer.save(folder / str(number))
        assert freed(trainer) == away, "a save in rollouts leaves the trainer where it was"

    trainer = opened()
    for number in (0, 1):
        step(trainer, number)
    if long:
        trainer.load(folder / "1")
        step(trainer, 2)
    asyncio.run(trainer.close())
    devices.clear()
    files = sorted((folder / str(1 + long)).glob("**/*.safetensors"))
    return {f"{path.name}/{name}": t for path in files for name, t in load_file(str(path)).items()}


LONG = [(0, "float32", 1), (1, "bfloat16", 1), (2, "bfloat16", 1), (3, "bfloat16", 1), (3, "float32", 2)]


@pytest.mark.parametrize(
    ("stage", "dtype", "ranks", "long"),
    [
        (2, "bfloat16", 1, False),
        pytest.param(3, "float32", 1, False, marks=pytest.mark.long),
        *(pytest.param(*case, True, marks=pytest.mark.long) for case in LONG),
    ],
)
def test_a_trainer_that_leaves_has_the_same_state_bit_for_bit(
    stage: int, dtype: str, ranks: int, long: bool, tmp_path: Path, devices: list[Poisoned]
) -> None:
    settings = {"stage": stage, "ranks": ranks, "micro_tokens": 64, "minibatch_size": 8, "long": long}
    stays, leaves = (
        played(tmp_path / offload, offload, dtype, devices, **settings) for offload in ("none", "all")
    )
    assert stays.keys() == leaves.keys() and len(stays) > 20
    for name, tensor in stays.items():
        assert torch.equal(tensor, leaves[name]) and not tensor.isnan().any(), name
