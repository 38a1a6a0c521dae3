"""A run that reaches its cluster by `ray://`, from a process that is no node of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.executors.ray.nodes import wait_for
from tests.test_resume import MATRIX, rollouts, weights

pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray"), pytest.mark.long]
ROOT = Path(__file__).parents[4]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
    return port


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of the client server of a cluster of one node, which `ray start` has made a token for."""
    pytest.importorskip("ray")
    pytest.importorskip("grpc")
    port, program = free_port(), "import sys; from ray.scripts.scripts import main; sys.exit(main())"
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as folder:  # paths of sockets are short
        arguments = [
            "start", "--head", f"--port={free_port()}", f"--ray-client-server-port={port}", "--num-cpus=8",
            "--min-worker-port=0", "--max-worker-port=0", "--include-dashboard=false",
            f"--temp-dir={folder}", "--block",
        ]  # fmt: skip
        head = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(lambda: answers(port), 120, "the client server")
            yield f"ray://127.0.0.1:{port}"
        finally:
            head.terminate()
            try:
                head.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(head.pid, signal.SIGKILL)


def run(folder: Path, *words: str) -> Path:
    command = [sys.executable, "-m", "coterie", "run", str(MATRIX), "schedule.steps=4", *words]
    done = subprocess.run(
        [*command, "--out", str(folder)], capture_output=True, text=True, cwd=ROOT, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_by_ray_client_is_the_run_in_one_process(address: str, tmp_path: Path) -> None:
    local = run(tmp_path / "local")
    away = run(tmp_path / "away", "--with", "ray", f"cluster.address={address}", "cluster.workers=2")
    assert weights(away) == weights(local) and rollouts(away) == rollouts(local)
