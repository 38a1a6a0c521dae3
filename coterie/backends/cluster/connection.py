"""The connection of a run to a Ray cluster."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.backends.cluster.settings import ClusterConfig
from coterie.core.errors import ConfigError, MissingExtra, UserError

log = logging.getLogger("coterie")
PATH = "cluster.address"
LOCAL = "local"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A dead node is known after 10 seconds, and one that hangs after 30: ten checks fail, each after two
    # seconds and a pause of one. By default that takes a minute or more.
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "10",
}
"""Of a cluster that the run starts itself."""
KEPT = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM", "HF_HUB_OFFLINE", "HF_HOME")
"""Variables that processes of the run have from it: Ray sets the number of threads to that of CPUs."""


def import_ray() -> Any:
    """Ray's module.

    Raises:
        MissingExtra: it isn't installed.
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingExtra("ray", "ray", needed_by="executor 'ray'") from error
    return ray


def _address(setting: str) -> str:
    """The address that a setting stands for. What other runs started for themselves is nobody else's."""
    if setting != "auto":
        return setting
    if stated := os.environ.get("RAY_ADDRESS"):
        return stated
    try:  # written by `ray start`
        folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        started = (Path(folder) / "ray" / "ray_current_cluster").read_text().strip()
        _check_answers(started)
    except (OSError, ValueError):
        log.info("no Ray cluster was started on this machine, and RAY_ADDRESS names none: starting one")
        return LOCAL
    return started


def _check_answers(address: str) -> None:
    """Raise OSError where nobody listens: Ray would try for more than a minute, and end the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        raise ValueError("it is no HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables that aren't set yet, for the processes that are started meanwhile."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)


class Connection:
    """A run's use of Ray: it connects once, places actors, and removes all of them when it ends."""

    def __init__(self, settings: ClusterConfig) -> None:
        self.settings = settings
        self.ray: Any = None
        self._ours = False
        """Whether this object has connected, and disconnects."""
        self._actors: list[Any] = []
        self._losses = 0
        self._expected: list[tuple[str, str, float, float]] = []
        """What else the run takes: who, the setting, CPUs, GPUs."""

    def expect(self, who: str, setting: str, *, cpus: float, gpus: float) -> None:
        """Count processes into what the run takes, before it connects."""
        self._expected.append((who, setting, cpus, gpus))

    def open(self) -> None:
        """Connect, if it isn't; start a cluster on this machine where there is none to connect to.

        Raises:
            UserError: the cluster can't be reached.
            ConfigError: it has fewer CPUs or GPUs than the run takes.
        """
        self.ray = import_ray()
        if not self.ray.is_initialized():
            self._connect()
            self._ours = True
        self._check_room()

    def _connect(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        try:
            address = _address(self.settings.address)
            common = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": uuid.uuid4().hex}
            if address == LOCAL:
                cpus = max(os.cpu_count() or 1, math.ceil(self._wanted["CPU"]))
                with _variables(QUIET):
                    self.ray.init(address=LOCAL, num_cpus=cpus, include_dashboard=False, **common)
                return
            try:
                _check_answers(address)
                self.ray.init(address=address, **common)
            except (OSError, ValueError, RuntimeError) as error:
                what, why = f"no Ray cluster answers at {address}", f"{type(error).__name__}: {error}"
                fix = "start it (`ray start --head`), correct the address, or set cluster.address=local"
                raise UserError(what, path=PATH, why=why, fix=fix) from error
        finally:  # Ray's handler would end the run in the middle of a step
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    @property
    def _wanted(self) -> dict[str, float]:
        settings = self.settings
        return {
            "CPU": settings.workers * settings.worker_cpus
            + settings.engine_cpus
            + sum(cpus for _, _, cpus, _ in self._expected),
            "GPU": settings.engine_gpus + sum(gpus for _, _, _, gpus in self._expected),
        }

    def _check_room(self) -> None:
        there = self.ray.cluster_resources()
        for name, wanted in self._wanted.items():
            if wanted > there.get(name, 0.0):
                takers = ["the engine", *(who for who, *_ in self._expected)]
                if name == "CPU":
                    settings = self.settings
                    takers.insert(0, f"{settings.workers} workers with {settings.worker_cpus:g} each")
                paths = ["cluster.workers" if name == "CPU" else "cluster.engine_gpus"]
                paths += [setting for _, setting, _, gpus in self._expected if name == "GPU" and gpus]
                raise ConfigError(
                    f"the run takes {wanted:g} {name}s, and the cluster has {there.get(name, 0.0):g}",
                    path=paths[-1],
                    why=f"{', '.join(takers)} take them",
                    fix="take fewer workers or ranks, or fewer CPUs for each, or add nodes",
                )

    def actor(self, cls: type, *, cpus: float, gpus: float = 0.0, name: str, node: str = "") -> Any:
        """The handle of a new actor. It ends with the run's process at the latest: none is detached.

        Args:
            node: Ray's id of the node on which it must be.
        """
        variables = {name: os.environ[name] for name in KEPT if name in os.environ}
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_restarts": 0,
            "runtime_env": {"env_vars": variables},
        }
        if node:
            affinity = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            options["scheduling_strategy"] = affinity(node, soft=False)
        handle = self.ray.remote(cls).options(max_concurrency=100_000, **options).remote()
        self._actors.append(handle)
        return handle

    def remove(self, handle: Any) -> None:
        """Kill an actor's process."""
        if handle in self._actors:
            self._actors.remove(handle)
        self.ray.kill(handle)

    def lose(self, handle: Any, what: str, why: str) -> None:
        """Kill what is left of an actor that is gone, and count it.

        Args:
            handle: None: nothing is left.
            what: its process, in words.

        Raises:
            UserError: it is one more than `cluster.restarts`.
        """
        if handle is not None:
            self.remove(handle)
        self._losses += 1
        if self._losses > self.settings.restarts:
            raise UserError(
                f"{what} is gone, and {self._losses - 1} processes of the run were replaced before",
                path="cluster.restarts",
                why=why,
                fix="see what ends them (memory?); resume the run, perhaps with a larger cluster.restarts",
            )

    def close(self) -> None:
        """Kill all actors, and disconnect."""
        if self.ray is None:
            return
        for handle in self._actors:
            self.ray.kill(handle)
        self._actors.clear()
        if self._ours:
            self.ray.shutdown()
            self._ours = False
