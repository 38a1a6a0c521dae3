"""Optional members of plugins that no step of training calls, and the second argument of their constructor.

Those are for composing, plans, warm starts and data. What no author reads of is in `optional.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.protocols import Codec, Demonstration, EngineContext, Limits
from coterie.core.types import Action, Metrics, Task, Weights


class Build(Protocol):
    """The second argument of a plugin's constructor, after its `Config`."""

    name: str
    """The instance's name in the configuration, e.g. of the role, the reward or the tool."""
    path: str
    """The instance's dotted path in the configuration, for error messages."""
    run: RunConfig

    def make(self, kind: str, table: Any, path: str) -> Any:
        """Make another component of a kind from its table; `path` is the table's, for error messages."""


@runtime_checkable
class RecordsTasks(Protocol):
    """For `coterie data`: tasks as data."""

    def record(self, task: Task) -> Mapping[str, Any]:
        """The task as JSON."""

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record, whose unknown fields are ignored. ValueError: no task of this game."""


@runtime_checkable
class FingerprintsTasks(Protocol):
    def fingerprints(self, task: Task) -> Mapping[str, str]:
        """{"content": ..., "solution": ...}: values that no two splits may share; `content` is required."""


@runtime_checkable
class LeavesOut(Protocol):
    def leave_out(self, evaluated: Callable[[], Sequence[Task]]) -> None:
        """Leave the problems of these tasks out of train, before any are drawn. They are those of the sets in
        `evaluate.sets`; called once, before `tasks`, and reads records: ask when train is asked for."""


@runtime_checkable
class LocatesTasks(Protocol):
    """An environment whose tasks are records: their prompts are checked before a run."""

    def place(self, task: Task) -> str:
        """The file and line of a task's record, such as `sums.jsonl:3`; empty: it was made without one."""


@runtime_checkable
class GivesFinalAnswers(Protocol):
    """For `coterie eval --samples`: an environment whose episodes end with an answer that can be voted on."""

    def final_answer(
        self, task: Task, played: Sequence[tuple[Mapping[str, Action], Mapping[str, Any]]]
    ) -> str | None:
        """The answer that an episode ended with, written so that equal answers are equal texts; None: there
        is none. `played` has the actions by role and the `Step.info` of each step, in their order."""


@runtime_checkable
class DrawsTasks(Protocol):
    def picture(self, task: Task) -> str:
        """The task, drawn for people."""


@runtime_checkable
class Demonstrates(Protocol):
    def demonstrate(self, state: Any, role: str, noise: float, rng: np.random.Generator) -> str:
        """The oracle's message, for warm starts; a choice is random with probability `noise`."""


@runtime_checkable
class HasVocabulary(Protocol):
    def vocabulary(self) -> Iterable[str]:
        """Words of observations, prompts and answers, for `tokenizer: words`."""


@runtime_checkable
class CountsOptimizerSteps(Protocol):
    def optimizer_steps(self, samples: int, siblings: int) -> int:
        """Optimiser steps of one update of a policy on groups of `siblings` samples, for `coterie plan`."""


@runtime_checkable
class CountsTokens(Protocol):
    """For `coterie plan`: a reward source whose calls of an outside model (`CountsCalls`) show it actions."""

    call_tokens: int
    """Tokens of one call beside the actions that it shows."""
    answer_tokens: int
    """Most tokens of its answer, for each action."""


@runtime_checkable
class TakesWeights(Protocol):
    def begin_with(self, weights: Mapping[str, Weights]) -> None:
        """Take the weights of policies with a `from`, by policy, before `open`; copy what is kept of them."""


@runtime_checkable
class WarmStarts(Protocol):
    def bases(self) -> Mapping[str, Sequence[str]]:
        """The policies with the same initial weights, by the name of the weights."""

    async def warm_start(
        self, policy: str, demonstrations: Callable[[int], Sequence[Demonstration]], config: Any
    ) -> Metrics:
        """Train the initial weights of a policy; `demonstrations` gives those of a step."""


@runtime_checkable
class TrainsApart(Protocol):
    """A trainer that trains some of a run's policies as it trains them among all: with executor `ray` and
    `cluster.updates: at_once` each set of weights has one of its own."""

    def same_start(self, policies: Mapping[str, PolicyConfig]) -> Mapping[str, Sequence[str]]:
        """Of all policies of the run: those with the same initial weights, by the first. Called on an open
        trainer of some of them; without policies whose weights a `from` names."""

    def part_of_state(self, folder: Path, policies: Collection[str]) -> Mapping[str, Path | bytes]:
        """What a trainer of some policies would have saved, of a state that `save` wrote: by names of files,
        files in `folder` or contents. Called on a trainer that isn't open, as `join_states` is."""

    def join_states(self, parts: Sequence[Path], folder: Path, alike: Mapping[str, Sequence[str]]) -> None:
        """Make of the states of trainers of some policies each, which may be used up, that of one trainer of
        all; `alike` is what `same_start` returned."""


@runtime_checkable
class UsesRunFolder(Protocol):
    def use_run_folder(self, folder: Path) -> None:
        """Store files in the run's folder, such as paid answers; called before `open` of a training run."""


@runtime_checkable
class MakesCodecs(Protocol):
    async def codecs(self, ctx: EngineContext) -> Mapping[str, Codec]:
        """By policy: the codec that it would have once the engine is open, without weights and connections;
        for replays. A policy whose tokenizer can't be read here is left out. Called on a closed engine."""


@runtime_checkable
class ChecksHost(Protocol):
    def check_host(self, limits: Mapping[str, Limits]) -> None:
        """Raise ConfigError for what this machine lacks, such as a package or memory; called before the run.
        The limits are of programs that other components run in it, by the path of their setting."""


@runtime_checkable
class SharesSlots(Protocol):
    def use_slots(self, slots: Callable[[str, int], asyncio.Semaphore]) -> None:
        """Take a semaphore of all processes of the run, by a name and its number, for what it does at once;
        called before `open` where several processes have the component."""


@runtime_checkable
class ChecksComponents(Protocol):
    def check_components(self, components: Mapping[str, str]) -> None:
        """Raise ConfigError for a component that a setting names and no source scores; called before the run.
        By component of all reward sources: the name of its source."""


@runtime_checkable
class MayLackFeedback(Protocol):
    def without_feedback(self) -> str:
        """The setting for which its prompts can't show feedback, such as `env.rendering=compact`; empty: they
        can."""


@runtime_checkable
class OmitsTask(Protocol):
    omits_task: bool
    """Whether its prompt leaves out the task where `RoleInput.shows_task` is False."""
