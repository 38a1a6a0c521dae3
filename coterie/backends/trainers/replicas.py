"""Whole copies of the weights on several ranks: made equal, and checked to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coterie.backends.models.policy import TorchPolicy
from coterie.backends.trainers.policies import InitialWeights, PolicyWeights
from coterie.backends.trainers.ranks.group import RankPlace
from coterie.core.errors import UserError

Shapes = dict[str, tuple[tuple[int, ...], torch.dtype, bool]]
"""By name: shape, type, and whether the tensor is on the policy's device (else on the CPU)."""


@dataclass(frozen=True, slots=True)
class PolicyLayout:
    """One policy's state without its numbers."""

    version: int
    steps: int
    """Steps of the optimiser."""
    optimizer: Shapes
    initial_adapter: Shapes | None


@dataclass(frozen=True, slots=True)
class TrainerLayout:
    """A trainer's state without its numbers, which follow by a broadcast."""

    groups: list[tuple[str, ...]]
    """The policies with the same initial weights."""
    warmed: list[bool]
    configs: dict[str, TorchPolicy]
    """The policies, whose dtypes a checkpoint may have replaced."""
    policies: dict[str, PolicyLayout]


def layout_of(
    initial_weights: Sequence[InitialWeights], policies: Mapping[str, PolicyWeights]
) -> TrainerLayout:
    """The layout of rank 0's state."""
    return TrainerLayout(
        groups=[initial.policies for initial in initial_weights],
        warmed=[initial.warmed for initial in initial_weights],
        configs={name: policy.config for name, policy in policies.items()},
        policies={
            name: PolicyLayout(
                policy.version,
                policy.optimizer.count if policy.optimizer is not None else 0,
                _shapes(policy.optimizer.state()) if policy.optimizer is not None else {},
                None if policy.initial_adapter is None else _shapes(policy.initial_adapter),
            )
            for name, policy in policies.items()
        },
    )


def _shapes(tensors: Mapping[str, Tensor]) -> Shapes:
    return {name: (tuple(t.shape), t.dtype, t.is_cuda) for name, t in tensors.items()}


def receive(
    place: RankPlace,
    layout: TrainerLayout,
    initial_weights: Sequence[InitialWeights],
    policies: Mapping[str, PolicyWeights],
) -> None:
    """Broadcast rank 0's state; every rank calls this."""
    for initial, warmed in zip(initial_weights, layout.warmed, strict=True):
        initial.warmed = warmed
        if initial.frozen is not None:
            place.broadcast(list(initial.weights().values()))
    for name, policy in policies.items():
        _receive_policy(place, layout.policies[name], policy)


def _receive_policy(place: RankPlace, layout: PolicyLayout, policy: PolicyWeights) -> None:
    policy.version = layout.version
    device = next(policy.model.parameters()).device
    if policy.trained:
        place.broadcast(list(policy.own_parameters().values()))
    if policy.value_head is not None:
        place.broadcast([policy.value_head])
    if layout.initial_adapter is not None:
        if place.number > 0:
            policy.initial_adapter = _empty(layout.initial_adapter, device)
        place.broadcast(list((policy.initial_adapter or {}).values()))
    if policy.optimizer is None:
        return
    state = policy.optimizer.state() if place.number == 0 else _empty(layout.optimizer, device)
    place.broadcast([state[name] for name in layout.optimizer])
    if place.number > 0:
        policy.optimizer.restore(state, layout.steps, "rank 0")


def _empty(shapes: Shapes, device: Any) -> dict[str, Tensor]:
    return {
        name: torch.empty(shape, dtype=dtype, device=device if on_device else "cpu")
        for name, (shape, dtype, on_device) in shapes.items()
    }


# ----------------------------------------------------------------------------------------------------- checks


def checksum(tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
    """For each tensor the sum of its bits, read as 32-bit integers: one read, no copy."""
    sums = [
        tensor.detach().contiguous().view(torch.int32).sum(dtype=torch.int64) for tensor in tensors.values()
    ]
    return tuple(torch.stack(sums).tolist()) if sums else ()


def check_equal(name: str, place: RankPlace, policy: PolicyWeights) -> None:
    """Compare the trained weights of all ranks, by their checksums; every rank calls this.

    Raises:
        UserError: they differ.
    """
    if policy.optimizer is not None:
        check_same(name, place.gather(checksum(policy.optimizer.masters())))


def check_same(name: str, values: Sequence[Any]) -> None:
    """Raise UserError unless all ranks have the same value, a digest of the policy's weights."""
    differing = [rank for rank, value in enumerate(values) if value != values[0]]
    if differing:
        raise UserError(
            f"policy '{name}': the weights of rank {differing[0]} differ from rank 0's",
            path=f"policies.{name}",
            why="all ranks take the same steps from the same weights; another kind of GPU, or a plugin that "
            "changes weights on one rank, makes them differ",
            fix="resume from the newest checkpoint, which rank 0 wrote, on ranks of one kind",
        )
