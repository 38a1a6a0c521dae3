"""`coterie plan`: what a run costs, estimated without loading a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from coterie.cli.comlrl import FromCommand, configured, from_option
from coterie.cli.interrupt import interruptible
from coterie.cli.options import json_option, layer_options, overrides, plugin_option
from coterie.cli.output import print_json

if TYPE_CHECKING:
    from coterie.comlrl import Flags


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
@click.option("--yes", "any_size", is_flag=True, help="Plan a step of more than 20,000 generations too.")
@layer_options
@from_option
@json_option
@plugin_option
def command(
    source: str,
    settings: tuple[str, ...],
    gpu_memory: float,
    as_json: bool,
    flags: Flags | None,
    **options: Any,
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
    from coterie.cli.plan_output import show
    from coterie.estimate.plan import plan

    chosen = configured(source, settings, flags)
    given = click.get_current_context().get_parameter_source("gpu_memory") == ParameterSource.COMMANDLINE
    memory = gpu_memory if given else None
    with interruptible(at_once=True):  # a plugin's methods are called
        planned = plan(chosen, overrides=overrides(settings), gpu_memory=memory, **options)
    if as_json:
        print_json(planned.as_dict())
        return
    show(planned)
