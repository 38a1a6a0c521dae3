"""Trainer `none`, for engines without weights and for runs without training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from coterie.backends.models.device_memory import occupy, vacate
from coterie.backends.models.policy import UntrainedPolicy, check_untrained
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.protocols import TrainerContext
from coterie.core.types import Key, Metrics, Sample, Weights


class NoTrainer(Plugin):
    """A trainer without weights; every policy must have `train: none`."""

    Policy = UntrainedPolicy

    async def open(self, ctx: TrainerContext) -> None:
        for name, policy in ctx.policies.items():
            check_untrained(policy, f"policies.{name}")
        occupy(self, ())

    async def annotate(self, samples: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
        raise ConfigError(f"trainer 'none' has no {what}", path="trainer.type")

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        return {}

    def weights(self, policy: str) -> Weights:
        return Weights(policy=policy, version=0)

    def keep(self, policy: str) -> None:
        """Nothing: every version is 0."""

    def drop(self, policy: str, version: int) -> None:
        pass

    @contextmanager
    def weights_at(self, policy: str, version: int) -> Iterator[Weights]:
        yield self.weights(policy)

    def save(self, folder: Path) -> None:
        pass

    def load(self, folder: Path) -> None:
        pass

    def digest(self) -> dict[str, str]:
        return {}

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> Any:
        raise ConfigError("trainer 'none' has no weights to export", path="trainer.type")

    async def close(self) -> None:
        vacate(self)
