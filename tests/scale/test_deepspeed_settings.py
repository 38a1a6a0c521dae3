"""Trainer `deepspeed`: precision, offload, what is refused, and a run."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from coterie.api.train import train
from coterie.backends.trainers.deepspeed.trainer import DeepSpeedTrainer
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.compose import compose
from coterie.core.errors import ConfigError, MissingExtra
from coterie.recipes import load
from coterie.testing import check_trainer
from coterie.testing.support.building import build
from tests.backends.trainers import tiny
from tests.scale.divided import DividedTrainer

pytestmark = pytest.mark.scale

SMALL = {"optimizer": {"learning_rate": 5e-6}}
"""A rate at which bf16 weights would hardly change."""


def after(
    configs: dict[str, Any], folder: Path, *, trainer: type[TorchTrainer] = DividedTrainer, steps: int = 3,
    **settings: Any,
) -> dict[str, torch.Tensor]:  # fmt: skip
    """The saved state of policy `p` after some updates."""
    made = tiny.opened(configs, trainer=trainer, micro_tokens=64, **settings)
    for step in range(steps):
        tiny.update(made, {"p": tiny.samples("p", seed=step)}, step)
    made.save(folder)
    asyncio.run(made.close())
    files = [folder / "policies" / f"{name}.safetensors" for name in ("p", "p.optimizer")]
    return {name: tensor for file in files for name, tensor in load_file(str(file)).items()}


def moved(state: dict[str, torch.Tensor], start: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: state[name].double() - start[name].double() for name in start if name.endswith("/master")}


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_small_updates_of_bf16_weights_add_up_in_fp32_masters(tmp_path: Path, stage: int) -> None:
    configs = {"p": tiny.policy(dtype="bfloat16", **SMALL)}
    start = after(configs, tmp_path / "start", trainer=TorchTrainer, steps=0)
    theirs = after(configs, tmp_path / "torch", trainer=TorchTrainer)
    ours = after(configs, tmp_path / "ours", stage=stage)
    assert ours.keys() == theirs.keys()
    ours_moved, theirs_moved = moved(ours, start), moved(theirs, start)
    assert len(theirs_moved) > 20
    for name, step in theirs_moved.items():
        assert step.norm() > 0, name
        assert (ours_moved[name] - step).norm() < 0.02 * step.norm(), name
    weights = [name for name in start if "/" not in name]
    assert all(ours[name].dtype == torch.bfloat16 for name in weights)
    assert all(torch.equal(ours[name], ours[f"{name}/master"].bfloat16()) for name in weights)


def test_a_bf16_state_continues_bit_for_bit(tmp_path: Path) -> None:
    configs = {"p": tiny.policy(dtype="bfloat16", **SMALL)}
    for stage in (1, 2, 3):
        first, second = (tiny.opened(configs, trainer=DividedTrainer, stage=stage) for _ in range(2))
        tiny.update(first, {"p": tiny.samples("p")}, 0)
        first.save(tmp_path / f"{stage}")
        second.load(tmp_path / f"{stage}")
        for trainer in (first, second):
            tiny.update(trainer, {"p": tiny.samples("p", seed=1)}, 1)
            trainer.save(tmp_path / f"{stage}" / ("first" if trainer is first else "second"))
        ours, theirs = (
            load_file(str(tmp_path / f"{stage}" / name / "policies" / "p.optimizer.safetensors"))
            for name in ("first", "second")
        )
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), stage
        assert first.digest() == second.digest()
        for trainer in (first, second):
            asyncio.run(trainer.close())


def test_adapters_of_a_bf16_base_are_fp32_up_to_stage_2(tmp_path: Path) -> None:
    for stage, dtype in ((0, torch.float32), (2, torch.float32), (3, torch.bfloat16)):
        state = after({"p": tiny.policy("lora", dtype="bfloat16")}, tmp_path / f"{stage}", stage=stage)
        name = next(name for name in state if name.endswith("lora_B.weight"))
        assert state[name].dtype == dtype and state[name].abs().max() > 0
        assert (f"{name}/master" in state) == (stage == 3)


@pytest.mark.parametrize(
    ("stage", "offload"),
    [(1, {"optimizer": "cpu"}), (2, {"optimizer": "cpu"}), (3, {"optimizer": "cpu", "parameters": "cpu"})],
)
def test_offload_changes_no_update(tmp_path: Path, stage: int, offload: dict[str, str]) -> None:
    configs = {"p": tiny.policy(optimizer={"learning_rate": 1e-3})}
    theirs = after(configs, tmp_path / "torch", trainer=TorchTrainer)
    ours = after(configs, tmp_path / "ours", stage=stage, offload=offload)
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).norm() <= 1e-5 * tensor.norm() + 1e-9, name


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("train", ["full", "lora"])
def test_gradient_checkpointing_changes_no_update(tmp_path: Path, stage: int, train: str) -> None:
    configs = {"p": tiny.policy(train, optimizer={"learning_rate": 1e-3})}
    theirs = after(configs, tmp_path / "torch", trainer=TorchTrainer)
    ours = after(configs, tmp_path / "ours", stage=stage, gradient_checkpointing=True)
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).norm() <= 1e-5 * tensor.norm() + 1e-9, name


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_step_without_finite_gradients_is_skipped(stage: int, dtype: str) -> None:
    if (stage, dtype) == (0, "bfloat16"):
        return  # refused, see below
    trainer = tiny.opened({"p": tiny.policy(dtype=dtype)}, trainer=DividedTrainer, stage=stage)
    tiny.update(trainer, {"p": tiny.samples("p")}, 0)
    before = trainer.digest()
    optimizer = trainer.policies["p"].optimizer
    accumulate = optimizer.accumulate
    optimizer.accumulate = lambda loss, last: accumulate(lambda: loss() * float("1e38") * 1e38, last=last)
    metrics = tiny.update(trainer, {"p": tiny.samples("p", seed=1)}, 1)["p"]
    assert (metrics["skipped_steps"], metrics["optimizer_steps"]) == (1, 0)
    assert trainer.digest() == before
    optimizer.accumulate = accumulate
    assert tiny.update(trainer, {"p": tiny.samples("p", seed=2)}, 2)["p"]["optimizer_steps"] == 1
    assert trainer.digest() != before
    asyncio.run(trainer.close())


# -------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["trainer.stage=0", "trainer.offload.optimizer=cpu"], "trainer.offload.optimizer"),
        (["trainer.stage=2", "trainer.offload.parameters=cpu"], "trainer.offload.parameters"),
        (["trainer.stage=0", "policies.shared.dtype=bfloat16"], "policies.shared.dtype"),
        (["trainer.stage=3"], "trainer.stage"),
    ],
)
def test_what_deepspeed_cannot_do_is_refused_before_a_run(overrides: list[str], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(load("quickstart", overrides=["trainer.type=deepspeed", *overrides]))
    assert caught.value.path == path and caught.value.why and caught.value.fix


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "deepspeed" else find(name, *rest)
    )
    with pytest.raises(MissingExtra, match="deepspeed"):
        tiny.opened({"p": tiny.policy()}, trainer=DeepSpeedTrainer)


def test_a_taken_process_group_is_refused() -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with pytest.raises(ConfigError, match="process group is taken"):
            tiny.opened({"p": tiny.policy()}, trainer=DeepSpeedTrainer, ranks=2)
    finally:
        torch.distributed.destroy_process_group()


# ------------------------------------------------------------------------------------------------ conformance


@pytest.mark.parametrize(
    ("train", "stage"), [("full", 0), ("full", 2), ("lora", 2), ("full", 3), ("lora", 3)]
)
def test_conformance(train: str, stage: int) -> None:
    check_trainer(
        lambda: build("trainer", {"type": "deepspeed", "device": "cpu", "stage": stage}),
        model=tiny.MODEL,
        token_ids=range(3, 7),
        train=train,
        policy={"optimizer": {"learning_rate": 1e-2}},
    )


# ------------------------------------------------------------------------------------------------------ a run


def test_a_run_learns_as_with_trainer_torch(tmp_path: Path) -> None:
    """A few steps of the quickstart: the same samples, losses and rates as trainer torch's."""
    rows = {}
    short = ["schedule.steps=3", "policies.shared.warm_start.steps=3", "schedule.tasks_per_step=4"]
    for trainer in ("torch", "deepspeed"):
        folder = tmp_path / trainer
        train("quickstart", overrides=[*short, f"trainer.type={trainer}"], out=folder)
        rows[trainer] = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(rows["torch"]) >= 3
    for ours, theirs in zip(rows["deepspeed"], rows["torch"], strict=True):
        for name in theirs:
            if name.startswith(("policy/", "tokens/", "reward")):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-5), name
