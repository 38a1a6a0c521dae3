"""Copies of earlier weights that a trainer keeps for steps in play (`KeepsVersions`)."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from coterie.backends.trainers.policies import PolicyWeights
from coterie.core.types import Weights


class KeptVersions(ABC):
    """The part of a trainer of whole modules that keeps versions of its policies."""

    _policies: dict[str, PolicyWeights]
    _computing: threading.Lock

    @abstractmethod
    def weights(self, policy: str) -> Weights:
        """The present weights of a policy."""

    @abstractmethod
    def come_back(self) -> None:
        """Bring weights back that are away from this process's device."""

    def keep(self, policy: str) -> None:
        """Copy the policy's trained weights to the CPU's memory, under their version."""
        known = self._policies.get(policy)
        if known is not None and known.optimizer is not None and known.version not in known.kept:
            known.kept[known.version] = {
                name: tensor.detach().to("cpu", copy=True) for name, tensor in known.own_parameters().items()
            }

    def drop(self, policy: str, version: int) -> None:
        if policy in self._policies:
            self._policies[policy].kept.pop(version, None)

    @contextmanager
    def weights_at(self, policy: str, version: int) -> Iterator[Weights]:
        """The live module, which has a kept version's values within the context."""
        known = self._policies[policy]
        self.come_back()
        with self._computing, known.holding(known.kept[version]):
            yield replace(self.weights(policy), version=version)
