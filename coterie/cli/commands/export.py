"""`coterie export`: a policy as a folder that transformers or PEFT load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coterie.cli.commands.eval import checkpoint_option
from coterie.cli.options import out_option, plugin_option


@click.command(short_help="Write a policy as a Hugging Face folder or a PEFT adapter.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--policy", metavar="NAME", required=True, help="Which policy of the run.")
@out_option("DIR", required=True)
@click.option("--overwrite", is_flag=True, help="Replace files of the same names in DIR; others stay.")
@click.option("--merge", is_flag=True, help="Merge an adapter into the weights it was trained on.")
@checkpoint_option
@plugin_option
def command(run: Path, policy: str, out: Path, overwrite: bool, merge: bool, checkpoint: Any) -> None:
    """Write a policy of a run as a folder that transformers loads, or PEFT where it is an adapter.

    A folder that holds files is refused. The files appear once all of them are written.
    """
    from coterie.api.export import export as export_policy

    checkpoint = "best" if checkpoint is None else checkpoint
    click.echo(export_policy(run, policy, out, merge=merge, checkpoint=checkpoint, overwrite=overwrite))
