"""The placement of a planned run: which process is on which node, before anything starts."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.cli.output import rendered
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.backends.cluster.placement import Node, Placed
    from coterie.backends.cluster.settings import ClusterConfig
    from coterie.backends.cluster.transfer import Transfer
    from coterie.core.config import Resolved, RunConfig
    from coterie.core.training.run import Run


class Placement(NamedTuple):
    """The nodes that a run is planned for, and the processes on each."""

    settings: ClusterConfig
    nodes: tuple[Node, ...]
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
        from coterie.backends.cluster.transfer import transfer_of

        return transfer_of(self.settings, [each.process for each in self.placed], self.run)

    def on(self, node: Node) -> list[Placed]:
        """What is on a node."""
        return [each for each in self.placed if each.node == node.name]

    def left(self, node: Node) -> tuple[float, int]:
        """CPUs and GPUs of a node that nothing takes."""
        here = [each.process for each in self.on(node)]
        cpus = node.cpus - sum(process.cpus for process in here)
        return cpus, node.gpus - sum(process.gpus for process in here)


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


def placement_of(config: RunConfig, count: int, cpus: float | None, gpus: int | None) -> Placement:
    """The placement of a run's processes on equal nodes.

    Args:
        cpus: of a node, `gpus` too; None: what this machine has.

    Raises:
        UserError: the run's executor uses one machine.
        ConfigError: there is none, with the numbers and the setting at fault.
    """
    from coterie.backends.cluster.placement import Node, place
    from coterie.backends.cluster.processes import processes_of
    from coterie.core.config import validate

    declared = _declared_cluster(config)
    if declared is None:
        why = f"executor '{config.executor['type']}' plays in this process alone"
        raise UserError("there is nothing to place", path="--nodes", why=why, fix="add --with ray")
    settings = validate(declared, config.cluster or {}, "cluster")
    gpus = _gpus_here() if gpus is None else gpus
    if cpus is not None and not math.isfinite(cpus):
        raise UserError(f"no node has {cpus} CPUs", path="--node-cpus", fix="give a number, such as 16")
    if cpus is None:
        cpus = float(os.cpu_count() or 1)
        if count == 1:  # a cluster that the run starts for itself has as many as it takes
            taken = processes_of(config, settings, (Node("node 1", cpus, gpus),))
            cpus = max(cpus, float(math.ceil(sum(process.cpus for process in taken))))
    nodes = tuple(Node(f"node {number}", cpus, gpus) for number in range(1, count + 1))
    placement = Placement(settings, nodes, place(nodes, processes_of(config, settings, nodes)), config)
    _ = placement.transfer  # a way that these processes don't have is refused
    return placement


def on_one_machine(resolved: Resolved) -> Resolved:
    """The same run without a cluster: its counts are the same, and its engine is in this process.

    A trainer that shares its GPUs with replicas leaves them in rollouts here, too.

    Raises:
        ConfigError: a setting that no cluster can follow.
    """
    from coterie.backends.cluster.processes import processes_of
    from coterie.core.config import validate

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
    from coterie.discovery import plugins

    executor = plugins().registry.find("executor", config.executor["type"], path="executor.type")
    return getattr(executor.load("executor.type"), "Cluster", None)


def _gpus_here() -> int:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


def report(placement: Placement | None) -> dict[str, Any]:
    """The placement as plain data, under its name; {}: none is asked for."""
    if placement is None:
        return {}
    nodes = [
        {
            "name": node.name,
            "cpus": node.cpus,
            "gpus": node.gpus,
            "free_cpus": placement.left(node)[0],
            "free_gpus": placement.left(node)[1],
        }
        for node in placement.nodes
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
        for each in placement.placed
    ]
    layout, updates = placement.settings.layout, placement.settings.updates
    shown: dict[str, Any] = {"layout": layout, "updates": updates, "nodes": nodes, "processes": processes}
    transfer = placement.transfer
    return {"placement": {**shown, "weights": {"transfer": transfer.name, "why": transfer.why}}}


def show(placement: Placement, config: RunConfig | None = None) -> None:
    """Print the table of processes by node, and what is left.

    Args:
        config: the run's, whose sets of weights may be updated in turn, and whose figures on one machine
            follow; None: neither is said.
    """
    from rich import box
    from rich.table import Table

    from coterie.backends.cluster.placement import amount

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("node")
    table.add_column("process")
    table.add_column("CPUs", justify="right")
    table.add_column("GPUs")
    table.add_column("holds")
    for node in placement.nodes:
        for number, row in enumerate(_rows(placement.on(node))):
            table.add_row(node.name if number == 0 else "", *row)
        table.add_section()
    first, count = placement.nodes[0], len(placement.nodes)
    click.echo(
        f"placement on {count} node{'s' * (count > 1)} of {amount(first.cpus, first.gpus)}, "
        f"cluster.layout {placement.settings.layout}"
    )
    click.echo(rendered(table))
    left = [f"{node.name} {amount(*placement.left(node))}" for node in placement.nodes]
    click.echo(f"left: {'; '.join(left)}")
    click.echo(f"{placement.transfer.text}\n  why: {placement.transfer.why}")
    if config is not None:
        _show_updates(placement, config)
        click.echo("\nthe same run on one machine:")


def _show_updates(placement: Placement, config: RunConfig) -> None:
    """Print that one trainer updates several sets of weights, where it does."""
    from coterie.backends.cluster.processes import sets_of

    sets = sets_of(config.policies, gpus=placement.gpus > 0)
    if placement.settings.updates == "in_turn" and len(sets) > 1:
        click.echo(
            f"{len(sets)} sets of weights ({', '.join(sets)}) are updated in turn, by one trainer; "
            "cluster.updates=at_once gives each a trainer of its own"
        )


def _rows(placed: Sequence[Placed]) -> list[tuple[str, str, str, str]]:
    """The rows of a node; rollout hosts have one together."""
    from coterie.backends.cluster.processes import HOST

    rows, hosts = [], []
    for each in placed:
        process = each.process
        if process.name.startswith(HOST):
            hosts.append(each)
            continue
        gpus = ", ".join(map(str, each.gpus)) or "-"
        if process.shares:
            gpus += f" of {', '.join(process.shares)}"
        rows.append((process.name, f"{process.cpus:g}", gpus, process.holds))
    if hosts:
        name = f"{len(hosts)} {HOST}{'s' * (len(hosts) > 1)}"
        rows.append((name, f"{sum(each.process.cpus for each in hosts):g}", "-", hosts[0].process.holds))
    return rows
