"""`coterie watch`: how runs go, live in the terminal."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.output import can_draw, console_of
from coterie.core.errors import RunFolderError

if TYPE_CHECKING:
    from coterie.viewing.follow import FollowedRun
    from coterie.viewing.frame import Look

STILL = 5.0
"""Seconds after which a frame is drawn again though nothing was written: times go on."""
ENDED = ("finished", "stopped")


@click.command(short_help="Show how runs go, live in the terminal.")
@click.argument(
    "paths", metavar="RUN [RUN ...]", type=click.Path(path_type=Path, readable=False), nargs=-1, required=True
)
@click.option("--once", is_flag=True, help="Print one frame and end, for scripts and pipes.")
@click.option(
    "--every",
    metavar="SECONDS",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="How often the folders are looked at.",
)
def command(paths: tuple[Path, ...], once: bool, every: float) -> None:
    """Show how RUNs go: curves, roles, what is slow, what is wrong, and whether the process still lives. It
    ends when they have ended; Ctrl-C ends it before.

    A RUN may not have begun yet, may be another user's, and may be a folder of runs such as that of
    `coterie run --seeds`. Nothing is written or locked. Where the output is no terminal, each step is a line.
    """
    watched = Watched(paths)
    watched.read()
    if once:
        missing = next((run for run in watched.runs if run.state == "waiting"), None)
        if missing is not None:
            why = "it has no config.yaml" if missing.path.is_dir() else "there is no such folder"
            fix = "leave --once out to wait for the run to begin"
            raise RunFolderError(f"{missing.path} is not a run folder", why=why, fix=fix)
        print_frame(watched.runs)
        return
    try:
        (draw if can_draw() else print_lines)(watched, every)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None


class Watched:
    """The runs of a command; folders of runs may get more."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._followed: dict[Path, FollowedRun] = {}

    @property
    def runs(self) -> list[FollowedRun]:
        return list(self._followed.values())

    @property
    def ended(self) -> bool:
        return all(run.state in ENDED for run in self.runs)

    def read(self) -> bool:
        """Look at all folders; returns whether anything has changed.

        Raises:
            RunFolderError: one of them can't be read.
        """
        from coterie.api.rows import run_folders
        from coterie.viewing.follow import FollowedRun

        for path in self._paths:
            inside = run_folders(path)
            if inside and inside != [path]:
                self._followed.pop(path, None)  # it was waited for, and is a folder of runs
            for folder in inside or [path]:
                self._followed.setdefault(folder, FollowedRun(folder))
        return any([run.read() for run in self.runs])


def look_of(console: Any) -> Look:
    from coterie.viewing.frame import LEAST, Look

    return Look(max(console.width, LEAST), ascii=not console.encoding.startswith("utf"))


def print_frame(runs: Sequence[FollowedRun]) -> None:
    """Print one frame."""
    from coterie.viewing.frame import frame

    console = console_of(
        on_terminal=sys.stdout.isatty(), piped_width=max(shutil.get_terminal_size().columns, 60)
    )
    console.print(frame(runs, look_of(console), time.time()))


def draw(watched: Watched, every: float) -> None:
    """Draw frames in place until all runs have ended."""
    from rich.live import Live

    from coterie.viewing.frame import frame

    console = console_of(on_terminal=True)
    drawn, width = 0.0, 0
    live = Live(console=console, auto_refresh=False, vertical_overflow="ellipsis")
    try:  # not `with`: Ctrl-C may come while it starts, and the terminal's cursor is hidden by then
        live.start()
        changed = True
        while True:
            now = time.time()
            if changed or now - drawn >= STILL or console.width != width:
                live.update(frame(watched.runs, look_of(console), now), refresh=True)
                drawn, width = now, console.width
            if watched.ended:
                return
            time.sleep(every)
            changed = watched.read()
    finally:
        live.stop()


def print_lines(watched: Watched, every: float) -> None:
    """Print a line for each step and each change of state, until all runs have ended."""
    from coterie.viewing.frame import line

    printed: dict[Path, tuple[int, str]] = {}
    while True:
        for run in watched.runs:
            if printed.get(run.path) != (run.step, run.state):
                printed[run.path] = (run.step, run.state)
                click.echo(line(run, time.time()))
        sys.stdout.flush()
        if watched.ended:
            return
        time.sleep(every)
        watched.read()
