"""Errors of a command: those that the user can fix become messages; a bug shows its traceback."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from coterie.core.errors import CoterieError, PolicyFault, UserError
from coterie.viewing.text import LONGEST_ERROR, harmless, message

INTERRUPTED = 130
"""Exit code after SIGINT: 128 + 2, the convention of shells."""


class Failure(click.ClickException):
    """An error of this package, shown as a message; exit code 1."""

    def show(self, file: IO[Any] | None = None) -> None:
        # What plugins and servers said may be in it.
        text = click.style("Error:", fg="red", bold=True) + " " + message(self.message, LONGEST_ERROR)
        for label in ("why:", "fix:"):
            text = text.replace(f"\n  {label}", "\n  " + click.style(label, bold=True))
        click.echo(text, file=file, err=True)  # click drops the colours where stderr is no terminal


class WrongInput(Failure):
    """An error that the user can fix; exit code 2."""

    exit_code = 2


@contextmanager
def reported() -> Iterator[None]:
    """Turn errors of this package into messages; `COTERIE_DEBUG=1` prints their tracebacks too."""
    try:
        yield
    except CoterieError as error:
        if os.environ.get("COTERIE_DEBUG") == "1":
            click.echo(harmless(traceback.format_exc()), err=True, nl=False)
        notes: list[str] = getattr(error, "__notes__", [])  # the plugin that raised it, and its method
        text = "\n  ".join([str(error), *notes])
        if isinstance(error, PolicyFault) and notes:  # where it means something, it is caught
            text = f"PolicyFault: {text}\n  fix: raise it only in parse, step, score and run"
        raise (WrongInput if isinstance(error, UserError) else Failure)(text) from error
    except KeyboardInterrupt:
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the task's trace says nothing more
        click.echo("stopped", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None


@contextmanager
def exits_reported() -> Iterator[None]:
    """Turn a call of `sys.exit` in a plugin or a library, which would end a run silently, into an error."""
    try:
        yield
    except SystemExit as error:
        frames = traceback.extract_tb(error.__traceback__)
        # W&B puts a function of its own in the place of sys.exit.
        last = next((frame for frame in reversed(frames) if frame.name != "exit"), frames[-1])
        raise UserError(
            f"sys.exit({error.code!r}) was called",
            why=f"{last.filename}, line {last.lineno}, in {last.name}",
            fix="raise an error that says why; a run goes on from its newest checkpoint with --resume",
        ) from error
