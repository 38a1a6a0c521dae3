"""Which call of which plugin a stack is in, and in which episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from coterie.core.plugins.origin import Origin, place
from coterie.core.protocols import RolloutJob
from coterie.core.types import Key
from coterie.watchdog.stacks import Level, Whose, locals_of


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
