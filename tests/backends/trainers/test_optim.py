# ruff: noqa: E402 (torch is asked for first)
"""AdamW over masters: schedule, clipping and skipped steps."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from coterie.backends.models.policy import OptimizerSettings, check_schedule
from coterie.backends.trainers.head import Term, head_scores
from coterie.backends.trainers.optim import PolicyOptimizer, learning_rate
from coterie.core.errors import ConfigError, RunFolderError

pytestmark = pytest.mark.torch


def settings(**values: object) -> OptimizerSettings:
    return OptimizerSettings.model_validate({"learning_rate": 1.0, **values})


def parameter(*values: float, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor([list(values)], dtype=dtype))


def stepped(optimizer: PolicyOptimizer, weight: torch.nn.Parameter, *gradient: float):
    weight.grad = torch.tensor([list(gradient)], dtype=weight.dtype)
    optimizer.absorb()
    return optimizer.step()


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ({}, [1, 1, 1, 1]),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1]),
        ({"schedule": "linear", "horizon": 4, "final_share": 0.2}, [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        ({"schedule": "linear", "horizon": 4, "final_share": 0.0, "warmup_steps": 2}, [0.5, 1, 1, 0.5, 0, 0]),
        ({"schedule": "cosine", "horizon": 4, "final_share": 0.0},
         [1, 0.5 + math.sqrt(0.125), 0.5, 0.5 - math.sqrt(0.125), 0, 0]),
    ],
)  # fmt: skip
def test_schedules_by_hand(schedule: dict, wanted: list[float]) -> None:
    rates = [learning_rate(settings(**schedule), count) for count in range(len(wanted))]
    assert rates == pytest.approx(wanted)


def test_a_decay_without_a_horizon_is_refused() -> None:
    with pytest.raises(ConfigError, match="horizon"):
        check_schedule(settings(schedule="linear"), "policies.p.optimizer")
    check_schedule(settings(), "policies.p.optimizer")


def test_the_schedule_moves_the_weights() -> None:
    weight = parameter(0.0)
    optimizer = PolicyOptimizer({"w": weight}, settings(learning_rate=0.1, warmup_steps=2))
    first = stepped(optimizer, weight, 1.0)
    assert weight.item() == pytest.approx(-0.05, rel=1e-5)  # Adam's first step is the learning rate's size
    second = stepped(optimizer, weight, 1.0)
    assert weight.item() == pytest.approx(-0.15, rel=1e-5)
    assert (first.learning_rate, second.learning_rate) == (0.05, 0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_step_counts_as_a_change_of_the_weights(dtype: torch.dtype) -> None:
    """Engines compare the count; torch's fused kernel leaves it."""
    weight = parameter(1.0, dtype=dtype)
    optimizer = PolicyOptimizer({"w": weight}, settings())
    before = weight._version
    assert stepped(optimizer, weight, float("nan")).skipped and weight._version == before
    assert not stepped(optimizer, weight, 1.0).skipped and weight._version > before


def test_betas_and_eps_are_the_settings() -> None:
    weight = parameter(0.0)
    optimizer = PolicyOptimizer(
        {"w": weight}, settings(learning_rate=0.1, betas=(0.5, 0.75), eps=1.0, clip=10)
    )
    stepped(optimizer, weight, 1.0)
    assert weight.item() == pytest.approx(-0.1 * 1.0 / (1.0 + 1.0))
    stepped(optimizer, weight, 3.0)
    mean, square = (0.5 * 0.5 + 0.5 * 3) / 0.75, (0.75 * 0.25 + 0.25 * 9) / (1 - 0.75**2)
    assert weight.item() == pytest.approx(-0.05 - 0.1 * mean / (math.sqrt(square) + 1.0))


def test_a_weight_may_have_a_rate_of_its_own_on_the_common_schedule() -> None:
    slow, quick = parameter(0.0), parameter(0.0)
    optimizer = PolicyOptimizer(
        {"slow": slow, "quick": quick}, settings(learning_rate=0.1, warmup_steps=2), {"quick": 0.5}
    )
    for wanted in ((-0.05, -0.25), (-0.15, -0.75)):
        slow.grad, quick.grad = torch.tensor([[1.0]]), torch.tensor([[1.0]])
        step_info = optimizer.step()
        assert (slow.item(), quick.item()) == pytest.approx(wanted, rel=1e-5)
    assert step_info.learning_rate == 0.1


def test_gradients_are_clipped_to_the_global_norm() -> None:
    first, second = parameter(0.0), parameter(0.0)
    optimizer = PolicyOptimizer({"a": first, "b": second}, settings(clip=0.5, eps=1e-3))
    first.grad, second.grad = torch.tensor([[3.0]]), torch.tensor([[4.0]])
    optimizer.absorb()
    step_info = optimizer.step()
    assert step_info.norm == pytest.approx(5.0)
    state = optimizer.state()
    assert state["a/exp_avg"].item() == pytest.approx(0.1 * 0.3)
    assert state["b/exp_avg"].item() == pytest.approx(0.1 * 0.4)


def test_weight_decay_shrinks_matrices_only() -> None:
    matrix, vector = parameter(1.0), torch.nn.Parameter(torch.ones(1))
    optimizer = PolicyOptimizer({"m": matrix, "v": vector}, settings(learning_rate=0.1, weight_decay=0.5))
    matrix.grad, vector.grad = torch.zeros(1, 1), torch.zeros(1)
    optimizer.step()
    assert matrix.item() == pytest.approx(0.95) and vector.item() == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    weight = parameter(1.0, 2.0)
    optimizer = PolicyOptimizer({"w": weight}, settings(learning_rate=0.1, weight_decay=0.5))
    step_info = stepped(optimizer, weight, bad, 1.0)
    assert step_info.skipped and optimizer.count == 0 and weight.grad is None
    assert weight.tolist() == [[1.0, 2.0]] and not any("exp_avg" in name for name in optimizer.state())
    assert not stepped(optimizer, weight, 1.0, 1.0).skipped and optimizer.count == 1


def test_bf16_weights_move_through_fp32_masters() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(50, 40).bfloat16())
    before = weight.detach().clone()
    optimizer = PolicyOptimizer({"w": weight}, settings(learning_rate=5e-6, clip=1e9))
    masters = optimizer.masters()["w"].detach().clone()
    direction = torch.randn(50, 40)
    for _ in range(16):
        weight.grad = (direction + 0.1 * torch.randn(50, 40)).bfloat16()
        optimizer.absorb()
        optimizer.step()
    moved = optimizer.masters()["w"].detach()
    assert (moved != masters).float().mean() >= 0.99
    assert moved.dtype == torch.float32 and weight.dtype == torch.bfloat16
    assert torch.equal(weight.detach(), moved.bfloat16())
    assert (weight.detach() != before).float().mean() < 0.5  # alone, most bf16 weights could not follow


def test_micro_batches_of_bf16_weights_add_up_in_fp32() -> None:
    weight = parameter(0.0, dtype=torch.bfloat16)
    optimizer = PolicyOptimizer({"w": weight}, settings(clip=1e9))
    for gradient in (256.0, 1.0, 1.0):  # in bf16, 256 + 1 is 256
        weight.grad = torch.tensor([[gradient]], dtype=torch.bfloat16)
        optimizer.absorb()
    assert optimizer.step().norm == 258.0


def test_gradients_of_16_bits_are_added_as_soon_as_they_are_complete() -> None:
    weights = {str(number): parameter(1.0, dtype=torch.bfloat16) for number in range(4)}
    optimizer = PolicyOptimizer(weights, settings(clip=1e9))
    waiting = []

    def loss() -> torch.Tensor:
        value = torch.ones(1, 1, dtype=torch.bfloat16)
        for weight in weights.values():
            value = value * weight
            value.register_hook(lambda _: waiting.append(sum(w.grad is not None for w in weights.values())))
        return value.sum()

    for last in (False, True):
        optimizer.accumulate(loss, last=last)
    assert waiting == [0] * 8
    assert [master.grad.item() for master in optimizer.masters().values()] == [2.0] * 4
    weights["0"].sum().backward()
    assert weights["0"].grad is not None, "other backward passes keep their gradients"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_tied_head_is_the_sum_of_both(dtype: torch.dtype) -> None:
    """The head adds its part to the master by itself, block by block, and autograd the embedding's."""
    torch.manual_seed(0)
    tied = torch.nn.Parameter(torch.randn(40, 8).to(dtype))
    ids, targets = torch.randint(0, 40, (2, 12))
    optimizer = PolicyOptimizer({"w": tied}, settings(clip=1e9))

    def loss() -> torch.Tensor:
        terms = [Term(torch.nn.functional.embedding(ids, tied), tied)]
        return head_scores(terms, None, targets, None, entropy_grad=False, most=1000)[0].sum()

    optimizer.accumulate(loss, last=False)
    optimizer.accumulate(loss, last=True)
    exact = tied.detach().double().requires_grad_()
    logits = torch.nn.functional.embedding(ids, exact) @ exact.T
    torch.nn.functional.cross_entropy(logits, targets, reduction="sum").neg().backward()
    gradient = optimizer.masters()["w"].grad
    error = (gradient.double() - 2 * exact.grad).norm() / exact.grad.norm()
    assert error < (1e-6 if dtype == torch.float32 else 0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_optimizer_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    def run(optimizer: PolicyOptimizer, weight: torch.nn.Parameter, steps: range) -> None:
        for step in steps:
            stepped(optimizer, weight, math.sin(step), math.cos(step))

    how = settings(learning_rate=0.01, schedule="cosine", horizon=6, weight_decay=0.1)
    whole, halves = parameter(0.3, 0.7, dtype=dtype), parameter(0.3, 0.7, dtype=dtype)
    run(PolicyOptimizer({"w": whole}, how), whole, range(5))
    first = PolicyOptimizer({"w": halves}, how)
    run(first, halves, range(2))
    resumed = torch.nn.Parameter(halves.detach().clone())
    second = PolicyOptimizer({"w": resumed}, how)
    second.restore(first.state(), first.count, "here")
    run(second, resumed, range(2, 5))
    assert torch.equal(resumed, whole)


def test_a_state_from_before_the_first_step_drops_later_ones() -> None:
    weight = parameter(1.0)
    optimizer = PolicyOptimizer({"w": weight}, settings())
    fresh = optimizer.state()
    stepped(optimizer, weight, 1.0)
    optimizer.restore(fresh, 0, "here")
    assert optimizer.state() == {} and optimizer.count == 0


def test_state_of_other_weights_is_refused() -> None:
    optimizer = PolicyOptimizer({"w": parameter(1.0)}, settings())
    with pytest.raises(RunFolderError, match="unknown parameters"):
        optimizer.restore({"v/exp_avg": torch.ones(1)}, 1, "here")
    with pytest.raises(RunFolderError, match="don't fit"):
        optimizer.restore({"w/exp_avg": torch.ones(1, 1)}, 1, "here")
    with pytest.raises(RunFolderError, match="master"):
        PolicyOptimizer({"w": parameter(1.0, dtype=torch.bfloat16)}, settings()).restore({}, 1, "here")
