"""Sandbox `sandbox_fusion`: programs run on a SandboxFusion server (github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import asyncio
import json

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
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import Judged, Limits, Program, Ran, Verdict

START = "docker run -d -p 8080:8080 volcengine/sandbox-fusion:server-20241204"
AGAIN = (408, 425, 429)
"""Answers below 500 that are worth another try."""
LIVES = 2
"""Sandboxes that a program may kill before it gets the floor."""


class SandboxFusion(Plugin):
    """Runs programs over HTTP; each attempt has a time-out that follows from the run's wall time.

    A server that fails (5xx, a lost connection, an answer that is none) is asked again, then the run is a
    SystemFault: missing. An answer below 500 that refuses is a SystemFault at once, and shown. A program
    that ends its own sandbox twice is a PolicyFault.
    """

    class Config(PluginConfig):
        url: str = Field("http://localhost:8080", description="Of the server, without /run_code.")
        concurrency: int = Field(32, ge=1, description="Runs at a time; the server has its own limits.")
        retries: int = Field(4, ge=0, description="Further attempts after the server failed.")
        backoff: float = Field(
            0.5, ge=0, description="Seconds before the first retry, doubled each time, drawn below that."
        )
        connect_seconds: float = Field(5.0, gt=0, description="To connect.")
        grace_seconds: float = Field(
            20.0, gt=0, description="On the server beyond a program's wall time: to start, kill and report."
        )
        margin_seconds: float = Field(
            10.0, gt=0, description="For the way there and back, and a queue on the server."
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
        """Connect and say hello.

        Raises:
            ConfigError: no SandboxFusion server answers at `url`.
        """
        settings = self.config
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(None, connect=settings.connect_seconds),  # `_answer` bounds the whole
            limits=httpx.Limits(
                max_connections=settings.concurrency, max_keepalive_connections=settings.concurrency
            ),
            trust_env=False,  # a proxy of the environment is for the world, not for a sandbox
        )
        try:
            async for attempt in self._attempts():
                with attempt:
                    said = await self._answer("GET", "/v1/ping", settings.connect_seconds)
            if said != b'"pong"':
                raise SystemFault(f"says {shown(said.decode(errors='replace'), 100)!r} to a ping")
        except (Fault, SystemFault) as error:
            await self.close()
            raise ConfigError(
                f"no SandboxFusion server answers at {settings.url}",
                path=f"{self._path}.url",
                why=str(error),
                fix=f"start one: {START}",
            ) from error

    async def close(self) -> None:
        """Give the connections back."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def run(self, program: Program) -> Ran:
        """What the program did.

        Raises:
            SystemFault: the server failed, or refused the request.
            PolicyFault: the program killed its sandbox twice.
            ConfigError: a path leads out of the working folder; a language can't do what is asked.
        """
        limits = program.limits or self.config.limits
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
        """Which tests the candidate passes. Both sides run in one program, as two processes of one user.

        Raises:
            SystemFault: the server failed, or refused the request.
            PolicyFault: the candidate kept the tests' side from its verdict twice.
        """
        limits = judged.limits or self.config.limits
        both = limits.model_copy(
            update={
                "cpu_seconds": 2 * limits.cpu_seconds + 1,
                "wall_seconds": limits.wall_seconds + 5,
                "memory_mb": limits.memory_mb + HEADROOM,
                "processes": limits.processes + 3,
                "open_files": max(limits.open_files, 64),
                "output_kb": 512,  # the frame of the verdict must be whole
            }
        )
        said = ""
        for _ in range(LIVES):
            nonce = new_nonce()
            code = judging.remote_program(judged, limits, nonce)
            result = await self.run(Program(code=code, limits=both))
            said = result.reason or shown(result.stderr) or result.status
            try:
                verdict = judging.remote_verdict(nonce, result.stdout)
            except SystemFault as fault:  # the program ran: only the candidate can have ended the tests' side
                verdict, said = None, str(fault)
            if verdict is not None:
                return verdict
        raise PolicyFault(f"the candidate ended its judge twice ({said})")

    async def _once(self, program: Program, limits: Limits, seconds: float) -> Ran:
        nonce = new_nonce()
        body = json.dumps(request(program, limits, self.config.grace_seconds, nonce)).encode()
        async with self._gate:
            said = await self._answer("POST", "/run_code", seconds, body)
        try:
            table = json.loads(said)
        except ValueError:
            raise Fault(f"an answer that is no JSON: {shown(said[:1000].decode(errors='replace'))}") from None
        return ran(program, table, limits, nonce)

    async def _answer(self, method: str, path: str, seconds: float, body: bytes | None = None) -> bytes:
        """The body of a 200, within the time and the size that are allowed.

        Raises:
            Fault: worth another try.
            SystemFault: not worth one.
        """
        if self._client is None:
            raise RuntimeError("the sandbox is not open: await sandbox.open() first")
        url, bound, said = self.config.url + path, self.config.reply_mb << 20, bytearray()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            async with asyncio.timeout(seconds):
                async with self._client.stream(method, url, content=body, headers=headers) as response:
                    async for chunk in response.aiter_bytes():
                        said += chunk
                        if len(said) > bound:
                            raise Fault(f"an answer of more than {self.config.reply_mb} MB")
        except TimeoutError:
            raise Fault(f"no whole answer within {seconds:g} s") from None
        except httpx.HTTPError as error:
            raise Fault(f"{type(error).__name__}: {error}".rstrip(": ")) from error
        if response.status_code == 200:
            return bytes(said)
        answer = f"{response.status_code} to {path}: {shown(said[:1000].decode(errors='replace'))}"
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
