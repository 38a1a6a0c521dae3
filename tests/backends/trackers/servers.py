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
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
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


def later(first: Any, path: str, status: int) -> Any:
    """A server that answers as another one does, until a path is asked for: then a status, or 0: it hangs."""
    broken = threading.Event()

    def answer(asked: str, body: bytes, headers: Any) -> tuple[int, bytes]:
        if asked.endswith(path):
            broken.set()
        if not broken.is_set():
            answered: tuple[int, bytes] = first(asked, body, headers)
            return answered
        if not status:
            threading.Event().wait(120)
        return status, b"{}"

    return answer


def flow(path: str, body: bytes, headers: Any) -> tuple[int, bytes]:
    """What an MLflow server answers a run that begins."""
    experiment = {
        "experiment_id": "1",
        "name": "coterie",
        "artifact_location": "x",
        "lifecycle_stage": "active",
    }
    info = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING", "artifact_uri": "x",
            "lifecycle_stage": "active"}  # fmt: skip
    return 200, json.dumps({"experiment": experiment, "run": {"info": info, "data": {}}}).encode()


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


class Bias:
    """What W&B's server answers a run, and the rows that it was sent."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __call__(self, path: str, body: bytes, headers: Any) -> tuple[int, bytes]:
        sent = json.loads(body) if body else {}
        if path == "/graphql":
            text = sent["query"]
            return 200, json.dumps({"data": self._data(text, sent.get("variables", {}))}).encode()
        if path.endswith("/file_stream"):
            history = sent.get("files", {}).get("wandb-history.jsonl", {})
            self.rows += [json.loads(line) for line in history.get("content", ())]
        return 200, b"{}"

    def _data(self, text: str, variables: Any) -> Any:
        if "upsertBucket" in text:
            project = {"name": "small", "entity": {"name": "team"}}
            bucket = {
                "id": "1",
                "name": variables.get("name"),
                "displayName": "n",
                "project": project,
                "config": "{}",
            }
            return {"upsertBucket": {"bucket": bucket, "inserted": True}}
        if "createRunFiles" in text:
            return {"createRunFiles": {"runID": "1", "uploadHeaders": [], "files": []}}
        return {"viewer": {"id": "1", "username": "team", "entity": "team", "flags": "{}"}, "model": None,
                "serverInfo": {"features": [], "cliVersionInfo": {}}}  # fmt: skip
