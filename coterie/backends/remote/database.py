"""The sqlite database of remote calls, and the answers in it. A failure costs what it stores, not the run.

Answers are keyed by the whole request, and by the model's version where that is known.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from coterie.backends.remote.answers import Answer, Usage
from coterie.core.errors import UserError

log = logging.getLogger("coterie")
T = TypeVar("T")

APPLICATION = 0x436F7465
"""sqlite's application_id of these files."""
FORMAT = 1
LOCKED_SECONDS = 30.0
"""Longest wait for another process that writes."""
TABLES = """
CREATE TABLE IF NOT EXISTS answers (
    key TEXT NOT NULL, version TEXT NOT NULL, at REAL NOT NULL, body TEXT NOT NULL, sha256 TEXT NOT NULL,
    input INTEGER NOT NULL, output INTEGER NOT NULL, PRIMARY KEY (key, version)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS spending (
    model TEXT PRIMARY KEY, calls INTEGER NOT NULL, input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, money REAL NOT NULL, assumed_calls INTEGER NOT NULL,
    assumed_tokens INTEGER NOT NULL, assumed_money REAL NOT NULL
) WITHOUT ROWID;
"""


class Database:
    """One file in WAL mode, which several processes may use at once; all work is done in a thread of its own.

    Args:
        on_error: "warn": after a failure nothing is stored any more, and `run` returns None; "stop": raise.
        setting: dotted path of the setting that names the file, for errors.
    """

    def __init__(self, path: Path, on_error: str, setting: str) -> None:
        self.path, self.on_error, self._setting = path, on_error, setting
        self._connection: sqlite3.Connection | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="remote-calls")

    @property
    def works(self) -> bool:
        return self._connection is not None

    async def open(self) -> None:
        """Open the file, or make it.

        Raises:
            UserError: it is damaged or can't be written, and `on_error` is "stop".
        """
        await self._guarded(self._open_patiently)

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T | None:
        """Do work in one transaction; None where the database does not work.

        Raises:
            UserError: a failure of the file, where `on_error` is "stop".
        """
        return None if self._connection is None else await self._guarded(lambda: self._transaction(work))

    async def close(self) -> None:
        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await asyncio.get_running_loop().run_in_executor(self._thread, close)
        self._thread.shutdown()

    async def _guarded(self, work: Callable[[], T]) -> T | None:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except (sqlite3.Error, OSError) as error:
            await self._failed(error)
            return None

    def _open_patiently(self) -> None:
        """Open the file. sqlite does not wait by itself where two processes make it at once."""
        until = time.monotonic() + LOCKED_SECONDS
        while True:
            try:
                return self._open()
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=LOCKED_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")  # survives a killed process
            connection.execute("BEGIN IMMEDIATE")  # another process may be making the file too
            of, version = (connection.execute(f"PRAGMA {name}").fetchone()[0]
                           for name in ("application_id", "user_version"))  # fmt: skip
            if (of, version) != (APPLICATION, FORMAT):
                if of or version or connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                    raise sqlite3.DatabaseError("it is no database of remote calls, or of a later version")
                connection.execute(f"PRAGMA application_id={APPLICATION}")
                connection.execute(f"PRAGMA user_version={FORMAT}")
            for statement in filter(str.strip, TABLES.split(";")):
                connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    def _transaction(self, work: Callable[[sqlite3.Connection], T]) -> T:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        try:
            result = work(connection)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return result

    async def _failed(self, error: Exception) -> None:
        broken, self._connection = self._connection, None
        if broken is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, broken.close)
        what = f"the database of remote calls {self.path} does not work"
        why = f"{type(error).__name__}: {error}"
        fix = f"free space on the disk; move a damaged file away; or set {self._setting} to another path"
        if self.on_error == "stop":
            raise UserError(what, path=self._setting, why=why, fix=fix) from None
        log.warning(
            "%s: %s (%s). The run goes on: answers are no longer stored, so a resumed run pays for them "
            "again, and what is spent from now on is not kept. fix: %s", self._setting, what, why, fix,
        )  # fmt: skip


def request_key(endpoint: str, request: Mapping[str, Any]) -> str:
    """sha256 of an endpoint and a request table, in any order of its keys.

    Raises:
        TypeError, ValueError: the table is not JSON.
    """
    table = {"format": 1, "endpoint": endpoint, "request": request}
    text = json.dumps(table, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def stored_answer(connection: sqlite3.Connection, key: str, version: str | None) -> Answer | None:
    """The stored answer of a request: of this version of the model; None: of the newest that is stored."""
    known, parameters = ("", (key,)) if version is None else ("AND version = ?", (key, version))
    row = connection.execute(
        f"SELECT version, body, sha256, input, output FROM answers WHERE key = ? {known} "
        "ORDER BY at DESC LIMIT 1",
        parameters,
    ).fetchone()
    if row is None:
        return None
    stored, body, digest, given, output = row
    if hashlib.sha256(str(body).encode("utf-8", "surrogatepass")).hexdigest() != digest:
        log.warning("a stored answer is damaged (key %s): the request is sent again", key[:12])
        return None
    return Answer(json.loads(body), Usage(given, output), stored)


def store_answer(connection: sqlite3.Connection, key: str, answer: Answer) -> None:
    """Store an answer in place of an earlier one of the same version."""
    usage, body = answer.usage or Usage(), json.dumps(answer.body)
    digest = hashlib.sha256(body.encode()).hexdigest()
    connection.execute(
        "INSERT OR REPLACE INTO answers (key, version, at, body, sha256, input, output) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, answer.version, time.time(), body, digest, usage.input_tokens, usage.output_tokens),
    )
