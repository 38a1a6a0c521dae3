"""Opening of a component for a check, with the components that it uses, as a run opens them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from pydantic import BaseModel

from coterie.compose.chat_models import CheckedChatModel
from coterie.core.plugins import composed_fields
from coterie.core.protocols.chat_model import UsesEngine
from coterie.core.protocols.tool import Closes, Opens
from coterie.testing.support.failure import guarded, require
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
