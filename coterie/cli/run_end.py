"""What a run's end says of known sicknesses: a line each, and nothing of a healthy run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import click

from coterie.core.errors import UserError
from coterie.viewing.text import harmless, message

TOLD_BY_SIGNALS = {
    "equal_rewards": "no_variance",
    "zero_gradient": "zero_gradient",
    "gradient_not_finite": "gradient_not_finite",
    "entropy_collapse": "entropy_collapse",
    "truncated": "truncation",
    "unreadable": "unreadable",
    "reward_unchanged": "reward_unchanged",
}
"""A sign in the last line of a run -> the sickness that it is."""


def report_sicknesses(folder: Path, signs: Collection[str] = ()) -> None:
    """Print the known sicknesses of a run to stderr. Only its metrics are read; nothing is raised.

    Args:
        signs: the signs that the run's last line has, such as `truncated/planner`: they aren't repeated.
    """
    from coterie.analysis.diagnosis.run import diagnose_run

    known = {TOLD_BY_SIGNALS.get(sign.partition("/")[0], "") for sign in signs}
    try:
        sicknesses = diagnose_run(folder, rollouts=False).sicknesses
    except (UserError, OSError) as error:
        click.echo(f"no diagnosis of the run: {message(str(error))}", err=True)
        return
    new = [sickness for sickness in sicknesses if sickness.kind not in known]
    for sickness in new:
        click.echo(f"{sickness.grade}: {harmless(sickness.line)}", err=True)
    if new:
        click.echo(f"what helps: coterie doctor {folder}", err=True)
