"""The placement of a run: which of its processes is on which node. Pure; imports neither Ray nor torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from coterie.core.errors import ConfigError

RUN = "run"
"""The name of the run's process, with rank 0 of the trainer; it is on the first node."""
TRAINER = "trainer"
"""The first word of the names of ranks of which no one is the run's process (`cluster.updates: at_once`)."""
CLOSE = 1e-9
"""CPUs by which sums of fractions may miss."""
MOST_TRIES = 50_000
"""Choices of a node after which the search gives up. Up to here what is refused can't be."""


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of the cluster, and what of it is free."""

    name: str
    cpus: float
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a run, and what it takes of its node."""

    name: str
    cpus: float
    gpus: int = 0
    with_run: bool = False
    """Whether it must be on the node of the run's process."""
    shares: tuple[str, ...] = ()
    """Processes whose GPUs it uses, all of them, on their node (`layout: colocate`); it takes none then."""
    setting: str = ""
    """What says how many GPUs it takes, or how many of its kind there are: named where GPUs are missing."""
    fix: str = ""
    """What to do then; else to lower the setting."""
    cpu_setting: str = ""
    """The same where CPUs are missing."""
    holds: str = ""
    """What is in it, for people."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A process, its node, and which of the node's GPUs it uses."""

    process: Process
    node: str
    gpus: tuple[int, ...] = ()


def place(nodes: Sequence[ClusterNode], processes: Sequence[Process]) -> tuple[Placed, ...]:
    """The placement of all processes, in their order. The same arguments have the same one.

    The run's process is on the first node. Processes with GPUs fill the nodes in order, each whole on one;
    those without follow, each on the node with the most free CPUs. A choice that leaves another process
    without a node is taken back.

    Raises:
        ConfigError: there is no such placement, with what is needed, what there is, and the largest node.
    """
    units = _units(processes)
    if not nodes:
        raise _refusal(nodes, processes, units)
    free = [_Free(node.cpus, node.gpus) for node in nodes]
    for unit in units:
        if unit.first_node:
            free[0].take(unit)
    if free[0].cpus < -CLOSE or free[0].gpus < 0:
        raise _refusal(nodes, processes, units)
    others = [unit for unit in units if not unit.first_node]
    chosen = _search(free, others)
    if chosen is None:
        raise _refusal(nodes, processes, units)
    node_of = {name: 0 for unit in units if unit.first_node for name in unit.names}
    for unit, node in zip(others, chosen, strict=True):
        node_of |= dict.fromkeys(unit.names, node)
    return _numbered(nodes, processes, node_of)


@dataclass(slots=True)
class _Unit:
    """Processes that must be on one node, together."""

    names: list[str]
    cpus: float
    gpus: int
    first_node: bool


@dataclass(slots=True)
class _Free:
    """What is left of a node."""

    cpus: float
    gpus: int

    def has(self, unit: _Unit) -> bool:
        return self.cpus - unit.cpus >= -CLOSE and self.gpus >= unit.gpus

    def take(self, unit: _Unit, sign: int = 1) -> None:
        self.cpus -= sign * unit.cpus
        self.gpus -= sign * unit.gpus


def _units(processes: Sequence[Process]) -> list[_Unit]:
    """The processes, joined by what they share; in the order in which they get their nodes.

    Raises:
        ValueError: two have one name, or one shares GPUs with a process that has none of its own.
    """
    by_name = {process.name: process for process in processes}
    if len(by_name) != len(processes):
        raise ValueError("two processes have one name")
    unit_of: dict[str, _Unit] = {}
    for process in processes:
        first = process.with_run or process.name == RUN
        unit_of[process.name] = _Unit([process.name], process.cpus, process.gpus, first)
    for process in processes:
        if process.shares and process.gpus:
            raise ValueError(f"{process.name} shares GPUs and takes {process.gpus} of its own")
        for name in process.shares:
            if name not in by_name or not by_name[name].gpus:
                raise ValueError(f"{process.name} shares the GPUs of {name}, which has none")
            unit, other = unit_of[name], unit_of[process.name]
            if unit is other:
                continue
            unit.names += other.names
            unit.cpus, unit.gpus = unit.cpus + other.cpus, unit.gpus + other.gpus
            unit.first_node |= other.first_node
            unit_of |= dict.fromkeys(other.names, unit)
    order = {name: number for number, name in enumerate(by_name)}
    units = {id(unit): unit for unit in unit_of.values()}.values()
    with_gpus = [unit for unit in units if unit.gpus]
    without = [unit for unit in units if not unit.gpus]
    with_gpus.sort(key=lambda unit: min(order[name] for name in unit.names))
    sizes = [unit.cpus for unit in without]
    # The size that most have comes last: equal ones fit in any order, so that nothing of them is tried again.
    most = max(sizes, key=lambda cpus: (sizes.count(cpus), -cpus), default=0.0)
    without.sort(key=lambda unit: (unit.cpus == most, -unit.cpus))
    return [*with_gpus, *without]


def _search(free: list[_Free], units: Sequence[_Unit]) -> list[int] | None:
    """The node of each unit, by depth-first search; None: there is none, or `MOST_TRIES` didn't find one."""
    chosen: list[int] = []
    waiting: list[Iterator[int]] = []
    failed: set[tuple[object, ...]] = set()
    equal = _equal_from(units)
    tries = 0
    while len(chosen) < len(units):
        if len(waiting) == len(chosen):
            lost = len(chosen) <= equal < len(units) and not _have_room(free, units[equal:])
            waiting.append(iter(() if lost else _candidates(free, units[len(chosen)])))
        node = next(waiting[-1], None) if tries < MOST_TRIES else None
        if node is not None:
            first_choices = len(chosen) < equal
            tries += first_choices
            free[node].take(units[len(chosen)])
            chosen.append(node)
            if first_choices and _state(free, chosen) in failed:
                free[node].take(units[len(chosen) - 1], -1)
                chosen.pop()
            continue
        waiting.pop()
        if not chosen or tries >= MOST_TRIES:
            return None
        failed.add(_state(free, chosen))
        node = chosen.pop()
        free[node].take(units[len(chosen)], -1)
    return chosen


def _equal_from(units: Sequence[_Unit]) -> int:
    """The number of the unit from which on all take the same CPUs and no GPU."""
    number = len(units)
    while number and not units[number - 1].gpus and units[number - 1].cpus == units[-1].cpus:
        number -= 1
    return number


def _have_room(free: Sequence[_Free], equal: Sequence[_Unit]) -> bool:
    """Whether units that take the same CPUs have room, in whatever order they choose."""
    size = equal[0].cpus
    return size <= CLOSE or sum(int((each.cpus + CLOSE) // size) for each in free) >= len(equal)


def _candidates(free: Sequence[_Free], unit: _Unit) -> list[int]:
    """The nodes with room for a unit, the preferred one first."""
    nodes = [number for number, each in enumerate(free) if each.has(unit)]
    if not unit.gpus:
        nodes.sort(key=lambda number: -round(free[number].cpus, 6))
    return nodes


def _state(free: Sequence[_Free], chosen: Sequence[int]) -> tuple[object, ...]:
    """What decides whether the remaining units have room: nodes with the same left are equal."""
    return len(chosen), tuple(sorted((round(each.cpus, 6), each.gpus) for each in free))


def _numbered(
    nodes: Sequence[ClusterNode], processes: Sequence[Process], node_of: Mapping[str, int]
) -> tuple[Placed, ...]:
    """The processes with their GPUs: the lowest ones that are left on their node, in order."""
    used = [0] * len(nodes)
    gpus: dict[str, tuple[int, ...]] = {}
    for process in processes:
        node = node_of[process.name]
        gpus[process.name] = tuple(range(used[node], used[node] + process.gpus))
        used[node] += process.gpus
    for process in processes:
        if process.shares:
            gpus[process.name] = tuple(gpu for name in process.shares for gpu in gpus[name])
    return tuple(Placed(each, nodes[node_of[each.name]].name, gpus[each.name]) for each in processes)


def _refusal(
    nodes: Sequence[ClusterNode], processes: Sequence[Process], units: Sequence[_Unit]
) -> ConfigError:
    """The error that says what is missing."""
    there, needed, too_large = _sum(nodes), _sum(units), False
    largest = max(nodes, key=lambda node: (node.gpus, node.cpus), default=ClusterNode("none", 0))
    first = [unit for unit in units if unit.first_node]
    on_first, head = _sum(first), nodes[0] if nodes else largest
    if needed.gpus > there.gpus or needed.cpus > there.cpus + CLOSE:
        short = "GPU" if needed.gpus > there.gpus else "CPU"
        why = "; ".join(_kinds(processes, short))
    elif on_first.gpus > head.gpus or on_first.cpus > head.cpus + CLOSE:
        short = "GPU" if on_first.gpus > head.gpus else "CPU"
        there_too = {name for unit in first for name in unit.names}
        processes = [process for process in processes if process.name in there_too]
        names = [process.name for process in processes]
        why = f"the node of the run's process ({head.name}) has {amount(head.cpus, head.gpus)}, and "
        why += f"{amount(on_first.cpus, on_first.gpus)} must be there: {', '.join(names)}"
    else:
        short = "CPU" if _gpus_suffice(nodes, units) else "GPU"
        most = max(units, key=lambda unit: (unit.gpus, unit.cpus) if short == "GPU" else (unit.cpus, 0))
        why = "the processes can't be spread so that each is whole on one node: the largest takes "
        why += f"{amount(most.cpus, most.gpus)} ({', '.join(most.names)})"
        too_large = most.gpus > largest.gpus or most.cpus > largest.cpus + CLOSE
    what = (
        f"the run takes {amount(needed.cpus, needed.gpus)}, and the cluster has "
        f"{amount(there.cpus, there.gpus)} on {len(nodes)} node" + ("s" if len(nodes) != 1 else "")
    )
    why += f"; the largest node ({largest.name}) has {amount(largest.cpus, largest.gpus)}"
    path, fix = _setting(processes, short)
    if too_large:
        fix = fix.replace("add nodes", "take larger nodes")
    return ConfigError(what, path=path, why=why, fix=fix)


def _sum(parts: Sequence[ClusterNode] | Sequence[_Unit]) -> _Free:
    return _Free(sum(part.cpus for part in parts), sum(part.gpus for part in parts))


def _gpus_suffice(nodes: Sequence[ClusterNode], units: Sequence[_Unit]) -> bool:
    """Whether there would be a placement if no process took a CPU."""
    free = [_Free(0, node.gpus) for node in nodes]
    gpus = [_Unit(unit.names, 0, unit.gpus, unit.first_node) for unit in units if unit.gpus]
    for unit in gpus:
        if unit.first_node:
            free[0].take(unit)
    return _search(free, [unit for unit in gpus if not unit.first_node]) is not None


def amount(cpus: float, gpus: int) -> str:
    """CPUs and GPUs as `3 CPUs and 1 GPU`."""
    parts = [f"{cpus:g} CPU" + ("s" if cpus != 1 else "")]
    if gpus:
        parts.append(f"{gpus} GPU" + ("s" if gpus != 1 else ""))
    return " and ".join(parts)


def _kinds(processes: Sequence[Process], resource: str) -> list[str]:
    """What each kind of process takes, the kinds with the most first."""
    takes: dict[str, float] = {}
    count: dict[str, int] = {}
    for process in processes:
        amount = process.gpus if resource == "GPU" else process.cpus
        if amount:
            kind = kind_of(process)
            takes[kind] = takes.get(kind, 0) + amount
            count[kind] = count.get(kind, 0) + 1
    kinds = sorted(takes, key=lambda kind: -takes[kind])
    return [f"{kind}{f' ({count[kind]})' if count[kind] > 1 else ''}: {takes[kind]:g}" for kind in kinds]


def kind_of(process: Process) -> str:
    """The kind of a process by its name: `rank`, `vllm`, `rollout host`; else the name itself."""
    name = process.name
    return name.partition(" ")[0] if "/" in name else name.rstrip("0123456789").rstrip()


def _setting(processes: Sequence[Process], resource: str) -> tuple[str, str]:
    """The setting of the processes that take the most of a resource together, and the fix."""
    takes: dict[tuple[str, str], float] = {}
    for process in processes:
        setting, fix, taken = process.setting, process.fix, float(process.gpus)
        if resource == "CPU":
            setting, fix, taken = process.cpu_setting, "", process.cpus
        if setting:
            key = setting, fix or f"lower {setting}"
            takes[key] = takes.get(key, 0.0) + taken
    most = max(takes, key=lambda each: takes[each], default=("", ""))
    if not takes or not takes[most]:
        return "cluster", "add nodes, or larger ones"
    return most[0], f"{most[1]}, or add nodes"
