"""The tool `search`: sends queries to the HTTP endpoint of the configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx
from pydantic import Field
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from coterie.backends.remote.secrets import secrets_in
from coterie.backends.tools.calls import TextTool, beginning
from coterie.core.errors import SystemFault
from coterie.core.plugins import PluginConfig

REFUSED = frozenset((400, 413, 414, 422))
"""Status codes for a query that the endpoint rejects; the model gets them as a result."""


class _Again(Exception):
    """A temporary failure of the endpoint; the query is sent again."""


class SearchTool(TextTool):
    """Sends the query, reads the results from the JSON answer, and returns the first `top_k`."""

    class Config(PluginConfig):
        url: str = Field(
            description="Address of the search server.", examples=["http://localhost:8000/search"]
        )
        method: Literal["GET", "POST"] = "GET"
        query_field: str = Field(
            "q", description="The query's field in the query string (GET) or in the JSON body (POST)."
        )
        top_k: int = Field(5, ge=1, description="Most results returned.")
        top_k_field: str | None = Field(None, description="Field that sends `top_k` to the endpoint.")
        fields: dict[str, Any] = Field(default_factory=dict, description="Sent with every query.")
        headers: dict[str, str] = Field(
            default_factory=dict,
            description="HTTP headers; ${NAME} in a value stands for an environment variable, such as a key.",
        )
        results: str = Field(
            "results",
            description="Dotted path of the list in the JSON answer; empty: the answer itself.",
        )
        show: list[str] = Field(
            default_factory=lambda: ["title", "url", "snippet"],
            description="Dotted paths in a result; the values that exist are returned.",
        )
        result_chars: int = Field(1000, ge=50, description="First characters kept of each result.")
        timeout: float = Field(20.0, gt=0, description="Seconds per attempt.")
        attempts: int = Field(
            4, ge=1, description="Most attempts on 429, 5xx, time-outs and lost connections."
        )
        pause: float = Field(
            0.5, ge=0, description="Seconds before the second attempt; doubles each time, up to 30."
        )
        connections: int = Field(16, ge=1, description="Most connections at the same time.")
        calls: Literal["fenced", "native"] = Field(
            "native",
            description="Form of a call: `<tool_call>` with the argument `query`, or the reply's last closed "
            "block fenced with the tool's name.",
        )
        announce: bool = Field(
            True,
            description="Native calls: give the schema to the chat template. False: the role's prompt "
            "describes the tool.",
        )

    config: Config
    _client: httpx.AsyncClient | None = None

    plain_name = "search"
    description = "Searches and returns the best results."
    argument = "query"
    argument_is = "What to search for."
    undone = "not searched"

    async def open(self) -> None:
        """Open the pool of connections.

        Raises:
            ConfigError: a header names an environment variable that isn't set.
        """
        settings = self.config
        self._client = httpx.AsyncClient(
            headers=secrets_in(settings.headers, f"{self.build.path}.headers"),
            timeout=settings.timeout,
            limits=httpx.Limits(max_connections=settings.connections),
        )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _answer(self, query: str) -> str:
        """The results.

        Raises:
            SystemFault: the endpoint did not answer, or its answer doesn't fit the configuration.
        """
        if not query.strip():
            return "not searched: the query is empty"
        settings = self.config
        try:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(_Again),
                stop=stop_after_attempt(settings.attempts),
                wait=wait_exponential(multiplier=settings.pause, max=30),
                reraise=True,
            ):
                with attempt:
                    answer = await self._response_to(query.strip())
        except _Again as error:
            raise SystemFault(f"{error}, in each of {settings.attempts} attempts") from error
        if answer.status_code in REFUSED:
            return f"the search refused the query: {answer.status_code} {beginning(answer.text, 200)}"
        if not answer.is_success:
            raise SystemFault(f"{settings.url} answered {answer.status_code}")
        return self._shown(answer)

    async def _response_to(self, query: str) -> httpx.Response:
        assert self._client is not None, "open comes before run"
        settings = self.config
        fields = {**settings.fields, settings.query_field: query}
        if settings.top_k_field is not None:
            fields[settings.top_k_field] = settings.top_k
        params, body = (fields, None) if settings.method == "GET" else (None, fields)
        try:
            # httpx limits the time of each read only; a slow stream of bytes would never end.
            async with asyncio.timeout(settings.timeout):
                answer = await self._client.request(settings.method, settings.url, params=params, json=body)
        except (httpx.TransportError, TimeoutError) as error:
            raise _Again(f"{settings.url} did not answer ({type(error).__name__})") from error
        if answer.status_code == 429 or answer.status_code >= 500:
            raise _Again(f"{settings.url} answered {answer.status_code}")
        return answer

    def _shown(self, answer: httpx.Response) -> str:
        settings = self.config
        try:
            results = _at(answer.json(), settings.results)
        except ValueError as error:
            raise SystemFault(f"{settings.url} answered with no JSON: {error}") from error
        if not isinstance(results, list):
            raise SystemFault(f"{settings.url} answered without a list at '{settings.results}'")
        if not results:
            return "no results"
        texts = [
            beginning(_result_text(result, settings.show), settings.result_chars)
            for result in results[: settings.top_k]
        ]
        return "\n\n".join(f"[{index}] {text}" for index, text in enumerate(texts, 1))


def _at(value: Any, path: str) -> Any:
    """The value at a dotted path; None if there is none."""
    for part in filter(None, path.split(".")):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _result_text(result: Any, show: Sequence[str]) -> str:
    parts = [result] if not isinstance(result, Mapping) else [_at(result, path) for path in show]
    return "\n".join(str(part) for part in parts if part not in (None, ""))
