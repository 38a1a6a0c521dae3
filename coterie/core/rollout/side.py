"""The rollout side of a process: plays jobs and scores them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from coterie.answers import KEPT
from coterie.core.concurrency.active_rollouts import in_cohort, together
from coterie.core.plugins.origin import closed, origin_of, plugin_call, plugin_open, record_origin
from coterie.core.protocols import (
    Codec,
    EngineClient,
    Environment,
    NamedRewardSource,
    Rollout,
    RolloutJob,
    Sampler,
    ScoredRollout,
    Team,
)
from coterie.core.protocols.chat_model import UsesEngine
from coterie.core.protocols.tool import Closes, Opens
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.contracts import check_async, check_given, refuse
from coterie.core.rollout.rewards import score_episodes
from coterie.core.types import Key, RewardWeights, Task, Tree
from coterie.spans import Trace, recorded, recording


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationSet:
    """What training is evaluated on: the tasks of a seed, each played `samples` times in the environment, as
    the sampler's `for_evaluation` does. Metrics and files have the name; "": it is the only set."""

    name: str
    environment: Environment
    sampler: Sampler
    tasks: Callable[[int], Sequence[Task]]
    samples: int


@dataclass(slots=True)
class LocalRolloutSide:
    """All that plays and scores in one process: the `RolloutSide` of an executor."""

    environment: Environment
    """The target environment."""
    levels: Sequence[Environment]
    """The environments of a curriculum's levels."""
    team: Team
    sampler: Sampler
    reward_sources: Sequence[NamedRewardSource]
    reward_weights: RewardWeights
    stop_above: float | None
    """In training, an episode ends at a joint action whose mean reward is at least this."""
    seed: int
    vocabulary: tuple[str, ...] = ()
    """Words that the environments and the roles write."""
    sets: Mapping[str, EvaluationSet] = field(default_factory=dict)
    """By `RolloutJob.set_name`. Success on the first one decides which checkpoint is the best."""
    resources: Sequence[Any] = ()
    """Environments, sandboxes, tools and chat models, inner ones before those that use them."""
    _engine: EngineClient | None = None
    _samplers: dict[tuple[str, bool], Sampler] = field(default_factory=dict)
    """Samplers of evaluations, by set and greedy."""
    _tool_codecs: dict[tuple[str, str], Codec] = field(default_factory=dict)
    _warned: set[tuple[str, str]] = field(default_factory=set)
    _capabilities: dict[tuple[int, type], tuple[Any, bool]] = field(default_factory=dict)
    _scoring: set[asyncio.Task[ScoredRollout]] = field(default_factory=set)
    _opened: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def open(self, engine: EngineClient) -> None:
        """Open the resources and the reward sources; after a failure none is open.

        Args:
            engine: generates for all later jobs.
        """
        self._engine = engine
        try:
            for resource in (*self.resources, *(source.plugin for source in self.reward_sources)):
                if isinstance(resource, UsesEngine):
                    with plugin_call(resource, "use_engine"):
                        resource.use_engine(engine)
                await open_resource(resource, self._opened)
        except BaseException:
            await self._opened.aclose()
            raise

    async def close(self) -> None:
        """Cancel open scoring, and close all that `open` opened."""
        for task in self._scoring:
            task.cancel()
        if self._scoring:  # a run that was stopped at once is closed without a loop
            await asyncio.gather(*self._scoring, return_exceptions=True)
        await self._opened.aclose()

    def context(self, job: RolloutJob, engine: EngineClient | None = None) -> JobContext:
        """The context in which a sampler rolls a job out."""
        engine = engine or self._engine
        assert engine is not None, "the rollout side is opened first"
        target = self.sets[job.set_name].environment if job.set_name else self.environment
        return JobContext(
            environment=target if job.level is None else self.levels[job.level],
            team=self.team,
            engine=engine,
            reward_sources=self.reward_sources,
            reward_weights=self.reward_weights,
            run_seed=self.seed,
            job=job,
            stop_above=None if job.evaluation else self.stop_above,
            tool_codecs=self._tool_codecs,
            warned=self._warned,
            capabilities=self._capabilities,
        )

    async def play(self, job: RolloutJob) -> Rollout:
        """Play a job; its scores are completed in the background."""
        place = Key(job.task.id, job.epoch, job.chain).text()
        trace = None if job.draw is None else Trace("episode", place, job=job)
        with in_cohort(job.cohort), recording(trace):
            return await self._play(job)

    async def _play(self, job: RolloutJob) -> Rollout:
        context = self.context(job)
        KEPT.set(context.scores.answers)
        sampler = self.sampler if not job.evaluation else self.sampler_of(job)
        try:
            with plugin_call(sampler, "play"):
                played = sampler.play(job.task, job.epoch, job.chain, context)
                tree = await context.engine.active(check_async(sampler, "play", played))
            what = (tree.task.id, tree.epoch, tree.chain) if isinstance(tree, Tree) else tree
            if what != (job.task.id, job.epoch, job.chain):
                refuse(sampler, "play", what, "the Tree of the task, epoch and chain that it was given")
        except BaseException:
            for task in context.background:
                task.cancel()
            await asyncio.gather(*context.background, return_exceptions=True)
            raise
        scoring = asyncio.ensure_future(self._scored(tree, context))
        self._scoring.add(scoring)
        scoring.add_done_callback(self._scored_one)
        return Rollout(tree, scoring)

    def sampler_of(self, job: RolloutJob) -> Sampler:
        """The sampler of an evaluation's rollout."""
        played = job.set_name, job.greedy
        if played not in self._samplers:
            sampler = self.sets[job.set_name].sampler if job.set_name else self.sampler
            with plugin_call(sampler, "for_evaluation"):
                given = sampler.for_evaluation(job.greedy)
                self._samplers[played] = check_given(sampler, "for_evaluation", given, "Sampler")
            record_origin(self._samplers[played], origin_of(sampler))
        return self._samplers[played]

    def _scored_one(self, scoring: asyncio.Task[ScoredRollout]) -> None:
        self._scoring.discard(scoring)
        if not scoring.cancelled():
            scoring.exception()  # whoever awaits it raises it; asyncio would print all

    async def _scored(self, tree: Tree, context: JobContext) -> ScoredRollout:
        """Complete the scores that play left open. Missing stays missing."""
        if context.background:
            await together(context.background)
        await score_episodes(self.reward_sources, context.scores, [tree], list(self.team.members))
        return ScoredRollout(context.scores, dict(context.counts), recorded())


async def open_resource(resource: Any, opened: AsyncExitStack) -> None:
    """Open a resource that has an `open`; the stack closes one that has a `close`."""
    if isinstance(resource, Opens):
        with plugin_open(resource):
            await resource.open()
    if isinstance(resource, Closes):
        opened.push_async_callback(closed, resource)
