"""What `coterie plan` prints of an estimate: counts, memory, whether it fits, and the placement on nodes."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich import box
from rich.table import Table
from rich.text import Text

from coterie.backends.cluster.placement import Placed, amount
from coterie.backends.cluster.processes import HOST, sets_of
from coterie.cli.output import rendered
from coterie.core.config import ScheduleConfig
from coterie.estimate.cost import readable
from coterie.estimate.gpus import Capacity
from coterie.estimate.memory import MemoryEstimate
from coterie.estimate.placement import ClusterPlacement
from coterie.estimate.plan import RunEstimate
from coterie.estimate.trainer import Disk

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


def show(plan: RunEstimate) -> None:
    """Print the placement, the counts, the memory, and whether it fits."""
    if plan.placement is not None:
        show_placement(plan.placement)
        _show_updates(plan.placement)
        click.echo("\nthe same run on one machine:")
    step, memory = plan.step, plan.memory
    click.echo(f"{plan.name}: {_length(plan.schedule)} of {plan.schedule.tasks_per_step:,} tasks")
    click.echo(
        f"a step: {readable(step.trees)} trees, {readable(step.joints)} joint actions, "
        f"{readable(step.leaves)} leaves"
        + "".join(
            f", {readable(calls)} outside calls of {name}{_tokens_text(name, plan)}"
            for name, calls in step.outside_calls.items()
        )
    )
    if step.evaluation:
        click.echo(f"every {plan.evaluate_every} steps: {readable(step.evaluation)} generations to evaluate")
    click.echo(rendered(_counts_table(plan)))
    if memory.policies:
        click.echo(rendered(_memory_table(memory)))
    _show_verdict(plan)
    _show_disk(memory.disk)
    for role, growth in memory.growths.items():
        click.echo(growth.sentence(role, cached=plan.prefix_cache))
    for note in plan.notes:
        click.echo(f"note: {note}")


def _tokens_text(name: str, plan: RunEstimate) -> str:
    """The tokens of a source's outside calls, where it says what they are."""
    tokens = plan.step.outside_tokens.get(name)
    if tokens is None:
        return ""
    read = tokens.read(plan.step.policies, plan.memory.contexts)
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


def _counts_table(plan: RunEstimate) -> Table:
    """The counts of a step, by policy."""
    policies = list(plan.step.policies.values())
    table = _table("a step, at most", list(plan.step.policies))

    def add_row(label: str, values: list[int | None]) -> None:
        known = [value for value in values if value is not None]
        cells = ["-" if value is None else readable(value) for value in values]
        table.add_row(label, *cells, readable(sum(known)) if len(known) == len(values) else "-")

    add_row("generations", [policy.generations for policy in policies])
    add_row("generated tokens", [policy.generated_tokens for policy in policies])
    add_row("prompts", [policy.prompts for policy in policies])
    add_row(
        "prompt tokens (about)" if plan.memory.prompts else "prompt tokens",
        [policy.prompt_tokens for policy in policies],
    )
    if plan.memory.growths and plan.prefix_cache:
        add_row("of these to prefill", [policy.prefill_tokens for policy in policies])
    add_row("samples", [policy.samples for policy in policies])
    add_row("their tokens (about)", [policy.sample_tokens for policy in policies])
    add_row("optimiser steps", [policy.optimizer_steps for policy in policies])
    return table


def _memory_table(memory: MemoryEstimate) -> Table:
    """Memory by policy and part."""
    names = list(memory.policies)
    table = _table("memory", names)
    table.add_row("parameters", *(readable(memory.parameters[name]) for name in names), "")
    if memory.adapters:
        adapters = [memory.adapters.get(name, 0) for name in names]
        table.add_row("of its adapter", *(readable(count) if count else "-" for count in adapters), "")
    shares = [memory.trained_share(name) for name in names]
    table.add_row("trained", *("-" if share is None else _share(share) for share in shares), "")
    table.add_section()
    for part, label in LABELS.items():
        values = [memory.policies[name].get(part, 0) for name in names]
        if any(values):
            total = memory.cache if part == "kv" else max(values) if part in PASSING else sum(values)
            table.add_row(label, *(_size(value) if value else "-" for value in values), _size(total))
    return table


def _table(title: str, names: list[str]) -> Table:
    """An empty table with a column for each policy and one for all."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title)
    for name in (*names, "all"):
        table.add_column(Text(name), justify="right")
    return table


# --------------------------------------------------------------------------------------- does it fit


def _show_verdict(plan: RunEstimate) -> None:
    """Print what follows from the tables: the peaks, whether they fit, and what saturates first."""
    memory, capacity = plan.memory, plan.capacity
    for phase, bytes_ in memory.phases.items() if memory.policies and not memory.unknown else ():
        click.echo(f"{phase}: {_size(bytes_)}")
    division = memory.division
    if division.ranks > 1:
        stage = f", ZeRO stage {division.stage}" if division.stage else ""
        click.echo(f"on the fullest GPU of {division.ranks} ranks{stage}")
    if memory.host:
        click.echo(f"offloaded to the host's memory: {_size(memory.host)}")
    for name, error in memory.unknown.items():
        click.echo(f"policy {name}: unknown: {error.what}\n  why: {error.why}\n  fix: {error.fix}")
    if memory.layout.needed > capacity.gpus:
        click.echo(
            f"does not fit: the run needs {_count_of(memory.layout.needed)} and has {capacity.gpus}: "
            f"{memory.layout.reason}"
        )
    elif memory.peak and memory.policies:
        _show_fit(plan, memory.peak)
    first = plan.loads[0]
    limit = ("this machine's " if capacity.machine else "") + _size(int(first.limit))
    if first.part == "generations":
        limit = f"the bound of {int(first.limit):,}"
    click.echo(f"saturates first: {first.part} at {_percent(first.share)} of {limit}")


def _assumed(plan: RunEstimate) -> str:
    """What the verdict assumes where the length of prompts isn't known, and how to lower it; else empty."""
    memory = plan.memory
    filled = [
        name
        for name in memory.policies
        if name in memory.contexts and not memory.prompts.keys() >= set(plan.step.policies[name].roles)
    ]
    if not filled:
        return ""
    context = " and ".join(f"{number:,}" for number in sorted({memory.contexts[name] for name in filled}))
    keys = " ".join(f"policies.{name}.context=N" for name in filled)
    return f", with prompts that fill the context of {context} tokens (length unknown); {keys} bounds it"


def _show_fit(plan: RunEstimate, peak: int) -> None:
    memory, capacity, layout = plan.memory, plan.capacity, plan.memory.layout
    fits = "fits" if peak <= capacity.each else "does not fit"
    click.echo(f"{fits} {_name_of(capacity)}: {_percent(peak / capacity.each)} of it{_assumed(plan)}")
    if layout.fixed:
        click.echo(layout.sentence)
    elif capacity.given and capacity.gpus > 1:
        each, least = peak / capacity.gpus, plan.fit.least_gpus
        fits = "fits" if each <= capacity.each else "does not fit"
        click.echo(
            f"spread evenly over {capacity.gpus} GPUs: {_size(int(each))} on each, which {fits}; "
            f"at least {least} {'is' if least == 1 else 'are'} needed"
        )
        if memory.one_device:
            click.echo(
                f"note: the trainer '{layout.trainer_type}' and the engine '{layout.engine_type}' share one "
                "GPU, however many there are"
            )


def _name_of(capacity: Capacity) -> str:
    """What a run fits into: `a GPU of 80 GB`."""
    return f"{'this machine, which has' if capacity.machine else 'a GPU of'} {_size(int(capacity.each))}"


def _show_disk(disk: Disk) -> None:
    """Print what checkpoints take; nothing where they have no tensors."""
    if not disk.checkpoint:
        return
    older = f" ({_size(disk.versions)} of it earlier weights for steps ahead)" if disk.versions else ""
    most = f", at most {disk.checkpoints} at once" if disk.checkpoints > 1 else ""
    click.echo(f"disk: {_size(disk.bytes)}: a checkpoint takes {_size(disk.checkpoint)}{older}{most}")


def _count_of(gpus: int) -> str:
    """A number of GPUs as `1 GPU` or `4 GPUs`."""
    return f"{gpus} GPU" + ("s" if gpus != 1 else "")


def _percent(value: float) -> str:
    """A share of one as `41 %`."""
    return f"{readable(round(100 * value))} %" if value >= 0.01 else "less than 1 %"


def _share(value: float) -> str:
    """A share of one as `100 %` or `1.00 %`."""
    return "100 %" if value == 1 else "none" if value == 0 else f"{100 * value:.2f} %"


def _size(number: int) -> str:
    """Bytes as `3.44 GB`."""
    for unit, bytes_ in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= bytes_:
            return f"{number / bytes_:.3g} {unit}"
    return f"{number} B"


# ------------------------------------------------------------------------------------------ placement


def show_placement(placement: ClusterPlacement) -> None:
    """Print the table of processes by node, and what is left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("node")
    table.add_column("process")
    table.add_column("CPUs", justify="right")
    table.add_column("GPUs")
    table.add_column("holds")
    for node in placement.nodes:
        for number, row in enumerate(_processes(placement.on(node))):
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


def _show_updates(placement: ClusterPlacement) -> None:
    """Print that one trainer updates several sets of weights, where it does."""
    sets = sets_of(placement.run.policies, gpus=placement.gpus > 0)
    if placement.settings.updates == "in_turn" and len(sets) > 1:
        click.echo(
            f"{len(sets)} sets of weights ({', '.join(sets)}) are updated in turn, by one trainer; "
            "cluster.updates=at_once gives each a trainer of its own"
        )


def _processes(placed: Sequence[Placed]) -> list[tuple[str, str, str, str]]:
    """The rows of a node; rollout hosts have one together."""
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
