"""AdamW with a schedule, over fp32 masters where the weights are bf16 (invariant 7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from coterie.backends.models.policy import OptimizerSettings
from coterie.backends.trainers.head import adding_to
from coterie.core.errors import RunFolderError

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def learning_rate(settings: OptimizerSettings, count: int, spent: float = 0.0) -> float:
    """The learning rate of the optimiser step after `count` steps: linear warm-up, then the schedule.

    The decay starts at the end of the warm-up, reaches `final_share` at step `horizon` (which counts the
    warm-up's steps) and stays there. With the horizon `budget` the decay follows the token budget from its
    first token on. During the warm-up the rate is then the product of warm-up and decay.

    Args:
        spent: the share of the run's token budget that is spent; read only with the horizon `budget`.
    """
    rate = settings.learning_rate
    if count < settings.warmup_steps:
        rate = settings.learning_rate * (count + 1) / settings.warmup_steps
        if settings.horizon != "budget":
            return rate
    if settings.schedule == "constant" or settings.horizon is None:
        return rate
    if settings.horizon == "budget":
        done = min(spent, 1.0)
    else:
        done = min((count - settings.warmup_steps) / max(settings.horizon - settings.warmup_steps, 1), 1.0)
    left = 1.0 - done if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return rate * (settings.final_share + (1.0 - settings.final_share) * left)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """The outcome of one optimiser step."""

    norm: float
    """Global gradient norm before clipping."""
    learning_rate: float
    """The rate of the weights without a rate of their own."""
    skipped: bool
    """True if the norm was not finite; the step then changed nothing."""


class Optimizer(Protocol):
    """What an update needs of a policy's optimiser: it owns the gradients and their sum."""

    count: int
    """Optimiser steps that were not skipped."""
    spent: float
    """The share of the run's token budget that is spent; the horizon `budget` decays with it."""

    def accumulate(self, loss: Callable[[], Tensor], *, last: bool) -> Tensor:
        """Compute the loss of a micro-batch, a scalar, and add its gradients; returns the detached loss.

        Args:
            last: whether `step` comes next.
        """

    def step(self) -> StepInfo:
        """Clip the summed gradients to the global norm and step; skip the step if they are not finite."""

    def finite(self) -> bool:
        """Whether all weights are finite numbers."""

    def masters(self) -> dict[str, Tensor]:
        """name -> the tensor whose `grad` is the sum; empty where the tensors are divided between ranks."""

    def held(self) -> Iterator[Tensor]:
        """Masters and moments, as they are now; weights may be among them."""

    @property
    def clear_gradients(self) -> Callable[[], None] | None:
        """What drops the gradients of all micro-batches since the last step; None: nothing can."""

    def state(self) -> dict[str, Tensor]:
        """Moments and masters, by `<parameter>/<part>`; the step count is left out."""

    def restore(self, state: Mapping[str, Tensor], count: int, source: str) -> None:
        """Restore a state, bit for bit.

        Args:
            source: the state's file, for error messages.

        Raises:
            RunFolderError: the state belongs to other parameters.
        """


class PolicyOptimizer:
    """The optimiser of one policy.

    Weight decay applies to matrices only: norms and biases need not be small.

    Args:
        weights: name -> parameter. Each parameter below fp32 gets an fp32 master. The optimiser changes the
            master, and the parameter is the master's rounding. Small steps then add up instead of vanishing:
            at a learning rate of 5e-6 few bf16 weights would ever change.
        rates: learning rates of single weights that differ from `settings`; schedule and clipping are shared.
    """

    def __init__(
        self,
        weights: Mapping[str, torch.nn.Parameter],
        settings: OptimizerSettings,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.settings, self.count, self.spent = settings, 0, 0.0
        self._weights = dict(weights)
        self._masters: dict[str, Tensor] = {
            name: weight if weight.dtype in (torch.float32, torch.float64) else master(weight)
            for name, weight in weights.items()
        }
        self._adam = adamw(self._masters, settings, rates)

    def accumulate(self, loss: Callable[[], Tensor], *, last: bool) -> Tensor:
        with self._absorbing(), adding_to(self._sum_of):
            value = loss()
            value.backward()
        self.absorb()
        return value.detach()

    def absorb(self) -> None:
        """Add the gradients that the weights have to the masters' gradients, in fp32."""
        for name, weight in self._weights.items():
            if self._masters[name] is not weight:
                _absorb(self._masters[name], weight)

    @contextmanager
    def _absorbing(self) -> Iterator[None]:
        """Add each gradient to its master's gradient, in fp32, as soon as it is complete.

        Gradients of 16 bits then never exist all at once.
        """
        handles = [
            weight.register_post_accumulate_grad_hook(partial(_absorb, self._masters[name]))
            for name, weight in self._weights.items()
            if self._masters[name] is not weight and weight.requires_grad
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _sum_of(self, weight: Tensor) -> Callable[[], Tensor] | None:
        """What gives the sum of a weight's gradients, in fp32 or above; None: the weight isn't trained."""
        for name, trained in self._weights.items():
            if trained is weight:
                return partial(_gradient_of, self._masters[name])
        return None

    def step(self) -> StepInfo:
        masters = [master for master in self._masters.values() if master.grad is not None]
        norm = float(torch.nn.utils.get_total_norm([master.grad for master in masters]))
        rate = learning_rate(self.settings, self.count, self.spent)
        if not math.isfinite(norm):
            self.clear_gradients()
            return StepInfo(norm, rate, skipped=True)
        if norm > self.settings.clip:
            torch._foreach_mul_([master.grad for master in masters], self.settings.clip / norm)
        for group in self._adam.param_groups:
            group["lr"] = rate * group["scale"]
        self._adam.step()
        # The fused kernel doesn't count its change, by which engines know weights that are no longer theirs.
        increment_version(masters)
        self.count += 1
        with torch.no_grad():
            for name, weight in self._weights.items():
                if self._masters[name] is not weight:
                    weight.copy_(self._masters[name])  # rounded
        self.clear_gradients()
        return StepInfo(norm, rate, skipped=False)

    def finite(self) -> bool:
        return finite(self._masters.values())

    def clear_gradients(self) -> None:
        for tensor in (*self._masters.values(), *self._weights.values()):
            tensor.grad = None

    def masters(self) -> dict[str, Tensor]:
        """name -> the weight itself, or its fp32 master."""
        return dict(self._masters)

    def held(self) -> Iterator[Tensor]:
        yield from self._masters.values()
        for state in self._adam.state.values():
            yield from state.values()

    def state(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            if master is not self._weights[name]:
                tensors[f"{name}/master"] = master.detach()
            for part, tensor in self._adam.state.get(master, {}).items():
                tensors[f"{name}/{part}"] = tensor
        return tensors

    def restore(self, state: Mapping[str, Tensor], count: int, source: str) -> None:
        remaining = dict(state)
        self._adam.state.clear()
        for name, master in self._masters.items():
            if master is not self._weights[name]:
                _fill(master, remaining.pop(f"{name}/master", None), f"{name}/master", source)
            moments = {
                part: remaining.pop(f"{name}/{part}") for part in _MOMENTS if f"{name}/{part}" in remaining
            }
            if moments and (len(moments) != len(_MOMENTS) or moments["exp_avg"].shape != master.shape):
                raise RunFolderError(f"{source}: the moments of {name} don't fit its weights")
            if moments:
                # The fused kernel requires the step count on the moments' device.
                self._adam.state[master] = {w: t.to(master.device).clone() for w, t in moments.items()}
        if remaining:
            raise RunFolderError(f"{source}: state of unknown parameters: {', '.join(sorted(remaining)[:3])}")
        self.count = count


def adamw(
    tensors: Mapping[str, Tensor], settings: OptimizerSettings, rates: Mapping[str, float] | None = None
) -> torch.optim.AdamW:
    """AdamW over tensors, in groups of equal weight decay and rate; `scale` is the group's share of it."""
    groups: dict[tuple[float, float], list[Tensor]] = {}
    for name, tensor in tensors.items():
        scale = (rates or {}).get(name, settings.learning_rate) / settings.learning_rate
        decay = settings.weight_decay if tensor.ndim >= 2 else 0.0
        groups.setdefault((scale, decay), []).append(tensor)
    return torch.optim.AdamW(
        [
            {"params": members, "weight_decay": decay, "scale": scale}
            for (scale, decay), members in groups.items()
        ],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


def finite(tensors: Iterable[Tensor]) -> bool:
    """Whether all numbers of the tensors are finite; one read of each, and one wait for the device."""
    largest = torch._foreach_norm([tensor.detach() for tensor in tensors], math.inf)
    return not largest or bool(torch.stack([norm.double() for norm in largest]).isfinite().all())


def _absorb(master: Tensor, weight: Tensor) -> None:
    if weight.grad is None:
        return
    if master.grad is None:
        master.grad = weight.grad.to(master.dtype)
    else:
        master.grad.add_(weight.grad)
    weight.grad = None


def _gradient_of(master: Tensor) -> Tensor:
    if master.grad is None:
        master.grad = torch.zeros_like(master)
    return master.grad


def master(weight: Tensor) -> Tensor:
    """The fp32 master of a weight below fp32."""
    return weight.detach().float().clone().requires_grad_()


def _fill(target: Tensor, source: Tensor | None, name: str, file: str) -> None:
    if source is None or source.shape != target.shape:
        raise RunFolderError(f"{file}: {name} is missing or has another shape")
    with torch.no_grad():
        target.copy_(source)
