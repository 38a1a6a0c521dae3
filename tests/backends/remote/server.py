"""A loopback server that speaks OpenAI's protocol, with the faults of a wire and of a provider."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from tests.backends.loopback import Loopback, Message

Body = dict[str, Any]
MODEL = "tiny-1"
VERSION = "tiny-1-2026-01-01"
WORDS = ("R", "D", "L", "U")
STATUS = {
    "401": 401, "403": 403, "unknown_model": 404, "408": 408, "429": 429, "429_after": 429, "429_date": 429,
    "quota": 429, "500": 500, "503": 503, "400": 400,
}  # fmt: skip


@dataclass
class Arrival:
    """A request that arrived."""

    path: str
    body: Body
    headers: Mapping[str, str]
    at: float
    answered: bool = False


def words(body: Body) -> str:
    """An answer that follows from the prompt and the seed, at most `max_tokens` words."""
    prompt = json.dumps(body.get("messages", body.get("prompt")))
    number = sum(prompt.encode()) + 7 * (body.get("seed") or 0)
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
    return " ".join(WORDS[(number + at) % 4] for at in range(min(limit, 1 + number % 3)))


@dataclass
class OpenAIServer(Loopback):
    """`with OpenAIServer() as server:` answers at `server.url` from a separate thread.

    Args:
        faults: faults of the next requests, in their order; later requests are answered.
        always: a fault of every request.
        answer: body of a request -> its text.
        edit: an answer's table and the request's number -> what is sent: JSON, or bytes as they are.
        delay: seconds before an answer.
        echo_key: whether the bodies of errors repeat the key that was sent.
    """

    faults: tuple[str, ...] = ()
    always: str = ""
    answer: Callable[[Body], str] = words
    edit: Callable[[Body, int], Any] | None = None
    delay: float = 0.0
    version: str = VERSION
    echo_key: bool = False
    retry_after: float = 0.3
    hold_after: int | None = None
    """From this request on, answers wait until `release`."""
    port: int = 0
    asked: list[Arrival] = field(default_factory=list)
    at_once: int = 0
    """Most requests at once."""

    def __post_init__(self) -> None:
        self.left, self._held, self._now = deque(self.faults), asyncio.Event(), 0

    def release(self) -> None:
        """Answer what is held; a client that has gone gets (and pays) nothing."""
        self.hold_after = None
        self._loop.call_soon_threadsafe(self._held.set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def paid(self) -> list[str]:
        """The requests that were answered, as text; one that occurs twice was paid twice."""
        return [json.dumps(asked.body, sort_keys=True) for asked in self.asked if asked.answered]

    async def reply(
        self, message: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        body = json.loads(message.body or b"{}")
        asked = Arrival(message.path, body, message.headers, time.monotonic())
        self.asked.append(asked)
        held = self.hold_after is not None and len(self.asked) > self.hold_after
        self._now += 1
        self.at_once = max(self.at_once, self._now)
        try:
            await asyncio.sleep(self.delay)
            if held and self.hold_after is not None:  # not released meanwhile
                await self._held.wait()
                await asyncio.sleep(0.05)
            if reader.at_eof():
                return False
            return await self._respond(asked, writer)
        finally:
            self._now -= 1

    async def _respond(self, asked: Arrival, writer: asyncio.StreamWriter) -> bool:
        fault = self.always or (self.left.popleft() if self.left else "")
        if fault in STATUS:
            return await self._refuse(asked, fault, writer)
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "reset":
            writer.transport.abort()
            return False
        table = self.body_for(asked)
        self.spoil(fault, table)
        sent = table if self.edit is None else self.edit(table, len(self.asked))
        raw = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
        if fault == "truncated":
            raw = raw[: len(raw) // 2]
        asked.answered = not fault
        writer.write(_head(200, len(raw)))
        if fault == "drip":
            for byte in raw:
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.1)
        if fault == "torn":
            writer.write(raw[:20])
            await writer.drain()
            return False
        writer.write(raw)
        await writer.drain()
        return True

    async def _refuse(self, asked: Arrival, fault: str, writer: asyncio.StreamWriter) -> bool:
        more = ""
        if fault == "429_after":
            more = f"Retry-After: {self.retry_after:g}\r\n"
        elif fault == "429_date":
            more = f"Retry-After: {formatdate(time.time() + self.retry_after, usegmt=True)}\r\n"
        key = self.key_of(asked) if self.echo_key else ""
        raw = json.dumps(self.error_table(fault, STATUS[fault], key)).encode()
        writer.write(_head(STATUS[fault], len(raw), more) + raw)
        await writer.drain()
        return True

    def key_of(self, asked: Arrival) -> str:
        """The key that came with a request."""
        return asked.headers.get("authorization", "")

    def error_table(self, fault: str, status: int, key: str) -> Body:
        """The body of an error."""
        error = {"message": f"{fault} {key}".strip(), "type": fault}
        if fault == "quota":
            error["code"] = "insufficient_quota"
        return {"error": error}

    def spoil(self, fault: str, table: Body) -> None:
        """Put a fault into an answer's table."""
        if fault == "empty":
            table["choices"] = []
        elif fault == "safety":
            table["choices"][0] |= {"finish_reason": "content_filter", "message": {"content": None}}
        elif fault == "type":
            table["choices"] = {"content": 5}

    def body_for(self, asked: Arrival) -> Body:
        body, text = asked.body, self.answer(asked.body)
        limit = body.get("max_tokens") or body.get("max_completion_tokens") or 16
        count = len(text.split())
        length = count >= limit
        choice: Body = {"index": 0, "finish_reason": "length" if length else "stop"}
        if asked.path.endswith("/chat/completions"):
            choice["message"] = {"role": "assistant", "content": text}
            prompt = sum(len(message["content"].split()) for message in body["messages"])
        else:
            prompt = len(body["prompt"])
            choice["text"] = text
            if body.get("return_token_ids"):
                choice["token_ids"] = [3 + WORDS.index(word) for word in text.split()]
                choice["logprobs"] = {"token_logprobs": [-0.5] * count}
        usage = {"prompt_tokens": prompt, "completion_tokens": min(limit, count + (not length))}
        usage["total_tokens"] = sum(usage.values())
        return {"id": "x", "object": "o", "model": self.version, "choices": [choice], "usage": usage}


def _head(status: int, length: int, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n{more}\r\n"
    return head.encode()
