"""SandboxFusion's wire format: the body of `POST /run_code`, and the server's answer.

Python and bash programs run inside the wrapper (fusion_wrapper.py). Programs in other languages are sent
unchanged; the server compiles and runs them by its own rules. The two sides of a judge are one request.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files as resources
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from coterie.backends.sandboxes.distributions import ENVIRONMENT
from coterie.backends.sandboxes.judging.host import REPORT_BYTES, loading
from coterie.backends.sandboxes.programs import FLOOD
from coterie.core.errors import ConfigError
from coterie.core.protocols import Limits, Program, Ran

WRAPPED = ("python", "bash")
"""Languages that run inside the wrapper."""
BOXES = ("box", "candidate")
"""Folders of a request's programs: of one, or of the tests' side and the candidate."""
HEADROOM = 256
"""MB for the wrapper, in addition to the program's limit."""
_SOURCES = (
    "inside.kernel",
    "inside.globs",
    "inside.ids",
    "inside.landlock",
    "inside.seccomp",
    "fusion_apart",
    "fusion_sides",
    "fusion_wrapper",
)
_READY = """\
import os
try:
    import ctypes
    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)
except (OSError, AttributeError, ImportError):
    pass
os.write(5, b"1")
os.close(5)
"""
"""What the tests' side does first: PR_SET_DUMPABLE 0, then the candidate is started."""


class ServerFault(Exception):
    """A fault of the server; the request is worth another attempt."""


class Lost(Exception):
    """The program started, and the wrapper ended without a report."""


class Command(BaseModel):
    """The result of one command on the server: compiling or running."""

    status: Literal["Finished", "Error", "TimeLimitExceeded"]
    execution_time: float | None = None
    return_code: int | None = None
    stdout: str | None = None
    stderr: str | None = None


class Reply(BaseModel):
    """The server's answer."""

    status: Literal["Success", "Failed", "SandboxError"]
    message: str | None = None
    compile_result: Command | None = None
    run_result: Command | None = None
    files: dict[str, str] = {}


class Result(BaseModel):
    """The wrapper's report on one program."""

    status: Literal["finished", "failed", "timeout", "killed"]
    exit_code: int | None
    stdout: str
    stderr: str
    dropped: int
    cpu_seconds: float
    wall_seconds: float
    files: dict[str, str]
    reason: str

    def ran(self) -> Ran:
        streams = {
            name: base64.b64decode(getattr(self, name)).decode(errors="replace")
            for name in ("stdout", "stderr")
        }
        files = {path: base64.b64decode(text) for path, text in self.files.items()}
        return Ran(**{**self.model_dump(), **streams, "files": files})


class WrapperReport(BaseModel):
    """The wrapper's report on a request."""

    apart: Literal["users", "landlock", ""]
    shared: str
    """Why nothing keeps the programs apart; empty: `apart` does."""
    landlock: int
    filtered: bool
    refused: bool = False
    """Whether nothing was started, since nothing keeps programs apart."""
    results: list[Result] = []
    written: str = ""
    """What the first of a pair wrote to its descriptor 4, in base64."""

    @property
    def ran(self) -> list[Ran]:
        return [result.ran() for result in self.results]


def request(
    programs: Sequence[Program],
    limits: Limits,
    grace: float,
    nonce: str,
    *,
    refuse: bool = False,
    probe: bool = False,
) -> dict[str, Any]:
    """The body of `POST /run_code`.

    Args:
        programs: one, or the tests' side and the candidate of a judge.
        limits: of each of them.
        grace: seconds that the server gives the wrapper beyond a program's wall time.
        refuse: whether to start nothing where nothing keeps programs apart.
        probe: whether these programs find out what keeps programs apart.

    Raises:
        ConfigError: the language doesn't support the program's options.
    """
    first = programs[0]
    body: dict[str, Any] = {
        "language": first.language,
        "compile_timeout": limits.wall_seconds,
        "run_timeout": limits.wall_seconds,
        "memory_limit_MB": limits.memory_mb + HEADROOM,
        "stdin": None,
    }
    if first.language not in WRAPPED:
        check_plain(first)
        sent = {path: encoded(data) for path, data in first.files.items()}
        fields = {"code": readable(first.code), "stdin": readable(first.stdin), "files": sent}
        return body | fields | {"fetch_files": list(first.collect)}
    report = f"{'probe' if probe else 'report'}-{nonce}.json"
    order = {
        "nonce": nonce,
        "report": report,
        "programs": [described(program, limits, box) for program, box in zip(programs, BOXES, strict=False)],
        "refuse": refuse,
        "report_bytes": REPORT_BYTES,
    }
    return body | {
        "language": "python",
        "run_timeout": limits.wall_seconds + grace,
        "code": wrapped(order),
        "files": {
            f"{box}/work/{path}": encoded(data)
            for program, box in zip(programs, BOXES, strict=False)
            for path, data in program.files.items()
        },
        "fetch_files": [report],
    }


def described(program: Program, limits: Limits, box: str) -> dict[str, Any]:
    """A program of the wrapper's order."""
    return {
        "box": box,
        "names": {"code": "main.py" if program.language == "python" else "main.sh", "stdin": "stdin"},
        "language": program.language,
        "code": encoded(program.code.encode(errors="surrogatepass")),
        "stdin": encoded(program.stdin.encode(errors="surrogatepass")),
        "argv": list(program.argv),
        "files": list(program.files),
        "collect": list(program.collect),
        "limits": limits.model_dump(),
        "environment": ENVIRONMENT,
        "flood_bytes": FLOOD,
    }


def pair(tests: Program, candidate: Program) -> tuple[Program, Program]:
    """The two sides of a judge; the tests' side hides itself first, and then the candidate is started."""
    return replace(tests, code=_READY + tests.code), candidate


def check_plain(program: Program) -> None:
    """Raise ConfigError if a program that is sent unchanged needs arguments or globs."""
    globs = [path for path in program.collect if set(path) & set("*?[")]
    if program.argv or globs:
        raise ConfigError(
            f"sandbox_fusion can't give a {program.language} program "
            + ("arguments" if program.argv else f"the glob {globs[0]!r}"),
            why="only python and bash run inside our wrapper; others go to the server as they are",
            fix="read from stdin, and collect literal paths",
        )


def answered(body: Mapping[str, Any]) -> Reply:
    """The server's answer. Raises ServerFault if the server failed, or its answer is malformed."""
    try:
        reply = Reply.model_validate(body)
    except ValidationError as error:
        raise ServerFault(
            f"an answer of another form: {error.errors()[0]['msg']}: {shown(json.dumps(body))}"
        ) from None
    command = reply.run_result
    if reply.status == "SandboxError" or (command is not None and command.status == "Error"):
        message = reply.message or (command.stderr if command is not None else "")
        raise ServerFault(f"it says SandboxError: {shown(message or '')}")
    return reply


def reported(reply: Reply, nonce: str, name: str) -> WrapperReport | Ran:
    """The wrapper's report; a result where the server's time limit ended the wrapper.

    Exit code 0 means that the report was written: no signal gives code 0.

    Raises:
        ServerFault: the server failed, or its answer is malformed.
        Lost: the program ended its wrapper.
    """
    command = reply.run_result
    if command is None:
        raise ServerFault("an answer without run_result")
    if command.status != "Finished" or command.return_code != 0:
        description = f"exit code {command.return_code}: {shown(command.stderr or '')}"
        if f"{nonce} started" not in (command.stdout or "").splitlines():
            raise ServerFault(f"the wrapper did not start: {command.status}, {description}")
        if command.status == "TimeLimitExceeded":
            reason = "the server's time limit: the program kept its wrapper from ending it"
            return Ran(status="timeout", exit_code=None, reason=reason)
        raise Lost(description)
    try:
        table = json.loads(base64.b64decode(reply.files[name], validate=True))
        nonce_matches = table["nonce"] == nonce
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ServerFault(
            f"without the file that was asked for, with {shown(str(list(reply.files)))}"
        ) from None
    if not nonce_matches:
        raise ServerFault("with another file than the one that was asked for")
    if "lost" in table:
        raise ServerFault(f"the program was not given its files {shown(str(table['lost']))}")
    if "fault" in table:
        raise ServerFault(shown(table["fault"]))
    return WrapperReport.model_validate(table)


def plain_result(reply: Reply, limits: Limits) -> Ran:
    """The result from the server's answer alone; a program that did not compile has no run."""
    command = reply.run_result or reply.compile_result
    compiled = reply.compile_result is None or reply.compile_result.return_code == 0
    if command is None or (reply.run_result is None and compiled):
        raise ServerFault("an answer without run_result")
    try:
        files = {path: base64.b64decode(text, validate=True) for path, text in reply.files.items()}
    except binascii.Error:
        raise ServerFault(f"with files that are no base64: {shown(str(list(reply.files)))}") from None
    keep = limits.output_kb << 10
    streams = [(text or "").encode() for text in (command.stdout, command.stderr)]
    code = command.return_code
    common: dict[str, Any] = {
        "stdout": streams[0][-keep:].decode(errors="replace"),
        "stderr": streams[1][-keep:].decode(errors="replace"),
        "dropped": sum(max(len(stream) - keep, 0) for stream in streams),
        "wall_seconds": command.execution_time or 0.0,
        "files": files,
    }
    if command.status == "TimeLimitExceeded":
        return Ran(status="timeout", exit_code=None, reason=f"wall time: {limits.wall_seconds:g} s", **common)
    if code is None:
        raise ServerFault("an answer without return_code")
    if code < 0:
        return Ran(status="killed", exit_code=None, reason=f"signal {-code}", **common)
    reason = "" if compiled else "it did not compile"
    return Ran(status="failed" if code else "finished", exit_code=code, reason=reason, **common)


def not_found(ran: Ran) -> bool:
    """Whether a shell may have said that it lacks the command of a language."""
    return ran.exit_code == 127 and "not found" in ran.stderr and not ran.stdout


def wrapped(order: Mapping[str, Any]) -> str:
    """The wrapper's source, which executes the order."""
    args = f'"{encoded(json.dumps(order).encode())}", __file__'
    return loading(["wrapper", "wrapper.inside"], sources(), "wrapper.fusion_wrapper", args)


@cache
def sources() -> list[tuple[str, str]]:
    """Name and source of each of the wrapper's modules."""
    folder = resources(__package__)
    return [
        (f"wrapper.{name}", folder.joinpath(f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))
        for name in _SOURCES
    ]


def encoded(data: bytes | memoryview) -> str:
    return base64.b64encode(data).decode("ascii")


def readable(text: str) -> str:
    """Text that JSON parsers accept: lone surrogates are replaced."""
    return text.encode(errors="replace").decode()


def shown(text: str, bound: int = 300) -> str:
    """The end of the text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= bound else "…" + flat[-bound:]


def how_to_reach(why: str, url: str, start: str) -> str:
    """How to fix that no server answers a ping, by the reason; `start` starts a server."""
    rest = url.partition("://")[2]
    if "CERTIFICATE_VERIFY_FAILED" in why:
        return "give the server a certificate of a public authority, or use http:// on a network you trust"
    if "[SSL" in why:
        return f"set url: http://{rest} if the server speaks plain HTTP"
    if "it redirects to" in why:
        return "set url to the address that it redirects to, without /v1/ping"
    if url.startswith("http://") and ("ReadError" in why or "RemoteProtocolError" in why):
        return f"start one: {start}; or set url: https://{rest} if the server speaks TLS"
    return f"start one: {start}"
