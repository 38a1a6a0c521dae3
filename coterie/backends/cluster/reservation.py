"""The room of a run on a live cluster: planned processes get their nodes and GPUs, and no other run does.

One placement group holds all processes but the rollout hosts, each in a bundle on its planned node. It isn't
detached: it ends with the run's process at the latest. Hosts are replaced freely, so they only prefer a node.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from coterie.backends.cluster.placement import ClusterNode, Placed, Process, amount, place
from coterie.backends.cluster.processes import HOST
from coterie.core.errors import ConfigError, UserError

log = logging.getLogger("coterie")
VISIBLE = "CUDA_VISIBLE_DEVICES"
NODE_ID = "ray.io/node-id"
"""The label that Ray gives each node."""
LOOKS = 0.5
"""Seconds between two looks at what is free."""
WAIT = 10.0
"""Seconds for a group that should have room: messages to all of its nodes."""


class Room(NamedTuple):
    """What a planned process has of the cluster. Picklable."""

    node: str
    """Ray's id of its node."""
    options: Mapping[str, Any]
    """Ray's, with which it is placed there."""
    shared: bool
    """Whether its GPUs are the trainer's too."""


class Reservation:
    """The room of a run, from `take` to `give_back`.

    Args:
        ray: Ray's module, connected.
        processes_of: the processes of the run on given nodes.
        timeout: most seconds to wait while other runs have the room.
    """

    def __init__(
        self, ray: Any, processes_of: Callable[[Sequence[ClusterNode]], Sequence[Process]], timeout: float
    ) -> None:
        self._ray, self._processes_of, self._timeout = ray, processes_of, timeout
        self._group: Any = None
        self._bundles: dict[str, int] = {}
        """By process of the group: its bundle."""
        self.placed: dict[str, Placed] = {}
        """By name: the processes that have room in it."""
        self._hosts: list[Placed] = []
        self._gpus: dict[str, tuple[str, ...]] = {}
        """By process of the group with GPUs: Ray's ids of them on its node."""

    def take(self) -> None:
        """Reserve the room, as soon as the cluster has it.

        Raises:
            ConfigError: the cluster is too small, however little others take.
            UserError: others have taken it for `timeout` seconds.
        """
        deadline = time.monotonic() + self._timeout
        nodes = self._nodes()
        processes = self._processes_of(nodes)
        place(self._named(nodes), processes)
        while not self._take_now(processes, deadline):
            if time.monotonic() >= deadline:
                raise self._taken(processes)
            time.sleep(LOOKS)

    def options(self, name: str) -> dict[str, Any]:
        """Ray's options of a process by its name; {} for one that isn't planned."""
        affinity = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        placed = self.placed.get(name)
        if placed is None and name.startswith(HOST) and self._hosts:  # one in place of a lost one
            placed = self._hosts[int(name.removeprefix(HOST)) % len(self._hosts)]
        if placed is None:
            return {}
        process = placed.process
        options: dict[str, Any] = {"num_cpus": process.cpus, "num_gpus": process.gpus}
        if process.name.startswith(HOST):
            options["scheduling_strategy"] = affinity(placed.node, soft=True, _spill_on_unavailable=True)
        elif not any(each.name == placed.node for each in self._nodes()):
            pass  # wherever there is room now
        elif name in self._bundles:
            group = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            options["scheduling_strategy"] = group(self._group, self._bundles[name])
        else:  # a bundle can't be empty
            options["scheduling_strategy"] = affinity(placed.node, soft=False)
        if process.shares:
            gpus = [gpu for owner in process.shares for gpu in self._gpus[owner]]
            options["env_vars"] = {
                VISIBLE: ",".join(gpus),
                # It holds none by Ray's count, which would hide them all.
                "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
            }
        return options

    def rooms(self) -> dict[str, Room]:
        """The rooms of all processes in the group, by name."""
        return {
            name: Room(placed.node, self.options(name), bool(placed.process.shares))
            for name, placed in self.placed.items()
        }

    def processes(self) -> tuple[Process, ...]:
        """All that are placed."""
        return tuple(each.process for each in self.placed.values())

    def gpus_of(self, name: str) -> tuple[str, ...]:
        """Ray's ids of the GPUs that a process has reserved on its node."""
        return self._gpus.get(name, ())

    def give_back(self) -> None:
        """Remove the group, and all processes in it."""
        group, self._group = self._group, None
        if group is not None:
            self._ray.util.remove_placement_group(group)

    # -------------------------------------------------------------------------------------------- the cluster

    def _nodes(self, *, free: bool = False) -> list[ClusterNode]:
        """The nodes that are alive, by Ray's ids, the run's own first; `free`: what no process has."""
        free = free and not self._ray.util.client.ray.is_connected()  # a client isn't told
        here = self._ray.get_runtime_context().get_node_id()
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        alive.sort(key=lambda node: (node["NodeID"] != here, node["NodeManagerAddress"], node["NodeID"]))
        left = self._ray._private.state.available_resources_per_node() if free else {}
        nodes = []
        for node in alive:
            has = left.get(node["NodeID"], {}) if free else node["Resources"]
            nodes.append(ClusterNode(node["NodeID"], has.get("CPU", 0.0), int(has.get("GPU", 0))))
        return nodes

    def _named(self, nodes: Sequence[ClusterNode]) -> list[ClusterNode]:
        """The nodes by their addresses, for people; the part of an id tells those of one address apart."""
        address = {node["NodeID"]: node["NodeManagerAddress"] for node in self._ray.nodes()}
        given = [address[node.name] for node in nodes]
        return [
            replace(node, name=name if given.count(name) == 1 else f"{name} ({node.name[:8]})")
            for node, name in zip(nodes, given, strict=True)
        ]

    def _take_now(self, processes: Sequence[Process], deadline: float) -> bool:
        """Reserve the room if it is free; return whether it was."""
        try:
            placed = place(self._nodes(free=True), processes)
        except ConfigError:
            return False
        self.placed = {each.process.name: each for each in placed}
        self._hosts = [each for each in placed if each.process.name.startswith(HOST)]
        fixed = [each for each in placed if each not in self._hosts]
        held = [each for each in fixed if each.process.cpus or each.process.gpus]
        self._bundles = {each.process.name: number for number, each in enumerate(held)}
        if not held:
            return True
        self._group = self._ray.util.placement_group(
            [_bundle(each.process) for each in held],
            strategy="PACK",
            bundle_label_selector=[{NODE_ID: each.node} for each in held],
        )
        # What is free is known a little late: another run may have been faster.
        if not self._group.wait(min(WAIT, max(deadline - time.monotonic(), 1))):
            self.give_back()
            return False
        self._gpus = self._ids([each for each in held if each.process.gpus])
        return True

    def _ids(self, held: Sequence[Placed]) -> dict[str, tuple[str, ...]]:
        """The GPUs of bundles: whoever runs there is told."""
        ray, group = self._ray, self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy

        def ids() -> list[str]:  # travels by value: it is no function of a module
            return [str(gpu) for gpu in ray.get_gpu_ids()]

        asked = {
            each.process.name: ray.remote(ids)
            .options(
                num_cpus=0,
                num_gpus=each.process.gpus,
                max_retries=0,
                scheduling_strategy=group(self._group, self._bundles[each.process.name]),
            )
            .remote()
            for each in held
        }
        return {name: tuple(ray.get(answer, timeout=self._timeout)) for name, answer in asked.items()}

    def _taken(self, processes: Sequence[Process]) -> UserError:
        """The error after the last look, with what is free."""
        free = self._named(self._nodes(free=True))
        lines = [f"{node.name} has {amount(round(node.cpus, 4), node.gpus)}" for node in free]
        cpus, gpus = sum(each.cpus for each in processes), sum(each.gpus for each in processes)
        return UserError(
            f"the run takes {amount(cpus, gpus)}, and others have taken them",
            path="cluster",
            why=f"free after {self._timeout:g} s: {'; '.join(lines)}",
            fix="wait until another run has ended, take less, add nodes, or raise cluster.timeout",
        )


class OwnGpus:
    """The GPUs that this process sees, from `keep_to` to `see_all`: rank 0 is no process of Ray's."""

    def __init__(self) -> None:
        self._chosen = ""
        self._before: str | None = None

    def keep_to(self, gpus: Sequence[str]) -> None:
        """See these GPUs alone; () changes nothing. CUDA must not have counted them yet, else a warning."""
        if not gpus:
            return
        self._chosen, self._before = ",".join(gpus), os.environ.get(VISIBLE)
        os.environ[VISIBLE] = self._chosen
        torch = sys.modules.get("torch")
        if torch is not None and torch.version.cuda and torch._C._cuda_getDeviceCount() > len(gpus):
            log.warning(
                "the run has reserved GPU %s of its node, and its process sees others, too: start it with "
                "%s=%s", self._chosen, VISIBLE, self._chosen,
            )  # fmt: skip

    def see_all(self) -> None:
        """Undo `keep_to`."""
        if not self._chosen or os.environ.get(VISIBLE) != self._chosen:
            return
        if self._before is None:
            del os.environ[VISIBLE]
        else:
            os.environ[VISIBLE] = self._before
        self._chosen = ""


def _bundle(process: Process) -> dict[str, float]:
    needs = {"CPU": float(process.cpus), "GPU": float(process.gpus)}
    return {name: number for name, number in needs.items() if number}
