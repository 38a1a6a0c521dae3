# ruff: noqa: E402 (torch is asked for first)
"""Gradient checkpointing: the same gradients, from fewer bytes that are held at once."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.plugins.losses.ppo_clip import PPOClip
from tests.backends.trainers.tiny import (
    MODEL,
    in_float64,
    opened,
    policy,
    samples,
    turn_heads,
    with_targets,
)

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)


class Held(TorchDispatchMode):
    """Counts the bytes of tensors that are made inside, for as long as they are referenced."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        before = {
            _address(tensor) for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)
        }
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and _address(tensor) not in self._known | before:
                self._hold(tensor.untyped_storage())
        return result

    def _hold(self, storage: Any) -> None:
        address, size = storage._cdata, storage.nbytes()
        self._known.add(address)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._let_go, address, size)

    def _let_go(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def step(checkpointing: bool, train: str, **how: Any) -> tuple[dict[str, torch.Tensor], int, TorchTrainer]:
    """The gradients of one update, the peak of bytes that its tensors held, and the trainer."""
    deep = policy(train, model=MODEL | {"layers": 8})
    trainer = opened({"p": deep}, PPOClip(), gradient_checkpointing=checkpointing, needs=("values",), **how)
    turn_heads(trainer)
    owner, seen = trainer.policies["p"], {}
    original = owner.optimizer.step

    def noted() -> Any:
        seen.update({n: p.grad.detach().clone() for n, p in owner.weights().items() if p.grad is not None})
        return original()

    owner.optimizer.step = noted
    rows = with_targets(samples(groups=6))
    with Held() as held:
        trainer.rank_update({"p": rows}, 0)
    return seen, held.peak, trainer


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("train", ["full", "lora"])
def test_gradients_are_equal_at_a_lower_peak(train: str, packing: bool) -> None:
    expected, most, _ = step(False, train, packing=packing)
    gradients, least, trainer = step(True, train, packing=packing)
    assert set(gradients) == set(expected) and "value_head" in gradients
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-12, atol=1e-12)
    assert least < 0.3 * most  # of 8 layers
    assert not any(module.training for module in trainer.policies["p"].model.model.layers)


def test_held_bytes_are_counted_for_as_long_as_they_are_held() -> None:
    start = torch.ones(1000)
    with Held() as held:
        doubled = start * 2  # 4000 bytes
        increased = doubled.view(10, 100) + 1  # and 4000 more; the view has none
        del doubled
        assert (held.now, held.peak) == (4000, 8000)
        increased.add_(1)
        widened = increased.double()
        assert (held.now, held.peak) == (12000, 12000)
        del increased, widened
        assert (held.now, held.peak) == (0, 12000)
        weight = torch.ones(1000, requires_grad=True)  # 4000
        total = (weight * 2).sin().sum()  # the sine keeps its argument; the sum itself has 4 bytes
        assert held.now == 8004
        total.backward()
        assert held.now == 8004  # the argument is gone, the gradient is there
