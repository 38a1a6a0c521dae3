"""`coterie plan`: what a run will cost, told without loading a model."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from coterie.cli.options import json_option, overrides, plugin_option, scale_option
from coterie.cli.output import print_json

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.api.cost import Counts, PolicyCounts
    from coterie.cli.memory import Footprint
    from coterie.core.config import ScheduleConfig
    from coterie.core.training.run import Run

GB = 10**9
LARGE = 10**300
"""Past it a number is told by its magnitude alone."""
LABELS = {
    "weights": "weights",
    "adapter": "adapter",
    "reference": "reference copy",
    "masters": "fp32 masters",
    "moments": "optimiser moments",
    "gradients": "gradients",
    "activations": "activations (about)",
    "engine": "engine's copy",
    "kv": "KV cache",
}
"""Parts of a policy's memory, in the order in which they are shown."""
PASSING = ("gradients", "activations", "kv")
"""Of these there is one policy's at a time, so that they don't add up."""


@click.command(short_help="Tell what a run will cost, without loading a model.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR")
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--gpus", metavar="N", type=click.IntRange(min=1), help="Also tell how it fits N GPUs.")
@click.option(
    "--gpu-memory",
    metavar="GB",
    type=click.FloatRange(min=0, min_open=True),
    default=80,
    show_default=True,
    help="Of one GPU, in units of 10^9 bytes.",
)
@click.option("--yes", is_flag=True, help="Plan a step past the bound of generations too.")
@scale_option
@json_option
@plugin_option
def command(
    source: str,
    words: tuple[str, ...],
    gpus: int | None,
    gpu_memory: float,
    yes: bool,
    scale: str | None,
    as_json: bool,
) -> None:
    """Tell what a run asks for and holds, by step and policy, before anything is played or loaded.

    Every count is an upper bound: games and calls that end early ask for less. Memory is that of tensors in
    the trainer `torch` and the engine `hf`; an allocator and a GPU's context take more. Weights and what is
    trained on them are exact; the KV cache is the largest batch's, with prompts as long as the first ones;
    activations are an estimate. Gradients, activations and caches are there for one policy at a time.

    A step of more than 20,000 generations is refused unless `--yes` is given.

    \b
        coterie plan plan_path sampler.branches=8 --gpus 4
        coterie plan quickstart --json
    """
    from coterie.api.cost import check_size, count
    from coterie.cli.memory import footprint
    from coterie.core.config import load
    from coterie.core.training.assemble import compose

    run = compose(load(source, overrides=overrides(words), scale=scale))
    counts = count(run)
    if not yes:
        check_size(counts)
    memory = footprint(run, counts)
    capacity = Capacity(gpus or 1, gpu_memory * GB)
    if as_json:
        print_json(report(run, counts, memory, capacity))
    else:
        show(run, counts, memory, capacity, spread=gpus is not None)


class Capacity(NamedTuple):
    """What there is."""

    gpus: int
    each: float
    """Bytes of one."""


class Load(NamedTuple):
    """How much of what there is something takes."""

    what: str
    amount: int
    limit: float

    @property
    def share(self) -> float:
        return min(self.amount, LARGE) / self.limit


def loads(counts: Counts, memory: Footprint, capacity: Capacity) -> list[Load]:
    """The fullest first: what saturates as the run is made larger."""
    from coterie.api.cost import BOUND

    def all_of(*names: str) -> int:
        return sum(parts[name] for parts in memory.policies.values() for name in names)

    def largest(name: str) -> int:
        return max((parts[name] for parts in memory.policies.values()), default=0)

    held = {
        "weights": all_of("weights", "adapter", "reference"),
        "the optimiser": all_of("masters", "moments") + largest("gradients"),
        "the engine's copies": all_of("engine"),
        "the KV cache": memory.cache,
        "activations": largest("activations"),
    }
    room = capacity.gpus * capacity.each
    found = [Load(what, size, room) for what, size in held.items() if size]
    found.append(Load("generations", counts.generations, BOUND))
    return sorted(found, key=lambda load: -load.share)


# ----------------------------------------------------------------------------------------------- for machines


def report(run: Run, counts: Counts, memory: Footprint, capacity: Capacity) -> dict[str, Any]:
    """Everything that is told, as plain data; bytes and tokens."""
    schedule = run.config.schedule
    first = loads(counts, memory, capacity)[0]
    return {
        "name": run.resolved.name,
        "steps": schedule.steps,
        "tokens": schedule.tokens,
        "step": {
            "tasks": schedule.tasks_per_step,
            "trees": counts.trees,
            "generations": plain(counts.generations),
            "joints": plain(counts.joints),
            "leaves": plain(counts.leaves),
            "outside_calls": {name: plain(calls) for name, calls in counts.outside_calls.items()},
        },
        "evaluation": {"every": schedule.evaluate_every, "generations": plain(counts.evaluation)},
        "policies": {name: _policy(name, run, counts, memory) for name in run.config.policies},
        "memory": {"cache": memory.cache, "phases": memory.phases, "peak": memory.peak},
        "fit": _fit(memory.peak, capacity),
        "saturates_first": {"what": first.what, "share": first.share},
        "notes": [*counts.notes, *memory.notes],
    }


def _policy(name: str, run: Run, counts: Counts, memory: Footprint) -> dict[str, Any]:
    asked, config = bounded(name, run, counts, memory), run.config.policies[name]
    unknown = memory.unknown.get(name)
    return {
        "roles": list(asked.roles),
        "train": config.train,
        "model": config.model if isinstance(config.model, str) else config.model.init,
        "generations": plain(asked.generations),
        "generated_tokens": plain(asked.generated_tokens),
        "prompts": plain(asked.prompts),
        "prompt_tokens": None if asked.prompt_tokens is None else plain(asked.prompt_tokens),
        "samples": plain(asked.samples),
        "optimizer_steps": plain(asked.optimizer_steps),
        "context": memory.contexts.get(name),
        "parameters": memory.parameters.get(name),
        "adapter_parameters": memory.adapters.get(name, 0),
        "memory": memory.policies.get(name),
        "unknown": None if unknown is None else {"what": unknown.what, "fix": unknown.fix},
    }


def bounded(name: str, run: Run, counts: Counts, memory: Footprint) -> PolicyCounts:
    """A policy's counts, with what its model's context says of them."""
    from coterie.api.cost import longest_answer

    asked = counts.policies[name]
    return asked.bounded(memory.contexts.get(name), longest_answer(run, asked.roles))


def _fit(peak: int | None, capacity: Capacity) -> dict[str, Any]:
    """Whether it fits one GPU, and as many as there are if it were spread evenly over them."""
    known = {"gpus": capacity.gpus, "gpu_memory": capacity.each}
    if peak is None:
        return {**known, "one": None, "spread": None, "least_gpus": None}
    return {
        **known,
        "one": peak <= capacity.each,
        "spread": peak / capacity.gpus <= capacity.each,
        "least_gpus": max(math.ceil(peak / capacity.each), 1),
    }


def plain(number: int) -> int | None:
    """None where a number has more digits than JSON's readers take."""
    return number if number < LARGE else None


# ------------------------------------------------------------------------------------------------- for people


def show(run: Run, counts: Counts, memory: Footprint, capacity: Capacity, *, spread: bool) -> None:
    """Two tables and what follows from them."""
    from rich.console import Console

    from coterie.api.cost import told

    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120)
    schedule = run.config.schedule
    click.echo(f"{run.resolved.name}: {_length(schedule)} of {schedule.tasks_per_step:,} tasks")
    click.echo(
        f"a step: {told(counts.trees)} trees, {told(counts.joints)} joint actions, "
        f"{told(counts.leaves)} leaves"
        + "".join(f", {told(calls)} outside calls of {name}" for name, calls in counts.outside_calls.items())
    )
    if counts.evaluation:
        click.echo(
            f"every {schedule.evaluate_every} steps: {told(counts.evaluation)} generations to evaluate"
        )
    console.print(_asked(run, counts, memory))
    if memory.policies:
        console.print(_held(memory))
    _verdict(counts, memory, capacity, spread)


def _length(schedule: ScheduleConfig) -> str:
    """`60 steps`, `until 1,000,000 tokens are generated, in steps`: how far a run goes."""
    bound = f"{schedule.epochs} epochs" if schedule.epochs is not None else ""
    if schedule.steps is not None:
        bound = f"{schedule.steps:,} steps"
    if schedule.tokens is None:
        return bound
    budget = f"until {schedule.tokens:,} tokens are generated"
    return f"{budget}, at most {bound}" if bound else f"{budget}, in steps"


def _asked(run: Run, counts: Counts, memory: Footprint) -> Table:
    """Counts by policy."""
    from coterie.api.cost import told

    policies = [bounded(name, run, counts, memory) for name in counts.policies]
    table = _table("a step, at most", list(counts.policies))

    def row(label: str, values: list[int | None]) -> None:
        known = [value for value in values if value is not None]
        cells = ["-" if value is None else told(value) for value in values]
        table.add_row(label, *cells, told(sum(known)) if len(known) == len(values) else "-")

    row("generations", [one.generations for one in policies])
    row("generated tokens", [one.generated_tokens for one in policies])
    row("prompts", [one.prompts for one in policies])
    row("prompt tokens", [one.prompt_tokens for one in policies])
    row("samples", [one.samples for one in policies])
    row("optimiser steps", [one.optimizer_steps for one in policies])
    return table


def _held(memory: Footprint) -> Table:
    """Memory by policy and part."""
    from coterie.api.cost import told

    names = list(memory.policies)
    table = _table("memory", names)
    table.add_row("parameters", *(told(memory.parameters[name]) for name in names), "")
    if memory.adapters:
        adapters = [memory.adapters.get(name, 0) for name in names]
        table.add_row("of its adapter", *(told(one) if one else "-" for one in adapters), "")
    table.add_section()
    for part, label in LABELS.items():
        values = [memory.policies[name][part] for name in names]
        if any(values):
            total = memory.cache if part == "kv" else max(values) if part in PASSING else sum(values)
            table.add_row(label, *(size(value) if value else "-" for value in values), size(total))
    return table


def _table(title: str, names: list[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title)
    for name in (*names, "all"):
        table.add_column(name, justify="right")
    return table


def _verdict(counts: Counts, memory: Footprint, capacity: Capacity, spread: bool) -> None:
    gpu = f"a GPU of {size(int(capacity.each))}"
    for phase, held in memory.phases.items() if memory.policies and not memory.unknown else ():
        click.echo(f"{phase}: {size(held)}")
    for name, error in memory.unknown.items():
        click.echo(f"policy {name}: unknown: {error.what}\n  why: {error.why}\n  fix: {error.fix}")
    if memory.peak and memory.policies:
        fits = "fits" if memory.peak <= capacity.each else "does not fit"
        click.echo(f"{fits} {gpu}: {percent(memory.peak / capacity.each)} of it")
        if spread:
            each = memory.peak / capacity.gpus
            fits = "fits" if each <= capacity.each else "does not fit"
            least = _fit(memory.peak, capacity)["least_gpus"]
            click.echo(
                f"spread evenly over {capacity.gpus} GPUs: {size(int(each))} on each, which {fits}; "
                f"at least {least} are needed"
            )
            if memory.one_device:
                click.echo(
                    "note: the trainer 'torch' and the engine 'hf' share one GPU, however many there are"
                )
    first = loads(counts, memory, capacity)[0]
    of = f"the bound of {int(first.limit):,}" if first.what == "generations" else size(int(first.limit))
    click.echo(f"saturates first: {first.what} at {percent(first.share)} of {of}")
    for note in (*counts.notes, *memory.notes):
        click.echo(f"note: {note}")


def percent(value: float) -> str:
    """A share of one as `41 %`."""
    from coterie.api.cost import told

    return f"{told(round(100 * value))} %" if value >= 0.01 else "less than 1 %"


def size(number: int) -> str:
    """Bytes as `3.44 GB`."""
    for unit, bytes_ in (("TB", 10**12), ("GB", GB), ("MB", 10**6), ("kB", 10**3)):
        if number >= bytes_:
            return f"{number / bytes_:.3g} {unit}"
    return f"{number} B"
