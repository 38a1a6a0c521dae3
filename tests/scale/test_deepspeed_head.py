"""The value head under trainer `deepspeed`, where a minibatch has no value targets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers import tiny
from tests.scale.divided import DividedTrainer

pytestmark = pytest.mark.scale

TARGETS = (False, True, False, True)
"""Whether each update's samples have value targets."""


def history(kind: type[TorchTrainer], folder: Path, resume: bool = False, **settings: int) -> list[dict]:
    """The weights and moments after each update; `resume`: the state goes through a file before the last."""
    states = []
    trainer = tiny.opened({"p": tiny.policy()}, PPOClip(), needs=("values",), trainer=kind, **settings)
    try:
        for step, targets in enumerate(TARGETS):
            if resume and step == len(TARGETS) - 1:
                trainer.load(folder / str(step - 1))
            rows = tiny.with_old(tiny.samples("p", seed=step))
            tiny.update(trainer, {"p": tiny.with_targets(rows) if targets else rows}, step)
            trainer.save(folder / str(step))
            policies = folder / str(step) / "policies"
            states.append(
                load_file(str(policies / "p.safetensors"))
                | load_file(str(policies / "p.optimizer.safetensors"))
            )
    finally:
        asyncio.run(trainer.close())
    return states


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    return history(TorchTrainer, tmp_path_factory.mktemp("torch"))


@pytest.mark.parametrize(
    ("stage", "ranks"), [(0, 1), (1, 1), pytest.param(2, 2, marks=pytest.mark.long), (3, 1), (3, 2)]
)
def test_the_head_stays_without_targets(stage: int, ranks: int, expected: list[dict], tmp_path: Path) -> None:
    ours = history(DividedTrainer, tmp_path, resume=True, stage=stage, ranks=ranks)
    for step, targets in enumerate(TARGETS):
        assert ours[step].keys() == expected[step].keys()
        heads = [name for name in ours[step] if name.startswith("value_head")]
        for name in heads:
            assert torch.allclose(ours[step][name], expected[step][name], atol=1e-5), (step, name)
            if step and not targets:
                assert torch.equal(ours[step][name], ours[step - 1][name])
    assert not torch.equal(ours[1]["value_head"], ours[3]["value_head"])
