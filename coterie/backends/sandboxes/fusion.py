"""Sandbox `sandbox_fusion`: programs run on a SandboxFusion server (github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import httpx
from pydantic import Field, field_validator
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from coterie.backends.sandboxes import judging
from coterie.backends.sandboxes.fusion_wire import (
    HEADROOM,
    WRAPPED,
    Fault,
    Lost,
    new_nonce,
    ran,
    request,
    shown,
)
from coterie.backends.sandboxes.programs import check_judged, check_program
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.plugins import MayChange, Plugin, PluginConfig
from coterie.core.protocols import Judged, Limits, Program, Ran, Verdict

START = "docker run -d -p 8080:8080 volcengine/sandbox-fusion:server-20241204"
AGAIN = (408, 425, 429)
"""Status codes below 500 that are worth another attempt."""
LIVES = 2
"""Sandboxes that a program may kill before the run is a PolicyFault."""


class SandboxFusion(Plugin):
    """Runs programs over HTTP; the time-out of each attempt follows from the run's wall time.

    After a server failure (5xx, a lost connection, a malformed answer) the request is sent again; after the
    last attempt the run is a SystemFault, so its score is missing. A refusal below 500 is a SystemFault at
    once, with the answer in its message. A program that ends its own sandbox twice is a PolicyFault.
    """

    class Config(PluginConfig):
        url: Annotated[str, MayChange(exact=True)] = Field(
            "http://localhost:8080", description="The server's address, without /run_code."
        )
        concurrency: Annotated[int, MayChange(exact=True)] = Field(
            32, ge=1, description="Most runs at the same time; the server has its own limits."
        )
        retries: int = Field(4, ge=0, description="Further attempts after a failure of the server.")
        backoff: float = Field(
            0.5,
            ge=0,
            description="Upper bound of the random wait before the first retry, in seconds; doubles.",
        )
        connect_seconds: float = Field(5.0, gt=0, description="Most seconds to connect.")
        grace_seconds: float = Field(
            20.0,
            gt=0,
            description="Seconds on the server beyond a program's wall time, to start, kill and report.",
        )
        margin_seconds: float = Field(
            10.0, gt=0, description="Seconds for the transfer and for a queue on the server."
        )
        reply_mb: int = Field(256, ge=1, description="Largest answer that is read, in 2^20 bytes.")
        limits: Limits = Limits()

        @field_validator("url")
        @classmethod
        def _is_http(cls, url: str) -> str:
            if httpx.URL(url).scheme not in ("http", "https"):
                raise ValueError("an URL that begins with http:// or https://")
            return url.rstrip("/").removesuffix("/run_code")

    config: Config
    _client: httpx.AsyncClient | None = None
    _gate: asyncio.Semaphore

    async def open(self) -> None:
        """Connect and ping the server.

        Raises:
            ConfigError: no SandboxFusion server answers at `url`.
        """
        settings = self.config
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=settings.connect_seconds),  # `_answer` limits the total time
            limits=httpx.Limits(
                max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency
            ),
            trust_env=False,  # the environment's proxy is not for the sandbox
        )
        try:
            async for attempt in self._attempts():
                with attempt:
                    pong = await self._answer("GET", "/v1/ping", settings.connect_seconds)
            if pong != b'"pong"':
                raise SystemFault(f"says {shown(pong.decode(errors='replace'), 100)!r} to a ping")
        except (Fault, SystemFault) as error:
            await self.close()
            raise ConfigError(
                f"no SandboxFusion server answers at {settings.url}",
                path=f"{self._path}.url",
                why=str(error),
                fix=f"start one: {START}",
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def run(self, program: Program) -> Ran:
        """Run a program.

        Raises:
            SystemFault: the server failed, or refused the request.
            PolicyFault: the program killed its sandbox twice.
            ConfigError: the program can't be run (`check_program`), or the language doesn't support its
                options.
        """
        limits = program.limits or self.config.limits
        check_program(program, limits)
        seconds = limits.wall_seconds + self.config.margin_seconds
        seconds += (
            self.config.grace_seconds if program.language in WRAPPED else limits.wall_seconds
        )  # to compile
        for life in range(LIVES):
            try:
                async for attempt in self._attempts():
                    with attempt:
                        return await self._once(program, limits, seconds)
            except Fault as fault:
                raise SystemFault(f"SandboxFusion at {self.config.url}: {fault}") from fault
            except Lost as lost:
                if life + 1 == LIVES:
                    raise PolicyFault(f"the program killed its sandbox twice ({lost})") from lost
        raise AssertionError("unreachable")

    async def judge(self, judged: Judged) -> Verdict:
        """Find which tests the candidate passes. Both sides run in one program, as two processes of one user.

        Raises:
            SystemFault: the server failed, or refused the request.
            PolicyFault: the candidate prevented the verdict twice.
        """
        limits = judged.limits or self.config.limits
        check_judged(judged, limits)
        both = limits.model_copy(
            update={
                "cpu_seconds": 2 * limits.cpu_seconds + 1,
                "wall_seconds": limits.wall_seconds + 5,
                "memory_mb": limits.memory_mb + HEADROOM,
                "processes": limits.processes + 3,
                "open_files": max(limits.open_files, 64),
                "output_kb": 512,  # enough for the complete verdict
            }
        )
        reason = ""
        for _ in range(LIVES):
            nonce = new_nonce()
            code = judging.remote_program(judged, limits, nonce)
            result = await self.run(Program(code=code, limits=both))
            reason = result.reason or shown(result.stderr) or result.status
            try:
                verdict = judging.remote_verdict(nonce, result.stdout)
            except (
                SystemFault
            ) as fault:  # the program ran, so only the candidate can have ended the tests' side
                verdict, reason = None, str(fault)
            if verdict is not None:
                return verdict
        raise PolicyFault(f"the candidate ended its judge twice ({reason})")

    async def _once(self, program: Program, limits: Limits, seconds: float) -> Ran:
        nonce = new_nonce()
        body = json.dumps(request(program, limits, self.config.grace_seconds, nonce)).encode()
        async with self._gate:
            answer = await self._answer("POST", "/run_code", seconds, body)
        try:
            table = json.loads(answer)
        except ValueError:
            raise Fault(
                f"an answer that is no JSON: {shown(answer[:1000].decode(errors='replace'))}"
            ) from None
        return ran(program, table, limits, nonce)

    async def _answer(self, method: str, path: str, seconds: float, body: bytes | None = None) -> bytes:
        """The body of a 200, within the time and the size limit.

        Raises:
            Fault: a failure that is worth another attempt.
            SystemFault: a refusal that is not.
        """
        if self._client is None:
            raise RuntimeError("the sandbox is not open: await sandbox.open() first")
        url, bound, received = self.config.url + path, self.config.reply_mb << 20, bytearray()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(seconds):
                async with self._client.stream(method, url, content=body, headers=headers) as response:
                    async for chunk in response.aiter_bytes():
                        received += chunk
                        if len(received) > bound:
                            raise Fault(f"an answer of more than {self.config.reply_mb} MB")
        except TimeoutError:
            raise Fault(f"no whole answer within {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise Fault(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if response.status_code == 200:
            return bytes(received)
        answer = f"{response.status_code} to {path}: {shown(received[:1000].decode(errors='replace'))}"
        if response.status_code >= 500 or response.status_code in AGAIN:
            raise Fault(answer)
        raise SystemFault(f"SandboxFusion at {self.config.url} refuses: {answer}")

    def _attempts(self) -> AsyncRetrying:
        settings = self.config
        return AsyncRetrying(
            stop=stop_after_attempt(settings.retries + 1),
            wait=wait_random_exponential(multiplier=settings.backoff, max=30 * settings.backoff),
            retry=retry_if_exception_type(Fault),
            reraise=True,
        )

    @property
    def _path(self) -> str:
        return getattr(self.build, "path", "") or "sandbox"
