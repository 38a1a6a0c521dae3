"""What rollout hosts and the engine host tell each other. All of it is picklable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from coterie.core.types import Call, Request


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a rollout host."""

    number: int
    """Counted by the host. The answer has the same."""
    cohort: str
    request: Request


@dataclass(frozen=True, slots=True)
class News:
    """What changed on a rollout host since its last news."""

    live: Mapping[str, int]
    """Active rollouts by cohort, all of them; a cohort without any is absent."""
    taken: Mapping[str, int]
    """Jobs by cohort that the host has begun: they are among `live`, if they did not end since."""
    asked: tuple[Asked, ...] = ()
    cancelled: tuple[int, ...] = ()
    """Requests whose rollouts were cancelled."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The call of a request, or the error that it raised."""

    number: int
    call: Call | None = None
    error: bytes = b""


@dataclass(slots=True)
class Host:
    """What an engine host knows of a rollout host."""

    sent: dict[str, int] = field(default_factory=dict)
    """Jobs by cohort that were sent to it and that it has not begun; they count as active."""
    live: Mapping[str, int] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    """Those that it has not collected."""
