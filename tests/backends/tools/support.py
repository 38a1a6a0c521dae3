"""Sandboxes, servers and components for the tests of tools."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from coterie import Plugin, PolicyFault, SystemFault
from coterie.core.protocols import Program, Ran
from coterie.testing import build

SANDBOX = "tests.backends.tools.support:Subprocess"


class Subprocess(Plugin):
    """A sandbox without isolation, for programs of the tests.

    `# lost worker` and `# killer` in a program simulate a real sandbox's failures.
    """

    async def open(self) -> None:
        self.ran: list[Program] = []

    async def close(self) -> None:
        pass

    async def run(self, program: Program) -> Ran:
        self.ran.append(program)
        if "# lost worker" in program.code:
            raise SystemFault("the worker was lost")
        if "# killer" in program.code:
            raise PolicyFault("the program killed its sandbox twice")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-c", program.code, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        stdout, stderr = await process.communicate()
        code = process.returncode
        return Ran(
            status="finished" if code == 0 else "failed",
            exit_code=code,
            stdout=stdout.decode(),
            stderr=stderr.decode(),
        )

    async def judge(self, judged: Any) -> Any:
        raise SystemFault("judges nothing")


def used(tool: Any, *texts: str) -> list[str]:
    """The result of each text's call; the tool is opened and closed."""

    async def go() -> list[str]:
        await opened(tool)
        try:
            return [await tool.run(tool.find(text)) for text in texts]
        finally:
            if hasattr(tool, "close"):
                await tool.close()

    return asyncio.run(go())


async def opened(tool: Any) -> None:
    sandbox = getattr(tool.config, "sandbox", None)
    if sandbox is not None:
        await sandbox.open()
    if hasattr(tool, "open"):
        await tool.open()


def python_tool(**settings: Any) -> Any:
    return build("tool", {"type": "python", "sandbox": {"type": SANDBOX}, **settings}, name="python")


def native(name: str, **arguments: Any) -> str:
    """A call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


class RequestHandler(BaseHTTPRequestHandler):
    """Passes every request to the server's `answer`."""

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        self.server.answer(self, self.rfile.read(length).decode())  # type: ignore[attr-defined]

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def say(self, status: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def served(answer: Callable[[RequestHandler, str], None]) -> Iterator[str]:
    """Run a loopback server; gives its url."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), RequestHandler)
    server.daemon_threads = True
    server.answer = answer  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/search"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
