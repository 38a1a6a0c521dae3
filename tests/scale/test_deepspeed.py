"""Trainer `deepspeed` against trainer `torch`: the same updates at every stage, on one and two ranks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coterie.backends.engines.vllm.sync import BaseWeights
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.types import Key
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers import tiny
from tests.scale.divided import DividedTrainer

pytestmark = pytest.mark.scale

NEEDS = ("old_logprobs", "ref_logprobs", "values")
SETTINGS = {"micro_tokens": 64, "minibatch_size": 8}
RATE = {"optimizer": {"learning_rate": 1e-3, "weight_decay": 0.01, "clip": 0.05, "schedule": "linear",
                      "horizon": 8, "warmup_steps": 2}}  # fmt: skip


def policies() -> dict[str, Any]:
    """A policy with all weights and two adapters, which begin with the same weights."""
    return {"full": tiny.policy(**RATE), "a": tiny.policy("lora", **RATE), "b": tiny.policy("lora", **RATE)}


def rows(policy: str, step: int) -> list[Any]:
    """Samples with all annotations; one in three has no value target."""
    made = tiny.samples(policy, seed=10 * step + len(policy), temperatures=(1.0, 0.8))
    return tiny.with_targets(tiny.with_old(tiny.with_reference(made)), without=3)


def updated(trainer: TorchTrainer, step: int, *names: str) -> dict[str, dict[str, float]]:
    return tiny.update(trainer, {name: rows(name, step) for name in names}, step)


@dataclass
class History:
    """A trainer's course over three updates."""

    trainer: TorchTrainer
    folders: list[Path] = field(default_factory=list)
    """The state after each update."""
    metrics: list[dict[str, dict[str, float]]] = field(default_factory=list)
    annotations: dict[str, dict[Key, np.ndarray]] = field(default_factory=dict)
    """Of policies `full` and `a`, after the updates."""

    def weights(self, update: int, policy: str) -> dict[str, torch.Tensor]:
        return load_file(str(self.folders[update] / "policies" / f"{policy}.safetensors"))

    def moments(self, update: int, policy: str) -> dict[str, torch.Tensor]:
        return load_file(str(self.folders[update] / "policies" / f"{policy}.optimizer.safetensors"))


def history(trainer: TorchTrainer, folder: Path) -> History:
    course = History(trainer)
    for step, names in enumerate((("full", "a", "b"), ("full", "a"), ("full", "a", "b"))):
        course.metrics.append(updated(trainer, step, *names))
        course.folders.append(folder / str(step))
        trainer.save(course.folders[-1])
    for what in NEEDS:
        samples = [*tiny.samples("full", seed=5), *tiny.samples("a", seed=6, groups=2)]
        course.annotations[what] = tiny.annotate(trainer, [replace(row, extras={}) for row in samples], what)
    return course


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> History:
    trainer = tiny.opened(policies(), PPOClip(), needs=NEEDS, **SETTINGS)
    return history(trainer, tmp_path_factory.mktemp("torch"))


@pytest.fixture(
    scope="module",
    params=[
        *((stage, 1) for stage in (0, 2)),
        *(pytest.param((stage, 1), marks=pytest.mark.long) for stage in (1, 3)),
        *(pytest.param((stage, 2), marks=pytest.mark.long) for stage in (0, 1)),
        *((stage, 2) for stage in (2, 3)),
    ],
    ids=lambda value: f"stage{value[0]}-ranks{value[1]}",
)
def course(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    stage, ranks = request.param
    trainer = opened(policies(), needs=NEEDS, stage=stage, ranks=ranks)
    yield history(trainer, tmp_path_factory.mktemp("deepspeed"))
    asyncio.run(trainer.close())


def opened(configs: dict[str, Any], **settings: Any) -> TorchTrainer:
    return tiny.opened(configs, PPOClip(), trainer=DividedTrainer, **{**SETTINGS, **settings})


def difference(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> float:
    """|ours - theirs| / |theirs|, over all tensors."""
    assert ours.keys() == theirs.keys()
    return float(_norm([ours[name].double() - theirs[name].double() for name in theirs])
                 / _norm([tensor.double() for tensor in theirs.values()]))  # fmt: skip


def _norm(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


# ------------------------------------------------------------------------------- the same updates as torch's


@pytest.mark.parametrize("policy", ["full", "a", "b"])
def test_gradients_are_those_of_one_process(course: History, expected: History, policy: str) -> None:
    """The first moments after an update are sums of its clipped gradients."""
    ours, theirs = ({name: tensor for name, tensor in each.moments(0, policy).items() if "/exp_avg" in name}
                    for each in (course, expected))  # fmt: skip
    assert len(theirs) > 4 and difference(ours, theirs) < 1e-5


@pytest.mark.parametrize("policy", ["full", "a", "b"])
def test_weights_after_three_updates_are_those_of_trainer_torch(
    course: History, expected: History, policy: str
) -> None:
    assert difference(course.weights(2, policy), expected.weights(2, policy)) < 1e-5
    assert difference(expected.weights(2, policy), expected.weights(0, policy)) > 1e-3


def test_a_policy_without_samples_does_not_move(course: History) -> None:
    """The adapters share a base, and an update of one leaves the other as it is."""
    before, after = (course.weights(update, "b") for update in (0, 1))
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not torch.equal(before["value_head"], course.weights(2, "b")["value_head"])


def test_metrics_are_those_of_trainer_torch(course: History, expected: History) -> None:
    for ours, theirs in zip(course.metrics, expected.metrics, strict=True):
        for policy, metrics in theirs.items():
            assert ours[policy].keys() == metrics.keys()
            for name, value in metrics.items():
                assert ours[policy][name] == pytest.approx(value, rel=2e-4, abs=2e-6), name
    assert course.metrics[0]["full"]["grad_norm"] > 0.05, "the updates are clipped"
    assert course.metrics[0]["full"]["optimizer_steps"] == 2


def test_annotations_are_those_of_trainer_torch(course: History, expected: History) -> None:
    for what in NEEDS:
        ours, theirs = course.annotations[what], expected.annotations[what]
        assert ours.keys() == theirs.keys()
        for key, values in theirs.items():
            np.testing.assert_allclose(ours[key], values, rtol=1e-4, atol=2e-5)


# ------------------------------------------------------------------------------------------------ checkpoints


def test_a_loaded_state_continues_bit_for_bit(course: History) -> None:
    course.trainer.load(course.folders[1])
    assert updated(course.trainer, 2, "full", "a", "b") == course.metrics[2]
    folder = course.folders[2].with_name("again")
    course.trainer.save(folder)
    for file in ("full", "a", "b", "full.optimizer", "a.optimizer", "b.optimizer"):
        ours, theirs = (load_file(str(at / "policies" / f"{file}.safetensors"))
                        for at in (folder, course.folders[2]))  # fmt: skip
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs), file


def test_a_state_goes_to_another_world_size_and_back(course: History, expected: History) -> None:
    """From trainer torch's files, which are one rank's, and to them: the format is the same."""
    course.trainer.load(expected.folders[2])
    assert course.trainer.digest() == expected.trainer.digest()
    updated(course.trainer, 3, "full", "a")
    folder = course.folders[2].with_name("elsewhere")
    course.trainer.save(folder)
    one = tiny.opened(policies(), PPOClip(), needs=NEEDS, **SETTINGS)
    one.load(folder)
    assert one.digest() == course.trainer.digest()
    assert json.loads((folder / "state.json").read_text())["policies"]["full"]["optimizer_steps"] == 8
    here, there = updated(one, 4, "full"), updated(course.trainer, 4, "full")
    assert here["full"]["loss"] == pytest.approx(there["full"]["loss"], rel=1e-4, abs=1e-6)


# ---------------------------------------------------------------------------------------- weights and exports


def test_whole_weights_reach_the_engine(course: History) -> None:
    """Up to stage 2 by the live module; at stage 3 by tensors that are gathered."""
    for policy, whole in (("full", 25), ("a", 28)):
        weights = course.trainer.weights(policy)
        if course.trainer.config.stage < 3:
            assert weights.tensors is None and weights.module is not None
            continue
        assert weights.module is None and weights.tensors is not None
        tensors = dict(weights.tensors())
        folder = course.folders[2].with_name(f"tensors of {policy}")
        course.trainer.save(folder)
        saved = load_file(str(folder / "policies" / f"{policy}.safetensors"))
        assert len(tensors) == len(saved) - 1 >= whole - 10, "all but the value head"
        assert all(torch.equal(tensors[name], saved[name]) for name in tensors)


@pytest.mark.parametrize(("policy", "merge"), [("full", False), ("a", False), ("a", True)])
def test_exports_compute_the_policy(course: History, policy: str, merge: bool) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder = course.folders[2].with_name(f"export {policy} {merge}")
    course.trainer.export(policy, folder, merge=merge)
    if policy == "a" and not merge:
        base = AutoModelForCausalLM.from_pretrained(folder / "base")
        model = PeftModel.from_pretrained(base, str(folder))
    else:
        model = AutoModelForCausalLM.from_pretrained(folder)
    samples = [replace(row, extras={}) for row in tiny.samples(policy, seed=8, groups=1)]
    ours = tiny.annotate(course.trainer, samples, "old_logprobs")
    for row in samples:
        logprobs = tiny.independent_logprobs(model.eval(), row).detach().numpy()
        np.testing.assert_allclose(ours[row.key], logprobs, atol=2e-5)


def test_an_engine_notices_which_weights_an_update_changed(course: History) -> None:
    """The last test of a course: it updates the trainer."""
    for step, policy in enumerate(("full", "a"), 3):
        handle = course.trainer.weights(policy)
        if handle.tensors is not None:
            state = handle.tensors.state
        else:
            state = BaseWeights(handle, merge=handle.adapter is not None).fingerprint
        before = state()
        updated(course.trainer, step, "b")
        assert state() == before, "another policy's update"
        updated(course.trainer, step, policy)
        assert state() != before
