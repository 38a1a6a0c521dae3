"""What a component is checked with: the environment of a reward source, the roles that read the answers.

Where that is broken, the component is not: its check ends with a `BesideError`, which a report counts as not
checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from coterie.core.types import Task
from coterie.testing.support.failure import ConformanceError, guarded, require
from coterie.testing.support.opening import opened

SOURCE_FIX = "return a list of coterie.Task, or an object with `__len__` and `__getitem__`"


class BesideError(ConformanceError):
    """What a component is checked with breaks the contract of its kind.

    Args:
        part: what it is, e.g. "its environment".
    """

    def __init__(self, what: str, *, where: str, fix: str = "", part: str) -> None:
        self.part = part
        super().__init__(what, where=where, fix=fix)


@contextmanager
def beside(part: str) -> Iterator[None]:
    """A context in which what is broken is not the component that is checked.

    Args:
        part: what is called there, e.g. "its environment".

    Raises:
        BesideError: it is broken.
    """
    try:
        yield
    except BesideError:
        raise
    except ConformanceError as error:
        raise BesideError(error.what, where=error.where, fix=error.fix, part=part) from error.__cause__


@asynccontextmanager
async def opened_beside(environment: Any, engine: Any) -> AsyncIterator[None]:
    """A context in which the environment that a component is checked with is open.

    Raises:
        BesideError: it can't be opened or closed.
    """
    context = opened(environment, engine)
    with beside("its environment"):
        await context.__aenter__()
    try:
        yield
    finally:
        with beside("its environment"):
            await context.__aexit__(None, None, None)


def tasks_beside(environment: Any, seed: int) -> Sequence[Task]:
    """The training tasks of the environment that a component is checked with.

    Raises:
        BesideError: it has none.
    """
    where = f"{type(environment).__name__}.tasks"
    with beside("its environment"):
        with guarded(where, SOURCE_FIX):
            tasks: Sequence[Task] = environment.tasks("train", seed)
            count = len(tasks)
        require(count, "the split 'train' has no task", where, fix="give at least one")
    return tasks
