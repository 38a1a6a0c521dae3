"""What lets each set of weights have a trainer of its own (`discovery.members.TrainsApart`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.backends.models.bases import initial_weights_of
from coterie.backends.models.policy import TorchPolicy, declared
from coterie.backends.models.precision import with_dtype
from coterie.backends.trainers import torch_state
from coterie.core.config import PolicyConfig


class Apart:
    """The part of a trainer of tensors that divides its state."""

    _device: Any

    def same_start(self, policies: Mapping[str, PolicyConfig]) -> dict[str, tuple[str, ...]]:
        """The policies with the same initial weights; without those of a `from`, which are read elsewhere."""
        made = {
            name: policy
            for name, policy in policies.items()
            if policy.from_ is None and not getattr(policy, "behind_endpoint", False)
        }
        return initial_weights_of(with_dtype(declared(made, TorchPolicy), self._device.type))

    def part_of_state(self, folder: Path, policies: Collection[str]) -> dict[str, Path | bytes]:
        """The state of some policies; see `torch_state.part_of`."""
        return torch_state.part_of(Path(folder), policies)

    def join_states(self, parts: Sequence[Path], folder: Path, alike: Mapping[str, Sequence[str]]) -> None:
        """The state of all policies; see `torch_state.join`."""
        torch_state.join(parts, Path(folder), alike)
