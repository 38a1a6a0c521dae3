"""Chat models of providers against loopback servers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from coterie.core.protocols import ChatRequest
from coterie.testing import build
from coterie.testing.checks.chat_model import SCHEMA
from tests.backends.chat_models.server import GeminiServer, score
from tests.backends.remote.server import OpenAIServer

QUICK = {"model": "tiny-1", "retries": 3, "backoff": 0.02, "timeout": 10.0, "longest_wait": 2.0}
KEY = "pl4nted-k3y-0123456789"
PROVIDERS = ("gemini", "openai")


def server(provider: str, **settings: Any) -> OpenAIServer:
    made = {"gemini": GeminiServer, "openai": OpenAIServer}[provider]
    return made(**{"answer": score, **settings})


def model(provider: str, url: str, folder: Path | None = None, name: str = "judge", **settings: Any) -> Any:
    table = {"type": provider, "base_url": url, "api_key": "${A_KEY}", **QUICK, **settings}
    made = build("chat_model", table, name=name)
    if folder is not None:
        made.use_run_folder(folder)
    return made


def request(number: int = 0, **fields: Any) -> ChatRequest:
    messages = ({"role": "system", "content": "Judge."}, {"role": "user", "content": f"prompt {number}"})
    return ChatRequest(**{"messages": messages, "max_tokens": 64, "schema": SCHEMA, **fields})


def answers(made: Any, *requests: ChatRequest) -> list[Any]:
    """The answers, asked at once, or the errors in their place."""

    async def go() -> list[Any]:
        await made.open()
        try:
            return await asyncio.gather(*map(made.answer, requests), return_exceptions=True)
        finally:
            await made.close()

    return asyncio.run(go())
