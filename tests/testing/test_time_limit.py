"""A method that never returns is named by the kit, with what to change."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import Any

import pytest

from coterie.testing import ConformanceError, check_environment, check_reward, check_role
from coterie.testing.support.failure import awaited, guarded
from coterie.testing.support.time_limit import call_limit
from coterie.testing.support.toys import EchoRole, EmittedScores, NumberGame
from tests.testing.support import caught

ACT = {"roles": ["one"], "act": ["1", "stop"], "episodes": 1}


def spin(*arguments: Any) -> Any:
    while True:
        pass


def swallow(*arguments: Any) -> Any:
    while True:
        try:
            threading.Lock().acquire() and time.sleep(60)
        except Exception:
            continue


async def wait(*arguments: Any) -> Any:
    await asyncio.Event().wait()


async def block(*arguments: Any) -> Any:
    time.sleep(60)


@pytest.mark.parametrize(
    ("check", "where"),
    [
        (lambda: check_environment(type("Env", (NumberGame,), {"reset": spin})(), **ACT), "Env.reset"),
        (lambda: check_environment(type("Env", (NumberGame,), {"observe": swallow})(), **ACT), "Env.observe"),
        (lambda: check_environment(type("Env", (NumberGame,), {"step": wait})(), **ACT), "Env.step"),
        (lambda: check_environment(type("Env", (NumberGame,), {"step": block})(), **ACT), "Env.step"),
        (lambda: check_environment(type("Env", (NumberGame,), {"close": wait})(), **ACT), "Env.close"),
        (lambda: check_role(type("Role", (EchoRole,), {"parse": spin})()), "Role.parse"),
        (
            lambda: check_reward(
                type("Source", (EmittedScores,), {"score": wait})(),
                environment=NumberGame(),
                roles=["one"],
                act=["1", "stop"],
            ),
            "Source.score",
        ),
    ],
)
def test_a_method_that_never_returns_is_named(check, where):
    with call_limit(0.1):
        message = caught(f"{where}: has not returned after 0.1 s (", check)
    assert "test_time_limit.py, line " in message and ")\n  fix: bound its loops" in message


def test_a_handler_and_a_timer_from_before_are_given_back():
    def handler(number: int, frame: Any) -> None: ...

    before = signal.signal(signal.SIGALRM, handler)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 40.0)
    try:
        with call_limit(0.05), pytest.raises(ConformanceError), guarded("here"):
            time.sleep(5)
        assert signal.getsignal(signal.SIGALRM) is handler
        assert 30 < signal.getitimer(signal.ITIMER_REAL)[0] < 40
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


def test_an_earlier_alarm_rings_in_time():
    class Rung(Exception): ...

    def handler(number: int, frame: Any) -> None:
        raise Rung

    before = signal.signal(signal.SIGALRM, handler)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        with pytest.raises(ConformanceError, match="raised Rung"), guarded("here"):
            time.sleep(5)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)


def test_calls_that_wait_side_by_side_are_limited_one_by_one():
    async def calls() -> list[Any]:
        async def sleeps(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "done"

        limited = [awaited(f"at {seconds}", sleeps, seconds) for seconds in (0.0, 0.05, 9.0)]
        return await asyncio.gather(*limited, return_exceptions=True)

    with call_limit(0.2):
        first, second, third = asyncio.run(calls())
    assert (first, second) == ("done", "done")
    assert str(third).startswith("at 9.0: has not returned after 0.2 s")


def test_another_thread_is_not_limited_and_not_broken():
    done: list[str] = []

    def work() -> None:
        with guarded("there"):
            done.append("done")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["done"]


def test_a_time_out_of_the_plugin_is_its_exception():
    async def plugin() -> None:
        raise TimeoutError("the server is slow")

    with pytest.raises(ConformanceError, match="raised TimeoutError: the server is slow"):
        asyncio.run(awaited("Plugin.score", plugin))
