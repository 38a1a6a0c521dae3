"""The protocol of kind `executor`, and the values that pass between the two sides of a run.

The *rollout side* plays episodes and scores them: environment, roles, transition mode, reward sources, tools,
sandbox and sampler. It is made from the resolved configuration and its plugins alone, in any process. The
*learning side* (estimator, trainers, checkpoints, trackers, observers) exists once. An executor runs the
rollout side where it chooses; the engine stands between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from coterie.core.protocols.engine import EngineClient
from coterie.core.types import Scores, Task, Tree
from coterie.spans import TraceSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """One tree to roll out. Picklable."""

    task: Task
    epoch: int = 0
    chain: int = 0
    level: int | None = None
    """Index of the curriculum's level whose environment is played; None: the target environment."""
    versions: Mapping[str, int] = field(default_factory=dict)
    """By policy: the version of its weights that plays; a policy without one plays as the engine has it."""
    cohort: str = ""
    """Rollouts of one cohort are counted and batched together, and no others with them: those of a step, or
    of an evaluation. The texts are in the order in which the learning side needs them."""
    evaluation: bool = False
    """Whether the rollout is an evaluation: one chain, one branch per decision, nothing is trainable."""
    greedy: bool = False
    """With `evaluation`: whether the likeliest token is taken instead of a draw."""
    set_name: str = ""
    """With `evaluation`: the set that the task is of, whose environment and sampling play; "": the run's."""
    policies: Mapping[str, str | None] = field(default_factory=dict)
    """role -> policy where it differs from the team's; None: the role is silent."""
    draw: float | None = None
    """A number of the episode in [0, 1), if its spans are recorded; None: they are not."""


@dataclass(frozen=True, slots=True)
class ScoredRollout:
    """What reward sources and plugins wrote of one tree. Picklable."""

    scores: Scores
    metrics: Mapping[str, float]
    """What plugins counted by `RolloutContext.count`, summed over the tree."""
    spans: tuple[TraceSpan, ...] = ()
    """Of the episode and its parts, where the job wants them."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """A played tree, and its scores once every reward source has answered."""

    tree: Tree
    scored: asyncio.Future[ScoredRollout]


class RolloutSide(Protocol):
    """Plays and scores jobs in one process."""

    async def open(self, engine: EngineClient) -> None:
        """Open sandboxes and tools; `engine` generates for all later jobs."""

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job. Scoring that selection does not need may go on when the tree is returned."""

    async def close(self) -> None:
        """Cancel open scoring, and close sandboxes and tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorContext:
    """Input of `Executor.open`."""

    side: RolloutSide
    """The rollout side of this process. An executor that uses other processes leaves it closed."""
    make_side: Callable[[], RolloutSide]
    """Makes the same rollout side in any process, from the resolved configuration alone. Picklable."""
    engine: EngineClient


@runtime_checkable
class Executor(Protocol):
    """Runs the rollout side: in this process, or in others."""

    async def open(self, ctx: ExecutorContext) -> None:
        """Open the rollout side."""

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job, beside others: the core asks for all jobs of a step at the same time.

        Scoring that selection does not need may go on when the tree is returned. An exception of the job is
        raised unchanged; when the call is cancelled, so is the job.
        """

    async def close(self) -> None:
        """Close what `open` opened, also where it failed on its way."""
