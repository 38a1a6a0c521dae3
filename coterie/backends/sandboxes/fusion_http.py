"""The connection to a SandboxFusion server: answers within bounds of time and size, and further tries."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

import httpx
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from coterie.backends.sandboxes.fusion_wire import ServerFault, shown
from coterie.core.errors import SystemFault

AGAIN = (408, 425, 429)
"""Status codes below 500 that are worth another attempt."""
LONGEST_WAIT = 4.0
"""Most seconds between two tries."""


class FusionConnection:
    """HTTP to one server, shared by all runs."""

    def __init__(self, settings: Any) -> None:
        """`settings`: the sandbox's `Config`."""
        self.url, self._reply_mb, self._backoff = settings.url, settings.reply_mb, settings.backoff
        most = settings.concurrency
        self._down_since: float | None = None  # when a try failed first since the server last answered
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=settings.connect_seconds),  # `answer` limits the total time
            limits=httpx.Limits(max_connections=most, max_keepalive_connections=most),
            trust_env=False,  # the environment's proxy is not for the sandbox
        )

    async def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and its connections with it
            await self._client.aclose()

    async def answer(self, method: str, path: str, seconds: float, body: bytes | None = None) -> bytes:
        """The body of a 200, within the time and the size limit.

        Raises:
            ServerFault: a failure that is worth another attempt.
            SystemFault: a refusal that is not.
        """
        bound, received = self._reply_mb << 20, bytearray()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(seconds):
                request = self._client.stream(method, self.url + path, content=body, headers=headers)
                async with request as response:
                    async for chunk in response.aiter_bytes():
                        received += chunk
                        if len(received) > bound:
                            raise ServerFault(f"an answer of more than {self._reply_mb} MB")
        except TimeoutError:
            raise self._down(f"no whole answer within {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise self._down(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if response.status_code == 200:
            self._down_since = None
            return bytes(received)
        answer = f"{response.status_code} to {path}: {shown(received[:1000].decode(errors='replace'))}"
        if response.status_code >= 500 or response.status_code in AGAIN:
            raise self._down(answer)
        self._down_since = None
        if location := response.headers.get("location"):
            answer = f"{response.status_code} to {path}: it redirects to {shown(location)}; set url to the "
            answer += "server itself"
        raise SystemFault(f"SandboxFusion at {self.url} refuses: {answer}")

    def attempts(self, seconds: float) -> AsyncRetrying:
        """At least two tries, and more until `seconds` after the first failure: of this run, or of all runs
        since the server last answered. So a server that is down for good costs this time once."""
        failures: list[float] = []

        def over(state: RetryCallState) -> bool:
            failures.append(time.monotonic())
            began = failures[0] if self._down_since is None else min(failures[0], self._down_since)
            return state.attempt_number > 1 and failures[-1] >= began + seconds

        return AsyncRetrying(
            stop=over,
            wait=wait_random_exponential(multiplier=self._backoff, max=min(30 * self._backoff, LONGEST_WAIT)),
            retry=retry_if_exception_type(ServerFault),
            reraise=True,
        )

    def _down(self, why: str) -> ServerFault:
        if self._down_since is None:
            self._down_since = time.monotonic()
        return ServerFault(why)
