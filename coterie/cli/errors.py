"""What the user can fix becomes a message and an exit code; a traceback is for bugs."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import click

from coterie.core.errors import CoterieError, UserError

INTERRUPTED = 130
"""Exit code after SIGINT, as shells have it."""


class Failure(click.ClickException):
    """One of our own errors, as a message."""

    def show(self, file: IO[Any] | None = None) -> None:
        text = click.style("Error:", fg="red", bold=True) + " " + self.message
        for label in ("why:", "fix:"):
            text = text.replace(f"\n  {label}", "\n  " + click.style(label, bold=True))
        click.echo(text, file=file, err=True)  # click drops the colours where stderr is no terminal


class WrongInput(Failure):
    """One that the user can fix."""

    exit_code = 2


@contextmanager
def reported() -> Iterator[None]:
    """Turn our own errors into messages; `COTERIE_DEBUG=1` shows their tracebacks too."""
    try:
        yield
    except CoterieError as error:
        if os.environ.get("COTERIE_DEBUG") == "1":
            traceback.print_exc()
        raise (WrongInput if isinstance(error, UserError) else Failure)(str(error)) from error
    except KeyboardInterrupt:
        click.echo("stopped", err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
