"""The jobs and the rollout hosts of a run, as its own process knows them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from coterie.backends.executors.ray.exchange import Place
from coterie.core.protocols import RolloutJob, ScoredRollout
from coterie.core.types import Tree


@dataclass(slots=True, eq=False)
class HostedJob:
    """A job that is not done."""

    number: int
    job: RolloutJob
    result: asyncio.Future[tuple[Tree, ScoredRollout]]
    step: int
    """The step in play that it belongs to; 0: none."""
    host: HostHandle | None = None
    losses: int = 0
    """Hosts that were gone while they played it, for whatever reason."""
    hangs: int = 0
    """Times that a plugin's method did not return in it."""

    @property
    def place(self) -> Place:
        return self.job.cohort, self.job.task.id, self.job.epoch, self.job.chain


@dataclass(slots=True, eq=False)
class HostHandle:
    """A rollout host."""

    name: str
    handle: Any
    pid: int = 0
    jobs: dict[int, HostedJob] = field(default_factory=dict)
    loop: asyncio.Task[None] | None = None
    """Takes its reports."""
    start: int = -1
    """The number of the engine host that it asks."""


class HostGone(Exception):
    """A host's process is gone."""
