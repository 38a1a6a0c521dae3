"""Remote calls without a network: senders that count, and settings with short waits."""

from __future__ import annotations

import asyncio
from typing import Any

from coterie.backends.remote.answers import Answer, Expected, Usage
from coterie.backends.remote.calls import RemoteCalls
from coterie.backends.remote.settings import RemoteSettings
from coterie.discovery.validation import validate

USAGE = Usage(10, 5)
ENDPOINT = "https://models.example/v1"


def settings(**table: Any) -> RemoteSettings:
    return validate(RemoteSettings, {"backoff": 0.01, "timeout": 5.0, **table}, "coach", {"path": "coach"})


def calls(folder=None, minute: float = 60.0, **table: Any) -> RemoteCalls:
    return RemoteCalls(
        settings(**table), endpoint=ENDPOINT, name="coach", path="coach", folder=folder, minute=minute
    )


def expects(tokens: int = 10, output: int = 10) -> Expected:
    return Expected(Usage(tokens, output), tokens)


class Sender:
    """Answers with the number of the send; `usage` and `version` are those of every answer."""

    def __init__(self, usage: Usage | None = USAGE, version: str = "v1", seconds: float = 0.0) -> None:
        self.usage, self.version, self.seconds = usage, version, seconds
        self.sent = self.now = self.most = 0
        self.times: list[float] = []

    async def __call__(self) -> Answer:
        self.sent += 1
        self.now += 1
        self.most = max(self.most, self.now)
        self.times.append(asyncio.get_running_loop().time())
        number = self.sent
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.now -= 1
        return Answer({"number": number}, self.usage, self.version)


async def opened(remote: RemoteCalls, *models: str) -> RemoteCalls:
    await remote.open({model: "coach.model" for model in models or ("m",)})
    return remote


def request(number: int, model: str = "m") -> dict[str, Any]:
    return {"model": model, "prompt": f"prompt {number}"}
