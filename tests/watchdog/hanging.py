"""Plugins of each kind, made to stay in a method until it is named, in each of the usual ways."""

from __future__ import annotations

import asyncio
import inspect
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie import Plugin

LIMIT = 30.0
"""Seconds after which a method returns although it was not named."""
WAYS = ("busy", "sleep", "lock", "process")
ASYNC_WAYS = ("await", "task", "gather", "wait", "group", "thread", "lock")
FILE = Path(__file__)


@dataclass
class Stay:
    """A call that stays where it is."""

    kind: str
    method: str
    way: str
    named: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.monotonic)
    warnings: list[tuple[float, str]] = field(default_factory=list)
    """Seconds from its beginning, and the text."""

    @property
    def lines(self) -> list[int]:
        """Of this file: where it can be."""
        marked = [number for number, line in enumerate(FILE.read_text().splitlines(), 1)
                  if re.search(rf"  # .*\b{self.way}\b", line)]  # fmt: skip
        return [*marked, marked[0] + 1] if self.way == "busy" else marked


STAYS: list[Stay] = []
"""All calls that stayed, in their order."""


def warned(text: str) -> None:
    """Let the call that a warning names go on."""
    for stay in STAYS:
        if (
            text.startswith(f"{stay.kind} ")
            and f": {stay.method} has not" in text
            and not stay.named.is_set()
        ):
            stay.warnings.append((time.monotonic() - stay.begun, text))
            stay.named.set()
            return


def stays(stay: Stay) -> None:
    """Stay without an event loop's help."""
    STAYS.append(stay)
    end = stay.begun + LIMIT
    if stay.way == "busy":
        while not stay.named.is_set() and time.monotonic() < end:  # busy
            continue
    elif stay.way == "sleep":
        while not stay.named.is_set() and time.monotonic() < end:
            time.sleep(0.5)  # sleep
    elif stay.way == "lock":
        stay.named.wait(LIMIT)  # lock
    else:
        waiting = subprocess.Popen(["sleep", str(LIMIT)])
        threading.Thread(target=lambda: (stay.named.wait(LIMIT), waiting.kill()), daemon=True).start()
        waiting.wait()  # process


async def stays_awaiting(stay: Stay) -> None:
    """Stay in a coroutine."""
    if stay.way in WAYS:
        stays(stay)
        return
    STAYS.append(stay)
    loop = asyncio.get_running_loop()
    never: asyncio.Future[None] = loop.create_future()
    threading.Thread(
        target=lambda: (stay.named.wait(LIMIT), loop.call_soon_threadsafe(_end, never)), daemon=True
    ).start()
    if stay.way == "await":
        await never  # await
    elif stay.way == "task":
        await asyncio.create_task(_waits(never))
    elif stay.way == "gather":
        await asyncio.gather(asyncio.sleep(0), _waits(never))
    elif stay.way == "wait":
        await asyncio.wait({asyncio.create_task(_waits(never))})
    elif stay.way == "group" and sys.version_info >= (3, 11):
        async with asyncio.TaskGroup() as group:
            group.create_task(_waits(never))
    elif stay.way == "thread":
        await asyncio.to_thread(stay.named.wait, LIMIT)  # thread


async def _waits(future: asyncio.Future[None]) -> None:
    await future  # task, gather, wait, group


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def hanging(base: type, kind: str, methods: Sequence[str], ways: Sequence[str] = ()) -> type:
    """A class whose methods stay, then do what those of the base do.

    Args:
        ways: of the first call of a method, the second, ...; default: one, `await` or `lock`.
    """
    members = {method: _staying(getattr(base, method), kind, method, ways) for method in methods}
    return type(base.__name__, (base,), {**members, "__module__": __name__})


def _staying(original: Callable[..., Any], kind: str, method: str, ways: Sequence[str]) -> Any:
    asynchronous = inspect.iscoroutinefunction(original)
    left = list(ways or (["await"] if asynchronous else ["lock"]))

    async def awaited(self: Any, *arguments: Any, **named: Any) -> Any:
        if left:
            await stays_awaiting(Stay(kind, method, left.pop(0)))
        return await original(self, *arguments, **named)

    def called(self: Any, *arguments: Any, **named: Any) -> Any:
        if left:
            stays(Stay(kind, method, left.pop(0)))
        return original(self, *arguments, **named)

    call = awaited if asynchronous else called
    call.__code__ = call.__code__.replace(co_name=method)
    return call


class Constant(Plugin):
    """A reward source that gives every joint action the same."""

    scope, components, weights, policy_fault = "joint", {"constant": "increment"}, {"constant": 1.0}, 0.0

    async def score(self, view: Any) -> Any:
        return {("team", "constant"): 1.0}
