"""`promise`: the checks say what they look at, so that a report can name what is kept and what is broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Promises:
    """The promises that a check has looked at."""

    begun: list[str] = field(default_factory=list)
    """Each once, in the order in which they were looked at first."""
    current: str = ""
    """The one that is looked at; a ConformanceError that is raised now is of this one."""
    on_change: Callable[[str], None] | None = None
    """Called with each promise when it becomes the current one."""

    def begin(self, text: str) -> None:
        """Look at a promise, perhaps for another time."""
        if text == self.current:
            return
        if text not in self.begun:
            self.begun.append(text)
        self.current = text
        if self.on_change is not None:
            self.on_change(text)

    def forget(self) -> None:
        """Take the current promise back: whether it is kept is unknown."""
        self.begun, self.current = [text for text in self.begun if text != self.current], ""


_PROMISES: ContextVar[Promises | None] = ContextVar("coterie_promises", default=None)


def promise(text: str) -> None:
    """Begin a promise of the kind: what is wrong from here on, until the next one begins, breaks this one.

    Outside `recorded` it does nothing.

    Args:
        text: what the plugin promises, e.g. "a state is a value".
    """
    promises = _PROMISES.get()
    if promises is not None:
        promises.begin(text)


@contextmanager
def recorded(promises: Promises) -> Iterator[Promises]:
    """A context whose promises are kept in `promises`, in its asyncio tasks and `to_thread` too."""
    token = _PROMISES.set(promises)
    try:
        yield promises
    finally:
        _PROMISES.reset(token)
