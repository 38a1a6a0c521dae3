"""What rollout hosts and the engine host tell each other. All of it is picklable."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.backends.cluster.wire import compact
from coterie.core.types import Call, Request

Place = tuple[str, str, int, int]
"""(cohort, task, epoch, chain): a job."""


class Vocabularies:
    """The words of several codecs, as far as another process knows them.

    Args:
        codecs: by policy; only those count whose ids have a text where their words were seen alone, such as
            `WordCodec`, that of engine `scripted`.
    """

    def __init__(self, codecs: Mapping[str, Any]) -> None:
        self._codecs = {policy: codec for policy, codec in codecs.items() if hasattr(codec, "learn")}
        self._told = {policy: 0 for policy in self._codecs}

    def new(self) -> dict[str, list[str]]:
        """Words that the other process hasn't been told, by policy."""
        new = {policy: codec.words(self._told[policy]) for policy, codec in self._codecs.items()}
        for policy, words in new.items():
            self._told[policy] += len(words)
        return {policy: words for policy, words in new.items() if words}

    def learn(self, words: Mapping[str, list[str]]) -> None:
        """See what the other process has seen."""
        for policy, seen in words.items():
            self._codecs[policy].learn(seen)


@dataclass(frozen=True, slots=True)
class HostRequest:
    """A request of a rollout host."""

    number: int
    """Counted by the host. The answer has the same."""
    cohort: str
    request: Request

    @property
    def place(self) -> Place:
        """The job that it belongs to."""
        key = self.request.key
        return self.cohort, key.task, key.epoch, key.chain


@dataclass(frozen=True, slots=True)
class News:
    """What changed on a rollout host since its last news."""

    live: Mapping[str, int]
    """Active rollouts by cohort, all of them; a cohort without any is absent."""
    taken: Mapping[str, int]
    """Jobs by cohort that the host has begun: they are among `live`, if they did not end since."""
    asked: tuple[HostRequest, ...] = ()
    cancelled: tuple[int, ...] = ()
    """Requests whose rollouts were cancelled."""
    words: Mapping[str, list[str]] = field(default_factory=dict)
    """See `Vocabularies`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (compact((News, self.live, self.taken, self.asked, self.cancelled, self.words)),)


@dataclass(frozen=True, slots=True)
class HostAnswer:
    """The call of a request, or the error that it raised."""

    number: int
    call: Call | None = None
    error: bytes = b""


@dataclass(frozen=True, slots=True)
class HostAnswers:
    """What a rollout host gets at once."""

    answers: list[HostAnswer]
    words: Mapping[str, list[str]]
    """See `Vocabularies`."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (compact((HostAnswers, self.answers, self.words)),)


def _unpickled(data: bytes) -> Any:
    cls, *values = pickle.loads(data)
    return cls(*values)


@dataclass(slots=True)
class KnownHost:
    """What an engine host knows of a rollout host."""

    sent: dict[str, int] = field(default_factory=dict)
    """Jobs by cohort that were sent to it and that it has not begun; they count as active."""
    live: Mapping[str, int] = field(default_factory=dict)
    answers: list[HostAnswer] = field(default_factory=list)
    """Those that it has not collected."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there is one."""
    vocabularies: Vocabularies = field(default_factory=lambda: Vocabularies({}))
