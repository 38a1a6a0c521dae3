"""Sandbox `sandbox_fusion`: programs run on a SandboxFusion server (github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Literal, TypeVar

import httpx
from pydantic import Field, field_validator

from coterie.backends.sandboxes import fusion_wire as wire
from coterie.backends.sandboxes.fusion_http import FusionConnection
from coterie.backends.sandboxes.fusion_probe import (
    INTRUDER,
    LIMITS,
    VICTIM,
    Probed,
    check_imports,
    probed,
    protections,
)
from coterie.backends.sandboxes.fusion_wire import Lost, ServerFault, WrapperReport, shown
from coterie.backends.sandboxes.judging import host as judging
from coterie.backends.sandboxes.lifetime import OpenableSandbox
from coterie.backends.sandboxes.programs import check_judged, check_program, limits_of
from coterie.backends.sandboxes.protections import Protection
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.plugins import MayChange, PluginConfig
from coterie.core.protocols import Judged, Limits, Program, Ran, Verdict
from coterie.discovery.members import KeptFiles

log = logging.getLogger("coterie")
T = TypeVar("T")

START = "docker run -d -p 127.0.0.1:8080:8080 volcengine/sandbox-fusion:server-20250609"
LIVES = 2
"""Sandboxes that a program may kill before the run is a PolicyFault."""


class SandboxFusion(OpenableSandbox):
    """Runs programs over HTTP; the time-out of each attempt follows from the run's wall time.

    After a server failure (5xx, a lost connection, a malformed answer) the request is sent again, for
    `retry_seconds`; then the run is a SystemFault, so its score is missing. A refusal below 500 is a
    SystemFault at once, with the answer in its message. A program that ends its own sandbox twice is a
    PolicyFault. `open` finds out what keeps runs apart on the server.
    """

    class Config(PluginConfig):
        url: Annotated[str, MayChange(exact=True)] = Field(
            "http://localhost:8080", description="The server's address, without /run_code."
        )
        concurrency: Annotated[int, MayChange(exact=True)] = Field(
            32, ge=1, description="Most runs at the same time; the server has its own limits."
        )
        retry_seconds: float = Field(
            60.0, ge=0, description="Seconds after its first failure in which a run is tried again."
        )
        backoff: float = Field(
            0.5,
            ge=0,
            description="Upper bound of the random wait before the first retry, in seconds; doubles up to 4.",
        )
        shared_user: Literal["refuse", "warn"] = Field(
            "refuse",
            description="What `judge` does where nothing keeps a candidate apart from its tests.",
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
        packages: tuple[str, ...] = Field(
            (),
            description="Distributions that the server's Python must be able to import, by name; it has its "
            "own, and shows programs all of them.",
        )
        keep_files_in: Annotated[str | None, MayChange(exact=True)] = Field(
            None, description="Folder of this machine for files that a program leaves and a later one finds."
        )

        @field_validator("url")
        @classmethod
        def _is_http(cls, url: str) -> str:
            try:
                parts = httpx.URL(url)
                port = parts.port
            except (httpx.InvalidURL, ValueError) as error:
                raise ValueError(f"an URL such as http://localhost:8080; this one is none: {error}") from None
            if parts.scheme not in ("http", "https") or not parts.host:
                raise ValueError("an URL that begins with http:// or https:// and names a host")
            if port is not None and not 0 < port < 1 << 16:
                raise ValueError("an URL whose port is between 1 and 65535")
            return url.rstrip("/").removesuffix("/run_code")

    config: Config
    _probed: Probed | None = None
    _warned: frozenset[str] = frozenset()
    _unwrapped: list[str]
    """Languages of the programs that ran without the wrapper, so that they could reach every run."""
    _connection: FusionConnection | None = None
    _gate: asyncio.Semaphore

    def use_slots(self, slots: Callable[[str, int], asyncio.Semaphore]) -> None:
        """Bound requests at once over all processes of a run."""
        self._slots = slots(self._path, self.config.concurrency)

    async def _start(self) -> None:
        """Connect, ping the server, and find out by two harmless programs what keeps runs apart there.

        Raises:
            ConfigError: no SandboxFusion server answers at `url`, it runs no Python program, or it can't
                import one of `packages`.
        """
        settings, url = self.config, self.config.url
        self._gate = asyncio.Semaphore(settings.concurrency)
        self._unwrapped = []
        self._connection = FusionConnection(settings)
        what = f"no SandboxFusion server answers at {url}"
        await self._at_first(self._ping, what, lambda why: wire.how_to_reach(why, url, START))
        what = f"SandboxFusion at {url} does not run a Python program"
        fix = "look into the server's log; docs/sandbox_fusion.md says what it needs"
        self._probed = await self._at_first(self._probe, what, lambda why: fix)
        if settings.packages:
            path = f"{self._path}.packages"
            await check_imports(settings.packages, self._run, settings.limits, url, path)

    async def _at_first(self, ask: Callable[[], Awaitable[T]], what: str, fix: Callable[[str], str]) -> T:
        """What a server answers that has just been connected. Raises ConfigError where it doesn't."""
        try:
            async for attempt in self._connected().attempts(self.config.connect_seconds):
                with attempt:
                    return await ask()
        except (ServerFault, SystemFault) as error:
            why = str(error)
            raise ConfigError(what, path=f"{self._path}.url", why=why, fix=fix(why)) from error
        raise AssertionError("every attempt returns or raises")

    async def _ping(self) -> None:
        pong = await self._connected().answer("GET", "/v1/ping", self.config.connect_seconds)
        if pong != b'"pong"':
            raise SystemFault(f"says {shown(pong.decode(errors='replace'), 100)!r} to a ping")

    async def _end(self) -> None:
        self._files.close()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def report(self) -> tuple[Protection, ...]:
        """The protections of wrapped programs (python, bash) on this server; call it after `open`."""
        if self._probed is None:
            raise RuntimeError("the sandbox is not open: await sandbox.open() first")
        return protections(self._probed)

    async def run(self, program: Program) -> Ran:
        """Run a program; warns once where nothing keeps it apart from other runs.

        Raises:
            SystemFault: the server failed, or refused the request.
            PolicyFault: the program killed its sandbox twice.
            ConfigError: the program can't be run (`check_program`), or the language doesn't support its
                options.
        """
        return await self._during(lambda: self._run(program))

    async def run_on(self, program: Program, files: KeptFiles, most_mb: int) -> tuple[Ran, KeptFiles]:
        """Run a program on copies of kept files, and keep what it leaves. Raises as `run`; WriteError."""
        return await self._files.run_on(self.run, program, files, most_mb)

    async def _run(self, program: Program) -> Ran:
        limits = limits_of(program, self.config.limits)
        check_program(program, limits)
        if program.language not in wire.WRAPPED:
            return await self._run_plain(program, limits)
        try:
            answer = await self._lived([program], limits)
        except Lost as lost:
            raise PolicyFault(f"the program killed its sandbox twice ({lost})") from lost
        if isinstance(answer, Ran):
            return answer
        if why := self._shared(answer):
            self._warn(f"nothing keeps programs apart from other runs there: {why}")
        return answer.ran[0]

    async def _run_plain(self, program: Program, limits: Limits) -> Ran:
        """Run a program of a language that the wrapper doesn't run."""
        language = program.language
        self._connected()
        wire.check_plain(program)
        self._unwrapped.append(language)  # before it runs: it can reach what runs beside it
        answer = await self._lived([program], limits)
        assert isinstance(answer, Ran), "there is no report without the wrapper"
        if wire.not_found(answer) and await self._lacks(language, limits):
            self._unwrapped.remove(language)
            raise ConfigError(
                f"SandboxFusion at {self.config.url} does not run '{language}'",
                path=f"{self._path}.url",
                why=shown(answer.stderr),
                fix=f"install {language} on the server, or use another server",
            )
        why = f"{language} programs run there without Coterie's wrapper"
        self._warn(f"{why}, so they can reach every run of its user")
        return answer

    async def _lacks(self, language: str, limits: Limits) -> bool:
        """Whether an empty program fails in the same way; one that isn't empty can say what it likes."""
        answer = await self._lived([Program(code="", language=language)], limits)
        return isinstance(answer, Ran) and wire.not_found(answer)

    def _connected(self) -> FusionConnection:
        if self._connection is None:
            raise SystemFault("the sandbox is not open")
        return self._connection

    async def judge(self, judged: Judged) -> Verdict:
        """Find which tests the candidate passes. Both sides are processes of one request.

        Raises:
            SystemFault: the server failed, or refused the request.
            PolicyFault: the candidate prevented the verdict twice.
            ConfigError: nothing keeps the candidate apart from its tests and from other runs, and
                `shared_user` is `refuse`.
        """
        return await self._during(lambda: self._judge(judged))

    async def _judge(self, judged: Judged) -> Verdict:
        refuse = self.config.shared_user == "refuse"
        limits = limits_of(judged, self.config.limits, Judged)
        check_judged(judged, limits)
        sides = wire.pair(*judging.programs(judged, limits))
        if refuse and self._probed is not None and self._probed.shared:
            raise self._refusal(self._probed.shared)
        reason = ""
        for _ in range(LIVES):
            try:
                answer = await self._lived(sides, limits, refuse=refuse, lives=1)
            except Lost as lost:
                reason = str(lost)
                continue
            if isinstance(answer, Ran):
                reason = answer.reason
                continue
            if answer.refused:
                raise self._refusal(answer.shared)
            try:
                verdict = judging.verdict(base64.b64decode(answer.written), *answer.ran)
            except SystemFault as fault:  # the request was answered, so only the candidate can have ended it
                reason = str(fault)
                continue
            return dataclasses.replace(verdict, warning=self._doubt(answer))
        raise PolicyFault(f"the candidate ended its judge twice ({reason})")

    def _shared(self, report: WrapperReport) -> str:
        """Why nothing kept this run's programs apart; empty: something did."""
        return report.shared or (self._probed.shared if self._probed is not None else "")

    def _doubt(self, report: WrapperReport) -> str:
        """Why a verdict may be forged; empty: it can't be."""
        if why := self._shared(report):
            doubt = f"the candidate could reach its tests: {why}"
        elif self._unwrapped:
            doubt = f"{self._unwrapped[-1]} programs ran there without the wrapper and could reach this run"
        else:
            return ""
        self._warn(f"verdicts may be forged: {doubt}")
        return doubt

    def _warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned |= {text}
            log.warning("SandboxFusion at %s: %s", self.config.url, text)

    def _refusal(self, why: str) -> ConfigError:
        return ConfigError(
            "sandbox_fusion does not judge here: a candidate could forge its verdict",
            path=f"{self._path}.shared_user",
            why=f"programs share a user on {self.config.url}, and nothing keeps them apart: {why}",
            fix="start the server as root with a Python that others can read, or on Linux 6.12 "
            "(docs/sandbox_fusion.md); or set shared_user: warn, and every verdict says so",
        )

    async def _lived(
        self, programs: Sequence[Program], limits: Limits, *, refuse: bool = False, lives: int = LIVES
    ) -> WrapperReport | Ran:
        """The report on the programs, or the result where there is no report.

        Raises SystemFault for a fault of the server, Lost if programs ended their wrapper `lives` times.
        """
        seconds = limits.wall_seconds + self.config.margin_seconds
        seconds += (
            self.config.grace_seconds if programs[0].language in wire.WRAPPED else limits.wall_seconds
        )  # to compile
        for life in range(lives):
            try:
                async for attempt in self._connected().attempts(self.config.retry_seconds):
                    with attempt:
                        return await self._once(programs, limits, seconds, refuse=refuse)
            except ServerFault as fault:
                raise SystemFault(f"SandboxFusion at {self.config.url}: {fault}") from fault
            except Lost:
                if life + 1 == lives:
                    raise
        raise AssertionError("unreachable")

    async def _probe(self) -> Probed:
        seconds = LIMITS.wall_seconds + self.config.grace_seconds + self.config.margin_seconds
        try:
            report = await self._once(wire.pair(VICTIM, INTRUDER), LIMITS, seconds, probe=True)
        except Lost as lost:
            raise ServerFault(f"its wrapper was killed: {lost}") from lost
        if isinstance(report, Ran):
            raise ServerFault(report.reason)
        try:
            return probed(report, base64.b64decode(report.written))
        except (ValueError, RecursionError) as error:
            ends = "; ".join(shown(f"{ran.status} {ran.reason} {ran.stderr}") for ran in report.ran)
            raise ServerFault(f"two connected programs did not report: {ends}") from error

    async def _once(
        self,
        programs: Sequence[Program],
        limits: Limits,
        seconds: float,
        *,
        refuse: bool = False,
        probe: bool = False,
    ) -> WrapperReport | Ran:
        nonce = secrets.token_hex(16)  # no program can guess it
        grace = self.config.grace_seconds
        body = wire.request(programs, limits, grace, nonce, refuse=refuse, probe=probe)
        async with self._gate, self._slots:
            answer = await self._connected().answer("POST", "/run_code", seconds, json.dumps(body).encode())
        try:
            table = json.loads(answer)
        except (ValueError, RecursionError):
            raise ServerFault(
                f"an answer that is no JSON: {shown(answer[:1000].decode(errors='replace'))}"
            ) from None
        reply = wire.answered(table)
        if programs[0].language not in wire.WRAPPED:
            return wire.plain_result(reply, limits)
        return wire.reported(reply, nonce, body["fetch_files"][0])
