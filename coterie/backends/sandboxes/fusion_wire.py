"""SandboxFusion's wire format: the body of `POST /run_code`, and the server's answer.

Python and bash programs run inside the wrapper (fusion_wrapper.py). Programs in other languages are sent
unchanged; the server compiles and runs them by its own rules.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resources
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from coterie.core.errors import ConfigError
from coterie.core.protocols import Limits, Program, Ran

WRAPPED = ("python", "bash")
"""Languages that run inside the wrapper."""
BOX, HOME = "box", "box/work"
FLOOD = 64 << 20
"""Bytes of output after which a program is stopped."""
HEADROOM = 256
"""MB for the wrapper, in addition to the program's limit."""


class Fault(Exception):
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


class Report(BaseModel):
    """The wrapper's report of a run."""

    status: Literal["finished", "failed", "timeout", "killed"]
    exit_code: int | None
    stdout: str
    stderr: str
    dropped: int
    cpu_seconds: float
    wall_seconds: float
    files: dict[str, str]
    reason: str
    own_user: bool


def request(program: Program, limits: Limits, grace: float, nonce: str) -> dict[str, Any]:
    """The body of `POST /run_code`.

    Args:
        grace: seconds that the server gives the wrapper beyond the program's wall time.

    Raises:
        ConfigError: the language doesn't support the program's options.
    """
    body: dict[str, Any] = {
        "language": program.language,
        "compile_timeout": limits.wall_seconds,
        "run_timeout": limits.wall_seconds,
        "memory_limit_MB": limits.memory_mb + HEADROOM,
        "stdin": None,
    }
    if program.language not in WRAPPED:
        check_plain(program)
        sent = {path: encoded(data) for path, data in program.files.items()}
        fields = {"code": readable(program.code), "stdin": readable(program.stdin), "files": sent}
        return body | fields | {"fetch_files": list(program.collect)}
    order = {
        "nonce": nonce,
        "report": report_name(nonce),
        "box": BOX,
        "names": {"code": "main.py" if program.language == "python" else "main.sh", "stdin": "stdin"},
        "language": program.language,
        "code": encoded(program.code.encode(errors="surrogatepass")),
        "stdin": encoded(program.stdin.encode(errors="surrogatepass")),
        "argv": list(program.argv),
        "files": list(program.files),
        "collect": list(program.collect),
        "limits": {**limits.model_dump(), "flood_bytes": FLOOD},
    }
    text = encoded(json.dumps(order).encode())
    return body | {
        "language": "python",
        "run_timeout": limits.wall_seconds + grace,
        "code": f'{wrapper()}\n\nmain(json.loads(base64.b64decode("{text}")))\n',
        "files": {f"{HOME}/{path}": encoded(data) for path, data in program.files.items()},
        "fetch_files": [report_name(nonce)],
    }


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


def ran(program: Program, body: Mapping[str, Any], limits: Limits, nonce: str) -> Ran:
    """The result of the program, from the server's answer.

    Raises:
        Fault: the server failed, or its answer is malformed.
        Lost: the program ended its wrapper.
    """
    try:
        reply = Reply.model_validate(body)
    except ValidationError as error:
        raise Fault(
            f"an answer of another form: {error.errors()[0]['msg']}: {shown(json.dumps(body))}"
        ) from None
    command = reply.run_result
    if reply.status == "SandboxError" or (command is not None and command.status == "Error"):
        message = reply.message or (command.stderr if command is not None else "")
        raise Fault(f"it says SandboxError: {shown(message or '')}")
    if program.language not in WRAPPED:
        return plain_result(reply, limits)
    if command is None:
        raise Fault("an answer without run_result")
    return wrapped_result(command, reply.files, nonce)


def wrapped_result(command: Command, files: Mapping[str, str], nonce: str) -> Ran:
    """The result from the wrapper's report. Exit code 0 means that it was written: no signal gives code 0."""
    if command.status != "Finished" or command.return_code != 0:
        description = f"exit code {command.return_code}: {shown(command.stderr or '')}"
        if f"{nonce} started" not in (command.stdout or "").splitlines():
            raise Fault(f"the wrapper did not start: {command.status}, {description}")
        if command.status == "TimeLimitExceeded":
            reason = "the server's time limit: the program kept its wrapper from ending it"
            return Ran(status="timeout", exit_code=None, reason=reason)
        raise Lost(description)
    try:
        table = json.loads(base64.b64decode(files[report_name(nonce)], validate=True))
        nonce_matches = table["nonce"] == nonce
    except (KeyError, TypeError, ValueError):
        raise Fault(f"without the file that was asked for, with {shown(str(list(files)))}") from None
    if not nonce_matches:
        raise Fault("with another file than the one that was asked for")
    return read_report(table)


def read_report(table: Mapping[str, Any]) -> Ran:
    """The result in a report whose nonce was checked."""
    if "lost" in table:
        raise Fault(f"the program was not given its files {shown(str(table['lost']))}")
    if "fault" in table:
        raise Fault(shown(table["fault"]))
    report = Report.model_validate(table)
    return Ran(
        status=report.status,
        exit_code=report.exit_code,
        stdout=base64.b64decode(report.stdout).decode(errors="replace"),
        stderr=base64.b64decode(report.stderr).decode(errors="replace"),
        dropped=report.dropped,
        cpu_seconds=report.cpu_seconds,
        wall_seconds=report.wall_seconds,
        files={path: base64.b64decode(text) for path, text in report.files.items()},
        reason=report.reason,
    )


def plain_result(reply: Reply, limits: Limits) -> Ran:
    """The result from the server's answer alone; a program that did not compile has no run."""
    command = reply.run_result or reply.compile_result
    compiled = reply.compile_result is None or reply.compile_result.return_code == 0
    if command is None or (reply.run_result is None and compiled):
        raise Fault("an answer without run_result")
    try:
        files = {path: base64.b64decode(text, validate=True) for path, text in reply.files.items()}
    except binascii.Error:
        raise Fault(f"with files that are no base64: {shown(str(list(reply.files)))}") from None
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
        raise Fault("an answer without return_code")
    if code < 0:
        return Ran(status="killed", exit_code=None, reason=f"signal {-code}", **common)
    reason = "" if compiled else "it did not compile"
    return Ran(status="failed" if code else "finished", exit_code=code, reason=reason, **common)


@cache
def wrapper() -> str:
    """The wrapper's source."""
    return resources(__package__).joinpath("fusion_wrapper.py").read_text(encoding="utf-8")


def new_nonce() -> str:
    """A random text that no program can guess."""
    return secrets.token_hex(16)


def report_name(nonce: str) -> str:
    return f"report-{nonce}.json"


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def readable(text: str) -> str:
    """Text that JSON parsers accept: lone surrogates are replaced."""
    return text.encode(errors="replace").decode()


def shown(text: str, bound: int = 300) -> str:
    """The end of the text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= bound else "…" + flat[-bound:]
