"""A hub that can't be reached: said at once, with the reason and what to do."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from coterie.backends.data.hub import HubData
from coterie.backends.models.hub import hub
from coterie.backends.models.sizes import read_config
from coterie.core.errors import ConfigError

pytest.importorskip("huggingface_hub")

MODEL = """
from coterie.backends.models.loading import load_tokenizer
from coterie.backends.models.policy import TorchPolicy
import transformers

def fetch():
    load_tokenizer(TorchPolicy(model="some-org/some-model"), policy="p", vocabulary=())
"""
TIMED = """
import time
begin = time.monotonic()
try:
    fetch()
except Exception as error:
    print(type(error).__name__, error)
print("seconds", time.monotonic() - begin)
"""


@contextmanager
def answering(status: int | None) -> Iterator[str]:
    """A loopback hub that answers every request with a status; None: never."""
    stopped = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if status is None:
                stopped.wait(60)
            self.send_response(status or 200)
            self.send_header("content-length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        stopped.set()
        server.shutdown()
        server.server_close()


def fetched(code: str, folder: Path, endpoint: str) -> tuple[str, float, str]:
    """What a process prints that fetches something from a hub, its seconds, and its stderr."""
    import os

    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(folder), "HF_HUB_ETAG_TIMEOUT": "2"}
    environment.pop("HF_HUB_OFFLINE", None)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code) + TIMED],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    message, _, seconds = done.stdout.partition("seconds ")
    assert seconds, done.stderr
    return message, float(seconds), done.stderr


@pytest.mark.torch
@pytest.mark.long
def test_a_tokenizer_of_a_hub_that_refuses_connections(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    message, seconds, _ = fetched(MODEL, tmp_path, "http://127.0.0.1:9")
    assert seconds < 30, f"{seconds} s"  # with the library's retries: 55 s
    assert message.startswith("ConfigError policies.p.model: the ")
    says_what_to_do(message)
    assert "Traceback" not in message


@pytest.mark.torch
def test_a_model_of_a_hub_that_refuses_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """As above, in this process."""
    pytest.importorskip("transformers")
    unreachable(monkeypatch)
    begin = time.monotonic()
    with pytest.raises(ConfigError) as refused:
        read_config("some-org/some-model", None, "p")
    assert time.monotonic() - begin < 30
    assert refused.value.path == "policies.p.model"
    says_what_to_do(str(refused.value))


def unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub at an address where nothing listens."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")


def says_what_to_do(message: str) -> None:
    for words in (
        "'some-org/some-model' is not in the cache",
        "http://127.0.0.1:9 can't be reached",
        "refused",
        "hf download some-org/some-model --local-dir",
        "HF_HUB_OFFLINE=1",
    ):
        assert words in message


@pytest.mark.torch
@pytest.mark.parametrize(("status", "reason"), [
    pytest.param(500, "answers 500", marks=pytest.mark.long),
    pytest.param(None, "does not answer (waited 2 s", marks=pytest.mark.long),
])  # fmt: skip
def test_a_hub_that_is_ill(status: int | None, reason: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with answering(status) as endpoint:
        message, seconds, stderr = fetched(MODEL, tmp_path, endpoint)
    assert reason in message and seconds < 30, (seconds, message)
    assert "in the cache alone" in stderr


def test_a_dataset_of_a_hub_that_refuses_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("datasets").config
    monkeypatch.setattr(config, "HF_HUB_OFFLINE", False)
    unreachable(monkeypatch)
    data = HubData(HubData.Config(name="some-org/some-data"), SimpleNamespace(path="data"))
    begin = time.monotonic()
    with pytest.raises(ConfigError) as refused:
        data.records("train")
    assert time.monotonic() - begin < 30
    assert "data.name: the dataset 'some-org/some-data' is not in the cache" in str(refused.value)
    assert "hf download some-org/some-data --repo-type dataset" in str(refused.value)


def test_a_busy_server_is_no_reason_to_give_up_and_a_failure_is_remembered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 10)

    def problem(endpoint: str) -> str:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        with hub("model", "a/b") as reason:
            assert constants.HF_HUB_OFFLINE is bool(reason)
        return reason

    for status in (503, 429, 404, 200):
        with answering(status) as endpoint:
            assert problem(endpoint) == ""
    assert "in the cache alone" not in caplog.text
    with answering(500) as endpoint:
        reason = problem(endpoint)
    # The server is gone: an answer from it would be another.
    assert problem(endpoint) == reason and "answers 500" in reason
    assert caplog.text.count("looking for the model 'a/b' in the cache alone") == 2


def test_the_offline_mode_ends_with_the_download(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    unreachable(monkeypatch)
    with pytest.raises(KeyError), hub("model", "a/b") as problem:
        assert "can't be reached" in problem and constants.HF_HUB_OFFLINE
        raise KeyError
    assert constants.HF_HUB_OFFLINE is False
