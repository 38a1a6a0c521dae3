"""A loopback server that speaks Gemini's protocol, with the faults of a wire and of a provider."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from tests.backends.loopback import Message
from tests.backends.remote.server import Arrival, Body, OpenAIServer

STATES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND",
          429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}  # fmt: skip


def score(body: Body) -> str:
    """An answer in the form of a request, which follows from its prompt and its seed."""
    config = body.get("generationConfig", {})
    text = json.dumps(body.get("contents", body.get("messages")))
    number = (sum(text.encode()) + 7 * (config.get("seed") or body.get("seed") or 0)) % 11
    asked = config.get("responseJsonSchema") or body.get("response_format")
    return json.dumps({"score": number, "reason": "so"}) if asked else f"PROCESS_SCORE: {number}"


@dataclass
class GeminiServer(OpenAIServer):
    """`with GeminiServer() as server:` answers `generateContent` at `server.url`, with the other's faults.

    Faults of Gemini's own: `wrong_key` and `region` (400), `daily` (429 for the day), `429_body` (the pause
    is in the body), `html` (502), `blocked` (the prompt), `no_content`, `thoughts` (nothing but thoughts).
    """

    answer: Any = score

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def _respond(self, asked: Arrival, writer: asyncio.StreamWriter) -> bool:
        fault = self.always or (self.left[0] if self.left else "")
        if asked.path.endswith("/token"):
            return await self._write(
                200, {"access_token": "ya29.t0ken-of-the-loopback", "expires_in": 3600}, writer
            )
        if fault in ("wrong_key", "daily", "429_body", "html", "region"):
            if not self.always:
                self.left.popleft()
            return await getattr(self, f"_{fault}".replace("_429", "_busy"))(writer)
        return await super()._respond(asked, writer)

    async def _write(self, status: int, table: Any, writer: asyncio.StreamWriter) -> bool:
        raw = table if isinstance(table, bytes) else json.dumps(table).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        writer.write(head.encode() + raw)
        await writer.drain()
        return True

    async def _wrong_key(self, writer: asyncio.StreamWriter) -> bool:
        details = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]
        return await self._write(
            400, _error(400, "API key not valid. Please pass a valid API key.", details), writer
        )

    async def _region(self, writer: asyncio.StreamWriter) -> bool:
        table = _error(400, "User location is not supported for the API use.", [])
        table["error"]["status"] = "FAILED_PRECONDITION"
        return await self._write(400, table, writer)

    async def _daily(self, writer: asyncio.StreamWriter) -> bool:
        details = [{"violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]
        return await self._write(429, _error(429, "You exceeded your current quota.", details), writer)

    async def _busy_body(self, writer: asyncio.StreamWriter) -> bool:
        kind = "type.googleapis.com/google.rpc.RetryInfo"
        details = [{"@type": kind, "retryDelay": f"{self.retry_after}s"}]
        return await self._write(429, _error(429, "Please retry in a moment.", details), writer)

    async def _html(self, writer: asyncio.StreamWriter) -> bool:
        return await self._write(502, b"<html>502 Bad \xff Gateway</html>", writer)

    async def reply(
        self, message: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if message.path.endswith("/token"):  # OAuth's form is no JSON
            message = message._replace(body=b"{}")
        return await super().reply(message, reader, writer)

    def error_table(self, fault: str, status: int, key: str) -> Body:
        return _error(status, f"{fault} {key}".strip(), [])

    def key_of(self, asked: Arrival) -> str:
        return asked.headers.get("x-goog-api-key", "")

    def body_for(self, asked: Arrival) -> Body:
        text = self.answer(asked.body)
        candidate: Body = {
            "content": {"role": "model", "parts": [{"text": "I think.", "thought": True}, {"text": text}]},
            "finishReason": "STOP",
            "index": 0,
        }
        counts = {
            "promptTokenCount": 20,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 3,
            "totalTokenCount": 28,
        }
        return {"candidates": [candidate], "usageMetadata": counts, "modelVersion": self.version}

    def spoil(self, fault: str, table: Body) -> None:
        if fault == "empty":
            table["candidates"] = []
        elif fault == "safety":
            table["candidates"] = [{"finishReason": "SAFETY", "index": 0}]
        elif fault == "type":
            table["candidates"] = {"content": 5}
        elif fault == "blocked":
            table.pop("candidates")
            table["promptFeedback"] = {"blockReason": "PROHIBITED_CONTENT"}
        elif fault == "no_content":
            table["candidates"] = [{"finishReason": "STOP", "index": 0, "content": {"role": "model"}}]
        elif fault == "thoughts":
            table["candidates"][0]["content"]["parts"].pop()
            table["candidates"][0]["finishReason"] = "MAX_TOKENS"


def _error(status: int, message: str, details: list[Any]) -> Body:
    return {
        "error": {
            "code": status, "message": message, "status": STATES.get(status, "UNKNOWN"), "details": details
        }
    }  # fmt: skip
