"""Loopback servers: one that records Weave's calls, and servers with faults."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Answers JSON; `answer` is the server's."""

    def _reply(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        status, answer = self.server.answer(self.path, body, self.headers)  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = do_PATCH = _reply

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(answer: Any):
    """The URL of a server on 127.0.0.1 that answers (path, body, headers) with (status, bytes)."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.answer = answer  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def hanging():
    """The URL of a server that accepts every connection and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(256)
        opened: list[socket.socket] = []

        def accept() -> None:
            while True:
                try:
                    opened.append(listening.accept()[0])
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


class Traces:
    """What a Weave trace server and W&B's GraphQL answer, and the calls that were sent."""

    def __init__(self) -> None:
        self.calls: dict[str, dict[str, Any]] = {}
        self.bodies: list[bytes] = []

    def __call__(self, path: str, body: bytes, headers: Any) -> tuple[int, bytes]:
        self.bodies.append(body)
        sent = json.loads(body) if body else {}
        answer: Any = {}
        if path == "/graphql":
            answer = {"data": {"project": {"name": "small"}}}
        elif path == "/server_info":
            answer = {"min_required_weave_python_version": "0.0.1"}
        elif path == "/v2/team/small/calls/complete":
            self.calls |= {call["id"]: call for call in sent["batch"]}
        elif path == "/calls/delete":
            gone = set(sent["call_ids"])
            while gone:
                self.calls = {id: call for id, call in self.calls.items() if id not in gone}
                gone = {
                    id
                    for id, call in self.calls.items()
                    if call["parent_id"] and call["parent_id"] not in self.calls
                }
        elif path == "/calls/stream_query":
            return 200, b"".join(json.dumps(call).encode() + b"\n" for call in self.calls.values())
        else:
            return 404, b"{}"
        return 200, json.dumps(answer).encode()
