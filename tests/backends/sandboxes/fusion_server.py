"""A loopback server with SandboxFusion's wire format that runs programs like the stock server: with its time
limit, its limits of memory, its literal `fetch_files` and its stall on long output. It can also simulate
faults, and a kernel without Landlock."""

from __future__ import annotations

import asyncio
import base64
import ctypes
import errno
import functools
import json
import os
import resource
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.backends.loopback import Loopback, Message

COMMANDS = {"python": (None, "{python} {file}"), "bash": (None, "/bin/bash {file}")}
COMMANDS["ruby"] = (None, "no-such-ruby {file}")
COMPILED = {"c": ("gcc -x c {file} -o program", "./program")}
PROBED: dict[tuple[Any, ...], tuple[str, str]] = {}
"""By kind of server: the nonce of a probe and its answer, which stays the same."""
Write = Callable[[bytes], Awaitable[None]]


class FusionServer(Loopback):
    """`with FusionServer() as server:` answers at `server.url` from a separate thread.

    Args:
        faults: names of faults that the next POSTs get instead of their answers; later POSTs are answered. A
            probe gets none and isn't counted.
        always: a fault that every POST gets.
        python: the interpreter that runs programs.
        user: the user id that programs run as (if this process is root).
        fenced: whether each run has a pid namespace of its own, where the kernel allows it. The stock server
            gives none, and what programs do to each other's processes shows only without.
        landlock: whether programs have the kernel's Landlock.
        pause: seconds that a restart takes.
    """

    def __init__(
        self,
        faults: tuple[str, ...] = (),
        *,
        always: str = "",
        python: str = sys.executable,
        user: int | None = None,
        fenced: bool = True,
        landlock: bool = True,
        pause: float = 0.3,
    ) -> None:
        self.faults, self.always, self.python, self.user = deque(faults), always, python, user
        self.fenced, self.landlock, self.pause = fenced, landlock, pause
        self.requests: list[dict[str, Any]] = []
        self.ping = b'"pong"'

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def reply(
        self, message: Message, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        method, path, _, body = message
        if (method, path) == ("GET", "/v1/ping"):
            return await reply_with(writer, 200, self.ping)
        if (method, path) != ("POST", "/run_code"):
            return await reply_with(writer, 404, b'{"detail":"Not Found"}')
        order = json.loads(body)
        if str(order.get("fetch_files")).startswith("['probe-"):
            return await reply_with(writer, 200, json.dumps(await self._probe(order)).encode())
        self.requests.append(order)
        fault = self.faults.popleft() if self.faults else self.always
        if fault:
            return await self._fail(fault, order, writer)
        status, reply = await self._run_code(order)
        return await reply_with(writer, status, json.dumps(reply).encode())

    # ------------------------------------------------------------------------------------------ faults

    async def _fail(self, fault: str, order: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
        if fault in ("500", "504"):
            return await reply_with(writer, int(fault), b'{"detail":"Internal Server Error"}')
        if fault == "hang":
            await asyncio.sleep(600)
        if fault == "drip":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
            while True:
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.05)
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "restart":
            await self._restart()
            return False
        if fault == "404":
            return await reply_with(writer, 404, b'{"detail":"Not Found"}')
        if fault == "deep":
            return await reply_with(writer, 200, b"[" * 200_000)
        if fault == "bad_json":
            return await reply_with(writer, 200, b'{"status": "Success", "run_res')
        if fault == "html":
            return await reply_with(writer, 200, b"<html><body>Welcome to nginx!</body></html>")
        if fault == "huge":
            return await reply_with(
                writer, 200, b'{"status":"Success","message":"' + b"x" * (3 << 20) + b'"}'
            )
        status, reply = await self._run_code({**order, "language": "klingon"} if fault == "422" else order)
        if fault == "null":
            reply["run_result"] = None
        if fault == "error":
            reply |= {"status": "SandboxError", "message": "no executor", "run_result": None}
        if fault == "no_files":
            reply["files"] = {}
        if fault == "other_files":
            reply["files"] = {name: base64.b64encode(b'{"nonce": "0"}').decode() for name in reply["files"]}
        if fault == "not_base64":
            reply["files"] = {name: "�?!" for name in reply["files"]}
        return await reply_with(writer, status, json.dumps(reply).encode())

    async def _restart(self) -> None:
        """Cuts every connection and listens again on the same port a little later."""
        self.hang_up()
        await asyncio.sleep(self.pause)
        await self.listen()

    # ------------------------------------------------------------------------------------- what it does

    async def _probe(self, order: dict[str, Any]) -> Any:
        kind = (self.python, self.user, self.fenced, self.landlock)
        nonce = order["fetch_files"][0].removeprefix("probe-").removesuffix(".json")
        if kind not in PROBED:
            _, reply = await self._run_code(order)
            reply["files"] = {name: base64.b64decode(text).decode() for name, text in reply["files"].items()}
            PROBED[kind] = nonce, json.dumps(reply)
        reply = json.loads(PROBED[kind][1].replace(PROBED[kind][0], nonce))
        reply["files"] = {
            name: base64.b64encode(text.encode()).decode() for name, text in reply["files"].items()
        }
        return reply

    async def _run_code(self, order: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        language = order.get("language")
        if language not in COMMANDS | COMPILED or not isinstance(order.get("code"), str):
            known = "Input should be 'python', 'cpp', 'nodejs', 'go', 'bash', ..."
            return 422, {"detail": [{"type": "literal_error", "loc": ["body", "language"], "msg": known}]}
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            for path, text in order.get("files", {}).items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_bytes(base64.b64decode(text))
            source = folder / "tmp_program.py"
            source.write_text(order["code"], encoding="utf-8")
            if self.user is not None:
                for path in (folder, *folder.rglob("*")):
                    os.chown(path, self.user, self.user)
            compiling, running = (COMMANDS | COMPILED)[language]
            names = {"python": self.python, "file": str(source)}
            compiled = ran = None
            if compiling is not None:
                compiled = await self._command(
                    compiling.format(**names), folder, order["compile_timeout"], None, order
                )
            if compiled is None or compiled["return_code"] == 0:
                ran = await self._command(
                    running.format(**names), folder, order.get("run_timeout", 10), order.get("stdin"), order
                )
            files = {
                path: base64.b64encode((folder / path).read_bytes()).decode()
                for path in order.get("fetch_files", ())
                if (folder / path).is_file()
            }
        both = [result for result in (compiled, ran) if result is not None]
        failed = any(result["return_code"] != 0 for result in both)
        return 200, {
            "status": "Failed" if failed else "Success",
            "message": "",
            "compile_result": compiled,
            "run_result": ran,
            "executor_pod_name": None,
            "files": files,
        }

    async def _command(
        self, command: str, folder: Path, timeout: float, stdin: str | None, order: dict[str, Any]
    ) -> dict[str, Any]:
        """As the stock server: it waits first and reads then, so that long output stalls it."""
        pipe, memory = asyncio.subprocess.PIPE, order.get("memory_limit_MB", -1) << 20

        def prepare() -> None:
            if not self.landlock:
                hide_landlock()
            for kind in (
                (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_STACK) if memory > 0 else ()
            ):
                resource.setrlimit(kind, (memory, resource.getrlimit(kind)[1]))

        # Bash stays the first process: the kernel would not let pid 1 be killed.
        process = await asyncio.create_subprocess_exec(
            *(fence(self.user) if self.fenced else ()),
            *("/bin/bash", "-c", f"{shlex.join(command.split())}; exit $?"),
            cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, user=self.user, group=self.user,
            extra_groups=None if self.user is None else [], start_new_session=True, preexec_fn=prepare,
        )  # fmt: skip
        assert process.stdin and process.stdout and process.stderr
        if stdin is not None:
            process.stdin.write(stdin.encode())
        process.stdin.close()
        began, late = time.monotonic(), False
        try:
            await asyncio.wait_for(process.wait(), timeout)
        except TimeoutError:
            late = True
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = await asyncio.gather(process.stdout.read(), process.stderr.read())
        await process.wait()
        return {
            "status": "TimeLimitExceeded" if late else "Finished",
            "execution_time": time.monotonic() - began,
            "return_code": None if late else process.returncode,
            "stdout": stdout.decode(errors="replace"),
            "stderr": stderr.decode(errors="replace"),
        }


@functools.cache
def fence(user: int | None) -> tuple[str, ...]:
    """A command that isolates hostile test programs from other processes, if the kernel allows it."""
    own = ("--user", "--map-current-user") if user or os.geteuid() else ()
    command = ("unshare", *own, "--pid", "--fork", "--mount-proc", "--kill-child")
    try:
        code = subprocess.run([*command, "true"], capture_output=True, user=user, cwd="/").returncode
    except OSError:
        return ()
    return command if code == 0 else ()


async def reply_with(writer: asyncio.StreamWriter, status: int, body: bytes) -> bool:
    head = (
        f"HTTP/1.1 {status} Whatever\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return True


def hide_landlock() -> None:
    """Refuse the three system calls of Landlock to this process, as a kernel without it does."""
    jump = struct.Struct("=HBBI")
    code = b"".join([
        jump.pack(0x20, 0, 0, 0), jump.pack(0x35, 0, 2, 444), jump.pack(0x25, 1, 0, 446),
        jump.pack(0x06, 0, 0, 0x00050000 | errno.ENOSYS), jump.pack(0x06, 0, 0, 0x7FFF0000),
    ])  # fmt: skip
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    libc, zero = ctypes.CDLL(None), ctypes.c_ulong(0)
    assert libc.prctl(38, ctypes.c_ulong(1), zero, zero, zero) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, ctypes.c_ulong(2), program, zero, zero) == 0  # PR_SET_SECCOMP
