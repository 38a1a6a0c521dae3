"""Log records on their way from a process of the run to the run's own."""

from __future__ import annotations

import asyncio
import logging

import pytest

from coterie.backends.cluster.hosts import KeptRecords, log_again


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
