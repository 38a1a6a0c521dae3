"""Out of memory in an update of trainer `deepspeed`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch

from coterie.backends.trainers.deepspeed.engines import DeepSpeedOptimizer
from coterie.core.errors import UserError
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers import tiny
from tests.scale.divided import DividedTrainer

pytestmark = pytest.mark.scale


def weights_after(stage: int, monkeypatch: pytest.MonkeyPatch, where: str | None) -> list[torch.Tensor]:
    """The weights after two updates; the second one runs out of memory once, in its second micro-batch."""
    trainer = tiny.opened(
        {"p": tiny.policy()},
        PPOClip(),
        trainer=DividedTrainer,
        stage=stage,
        minibatch_size=8,
        micro_tokens=64,
    )
    calls = 0

    def failing(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 2 and where == "forward":
                raise torch.OutOfMemoryError("CUDA out of memory.")
            value = function(*arguments, **named)
            if calls == 2:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return value

        return call

    try:
        for step in range(2):
            if step and where is not None:
                engine: Any = trainer.policies["p"].optimizer
                name = "forward" if where == "forward" else "backward"
                monkeypatch.setattr(engine.engine, name, failing(getattr(engine.engine, name)))
            tiny.update(trainer, {"p": tiny.with_old(tiny.samples("p", seed=step, groups=4))}, step)
        assert where is None or calls > 2
        return [tensor.detach().clone() for tensor in trainer.policies["p"].weights().values()]
    finally:
        asyncio.run(trainer.close())


def test_at_stage_0_a_smaller_memory_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = weights_after(0, monkeypatch, None)
    for where in ("forward", "backward"):
        for ours, theirs in zip(weights_after(0, monkeypatch, where), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5)
    with monkeypatch.context() as patch:  # gradients that stay would be added twice
        patch.setattr(DeepSpeedOptimizer, "clear_gradients", property(lambda self: lambda: None))
        wrong = weights_after(0, patch, "backward")
        assert max(float((a - b).abs().max()) for a, b in zip(wrong, expected, strict=True)) > 1e-4


def test_other_stages_end_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="does not fit the memory") as caught:
        weights_after(1, monkeypatch, "backward")
    assert caught.value.path == "trainer.micro_tokens"
