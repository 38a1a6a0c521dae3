# ruff: noqa: E402 (torch is asked for first)
"""Out of memory in an update: smaller micro-batches, the same result."""

from __future__ import annotations

import functools
import gc
import itertools
import logging
import weakref
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")

from coterie.backends.models.policy import WarmStart
from coterie.backends.trainers import forward
from coterie.backends.trainers.forward import TokenScorer
from coterie.backends.trainers.optim import PolicyOptimizer
from coterie.backends.trainers.out_of_memory import is_out_of_memory
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.errors import UserError
from coterie.core.protocols import Demonstration
from tests.backends.trainers.tiny import (
    annotate,
    in_float64,
    opened,
    policy,
    samples,
    turn_heads,
    update,
    with_reference,
    with_targets,
)

pytestmark = pytest.mark.torch


def short() -> Exception:
    """A new error each time: an error keeps the frames, and with them the tensors, of its traceback."""
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore lines.")


@pytest.fixture(scope="module", autouse=True)
def _young_garbage() -> None:
    """Each error collects all garbage: what earlier tests left would be looked through each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    in_float64(monkeypatch)


def trained(train: str = "full", **settings: Any) -> TorchTrainer:
    trainer = opened({"p": policy(train)}, needs=("values", "ref_logprobs"), minibatch_size=12, **settings)
    turn_heads(trainer)
    return trainer


def rows() -> list[Any]:
    return with_targets(with_reference(samples(groups=6)))


def result(trainer: TorchTrainer) -> tuple[dict[str, Any], dict[str, float]]:
    metrics = update(trainer, {"p": rows()})["p"]
    return {n: w.detach().clone() for n, w in trainer.policies["p"].weights().items()}, metrics


@functools.cache
def undisturbed(train: str = "full", **settings: Any) -> tuple[dict[str, Any], dict[str, float]]:
    """The result where nothing fails, computed once."""
    return result(trained(train, **settings))


def memory_of(tokens: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device that computes at most so many tokens at once; the list gets the size of each forward."""
    sizes: list[int] = []
    original = TokenScorer.forward

    def bounded(self: TokenScorer, packed: Any, *args: Any, **options: Any) -> Any:
        sizes.append(packed.ids.size)
        if packed.ids.size > tokens:
            raise short()
        return original(self, packed, *args, **options)

    monkeypatch.setattr(TokenScorer, "forward", bounded)
    return sizes


class Once:
    """Raises in one call of a function, by number."""

    def __init__(self, original: Callable[..., Any], at: int, *, after: bool = False) -> None:
        self.original, self.at, self.after, self.calls = original, at, after, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.at and not self.after:
            raise short()
        value = self.original(*args, **options)
        if self.calls == self.at:
            raise short()
        return value

    def __get__(self, owner: Any, kind: Any) -> Any:
        return lambda *args, **options: self(owner, *args, **options)


def same(ours: Any, expected: Any) -> None:
    weights, metrics = ours
    for name, weight in expected[0].items():
        torch.testing.assert_close(weight, weights[name], rtol=0, atol=1e-10)
    assert set(metrics) == set(expected[1])
    for name, number in expected[1].items():
        assert metrics[name] == pytest.approx(number, rel=1e-9, abs=1e-9), name


@pytest.mark.parametrize("packing", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("train", ["full", "lora"])
def test_a_device_with_less_memory_gives_the_same_result(
    train: str, packing: bool, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    expected = undisturbed(train, packing=packing)
    trainer = trained(train, packing=packing)
    sizes = memory_of(120, monkeypatch)
    with caplog.at_level(logging.WARNING, "coterie"):
        same(result(trainer), expected)
    assert max(sizes) > 120 and trainer.policies["p"].scorer.budget <= 120
    warnings = [record.getMessage() for record in caplog.records if "out of memory" in record.getMessage()]
    assert warnings and "Tried to allocate 2.00 GiB" in warnings[0] and "More lines" not in warnings[0]
    assert f"trainer.micro_tokens={trainer.policies['p'].scorer.budget}" in warnings[-1]
    failures = sum(size > 120 for size in sizes)
    assert failures == len(warnings) <= 3, "later micro-batches begin with the smaller size"


POINTS: dict[str, Callable[[int], tuple[Any, str, Any]]] = {
    "in the forward pass": lambda at: (TokenScorer, "forward", Once(TokenScorer.forward, at)),
    "before the backward pass": lambda at: (torch.Tensor, "backward", Once(torch.Tensor.backward, at)),
    "when gradients are there": lambda at: (
        torch.Tensor, "backward", Once(torch.Tensor.backward, at, after=True),
    ),
    "when gradients are added": lambda at: (
        PolicyOptimizer, "absorb", Once(PolicyOptimizer.absorb, at, after=True),
    ),
    "in the head": lambda at: (forward, "token_scores", Once(forward.token_scores, at)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("point", "at"),
    [
        *((point, 2) for point in POINTS),
        *itertools.product(("in the forward pass", "when gradients are added"), (1, 4)),
    ],
)
def test_wherever_it_happens_no_gradient_is_lost_or_counted_twice(
    point: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two minibatches of several micro-batches each; the first, the second and a later one fail."""
    expected = undisturbed(micro_tokens=100)
    trainer = trained(micro_tokens=100)
    owner, name, once = POINTS[point](at)
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, once)
        same(result(trainer), expected)
    assert once.calls > at, "the attempt was made again"


def test_half_a_backward_pass_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes from inside autograd, when some leaves have their gradients and others don't."""
    expected = undisturbed()
    trainer = trained()
    layer = trainer.policies["p"].model.model.layers[0]
    failures = []

    def fail(*_: Any) -> None:
        if not failures:
            head = trainer.policies["p"].model.model.layers[1].mlp.down_proj.weight
            failures.append(head.grad is not None)
            raise short()

    layer.register_full_backward_pre_hook(fail)
    same(result(trainer), expected)
    assert failures == [True], "the upper layer had its gradient already"


def test_masters_of_bf16_weights_are_cleared_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    trainers = [
        opened({"p": policy(dtype="bfloat16", optimizer={"learning_rate": 1e-3})}, micro_tokens=60)
        for _ in range(2)
    ]
    plain = samples(groups=6)
    summed: list[dict[str, Any]] = []
    original = PolicyOptimizer.step

    def noted(self: PolicyOptimizer) -> Any:
        summed.append({name: master.grad.clone() for name, master in self.masters().items()})
        return original(self)

    monkeypatch.setattr(PolicyOptimizer, "step", noted)
    update(trainers[0], {"p": plain})
    monkeypatch.setattr(PolicyOptimizer, "absorb", Once(PolicyOptimizer.absorb, 3, after=True))
    update(trainers[1], {"p": plain})
    for name, gradient in summed[0].items():  # smaller micro-batches round otherwise
        assert float((summed[1][name] - gradient).norm()) < 0.05 * float(gradient.norm()), name
    masters = trainers[1].policies["p"].optimizer.masters()
    assert all(master.grad is None for master in masters.values())


def test_a_single_sample_that_does_not_fit_is_an_error_with_ways_out(monkeypatch: Any) -> None:
    trainer = trained()
    before = trainer.digest()
    memory_of(10, monkeypatch)
    with pytest.raises(UserError) as refused:
        result(trainer)
    error = refused.value
    assert error.path == "policies.p" and "a single sample of" in error.what
    assert "Tried to allocate" in str(error.why)
    for way in ("gradient_checkpointing=true", "policies.p.context", "train=lora", "deepspeed"):
        assert way in str(error.fix)
    assert trainer.digest() == before, "nothing was trained"


def test_an_optimiser_that_does_not_fit_is_an_error_of_its_own(monkeypatch: Any) -> None:
    trainer = trained()
    monkeypatch.setattr(torch.optim.AdamW, "step", Once(torch.optim.AdamW.step, 1))
    with pytest.raises(UserError, match="optimiser's step does not fit") as refused:
        result(trainer)
    assert "trainer.offload.optimizer" in str(refused.value.fix)


@pytest.mark.parametrize("what", ["ref_logprobs", "old_logprobs", "values"])
def test_annotations_are_computed_in_smaller_parts(what: str, monkeypatch: Any) -> None:
    trainer = trained()
    expected = annotate(trainer, rows(), what)
    memory_of(120, monkeypatch)
    for key, values in annotate(trainer, rows(), what).items():
        assert values == pytest.approx(expected[key], abs=1e-6)


def test_a_warm_start_goes_on_in_smaller_parts(monkeypatch: Any) -> None:
    import asyncio

    def demonstrations(step: int) -> list[Demonstration]:
        return [
            Demonstration(
                policy="p", messages=(), completion="w1 w2 w3", prompt_ids=tuple(range(3, 9 + index))
            )
            for index in range(12)
        ]

    def started() -> dict[str, Any]:
        trainer = opened({"p": policy()})
        config = WarmStart(steps=2, warmup_steps=1)
        metrics = asyncio.run(trainer.warm_start("p", demonstrations, config))
        return {
            **{n: w.detach() for n, w in trainer.policies["p"].weights().items()},
            "loss": metrics["loss"],
        }

    expected = started()
    memory_of(100, monkeypatch)
    again = started()
    assert again.pop("loss") == pytest.approx(expected.pop("loss"), abs=1e-10)
    for name, weight in expected.items():
        torch.testing.assert_close(weight, again[name], rtol=0, atol=1e-10)


def test_the_failed_attempts_tensors_are_freed_before_the_next(monkeypatch: Any) -> None:
    trainer = trained()
    kept: list[Any] = []
    original = TokenScorer.forward

    def recording(self: TokenScorer, packed: Any, *args: Any, **options: Any) -> Any:
        gc.disable()
        assert not any(tensor() is not None for tensor in kept), "a traceback holds them"
        states, logits = original(self, packed, *args, **options)
        if not kept:
            kept.append(weakref.ref(states))
            raise short()
        return states, logits

    monkeypatch.setattr(TokenScorer, "forward", recording)
    try:
        result(trainer)
    finally:
        gc.enable()
    assert kept


def test_errors_of_other_kinds_pass(monkeypatch: Any) -> None:
    assert is_out_of_memory(short())
    assert is_out_of_memory(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`")
    )
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"))
    assert is_out_of_memory(MemoryError()), "an array's"
    assert not is_out_of_memory(RuntimeError("shapes differ")) and not is_out_of_memory(OSError("no space"))
    trainer = trained()
    monkeypatch.setattr(TokenScorer, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        result(trainer)
