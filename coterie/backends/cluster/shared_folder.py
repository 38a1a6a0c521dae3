"""A folder that all nodes of a cluster see, and the check that they do. Imports neither Ray nor torch."""

from __future__ import annotations

import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.wire import first_line
from coterie.core.errors import ConfigError, UserError
from coterie.core.storage.atomic import write_atomic, written

FOLDER = "cluster.weights_folder"
FIX = (
    f"name a folder of a disk that all nodes have at the same path ({FOLDER}), or set cluster.weights=auto "
    "(Ray's object store)"
)
LAG = 10.0
"""Seconds after which what one node has written is seen by another, on a network file system."""
ANSWER = 60.0
"""Least seconds that a node has to start a process, and to read a file there."""


def check_weights(settings: ClusterConfig) -> None:
    """Refuse a folder that nothing is written to, and files of weights that the run's process doesn't have.

    Raises:
        ConfigError: `weights` says that weights are in no files, or `updates` that trainers send them.
    """
    if settings.weights == "disk" and settings.updates == "at_once":
        raise ConfigError(
            "trainers of their own send their weights through Ray's object store, and not by files",
            path="cluster.weights",
            why="cluster.updates is at_once",
            fix="set cluster.weights=auto, or cluster.updates=in_turn",
        )
    if settings.weights_folder is not None and settings.weights != "disk":
        raise ConfigError(
            "nothing is written to this folder",
            path=FOLDER,
            why=f"cluster.weights is {settings.weights}",
            fix="set cluster.weights=disk, or remove it (cluster.weights_folder=null)",
        )


def check_seen(ray: Any, folder: Path, seconds: float) -> None:
    """Write a file, and let a process of every node read it. Makes the folder.

    Args:
        seconds: which a node has for its answer, at least.

    Raises:
        WriteError: this process can't write it.
        UserError: a node doesn't see it, with each node's reason.
    """
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    probe, content = folder / f"probe-{secrets.token_hex(4)}", secrets.token_hex(16)
    write_atomic(probe, content)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        answers = [_asked(ray, node["NodeID"], probe) for node in nodes]
        deadline = time.monotonic() + max(seconds, ANSWER)
        blind = []
        for node, answer in zip(nodes, answers, strict=True):
            try:
                host, read = ray.get(answer, timeout=max(deadline - time.monotonic(), 1.0))
            except ray.exceptions.RayError as error:
                host, read = node["NodeManagerHostname"], f"its process: {first_line(error)}"
            if read != content:
                why = read if ":" in read else "the file has another content there: it is another disk"
                blind.append(f"node {host} ({node['NodeManagerAddress']}): {why}")
    finally:
        with suppress(OSError):
            probe.unlink()
    if blind:
        what = f"{len(blind)} of {len(nodes)} nodes can't read what the run writes to {folder}"
        raise UserError(what, path="cluster.weights", why="\n".join(blind), fix=FIX)


def _asked(ray: Any, node: str, probe: Path) -> Any:
    """A reference to the answer of a node."""
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(read_there).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return task.remote(str(probe))


def read_there(path: str, lag: float = LAG) -> tuple[str, str]:
    """(this host, the content of a file, or `Error: why` where it can't be read)."""
    deadline = time.monotonic() + lag
    while True:
        try:
            return socket.gethostname(), Path(path).read_text()
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or time.monotonic() > deadline:
                return socket.gethostname(), f"{type(error).__name__}: {error}"
        time.sleep(0.2)
