"""The values of environment `data_science`: tasks, actions, the workspace, states and observations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from coterie.discovery.members import KeptFiles
from coterie.plugins.envs.data_science.config import TEST_DATA, TRAIN_DATA


@dataclass(frozen=True, slots=True, kw_only=True)
class CompetitionTask:
    """A task."""

    recorded_name: ClassVar[str] = "Competition"
    text: str
    """The description that all roles see."""
    metadata: Mapping[str, Any]
    """Of the record, with absolute paths; `metric` and `kind` are what scores the task."""

    @property
    def tables(self) -> dict[str, Path]:
        """Where the task's tables are, by their path in the workspace."""
        files = {TRAIN_DATA: "train_file", TEST_DATA: "test_file"}
        return {path: Path(self.metadata[key]) for path, key in files.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailLine:
    """A line of the file trail."""

    recorded_name: ClassVar[str] = "Change"
    path: str
    role: str
    turn: int
    """Of the role, from 1."""
    what: Literal["wrote", "changed", "removed"]
    size: int = 0
    """Bytes; 0 where it was removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRun:
    """What came of an action's program."""

    status: str
    """`finished`, `failed`, `timeout`, `killed`; `unused`: it was not run."""
    stdout: str = ""
    stderr: str = ""
    problem: str = ""
    """Why it did not finish, or what of its files was not kept, in words; empty: nothing."""

    @property
    def ok(self) -> bool:
        """Whether it ended with exit code 0."""
        return self.status == "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class TranscriptEntry:
    """One action, with what came of it."""

    recorded_name: ClassVar[str] = "Entry"
    role: str
    turn: int
    """Of the role, from 1."""
    text: str
    """Without the thought."""
    run: ProgramRun | None
    """None: it had no program."""
    note: str = ""
    """What was wrong with the message itself, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionOutcome:
    """What the team's submission is worth."""

    recorded_name: ClassVar[str] = "Outcome"
    metric: str
    direction: str
    value: float | None
    """None: there is none, or it is invalid."""
    quality: float | None
    """As `SubmissionResult.quality`."""
    performance: float
    """From 0 to 1: what the reward says; `worth.performance`."""
    why: str = ""
    """Why it is invalid; empty: it is valid."""
    blamed: str = ""
    """The role that wrote an invalid submission, or that was to write what is missing first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineState:
    """A value: copied by `dataclasses.replace`, never mutated."""

    recorded_name: ClassVar[str] = "State"
    task: CompetitionTask
    workspace: KeptFiles = field(default_factory=KeptFiles)
    """The team's files, by content hash: a fork of the state shares them."""
    trail: tuple[TrailLine, ...] = ()
    """Who wrote, changed and removed what, oldest first."""
    transcript: tuple[TranscriptEntry, ...] = ()
    ended: tuple[str, ...] = ()
    """Roles that have handed over, or are out of turns."""
    outcome: SubmissionOutcome | None = None
    """Once the last role has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineObservation:
    """The observation of a role."""

    role: str
    task: str
    """The description of the competition."""
    data: tuple[str, ...]
    """The task's own files in the workspace, one line each."""
    transcript: tuple[TranscriptEntry, ...]
    """All that was done before, each with `role`, `turn`, `text`, `run`, `note`."""
    files: tuple[str, ...]
    """The file trail: a line for each file of the team, with who wrote it, in which turn, and its size; then
    for each missing one, with who was to write it."""
    required: tuple[str, ...]
    """The files that the role has to leave."""
    missing: tuple[str, ...]
    """Those of them that are not there, or empty."""
    inherited: tuple[str, ...]
    """What earlier roles were to leave and have not, one sentence each."""
    limits: str
    """What a program of the role may take, in words."""
    turn: int
    """The role's own, from 1."""
    turns: int
    """Most turns of the role."""
