"""The cache of answers: keyed by the whole request, and by the model's version where that is known."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
import time
from collections.abc import Mapping
from typing import Any

from coterie.backends.remote.answers import Answer, Usage

log = logging.getLogger("coterie")


def request_key(endpoint: str, request: Mapping[str, Any]) -> str:
    """sha256 of an endpoint and a request table, in any order of its keys.

    Raises:
        TypeError, ValueError: the table is not JSON.
    """
    table = {"format": 1, "endpoint": endpoint, "request": request}
    text = json.dumps(table, sort_keys=True, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def find(connection: sqlite3.Connection, key: str, version: str | None) -> Answer | None:
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


def keep(connection: sqlite3.Connection, key: str, answer: Answer) -> None:
    """Store an answer in place of an earlier one of the same version."""
    usage, body = answer.usage or Usage(), json.dumps(answer.body)
    digest = hashlib.sha256(body.encode()).hexdigest()
    connection.execute(
        "INSERT OR REPLACE INTO answers (key, version, at, body, sha256, input, output) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (key, answer.version, time.time(), body, digest, usage.input_tokens, usage.output_tokens),
    )
