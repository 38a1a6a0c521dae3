"""What an environment shows a judge of its roles' work beside prompts and messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from coterie.core.types import Task


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
