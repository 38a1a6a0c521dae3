"""The connection of a run to a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.backends.cluster.hosts import import_ray, start_actor
from coterie.backends.cluster.placement import RUN, ClusterNode, Process
from coterie.backends.cluster.processes import processes_of
from coterie.backends.cluster.reservation import OwnGpus, Reservation, Room
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.transfer import Transfer, transfer_of
from coterie.backends.cluster.wire import environment
from coterie.core.config import RunConfig
from coterie.core.errors import UserError

log = logging.getLogger("coterie")
PATH = "cluster.address"
ANSWERS = 45.0
"""Seconds for which a cluster may take to answer a first question."""
PLACED = 60.0
"""Least seconds that an actor has to find its place: its process imports Ray meanwhile."""
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

_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(?![A-Za-z])", re.IGNORECASE)
_PLAIN = ("HOME", "PATH", "USER", "LANG", "PWD", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables that are no secrets although a setting names them: processes can't do without."""


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


def check_ray(address: str) -> None:
    """Raise RuntimeError where something else listens: Ray would wait for it without an end.

    A cluster may want the token that `ray start` has made for this user. Ray's drivers use it only if they
    are told to, and one that does can't use a cluster without tokens.
    """
    if address.startswith("ray://"):
        return
    why = _first_answer(address)
    if any(word in why.lower() for word in ("unauthenticated", "token")):
        _use_token()
        why = _first_answer(address)
    if why:
        raise RuntimeError(why)


def _first_answer(address: str) -> str:
    """Why Ray can't be asked there; empty: it answers."""
    program = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
    command = [sys.executable, "-c", program, address]
    try:
        asking = subprocess.run(command, capture_output=True, text=True, timeout=ANSWERS)
    except subprocess.TimeoutExpired:
        return f"what listens there has not answered as Ray does, in {ANSWERS:g} s"
    return (asking.stderr.strip() or "it failed").rpartition("\n")[2] if asking.returncode else ""


def _use_token() -> None:
    with suppress(ImportError):  # of an older Ray
        from ray._private.authentication import authentication_token_setup as setup

        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def secret_variables(named: Collection[str]) -> dict[str, str]:
    """The variables of this process with secrets, by their names or since a configuration names them.

    Ray's processes are started without them: whoever is on a node can read the environment of a process, and
    Ray shows that of an actor in its dashboard. A process that needs some gets them in a method call. Ray's
    own are left out: its processes know each other by them.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and (_SECRET.search(name) or (name in named and name not in _PLAIN))
    }


class Connection:
    """A run's use of Ray: it connects once, places actors, and removes all of them when it ends.

    Args:
        run: whose processes get room of their own. None: nothing is planned.

    Raises:
        ConfigError: settings that no cluster can follow.
    """

    def __init__(self, settings: ClusterConfig, run: RunConfig | None = None) -> None:
        self.settings = settings
        self._run = run
        self._planned = self._processes(())
        self.reservation: Reservation | None = None
        """None: it is not connected."""
        self._own_gpus = OwnGpus()
        self.ray: Any = None
        self._ours = False
        """Whether this object has connected, and disconnects."""
        self._actors: list[Any] = []
        self._losses = 0
        self.named: frozenset[str] = frozenset()
        """Environment variables that the configuration names: Ray's processes are started without them."""

    def open(self) -> None:
        """Connect, if it isn't; start a cluster on this machine where there is none to connect to.

        Raises:
            UserError: the cluster can't be reached, or others have taken what the run needs.
            ConfigError: it has fewer CPUs or GPUs than the run takes.
        """
        if self.reservation is not None:
            return
        self.ray = import_ray()
        if not self.ray.is_initialized():
            self._connect()
            self._ours = True
        reservation = Reservation(self.ray, self._processes, self.settings.timeout)
        reservation.take()
        self.reservation = reservation
        self._own_gpus.keep_to(self.gpus_of(RUN))

    def _processes(self, nodes: Sequence[ClusterNode]) -> tuple[Process, ...]:
        return () if self._run is None else processes_of(self._run, self.settings, nodes)

    @property
    def connected(self) -> bool:
        """Whether it is open."""
        return self.reservation is not None

    def rooms(self) -> dict[str, Room]:
        """The rooms of the planned processes, by name."""
        return {} if self.reservation is None else self.reservation.rooms()

    def transfer(self) -> Transfer:
        """How weights go from the trainer to the engine.

        Raises:
            ConfigError: `cluster.weights` names a way that the planned processes don't have.
        """
        placed = () if self.reservation is None else self.reservation.processes()
        return transfer_of(self.settings, placed, self._run)

    def gpus_of(self, name: str) -> tuple[str, ...]:
        """Ray's ids of a planned process's GPUs; those of `run` are for rank 0 of the trainer."""
        return () if self.reservation is None else self.reservation.gpus_of(name)

    def _connect(self) -> None:
        before = signal.getsignal(signal.SIGTERM)
        try:
            address = _address(self.settings.address)
            common = {"log_to_driver": False, "logging_level": logging.ERROR, "namespace": uuid.uuid4().hex}
            if address == LOCAL:
                cpus = max(os.cpu_count() or 1, math.ceil(sum(process.cpus for process in self._planned)))
                quiet = {name: value for name, value in QUIET.items() if name not in os.environ}
                with environment(quiet), environment(dict.fromkeys(self.secrets())):
                    self.ray.init(address=LOCAL, num_cpus=cpus, include_dashboard=False, **common)
                return
            try:
                _check_answers(address)
                check_ray(address)
                self._join(address, common)
            except (OSError, ValueError, RuntimeError) as error:
                what, why = f"no Ray cluster answers at {address}", f"{type(error).__name__}: {error}"
                fix = "start it (`ray start --head`), correct the address, or set cluster.address=local"
                if "ray[client]" in why:
                    what, fix = f"Ray's client is not installed, for {address}", "pip install 'ray[client]'"
                raise UserError(what, path=PATH, why=why, fix=fix) from error
        finally:  # Ray's handler would end the run in the middle of a step
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)

    def _join(self, address: str, common: Mapping[str, Any]) -> None:
        for tries_left in (2, 1, 0):
            try:
                self.ray.init(address=address, **common)
                return
            except ConnectionError:
                if not tries_left or not address.startswith("ray://"):
                    raise
                # A server that wants a token answers a client without one as if it weren't there, and a busy
                # one gives up the client's own server after half a minute.
                _use_token()

    def secrets(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Environment variables with secrets, of these names or all. They go in a method call, never else."""
        secrets = secret_variables(self.named)
        return {name: value for name, value in secrets.items() if names is None or name in names}

    def actor(
        self,
        cls: Any,
        *,
        cpus: float = 0.0,
        gpus: float = 0.0,
        name: str,
        here: bool = False,
        groups: Mapping[str, int] | None = None,
    ) -> Any:
        """The handle of a new actor. It ends with the run's process at the latest: none is detached.

        Args:
            name: of a process of the plan, which says where it is and what it takes; for others `cpus` and
                `gpus` do.
            here: whether one that isn't planned must be on the node of the run's process.
            groups: as in `start_actor`.
        """
        place = {} if self.reservation is None else self.reservation.options(name)
        if here and not place:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            node = self.ray.get_runtime_context().get_node_id()
            place = {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        handle = start_actor(self.ray, cls, cpus=cpus, gpus=gpus, place=place, groups=groups)
        self._actors.append(handle)
        return handle

    async def placed(self, handle: Any, name: str) -> None:
        """Wait until an actor has its place; Ray lets one without room wait for ever.

        Raises:
            UserError: it has none after `PLACED` seconds, or after `cluster.timeout` if that is longer.
            RayError: it is gone.
        """
        seconds = max(PLACED, self.settings.timeout)
        try:
            async with asyncio.timeout(seconds):
                await handle.__ray_ready__.remote()
        except TimeoutError as error:
            free = self.ray.available_resources()
            raise UserError(
                f"the cluster has had no room for {name} for {seconds:g} s",
                path="cluster",
                why=f"{free.get('CPU', 0.0):g} CPUs and {free.get('GPU', 0.0):g} GPUs are free, on all nodes",
                fix="add nodes, or resume the run and take less (cluster.workers); where enough is free, the "
                "machine is too busy to start a process in that time: raise cluster.timeout",
            ) from error

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
        self._own_gpus.see_all()
        if self.reservation is not None:
            self.reservation.give_back()
            self.reservation = None
        if self._ours:
            self.ray.shutdown()
            self._ours = False
