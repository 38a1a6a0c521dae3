"""Log records of a process of the run, which the run's own process logs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

Record = tuple[str, int, str]
"""(logger, level, text)."""


class Records(logging.Handler):
    """Keeps what Coterie logs in this process, until it is taken."""

    def __init__(self, level: int) -> None:
        super().__init__(level)
        self._records: list[Record] = []
        self._news = asyncio.Event()
        self._ends = False

    def keep(self) -> None:
        """Begin."""
        log = logging.getLogger("coterie")
        log.addHandler(self)
        log.setLevel(min(self.level, logging.WARNING))
        log.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append((record.name, record.levelno, record.getMessage()))
        self._news.set()

    def take(self) -> list[Record]:
        """The records since the last time."""
        records, self._records = self._records, []
        self._news.clear()
        return records

    async def next(self, patience: float) -> list[Record]:
        """The records, once there are any, or after `patience` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._news.wait()
        return [] if self._ends else self.take()

    def end(self) -> None:
        """From now on `next` gives nothing: whoever waited for it may be gone, and `take` has the rest."""
        self._ends = True


def log_again(records: Sequence[Record]) -> None:
    """Log records of another process here."""
    for name, level, text in records:
        logging.getLogger(name).log(level, "%s", text)
