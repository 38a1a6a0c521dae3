"""Whether a planned run fits its GPUs: how many it needs, and what is full first."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.machine import machine_memory

if TYPE_CHECKING:
    from coterie.api.counts import Counts
    from coterie.cli.disk import Disk
    from coterie.cli.memory import Footprint

GB = 10**9
LARGE = 10**300
"""Larger numbers are no JSON numbers: they become null."""


class Capacity(NamedTuple):
    """The GPUs that a run is planned for, or the memory of this machine for a run on its CPU."""

    gpus: int
    each: float
    """Memory of one GPU, or of the machine, in bytes."""
    machine: bool = False
    """Whether it is the machine's."""

    @property
    def name(self) -> str:
        """What a run fits into: `a GPU of 80 GB`."""
        return f"{'this machine, which has' if self.machine else 'a GPU of'} {size(int(self.each))}"


def capacity_of(memory: Footprint, gpus: int | None, gpu_memory: float, *, named: bool) -> Capacity:
    """The capacity for a plan.

    Args:
        gpus: how many there are; None: as many as the settings need.
        gpu_memory: bytes of one.
        named: whether options name GPUs. Else a run on a CPU has what the machine gives.
    """
    here = machine_memory() if memory.device == "cpu" and not named else None
    if here is not None:
        return Capacity(1, here, machine=True)
    return Capacity(gpus or memory.layout.needed, gpu_memory)


class Load(NamedTuple):
    """An amount beside its limit: bytes of memory, or generations."""

    part: str
    amount: int
    limit: float

    @property
    def share(self) -> float:
        """The amount as a share of the limit."""
        return min(self.amount, LARGE) / self.limit


def loads(counts: Counts, memory: Footprint, capacity: Capacity) -> list[Load]:
    """All loads, the fullest first: it is the one that saturates as the run is made larger.

    Amounts are those of the fullest GPU where the settings say what is on which, else of all of them.
    """
    from coterie.api.cost import BOUND

    held = [memory.division.on_gpu(parts) for parts in memory.policies.values()]

    def all_of(*names: str) -> int:
        return sum(parts[name] for parts in held for name in names)

    def largest(name: str) -> int:
        return max((parts[name] for parts in held), default=0)

    by_part = {
        "weights": all_of("weights", "adapter", "reference"),
        "the optimiser": all_of("masters", "moments") + largest("gradients"),
        "the engine's copies": all_of("engine"),
        "the KV cache": memory.cache,
        "activations": largest("activations"),
    }
    memory_limit = capacity.each * (1 if memory.layout.fixed else capacity.gpus)
    by_share = [Load(part, size, memory_limit) for part, size in by_part.items() if size]
    by_share.append(Load("generations", counts.generations, BOUND))
    return sorted(by_share, key=lambda load: -load.share)


def fit(memory: Footprint, capacity: Capacity) -> dict[str, Any]:
    """Whether the peak fits one GPU, and whether it fits all of them if it is spread evenly.

    Both are False where the settings need more GPUs than there are.
    """
    peak, needed = memory.peak, memory.layout.needed
    known = {
        "gpus": capacity.gpus,
        "gpu_memory": capacity.each,
        "of": "machine" if capacity.machine else "gpu",
        "needed_gpus": needed,
    }
    if peak is None:
        return {**known, "one": None, "spread": None, "least_gpus": None}
    enough = needed <= capacity.gpus
    return {
        **known,
        "one": enough and peak <= capacity.each,
        "spread": enough and peak / (1 if memory.layout.fixed else capacity.gpus) <= capacity.each,
        "least_gpus": max(math.ceil(peak / capacity.each), needed, 1),
    }


def show_verdict(counts: Counts, memory: Footprint, capacity: Capacity, *, given: bool) -> None:
    """Print what follows from the tables: the peaks, whether they fit, and what saturates first.

    Args:
        given: whether the number of GPUs is known.
    """
    for phase, bytes_ in memory.phases.items() if memory.policies and not memory.unknown else ():
        click.echo(f"{phase}: {size(bytes_)}")
    division = memory.division
    if division.ranks > 1:
        stage = f", ZeRO stage {division.stage}" if division.stage else ""
        click.echo(f"on the fullest GPU of {division.ranks} ranks{stage}")
    if memory.host:
        click.echo(f"offloaded to the host's memory: {size(memory.host)}")
    for name, error in memory.unknown.items():
        click.echo(f"policy {name}: unknown: {error.what}\n  why: {error.why}\n  fix: {error.fix}")
    if memory.layout.needed > capacity.gpus:
        click.echo(
            f"does not fit: the run needs {count_of(memory.layout.needed)} and has {capacity.gpus}: "
            f"{memory.layout.reason}"
        )
    elif memory.peak and memory.policies:
        _show_fit(memory.peak, memory, capacity, given, assumed(counts, memory))
    first = loads(counts, memory, capacity)[0]
    limit = ("this machine's " if capacity.machine else "") + size(int(first.limit))
    if first.part == "generations":
        limit = f"the bound of {int(first.limit):,}"
    click.echo(f"saturates first: {first.part} at {percent(first.share)} of {limit}")


def assumed(counts: Counts, memory: Footprint) -> str:
    """What the verdict assumes where the length of prompts isn't known, and how to lower it; else empty."""
    filled = [
        name
        for name in memory.policies
        if name in memory.contexts and not memory.prompts.keys() >= set(counts.policies[name].roles)
    ]
    if not filled:
        return ""
    context = " and ".join(f"{number:,}" for number in sorted({memory.contexts[name] for name in filled}))
    keys = " ".join(f"policies.{name}.context=N" for name in filled)
    return f", with prompts that fill the context of {context} tokens (length unknown); {keys} bounds it"


def _show_fit(peak: int, memory: Footprint, capacity: Capacity, given: bool, note: str) -> None:
    fits = "fits" if peak <= capacity.each else "does not fit"
    click.echo(f"{fits} {capacity.name}: {percent(peak / capacity.each)} of it{note}")
    layout = memory.layout
    if layout.fixed:
        click.echo(layout.sentence)
    elif given and capacity.gpus > 1:
        each, least = peak / capacity.gpus, fit(memory, capacity)["least_gpus"]
        fits = "fits" if each <= capacity.each else "does not fit"
        click.echo(
            f"spread evenly over {capacity.gpus} GPUs: {size(int(each))} on each, which {fits}; "
            f"at least {least} {'is' if least == 1 else 'are'} needed"
        )
        if memory.one_device:
            click.echo(
                f"note: the trainer '{layout.trainer_type}' and the engine '{layout.engine_type}' share one "
                "GPU, however many there are"
            )


def show_disk(disk: Disk) -> None:
    """Print what checkpoints take; nothing where they have no tensors."""
    if not disk.checkpoint:
        return
    older = f" ({size(disk.versions)} of it earlier weights for steps ahead)" if disk.versions else ""
    most = f", at most {disk.checkpoints} at once" if disk.checkpoints > 1 else ""
    click.echo(f"disk: {size(disk.bytes)}: a checkpoint takes {size(disk.checkpoint)}{older}{most}")


def count_of(gpus: int) -> str:
    """A number of GPUs as `1 GPU` or `4 GPUs`."""
    return f"{gpus} GPU" + ("s" if gpus != 1 else "")


def percent(value: float) -> str:
    """A share of one as `41 %`."""
    from coterie.api.cost import readable

    return f"{readable(round(100 * value))} %" if value >= 0.01 else "less than 1 %"


def share_of(value: float) -> str:
    """A share of one as `100 %` or `1.00 %`."""
    return "100 %" if value == 1 else "none" if value == 0 else f"{100 * value:.2f} %"


def size(number: int) -> str:
    """Bytes as `3.44 GB`."""
    for unit, bytes_ in (("TB", 10**12), ("GB", GB), ("MB", 10**6), ("kB", 10**3)):
        if number >= bytes_:
            return f"{number / bytes_:.3g} {unit}"
    return f"{number} B"
