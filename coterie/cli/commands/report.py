"""`coterie report`: a run as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from coterie.cli.options import out_option


@click.command(short_help="Write a run's curves, roles and episodes as one HTML file.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@out_option("FILE.html", default="report.html in the first run's folder")
def command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Write a report of one or several runs: learning curves with intervals, what each role did, the episodes
    with their trees, and in what the runs differ.

    The file holds all that it shows and asks no server. Runs that differ in their seed alone are drawn
    together. RUN may also be a folder of runs, such as that of `coterie run --seeds`.
    """
    from coterie.viewing.report import report

    out = out or runs[0] / "report.html"
    new = not out.parent.exists()
    path = report(runs, out)
    if new:
        click.echo(f"{out.parent}: a new folder", err=True)
    click.echo(f"{path}  {path.stat().st_size / 1e6:.1f} MB")
