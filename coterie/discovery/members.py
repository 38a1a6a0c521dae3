"""Optional members of plugins that the core never asks for, and the second argument of their constructor.

They are for composing, plans, warm starts, data, and for other plugins. What the core asks for is beside the
Protocol of its kind in `core/protocols`; what no author reads of is in `optional.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.protocols import Codec, Demonstration, EngineContext, Limits, Program, Ran
from coterie.core.types import Action, Finding, Metrics, Task, Weights


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


@runtime_checkable
class HasTokenIds(Protocol):
    vocabulary: Mapping[str, int]
    """{token: id}, to check that an external policy has the same tokens."""


@runtime_checkable
class GivesFindings(Protocol):
    async def findings(self, state: Any, role: str, tests: int) -> tuple[Finding, ...]:
        """The checks of what the team has made, as a role may read them, for transition modes with levels.

        Args:
            tests: which of the task's feedback tests are run: n > 0: the first n; n < 0: the last -n; 0: all.
        """


@runtime_checkable
class Diagnoses(Protocol):
    def diagnose(self, state: Any, role: str) -> str | Awaitable[str]:
        """Feedback for a role, for transition modes; empty: none. It may be a coroutine."""


@runtime_checkable
class StepsConcurrently(Protocol):
    concurrent: bool
    """Whether `step` waits (for a sandbox), so that joint actions are stepped at once."""


@runtime_checkable
class HasNotSummable(Protocol):
    not_summable: Sequence[str] | set[str] | frozenset[str]
    """Components that must not be summed over turns."""


@runtime_checkable
class HasFields(Protocol):
    fields: Sequence[str] | None
    """Fields of its observations, so that a prompt template can be checked; None: unknown."""


@runtime_checkable
class SumsOverTurns(Protocol):
    sums_over_turns: bool
    """Whether its returns sum over turns; components that are not summable are then refused."""


@runtime_checkable
class StopsEpisodes(Protocol):
    stop_above: float | None
    """An episode ends at a joint action whose reward is at least this; None: at none."""


@runtime_checkable
class HasLengthConstant(Protocol):
    length_constant: float | None
    """Divisor of every sequence's sum, for `length = "constant"`."""


@runtime_checkable
class NeedsFreshSamples(Protocol):
    fresh_samples: bool
    """Whether the samples must be those of the current weights, since no ratio or correction accounts for the
    difference: one optimiser step an update."""


@runtime_checkable
class CountsCalls(Protocol):
    calls_per_view: int
    """Calls of an external model (a judge, a coach) per `score` or state told of, for `coterie plan`."""


@runtime_checkable
class RunsInBackground(Protocol):
    background: bool
    """Whether the source is slow: it is scored in the background where selection does not need it."""


@runtime_checkable
class ScoresRoles(Protocol):
    per_role: Sequence[str]
    """Components that a source of scope `joint` or `episode`, or an environment, scores for single roles and
    never for the team. A failure is then each role's own."""


@runtime_checkable
class BoundsCalls(Protocol):
    concurrency: int
    """Calls of `score` at once, unless `rewards.<name>.concurrency` says otherwise; default: CONCURRENCY.
    With 1 they are made one after the other, without an asyncio task each."""


@runtime_checkable
class ReportsProtections(Protocol):
    def report(self) -> Sequence[Any]:
        """The protections: named tuples (name, active, stops, needs). Call it after `open`."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class KeptFiles:
    """Files: path, sha256, bytes. Their sandbox keeps the contents while its process refers to this."""

    files: tuple[tuple[str, str, int], ...] = ()


@runtime_checkable
class KeepsFiles(Protocol):
    async def run_on(self, program: Program, files: KeptFiles, most_mb: int) -> tuple[Ran, KeptFiles]:
        """Run a program on copies of kept files, and keep what it leaves: of what `collect` matches, without
        `program.files`, at most `most_mb`. `Ran.files` is empty.

        Raises:
            WriteError: the disk is full. For the rest as `Sandbox`.
        """

    def kept(self, files: KeptFiles, path: str) -> Path:
        """The file with a content, to be read only. Raises SystemFault where this machine lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A task as its team has it; roles by name, and what is empty is not shown."""

    problem: str = ""
    duties: Mapping[str, str] = field(default_factory=dict)
    """By role: its part of the work, in a sentence."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """By role: turns, time, memory."""
    required: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By role: the files that it has to leave."""
    available: Sequence[str] = ()
    """The files that the team is given, a line each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What came of one action; what is empty is not shown."""

    output: str = ""
    """Of its program: status, stdout, stderr."""
    files: str = ""
    """The team's files after the action, a line each, and those that are missing: as they were checked."""
    outcome: str = ""
    """What the team's work is worth by rule, such as the metric's value or why a submission is invalid; empty
    before the action that ended the episode."""


@runtime_checkable
class ShowsWork(Protocol):
    """An environment that tells judges what came of an action. Without it they see prompts and messages."""

    def brief(self, task: Task) -> Brief:
        """The task as its team has it; the reference answer is not in it."""

    def work(self, role: str, info: Mapping[str, Any]) -> Work:
        """What came of an action of `role`.

        Args:
            info: `Step.info` of the joint action that it is part of; empty where the step failed.
        """
