"""AdamW with a schedule, over fp32 masters where the weights are bf16 (invariant 7)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.config import OptimizerSettings
from coterie.core.errors import ConfigError, RunFolderError

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def check_schedule(settings: OptimizerSettings, path: str) -> None:
    """Raise ConfigError where a decay has no horizon."""
    if settings.schedule != "constant" and settings.horizon is None:
        raise ConfigError(
            f"the schedule '{settings.schedule}' needs a horizon",
            path=f"{path}.horizon",
            why="a decay over `schedule.steps` would change when a resumed run is made longer",
            fix="set it to the number of optimiser steps after which the learning rate has decayed, or to "
            "`budget` with schedule.tokens",
        )


def learning_rate(settings: OptimizerSettings, count: int, spent: float = 0.0) -> float:
    """Of the optimiser step after `count` steps: linear warm-up, then the schedule.

    The decay starts where the warm-up ends and reaches `final_share` at step `horizon`, the warm-up
    included; from there on it stays. With the horizon `budget` it goes with the budget from its first token
    on, under the warm-up too: the rate is the product of both.

    Args:
        spent: the share of the run's token budget that is spent; read with the horizon `budget` only.
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
    """What one optimiser step did."""

    norm: float
    """Global gradient norm before clipping."""
    learning_rate: float
    """Of the weights that have none of their own."""
    skipped: bool
    """The norm was not finite: nothing was changed."""


class PolicyOptimizer:
    """The optimiser of one policy.

    Weight decay applies to matrices only: norms and biases have no reason to be small.

    Args:
        weights: name -> parameter. Those below fp32 get an fp32 master each, which is what is optimised;
            the weight is its rounding. Small steps then add up instead of vanishing: at a learning rate
            of 5e-6 few bf16 weights would ever move.
        rates: learning rates of single weights, where they differ; schedule and clipping are common.
    """

    def __init__(
        self,
        weights: Mapping[str, torch.nn.Parameter],
        settings: OptimizerSettings,
        rates: Mapping[str, float] | None = None,
    ) -> None:
        self.settings, self.count = settings, 0
        self.spent = 0.0
        """Share of the run's token budget: the horizon `budget` decays with it."""
        self._weights = dict(weights)
        self._masters: dict[str, Tensor] = {
            name: weight if weight.dtype in (torch.float32, torch.float64) else _master(weight)
            for name, weight in weights.items()
        }
        groups: dict[tuple[float, float], list[Tensor]] = {}
        for name, master in self._masters.items():
            scale = (rates or {}).get(name, settings.learning_rate) / settings.learning_rate
            decay = settings.weight_decay if master.ndim >= 2 else 0.0
            groups.setdefault((scale, decay), []).append(master)
        self._adam = torch.optim.AdamW(
            [
                {"params": members, "weight_decay": decay, "scale": scale}
                for (scale, decay), members in groups.items()
            ],
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            fused=True,
        )

    def absorb(self) -> None:
        """After each backward pass: add the gradients to the masters', in fp32."""
        for name, weight in self._weights.items():
            master = self._masters[name]
            if master is not weight and weight.grad is not None:
                gradient = weight.grad.to(master.dtype)
                master.grad = gradient if master.grad is None else master.grad.add_(gradient)
                weight.grad = None

    def step(self) -> StepInfo:
        """Clip the summed gradients to the global norm and step; skip where they are not finite."""
        masters = [master for master in self._masters.values() if master.grad is not None]
        norm = float(torch.nn.utils.get_total_norm([master.grad for master in masters]))
        rate = learning_rate(self.settings, self.count, self.spent)
        if not math.isfinite(norm):
            self._forget()
            return StepInfo(norm, rate, skipped=True)
        if norm > self.settings.clip:
            torch._foreach_mul_([master.grad for master in masters], self.settings.clip / norm)
        for group in self._adam.param_groups:
            group["lr"] = rate * group["scale"]
        self._adam.step()
        self.count += 1
        self.write_weights()
        self._forget()
        return StepInfo(norm, rate, skipped=False)

    def write_weights(self) -> None:
        """Round the masters to the weights."""
        with torch.no_grad():
            for name, weight in self._weights.items():
                if self._masters[name] is not weight:
                    weight.copy_(self._masters[name])

    def _forget(self) -> None:
        for tensor in (*self._masters.values(), *self._weights.values()):
            tensor.grad = None

    def masters(self) -> dict[str, Tensor]:
        """name -> what is optimised: the weight itself, or its fp32 master."""
        return dict(self._masters)

    def state(self) -> dict[str, Tensor]:
        """Moments, and masters where there are any, by `<parameter>/<what>`; not the count."""
        found: dict[str, Tensor] = {}
        for name, master in self._masters.items():
            if master is not self._weights[name]:
                found[f"{name}/master"] = master.detach()
            for what, tensor in self._adam.state.get(master, {}).items():
                found[f"{name}/{what}"] = tensor
        return found

    def restore(self, state: Mapping[str, Tensor], count: int, where: str) -> None:
        """Take a state up again, bit for bit.

        Raises:
            RunFolderError: it is of other parameters.
        """
        left = dict(state)
        self._adam.state.clear()
        for name, master in self._masters.items():
            if master is not self._weights[name]:
                _fill(master, left.pop(f"{name}/master", None), f"{name}/master", where)
            moments = {what: left.pop(f"{name}/{what}") for what in _MOMENTS if f"{name}/{what}" in left}
            if moments and (len(moments) != len(_MOMENTS) or moments["exp_avg"].shape != master.shape):
                raise RunFolderError(f"{where}: the moments of {name} don't fit its weights")
            if moments:
                # The step count lies beside the moments: the fused kernel asks for it there.
                self._adam.state[master] = {w: t.to(master.device).clone() for w, t in moments.items()}
        if left:
            raise RunFolderError(f"{where}: state of unknown parameters: {', '.join(sorted(left)[:3])}")
        self.count = count


def _master(weight: Tensor) -> Tensor:
    return weight.detach().float().clone().requires_grad_()


def _fill(target: Tensor, source: Tensor | None, name: str, where: str) -> None:
    if source is None or source.shape != target.shape:
        raise RunFolderError(f"{where}: {name} is missing or has another shape")
    with torch.no_grad():
        target.copy_(source)
