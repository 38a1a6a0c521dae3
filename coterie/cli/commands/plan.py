"""`coterie plan`: what a run costs, estimated without loading a model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from coterie.cli import plan_nodes
from coterie.cli.comlrl import FromCommand, from_option, translated
from coterie.cli.interrupt import interruptible
from coterie.cli.options import json_option, layer_options, overrides, plugin_option
from coterie.cli.output import print_json, rendered
from coterie.cli.plan_fit import (
    GB,
    LARGE,
    Capacity,
    capacity_of,
    fit,
    loads,
    share_of,
    show_disk,
    show_verdict,
    size,
)
from coterie.cli.plan_nodes import check_options, on_one_machine, placement_of

if TYPE_CHECKING:
    from rich.table import Table

    from coterie.api.comlrl import Flags
    from coterie.api.counts import Counts, Growth, PolicyCounts
    from coterie.cli.memory import Footprint
    from coterie.core.config import ScheduleConfig
    from coterie.core.training.run import Run

LABELS = {
    "weights": "weights",
    "adapter": "adapter",
    "reference": "reference copy",
    "masters": "fp32 masters",
    "moments": "optimiser moments",
    "gradients": "gradients",
    "activations": "activations (about)",
    "copies": "trainer's copies",
    "engine": "engine's copy",
    "kv": "KV cache",
}
"""Parts of a policy's memory, in the order in which they are shown."""
PASSING = ("gradients", "activations", "kv")
"""Parts that exist for one policy at a time, so that they don't add up over policies."""


@click.command(cls=FromCommand, short_help="Estimate what a run costs, without loading a model.")
@click.argument("source", metavar="RECIPE|FILE|RUN_DIR")
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--gpus", metavar="N", type=click.IntRange(min=1), help="Also estimate the fit to N GPUs.")
@click.option(
    "--gpu-memory",
    metavar="GB",
    type=click.FloatRange(min=0, min_open=True),
    default=80,
    show_default=True,
    help="Memory of one GPU, in units of 10^9 bytes.",
)
@click.option(
    "--nodes",
    metavar="N",
    type=click.IntRange(min=1),
    help="Also show which process is on which of N nodes (with `--with ray`).",
)
@click.option(
    "--node-cpus",
    metavar="N",
    type=click.FloatRange(min=0, min_open=True),
    help="CPUs of a node. Default: this machine's; one node has as many as the run takes.",
)
@click.option(
    "--node-gpus", metavar="N", type=click.IntRange(min=0), help="GPUs of a node. Default: this machine's."
)
@click.option("--yes", is_flag=True, help="Plan a step of more than 20,000 generations too.")
@layer_options
@from_option
@json_option
@plugin_option
def command(
    source: str,
    settings: tuple[str, ...],
    gpus: int | None,
    gpu_memory: float,
    nodes: int | None,
    node_cpus: float | None,
    node_gpus: int | None,
    yes: bool,
    overlays: tuple[str, ...],
    scale: str | None,
    as_json: bool,
    flags: Flags | None,
) -> None:
    """Estimate a run's generations and memory, by step and policy, before anything is played or loaded.

    Every count is an upper bound: games and calls that end early need less. Prompt tokens are an estimate:
    every prompt is counted as long as its role's longest first one. Memory is that of tensors in the
    trainer `torch` and the engine `hf`; an allocator and a GPU's context take more. Weights, adapters and
    optimiser states are exact. The KV cache is that of the largest batch, with prompts as long as the first
    ones. Activations are an estimate. Gradients, activations and caches exist for one policy at a time.

    With `--nodes` it also shows which process of the run is on which node of a cluster, and refuses a run
    that the nodes can't hold.

    A step of more than 20,000 generations is refused unless `--yes` is given.

    \b
        coterie plan plan_path sampler.branches=8 --gpus 4
        coterie plan plan_path --with ray --nodes 2 --node-cpus 16 --node-gpus 4
        coterie plan quickstart --json
    """
    from coterie.api.cost import check_size, count
    from coterie.api.val_interval import evaluating
    from coterie.cli.commands.config import read_splits
    from coterie.cli.memory import footprint
    from coterie.compose import compose
    from coterie.recipes import load

    chosen: Any = source if flags is None else translated(source, settings, flags).table
    check_options(nodes, node_cpus=node_cpus, node_gpus=node_gpus, gpus=gpus)
    given = click.get_current_context().get_parameter_source("gpu_memory") == ParameterSource.COMMANDLINE
    with interruptible(at_once=True):  # a plugin's methods are called
        resolved = load(chosen, overrides=overrides(settings), scale=scale, overlays=overlays)
        splits = read_splits(resolved.config)
        placement = None if nodes is None else placement_of(resolved.config, nodes, node_cpus, node_gpus)
        run = evaluating(compose(on_one_machine(resolved), splits))
        counts = count(run)
        if not yes:
            check_size(counts)
        gpus = gpus if placement is None else placement.shared_by(run)
        on = "cuda" if gpus or given else None
        memory = footprint(run, counts, device=on, gpu=gpu_memory * GB, gpus=gpus)
    capacity = capacity_of(memory, gpus, gpu_memory * GB, named=on is not None)
    if as_json:
        print_json(report(run, counts, memory, capacity) | plan_nodes.report(placement))
        return
    if placement is not None:
        plan_nodes.show(placement, resolved.config)
    show(run, counts, memory, capacity, given=gpus is not None)


# ----------------------------------------------------------------------------------------------- for machines


def report(run: Run, counts: Counts, memory: Footprint, capacity: Capacity) -> dict[str, Any]:
    """The whole plan as plain data, in bytes and tokens."""
    schedule = run.config.schedule
    first = loads(counts, memory, capacity)[0]
    return {
        "name": run.resolved.name,
        "steps": schedule.steps,
        "tokens": schedule.tokens,
        "step": {
            "tasks": schedule.tasks_per_step,
            "trees": counts.trees,
            "generations": json_number(counts.generations),
            "joints": json_number(counts.joints),
            "leaves": json_number(counts.leaves),
            "outside_calls": {name: json_number(calls) for name, calls in counts.outside_calls.items()},
            "outside_tokens": {
                name: {"read": tokens.read(counts.policies, memory.contexts), "written": tokens.written}
                for name, tokens in counts.outside_tokens.items()
            },
        },
        "evaluation": {"every": run.evaluate_every, "generations": json_number(counts.evaluation)},
        "policies": {name: _policy(name, run, counts, memory) for name in run.config.policies},
        "memory": {
            "cache": memory.cache,
            "phases": memory.phases,
            "peak": memory.peak,
            "ranks": memory.division.ranks,
            "stage": memory.division.stage,
            "host": memory.host,
            "device": memory.device,
        },
        "disk": memory.disk.as_dict(),
        "fit": fit(memory, capacity),
        "saturates_first": {"what": first.part, "share": first.share},
        "notes": notes(run, counts, memory),
    }


def _policy(name: str, run: Run, counts: Counts, memory: Footprint) -> dict[str, Any]:
    policy, config = bounded(name, run, counts, memory), run.config.policies[name]
    unknown = memory.unknown.get(name)
    return {
        "roles": list(policy.roles),
        "train": config.train,
        "model": config.model if isinstance(config.model, str) else dict(config.model).get("init", "table"),
        "generations": json_number(policy.generations),
        "generated_tokens": json_number(policy.generated_tokens),
        "prompts": json_number(policy.prompts),
        "prompt_tokens": None if policy.prompt_tokens is None else json_number(policy.prompt_tokens),
        "prefill_tokens": None if policy.prefill_tokens is None else json_number(policy.prefill_tokens),
        "first_prompts": {role: memory.prompts[role] for role in policy.roles if role in memory.prompts},
        "prompt_growth": {
            role: _growth(memory.growths[role]) for role in policy.roles if role in memory.growths
        },
        "samples": json_number(policy.samples),
        "sample_tokens": None if policy.sample_tokens is None else json_number(policy.sample_tokens),
        "optimizer_steps": json_number(policy.optimizer_steps),
        "context": memory.contexts.get(name),
        "parameters": memory.parameters.get(name),
        "adapter_parameters": memory.adapters.get(name, 0),
        "trained_parameters": memory.trained.get(name),
        "trained_share": trained_share(name, memory),
        "memory": memory.policies.get(name),
        "unknown": None if unknown is None else {"what": unknown.what, "fix": unknown.fix},
    }


def _growth(growth: Growth) -> dict[str, Any]:
    """How a role's prompts grow, as plain data."""
    return {
        "prompts": len(growth.begins_anew) + 1,
        "begin_anew": growth.anew,
        "why": growth.why,
        "prefill_factor": growth.factor,
        "samples_of_action": 1 + sum(growth.of_call),
    }


def trained_share(name: str, memory: Footprint) -> float | None:
    """Trained parameters as a share of the model's and the adapter's; None where the model is unknown."""
    if name not in memory.trained:
        return None
    return memory.trained[name] / (memory.parameters[name] + memory.adapters.get(name, 0))


def bounded(name: str, run: Run, counts: Counts, memory: Footprint) -> PolicyCounts:
    """A policy's counts, bounded by its model's context."""
    from coterie.api.cost import longest_answer
    from coterie.api.counts import steps_of_update

    policy = counts.policies[name]
    measured = policy.bounded(
        memory.contexts.get(name),
        longest_answer(run, policy.roles),
        memory.prompts,
        memory.growths,
        prefix_cache(run),
    )
    if measured.samples == policy.samples:
        return measured
    steps = steps_of_update(run.trainer, measured.samples, run.sampler.plan.branches)
    return replace(measured, optimizer_steps=steps)


def prefix_cache(run: Run) -> bool:
    """Whether the run's engine keeps the keys and values of prompts for later ones."""
    return bool(getattr(getattr(run.engine, "config", None), "prefix_cache", False))


def notes(run: Run, counts: Counts, memory: Footprint) -> list[str]:
    """What the numbers leave out or assume."""
    unknown = [
        name
        for name in counts.policies
        if name not in memory.unknown and bounded(name, run, counts, memory).prompt_tokens is None
    ]
    lengths = [
        f"the prompt tokens of {name} are unknown: its tokenizer is made when a run is opened"
        for name in unknown
    ]
    return [*counts.notes, *memory.notes, *lengths]


def json_number(number: int) -> int | None:
    """The number; None where it has more digits than JSON's readers take."""
    return number if number < LARGE else None


# ------------------------------------------------------------------------------------------------- for people


def show(run: Run, counts: Counts, memory: Footprint, capacity: Capacity, *, given: bool) -> None:
    """Print the counts, the memory, and whether it fits."""
    from coterie.api.cost import readable

    schedule = run.config.schedule
    click.echo(f"{run.resolved.name}: {_length(schedule)} of {schedule.tasks_per_step:,} tasks")
    click.echo(
        f"a step: {readable(counts.trees)} trees, {readable(counts.joints)} joint actions, "
        f"{readable(counts.leaves)} leaves"
        + "".join(
            f", {readable(calls)} outside calls of {name}{_tokens_text(name, counts, memory)}"
            for name, calls in counts.outside_calls.items()
        )
    )
    if counts.evaluation:
        click.echo(f"every {run.evaluate_every} steps: {readable(counts.evaluation)} generations to evaluate")
    click.echo(rendered(_counts_table(run, counts, memory)))
    if memory.policies:
        click.echo(rendered(_memory_table(memory)))
    show_verdict(counts, memory, capacity, given=given)
    show_disk(memory.disk)
    for role, growth in memory.growths.items():
        click.echo(growth.sentence(role, cached=prefix_cache(run)))
    for note in notes(run, counts, memory):
        click.echo(f"note: {note}")


def _tokens_text(name: str, counts: Counts, memory: Footprint) -> str:
    """The tokens of a source's outside calls, where it says what they are."""
    from coterie.api.cost import readable

    tokens = counts.outside_tokens.get(name)
    if tokens is None:
        return ""
    read = tokens.read(counts.policies, memory.contexts)
    reads = "" if read is None else f"{readable(read)} tokens read and "
    return f" (at most {reads}{readable(tokens.written)} tokens written)"


def _length(schedule: ScheduleConfig) -> str:
    """The length of a run: `60 steps`, or `until 1,000,000 tokens are generated, in steps`."""
    bound = f"{schedule.epochs} epochs" if schedule.epochs is not None else ""
    if schedule.steps is not None:
        bound = f"{schedule.steps:,} steps"
    if schedule.tokens is None:
        return bound
    budget = f"until {schedule.tokens:,} tokens are generated"
    return f"{budget}, at most {bound}" if bound else f"{budget}, in steps"


def _counts_table(run: Run, counts: Counts, memory: Footprint) -> Table:
    """The counts of a step, by policy."""
    from coterie.api.cost import readable

    policies = [bounded(name, run, counts, memory) for name in counts.policies]
    table = _table("a step, at most", list(counts.policies))

    def add_row(label: str, values: list[int | None]) -> None:
        known = [value for value in values if value is not None]
        cells = ["-" if value is None else readable(value) for value in values]
        table.add_row(label, *cells, readable(sum(known)) if len(known) == len(values) else "-")

    add_row("generations", [policy.generations for policy in policies])
    add_row("generated tokens", [policy.generated_tokens for policy in policies])
    add_row("prompts", [policy.prompts for policy in policies])
    add_row(
        "prompt tokens (about)" if memory.prompts else "prompt tokens",
        [policy.prompt_tokens for policy in policies],
    )
    if memory.growths and prefix_cache(run):
        add_row("of these to prefill", [policy.prefill_tokens for policy in policies])
    add_row("samples", [policy.samples for policy in policies])
    add_row("their tokens (about)", [policy.sample_tokens for policy in policies])
    add_row("optimiser steps", [policy.optimizer_steps for policy in policies])
    return table


def _memory_table(memory: Footprint) -> Table:
    """Memory by policy and part."""
    from coterie.api.cost import readable

    names = list(memory.policies)
    table = _table("memory", names)
    table.add_row("parameters", *(readable(memory.parameters[name]) for name in names), "")
    if memory.adapters:
        adapters = [memory.adapters.get(name, 0) for name in names]
        table.add_row("of its adapter", *(readable(count) if count else "-" for count in adapters), "")
    shares = [trained_share(name, memory) for name in names]
    table.add_row("trained", *("-" if share is None else share_of(share) for share in shares), "")
    table.add_section()
    for part, label in LABELS.items():
        values = [memory.policies[name].get(part, 0) for name in names]
        if any(values):
            total = memory.cache if part == "kv" else max(values) if part in PASSING else sum(values)
            table.add_row(label, *(size(value) if value else "-" for value in values), size(total))
    return table


def _table(title: str, names: list[str]) -> Table:
    """An empty table with a column for each policy and one for all."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title)
    for name in (*names, "all"):
        table.add_column(Text(name), justify="right")
    return table
