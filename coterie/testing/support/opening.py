"""Opening of a component for a check, with the components that it uses, as a run opens them.

What a component is checked with may be broken: the environment of a reward source, the roles that read the
answers. Then the component is not, and its check ends with a `BesideError`, which a report
counts as not checked.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

from pydantic import BaseModel

from coterie.compose.builder import CheckedChatModel
from coterie.core.plugins import composed_fields
from coterie.core.protocols.chat_model import UsesEngine
from coterie.core.protocols.tool import Closes, Opens
from coterie.core.types import Task
from coterie.testing.support.failure import ConformanceError, guarded, require
from coterie.testing.support.time_limit import in_time

_OPENED = ("environment", "sandbox", "tool", "chat_model")
"""Kinds that a run opens where a component uses them."""
_FIX = "start what it connects to, or put a stand-in there; raise SystemFault where it is down"


@asynccontextmanager
async def opened(plugin: Any, engine: Any = None, *, alone: bool = False) -> AsyncIterator[None]:
    """A context in which a component is open, after those that its Config holds; all are closed behind it.

    Args:
        engine: the `EngineClient` of those with `use_engine`.
        alone: those that its Config holds are open already.

    Raises:
        ConformanceError: `use_engine`, `open` or `close` raised, or there is no engine to use.
    """
    async with AsyncExitStack() as stack:
        for part in (*(() if alone else used(plugin)), plugin):
            name = type(part).__name__
            if isinstance(part, UsesEngine):
                require(engine is not None, "needs an engine", name, fix="give the check an `engine`")
                with guarded(f"{name}.use_engine"):
                    part.use_engine(engine)
            if isinstance(part, Opens):
                with guarded(f"{name}.open", _FIX, 10.0):
                    await in_time(part.open(), 10.0)
            if isinstance(part, Closes):
                stack.push_async_callback(_closed, part)
        yield


def used(plugin: Any, but: Sequence[Any] = ()) -> Iterator[Any]:
    """The components in a component's Config that a run opens, inner ones first.

    Args:
        but: those that are opened already.
    """
    config = getattr(plugin, "config", None)
    if not isinstance(config, BaseModel):
        return
    for field, kind in composed_fields(type(config)).items():
        part = getattr(config, field)
        part = part.model if isinstance(part, CheckedChatModel) else part
        if part is not None and not isinstance(part, (str, dict)):
            yield from used(part, but)
            if kind in _OPENED and not any(part is other for other in but):
                yield part


async def _closed(part: Any) -> None:
    with guarded(f"{type(part).__name__}.close", "a run that ends early closes it too"):
        await in_time(part.close())


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
