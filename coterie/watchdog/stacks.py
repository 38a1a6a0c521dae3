"""Stacks of threads and of asyncio's tasks: whose code each level is, in which plugin call and episode."""

from __future__ import annotations

import asyncio
import gc
import importlib.metadata
import os
import site
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE
from pathlib import Path
from types import AsyncGeneratorType, CodeType, FrameType
from typing import Any, NamedTuple

from coterie.core.plugins.origin import Origin, place
from coterie.core.protocols import RolloutJob
from coterie.core.types import Key
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


# ---------------------------------------------------------------------------------------- calls of plugins


@dataclass(frozen=True, slots=True)
class StuckCall:
    """A plugin's method that has not returned. Picklable."""

    plugin: str
    """As `environment 'countdown' of my-package`; of code that belongs to none, its file."""
    path: str
    """The plugin's dotted path in the configuration; empty: it has none."""
    method: str
    file: str
    line: int
    """Where in the plugin's package it waits or computes."""
    function: str
    episode: str
    """Text of a key, such as `train-7/e0/c1/n0.3`; empty: no episode calls it."""
    seconds: float
    blocks: bool = False
    """Whether the event loop waits for it, and with it all that the process plays."""
    calls: int = 1
    """How many are stuck at this place."""

    @property
    def place(self) -> tuple[str, str, str, int]:
        """What calls have in common that are told as one."""
        return self.plugin, self.method, self.file, self.line

    def __str__(self) -> str:
        about = f"{self.plugin}: {self.method}"
        where = f"{place(self.file, self.line)[:-1]}, in {self.function})"
        episode = f", in episode {self.episode}" if self.episode else ""
        others = f" ({self.calls:,} calls; this one is the oldest)" if self.calls > 1 else ""
        waits = "; nothing else is played meanwhile" if self.blocks else ""
        path = f" ({self.path})" if self.path else ""
        return f"{about} has not returned for {self.seconds:.3g} s{where}{episode}{others}{waits}{path}"


@dataclass(frozen=True, slots=True)
class PluginCall:
    """A call of a plugin's method in a stack."""

    frame: FrameType
    """Of the method."""
    plugin: Any
    """The plugin, or None: the code belongs to none that could be made out."""
    inner: Level
    """Where the plugin's code is: its innermost level."""
    stack: Sequence[Level]

    def stuck(self, seconds: float, blocks: bool) -> StuckCall:
        """What to say of it."""
        origin = origin_in(self.plugin)
        frame, file = self.inner.frame, self.inner.code.co_filename
        return StuckCall(
            plugin=str(origin) if origin is not None else f"code of {Path(file).name}",
            path=origin.path if origin is not None else "",
            method=self.frame.f_code.co_name,
            file=file,
            line=self.inner.code.co_firstlineno if frame is None else frame.f_lineno,
            function=self.inner.code.co_name,
            episode=episode_of(self.stack),
            seconds=seconds,
            blocks=blocks,
        )


def origin_in(plugin: Any) -> Origin | None:
    """The origin that the builder recorded of a plugin; None: it is none."""
    try:
        origin = object.__getattribute__(plugin, "_origin")
    except Exception:  # a `__dict__` of its own may raise anything
        return None
    return origin if isinstance(origin, Origin) else None


def calls_in(stack: Sequence[Level], *, awaiting: bool) -> list[PluginCall]:
    """The calls of plugins that a stack is in, the innermost first; none where Coterie's code is at work.

    The innermost level that is no library's decides: the framework's code computes, or has a bound for what
    it waits for. So has what a plugin of Coterie awaits.

    Args:
        stack: the innermost level first.
        awaiting: whether it is that of a task that waits.
    """
    inner = next((at for at, level in enumerate(stack) if level.whose is not Whose.LIBRARY), len(stack))
    if inner == len(stack) or stack[inner].whose is Whose.FRAMEWORK:
        return []
    if stack[inner].whose is Whose.BUILT_IN and awaiting:
        return []
    ends = [Whose.FRAMEWORK] if stack[inner].whose is Whose.BUILT_IN else [Whose.FRAMEWORK, Whose.BUILT_IN]
    end = next((at for at in range(inner, len(stack)) if stack[at].whose in ends), len(stack))
    if end == len(stack):  # nothing of Coterie calls it
        return []
    outer = next(at for at in range(end - 1, -1, -1) if stack[at].whose is not Whose.LIBRARY)
    return [*_calls(stack, inner, outer, end)]


def _calls(stack: Sequence[Level], inner: int, outer: int, end: int) -> Iterator[PluginCall]:
    """The outermost frame of each plugin between two levels; of code without one, what Coterie calls."""
    methods: dict[int, tuple[Level, Any]] = {}
    for level in stack[inner : outer + 1]:
        if (plugin := _receiver(level)) is not None:
            methods[id(plugin)] = level, plugin
    if not methods:
        methods[0] = stack[outer], _caller(stack, outer, end)
    for level, plugin in methods.values():
        if (frame := level.frame) is not None:
            yield PluginCall(frame, plugin, stack[inner], stack)


def _receiver(level: Level) -> Any:
    """The plugin whose method a level is; None: it is no plugin's."""
    if not level.code.co_argcount:
        return None
    plugin = locals_of(level).get(level.code.co_varnames[0])
    return plugin if origin_in(plugin) is not None else None


def _caller(stack: Sequence[Level], outer: int, end: int) -> Any:
    """The plugin on whose behalf Coterie calls a function."""
    name, code = stack[outer].code.co_name, stack[outer].code
    for level in stack[end : end + 4]:
        for value in [*locals_of(level).values()]:
            method = getattr(type(value), name, None)
            if getattr(method, "__code__", None) is code and origin_in(value) is not None:
                return value
        if (plugin := _receiver(level)) is not None:
            return plugin
    return None


def episode_of(stack: Sequence[Level]) -> str:
    """The innermost place of an episode that a variable of Coterie's code holds; empty: there is none."""
    for level in stack:
        if level.whose in (Whose.FRAMEWORK, Whose.BUILT_IN):
            for value in [*locals_of(level).values()]:
                key = value if isinstance(value, Key) else getattr(value, "key", None)
                if isinstance(key, Key):
                    return key.text()
                if isinstance(value, RolloutJob):
                    return Key(value.task.id, value.epoch, value.chain).text()
    return ""
