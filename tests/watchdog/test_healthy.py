"""What the watchdog doesn't name: what works, and what waits for Coterie's engines, sandboxes and judges."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import coterie
from coterie.core.plugins.origin import Origin, record_origin
from coterie.watchdog import StuckCall, watch_loop, watched

PATIENCE = 0.2
ROOT = Path(coterie.__file__).parent
ORIGIN = Origin("environment", "game", "my-package", "env")


def module(file: str, code: str) -> SimpleNamespace:
    """Code that is taken for that of a file; `of/coterie/...` is Coterie's."""
    path = str(ROOT / file.removeprefix("of/coterie/")) if file.startswith("of/coterie/") else file
    names: dict[str, Any] = {"asyncio": asyncio, "time": time}
    exec(compile(textwrap.dedent(code), path, "exec"), names)
    return SimpleNamespace(**names)


CORE = module("of/coterie/core/calls.py", """
    async def calls(key, method, *arguments):
        return await method(*arguments)

    def calls_now(key, method, *arguments):
        return method(*arguments)

    async def computes(count, method):
        for _ in range(count):
            method()
""")  # fmt: skip
ENGINE = module("of/coterie/backends/engines/slow.py", """
    async def generate(seconds):
        await asyncio.sleep(seconds)

    def update(seconds, loss=lambda: None):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            loss()
""")  # fmt: skip
BUILT_IN = module("of/coterie/plugins/envs/slow.py", """
    async def verifies(seconds):
        await asyncio.sleep(seconds)
""")  # fmt: skip


class Game:
    """A stranger's plugin."""

    def __init__(self) -> None:
        record_origin(self, ORIGIN)

    async def waits_for(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await work(*arguments)

    async def gathers(self, *work: Any) -> Any:
        return await asyncio.gather(*work)

    async def many(self, count: int) -> None:
        for _ in range(count):
            await ENGINE.generate(0.05)
            await asyncio.sleep(0.05)

    async def short(self) -> None:
        await asyncio.sleep(0.1)

    def quick(self) -> None:
        time.sleep(0.02)


def named(work: Coroutine[Any, Any, Any]) -> list[StuckCall]:
    """The calls that are named while a coroutine runs."""
    calls: list[StuckCall] = []

    async def go() -> None:
        stop = watch_loop(PATIENCE, tell=calls.append)
        await work
        stop()

    asyncio.run(go())
    return calls


LONG = 4 * PATIENCE


async def in_turn(game: Game, count: int) -> None:
    for _ in range(count):
        await CORE.calls("k", game.short)


async def trains(game: Game) -> None:
    """An update that blocks the loop, and calls a stranger's loss again and again."""
    CORE.calls_now("k", ENGINE.update, LONG, game.quick)


async def waits_beside(game: Game) -> None:
    """A short wait, during which the loop is blocked for long."""
    waiting = asyncio.create_task(CORE.calls("k", game.short))
    await asyncio.sleep(0.05)
    CORE.calls_now("k", ENGINE.update, LONG)
    await waiting


HEALTHY: dict[str, Callable[[Game], Coroutine[Any, Any, Any]]] = {
    "a long generation": lambda game: CORE.calls("k", game.waits_for, ENGINE.generate, LONG),
    "generations at once": lambda game: CORE.calls(
        "k", game.gathers, *(CORE.calls("k", ENGINE.generate, LONG) for _ in range(3))
    ),
    "a built-in verifier that is queued for": lambda game: CORE.calls(
        "k", game.waits_for, BUILT_IN.verifies, LONG
    ),
    "a built-in environment": lambda game: CORE.calls("k", BUILT_IN.verifies, LONG),
    "an engine of Coterie's": lambda game: CORE.calls("k", ENGINE.generate, LONG),
    "many short calls": lambda game: in_turn(game, 8),
    "a long update with a short loss": trains,
    "a short wait during a long update": waits_beside,
    "threads of the engine": lambda game: CORE.calls("k", asyncio.to_thread, ENGINE.update, LONG),
}


@pytest.mark.parametrize("what", HEALTHY)
def test_what_works_is_not_named(what):
    assert named(HEALTHY[what](Game())) == []


def test_a_method_that_waits_for_both_is_named_only_while_it_waits_for_itself():
    """A method whose waits alternate: at some look it waits for Coterie, and its time begins anew."""
    calls = named(CORE.calls("k", Game().many, 8))
    assert all(call.seconds < LONG for call in calls)


def test_the_same_waits_in_a_strangers_code_are_named():
    """That the cases above could be named: each has the form of one that is."""
    game = Game()
    call, *_ = named(CORE.calls("k", game.waits_for, asyncio.sleep, 5 * PATIENCE))
    assert (call.plugin, call.method, call.path) == ("environment 'game' of my-package", "waits_for", "env")
    assert not call.blocks and Path(call.file) == Path(__file__)
    sleeps = (asyncio.sleep(5 * PATIENCE) for _ in range(3))
    assert {call.method for call in named(CORE.calls("k", game.gathers, *sleeps))} == {"gathers"}


def test_a_call_is_named_again_when_its_time_has_doubled_and_all_at_a_line_as_one():
    async def several(game: Game) -> None:
        await asyncio.gather(
            *(CORE.calls("k", game.waits_for, asyncio.sleep, 7 * PATIENCE) for _ in range(3))
        )

    calls = named(several(Game()))
    assert 2 <= len(calls) <= 3, "at one and two, and perhaps four, times the patience"
    assert all(after.seconds >= 2 * before.seconds for before, after in itertools.pairwise(calls))
    assert all(call.calls == 3 and "(3 calls; this one is the oldest)" in str(call) for call in calls)


def test_calls_outside_of_a_loop_are_watched(caplog):
    with watched(PATIENCE):
        CORE.calls_now("k", time.sleep, 1.5 * PATIENCE)  # no plugin's
    assert "has not returned" not in caplog.text
    with watched(PATIENCE):
        CORE.calls_now("k", Stays().tasks, 5 * PATIENCE)
    assert "environment 'game' of my-package: tasks has not returned" in caplog.text


class Stays(Game):
    def tasks(self, seconds: float) -> None:
        for _ in range(round(seconds / 0.05)):  # time in which it is stopped is no part of it
            time.sleep(0.05)


STOPPED = """
import asyncio, sys, time
from tests.watchdog.test_healthy import CORE, Stays, watch_loop

async def go():
    watch_loop(0.5, tell=lambda call: print("named", call, flush=True))
    await asyncio.sleep(0)
    print("begun", flush=True)
    CORE.calls_now("k", Stays().tasks, float(sys.argv[1]))

asyncio.run(go())
"""


@pytest.mark.parametrize(("seconds", "expected"), [(0.25, False), (1.2, True)])
def test_the_time_in_which_the_process_was_stopped_does_not_count(seconds, expected):
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(seconds)], stdout=subprocess.PIPE, text=True,
        cwd=ROOT.parent, env={**os.environ, "PYTHONPATH": str(ROOT.parent)},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(process.pid, signal.SIGCONT)
    rest, _ = process.communicate(timeout=30)
    assert ("named" in rest) is expected


class Mode(Game):
    """Another stranger's plugin, which asks the game."""

    def __init__(self) -> None:
        record_origin(self, Origin("transition", "mode", "my-package", "transition"))

    async def tell(self, game: Game, seconds: float) -> None:
        await game.waits_for(asyncio.sleep, seconds)

    async def tells_on(self, game: Game, count: int) -> None:
        for _ in range(count):
            await game.waits_for(asyncio.sleep, 0.05)

    def says(self, game: Stays, seconds: float) -> None:
        game.tasks(seconds)


def test_of_a_plugin_that_waits_for_another_one_the_inner_one_is_named():
    async def three() -> None:
        await asyncio.gather(
            CORE.calls("k", Mode().tell, Game(), 3 * PATIENCE),
            CORE.calls("k", Mode().tells_on, Game(), 12),
        )
        CORE.calls_now("k", Mode().says, Stays(), 3 * PATIENCE)

    calls = {(call.plugin.partition(" of ")[0], call.method) for call in named(three())}
    assert calls == {("environment 'game'", "waits_for"), ("transition 'mode'", "tells_on"),
                     ("environment 'game'", "tasks")}  # fmt: skip
