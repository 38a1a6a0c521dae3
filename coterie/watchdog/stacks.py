"""Stacks of threads and of asyncio's tasks, and whose code each of their levels is."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import os
import site
import sysconfig
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from pathlib import Path
from types import AsyncGeneratorType, CodeType, FrameType
from typing import Any, NamedTuple

from coterie.discovery import GROUP

_OURS = f"{Path(__file__).resolve().parents[1]}{os.sep}"
_BUILT_IN = f"{_OURS}plugins{os.sep}"
_SITE = tuple(
    {
        *(sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")),
        *(folder + os.sep for folder in (*site.getsitepackages(), site.getusersitepackages())),
    }
)
_STANDARD = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})


_AWAITS = {"cr": "cr_await", "gi": "gi_yieldfrom", "ag": "ag_await"}
_STEPS = ("async_generator_asend", "async_generator_athrow")


class Whose(Enum):
    """Whose code a file is."""

    FRAMEWORK = "of Coterie, but for its plugins in `coterie/plugins`: it computes, or has bounds of its own"
    BUILT_IN = "of a plugin in `coterie/plugins`"
    AUTHOR = "of a plugin that Coterie doesn't bring, or of a user"
    LIBRARY = "of Python, or of an installed package that is no plugin"


class Level(NamedTuple):
    """A level of a stack."""

    code: CodeType
    of: Any
    """The frame, or the coroutine or generator that has it: a frame object is made where it is asked for."""

    @property
    def frame(self) -> FrameType | None:
        """None: the coroutine has ended."""
        if isinstance(self.of, FrameType):
            return self.of
        frames = (getattr(self.of, name, None) for name in ("cr_frame", "gi_frame", "ag_frame"))
        return next((frame for frame in frames if frame is not None), None)

    @property
    def whose(self) -> Whose:
        return whose(self.code.co_filename)

    @property
    def asynchronous(self) -> bool:
        return bool(self.code.co_flags & (CO_COROUTINE | CO_ASYNC_GENERATOR))


@cache
def whose(file: str) -> Whose:
    """Whose code a file is."""
    if file.startswith("<"):  # `<stdin>` is typed in; others are made by a library, such as dataclasses
        return Whose.AUTHOR if file.startswith(("<stdin", "<ipython")) else Whose.LIBRARY
    if file.startswith(_OURS):
        return Whose.BUILT_IN if file.startswith(_BUILT_IN) else Whose.FRAMEWORK
    for folder in _SITE:
        if file.startswith(folder):
            top = file[len(folder) :].partition(os.sep)[0].removesuffix(".py")
            return Whose.AUTHOR if top in _plugin_packages() else Whose.LIBRARY
    return Whose.LIBRARY if file.startswith(_STANDARD) else Whose.AUTHOR


@cache
def _plugin_packages() -> frozenset[str]:
    """The packages of installed plugins."""
    entries = importlib.metadata.entry_points(group=GROUP)
    return frozenset(entry.value.partition(":")[0].partition(".")[0].strip() for entry in entries)


def of_thread(frame: FrameType | None) -> list[Level]:
    """The levels of a thread, the innermost first."""
    levels = []
    while frame is not None:
        levels.append(Level(frame.f_code, frame))
        frame = frame.f_back
    return levels


def of_task(task: asyncio.Task[Any]) -> list[Level]:
    """The coroutines of a task, each awaited by the next one: the innermost first."""
    levels: list[Level] = []
    at: Any = task.get_coro()
    while at is not None:
        part = next((part for part in ("cr", "gi", "ag") if hasattr(at, f"{part}_code")), "")
        if not part:  # a future, or what its author made awaitable
            return levels[::-1]
        if (code := getattr(at, f"{part}_code")) is not None:  # a compiled coroutine, as Ray's, may have none
            levels.append(Level(code, at))
        at = getattr(at, _AWAITS[part])
        if type(at).__name__ in _STEPS:  # of an asynchronous generator, which only the collector names
            at = next((each for each in gc.get_referents(at) if isinstance(each, AsyncGeneratorType)), None)
    return levels[::-1]


def awaited(task: asyncio.Task[Any], innermost: FrameType | None) -> list[asyncio.Task[Any]]:
    """The tasks that a task waits for: one, those of a `gather`, or those of asyncio's other ways to wait.

    Args:
        innermost: frame of the task's innermost coroutine.
    """
    waiter: Any = getattr(task, "_fut_waiter", None)
    if isinstance(waiter, asyncio.Task):
        return [waiter]
    tasks = [each for each in getattr(waiter, "_children", ()) if isinstance(each, asyncio.Task)]
    if not tasks and innermost is not None and "asyncio" in innermost.f_globals.get("__name__", ""):
        tasks = [each for value in [*innermost.f_locals.values()] for each in _tasks_in(value)]
    return [each for each in tasks if not each.done()]


def _tasks_in(value: Any) -> Iterator[asyncio.Task[Any]]:
    """The tasks of a local variable: of `wait`, `wait_for` and `TaskGroup`."""
    held = getattr(value, "_tasks", value) if isinstance(value, asyncio.TaskGroup) else value
    each_of = [*held] if isinstance(held, (set, frozenset, list, tuple)) else [held]
    yield from (each for each in each_of if isinstance(each, asyncio.Task))


def locals_of(level: Level) -> Mapping[str, Any]:
    """The local variables of a level."""
    frame = level.frame
    return {} if frame is None else frame.f_locals
