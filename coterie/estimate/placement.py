"""The placement of a planned run: which process is on which node, before anything starts."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

from coterie.backends.cluster.placement import ClusterNode, Placed, place
from coterie.backends.cluster.processes import processes_of
from coterie.backends.cluster.settings import ClusterConfig
from coterie.backends.cluster.transfer import Transfer, transfer_of
from coterie.core.config import Resolved, RunConfig
from coterie.core.errors import ConfigError, UserError
from coterie.core.training.run import Run
from coterie.discovery import plugins
from coterie.discovery.validation import validate


class ClusterPlacement(NamedTuple):
    """The nodes that a run is planned for, and the processes on each."""

    settings: ClusterConfig
    nodes: tuple[ClusterNode, ...]
    placed: tuple[Placed, ...]
    run: RunConfig

    @property
    def gpus(self) -> int:
        return sum(node.gpus for node in self.nodes)

    def shared_by(self, run: Run) -> int | None:
        """How many GPUs trainer and replicas have together, as on a machine with no others; None: not any."""
        if self.settings.layout != "colocate" or not self.gpus:
            return None
        return int(getattr(getattr(run.trainer, "config", None), "ranks", 1))

    @property
    def transfer(self) -> Transfer:
        """How weights go to the engine."""
        return transfer_of(self.settings, [each.process for each in self.placed], self.run)

    def on(self, node: ClusterNode) -> list[Placed]:
        """What is on a node."""
        return [each for each in self.placed if each.node == node.name]

    def left(self, node: ClusterNode) -> tuple[float, int]:
        """CPUs and GPUs of a node that nothing takes."""
        here = [each.process for each in self.on(node)]
        cpus = node.cpus - sum(process.cpus for process in here)
        return cpus, node.gpus - sum(process.gpus for process in here)

    def as_dict(self) -> dict[str, Any]:
        """The placement as plain data."""
        nodes = [
            {
                **asdict(node),
                "free_cpus": self.left(node)[0],
                "free_gpus": self.left(node)[1],
            }
            for node in self.nodes
        ]
        processes = [
            {
                "name": each.process.name,
                "node": each.node,
                "cpus": each.process.cpus,
                "gpus": list(each.gpus),
                "shares": list(each.process.shares),
                "holds": each.process.holds,
            }
            for each in self.placed
        ]
        return {
            "layout": self.settings.layout,
            "updates": self.settings.updates,
            "nodes": nodes,
            "processes": processes,
            "weights": {"transfer": self.transfer.name, "why": self.transfer.why},
        }


def check_options(nodes: int | None, **others: Any) -> None:
    """Refuse options that say nothing without `--nodes`, or contradict it.

    Args:
        nodes: the value of `--nodes`; `others`: those of `node_cpus`, `node_gpus` and `gpus`.

    Raises:
        UserError: which one.
    """
    given = [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]
    if nodes is None:
        alone = [name for name in given if name != "--gpus"]
        if alone:
            raise UserError("this option has no effect", path=alone[0], why="there is no --nodes")
    elif "--gpus" in given:
        why = "with --nodes, --node-gpus says how many GPUs each node has"
        raise UserError("this option has no effect", path="--gpus", why=why, fix="leave one of them out")


def check_ranges(*, gpu_memory: float | None, node_cpus: float | None, **whole: int | None) -> None:
    """Refuse numbers of devices, nodes and bytes that no machine has.

    Args:
        whole: `gpus`, `nodes` and `node_gpus`; a node may have no GPU.

    Raises:
        ConfigError: with the option.
    """
    numbers = {"gpu_memory": gpu_memory, "node_cpus": node_cpus, **whole}
    for name, value in numbers.items():
        least = 0 if name == "node_gpus" else 1 if name in whole else math.ulp(0.0)
        if value is not None and not (math.isfinite(value) and value >= least):
            wanted = f"{least} or more" if name in whole else "more than 0"
            what = f"{name.replace('_', '-')} is {value!r}"
            raise ConfigError(what, path=f"--{name.replace('_', '-')}", fix=f"give a number, {wanted}")


def placement_of(config: RunConfig, count: int, cpus: float | None, gpus: int | None) -> ClusterPlacement:
    """The placement of a run's processes on equal nodes.

    Args:
        cpus: of a node, `gpus` too; None: what this machine has.

    Raises:
        UserError: the run's executor uses one machine.
        ConfigError: there is none, with the numbers and the setting at fault.
    """
    declared = _declared_cluster(config)
    if declared is None:
        why = f"executor '{config.executor['type']}' plays in this process alone"
        raise UserError("there is nothing to place", path="--nodes", why=why, fix="add --with ray")
    settings = validate(declared, config.cluster or {}, "cluster")
    if gpus is None:
        gpus = 0
        if find_spec("torch") is not None:
            import torch

            gpus = torch.cuda.device_count()
    if cpus is not None and not math.isfinite(cpus):
        raise UserError(f"no node has {cpus} CPUs", path="--node-cpus", fix="give a number, such as 16")
    if cpus is None:
        cpus = float(os.cpu_count() or 1)
        if count == 1:  # a cluster that the run starts for itself has as many as it takes
            taken = processes_of(config, settings, (ClusterNode("node 1", cpus, gpus),))
            cpus = max(cpus, float(math.ceil(sum(process.cpus for process in taken))))
    nodes = tuple(ClusterNode(f"node {number}", cpus, gpus) for number in range(1, count + 1))
    placement = ClusterPlacement(settings, nodes, place(nodes, processes_of(config, settings, nodes)), config)
    _ = placement.transfer  # a way that these processes don't have is refused
    return placement


def on_one_machine(resolved: Resolved) -> Resolved:
    """The same run without a cluster: its counts are the same, and its engine is in this process.

    A trainer that shares its GPUs with replicas leaves them in rollouts here, too.

    Raises:
        ConfigError: a setting that no cluster can follow.
    """
    declared = _declared_cluster(resolved.config)
    if declared is None:
        return resolved
    settings = validate(declared, resolved.config.cluster or {}, "cluster")
    processes_of(resolved.config, settings, ())
    trainer, leaves = resolved.config.trainer, "offload_in_rollouts"
    if settings.layout == "colocate" and trainer.get(leaves, "auto") == "auto":
        trainer = {**trainer, leaves: "all"}
    alone = {"executor": {"type": "local"}, "cluster": None, "trainer": trainer}
    return replace(resolved, config=resolved.config.model_copy(update=alone))


def _declared_cluster(config: RunConfig) -> Any:
    """The schema of the table `cluster`; None: the run's executor uses one machine."""
    executor = plugins().registry.find("executor", config.executor["type"], path="executor.type")
    return executor.attribute("Cluster", "executor.type")
