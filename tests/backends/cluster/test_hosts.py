"""Hosts: their log records on their way to the run's own process, and who of them is alive."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.backends.cluster.hosts import HostHandle, KeptRecords, log_again


@pytest.fixture
def records():
    log = logging.getLogger("coterie")
    before = log.level, log.propagate
    made = KeptRecords(logging.INFO)
    yield made
    log.removeHandler(made)
    log.setLevel(before[0])
    log.propagate = before[1]


def test_records_are_taken_once_and_the_last_ones_by_close(records):
    async def go() -> None:
        records.keep()
        waiting = asyncio.ensure_future(records.next(60))
        await asyncio.sleep(0)
        logging.getLogger("coterie.usage").info("judge: %d calls", 3)
        assert await waiting == [("coterie.usage", logging.INFO, "judge: 3 calls")]
        assert await records.next(0.01) == []
        waiting = asyncio.ensure_future(records.next(60))  # whoever asked is gone
        await asyncio.sleep(0)
        records.end()
        logging.getLogger("coterie").warning("the last word")
        assert await waiting == []
        assert records.take() == [("coterie", logging.WARNING, "the last word")]

    asyncio.run(go())


def test_records_are_logged_with_their_level_and_without_a_second_formatting(caplog):
    caplog.set_level(logging.INFO, logger="coterie.usage")
    log_again([("coterie.usage", logging.INFO, "100 % of it"), ("coterie", logging.WARNING, "w")])
    assert [(r.name, r.levelno, r.getMessage()) for r in caplog.records] == [
        ("coterie.usage", logging.INFO, "100 % of it"), ("coterie", logging.WARNING, "w"),
    ]  # fmt: skip


class GoneError(Exception):
    """What Ray raises for an actor that is gone."""


class FakeActor:
    """An actor whose reports are given by a function of their number."""

    def __init__(self, report: Callable[[int], Awaitable[Any]]) -> None:
        self.asked, self._report = 0, report

    @property
    def records(self) -> Any:
        return SimpleNamespace(remote=self._remote)

    def _remote(self, every: float) -> Awaitable[Any]:
        self.asked += 1
        return asyncio.ensure_future(self._report(self.asked))


def watched(report: Callable[[int], Awaitable[Any]], silence: float) -> tuple[str, list[Any]]:
    ray = SimpleNamespace(exceptions=SimpleNamespace(RayError=GoneError))
    taken: list[Any] = []

    async def watch() -> str:
        host = HostHandle(ray, FakeActor(report), "the engine's process")
        return await host.watch(silence / 4, silence, take=taken.append)

    return asyncio.run(asyncio.wait_for(watch(), 20)), taken


def test_a_host_that_dies_or_hangs_is_gone_with_the_reason():
    async def dies(number: int) -> Any:
        if number == 2:
            raise GoneError("the worker died\nand much advice")
        return True, [number]

    async def hangs(number: int) -> Any:
        await asyncio.sleep(0 if number == 1 else 60)
        return True, [number]

    assert watched(dies, 10) == ("the worker died", [[1]])
    assert watched(hangs, 0.3) == ("no answer for 0.3 s", [[1]])


def test_time_in_which_the_asking_process_stood_still_is_no_silence():
    async def late(number: int) -> Any:
        if number == 1:
            asyncio.get_running_loop().call_later(0.05, time.sleep, 2.5)  # as a checkpoint that is written
            return await asyncio.to_thread(lambda: (time.sleep(1.0), (True, ["late"]))[1])
        raise GoneError("the end")

    assert watched(late, 1.5) == ("the end", [["late"]])
