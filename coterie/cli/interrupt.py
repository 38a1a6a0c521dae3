"""Handling of Ctrl-C and SIGTERM: the first finishes the step, the second stops within five seconds."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import click

from coterie.cli import guard
from coterie.cli.errors import INTERRUPTED

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STEP_SECONDS = 5.0
"""What SIGTERM leaves a step to finish and be saved in."""
CLOSE_SECONDS = 3.5
"""What a command that must stop has to close in; with the kill of what hangs it takes less than 5."""


class Interruption(threading.Event):
    """An event that the first signal sets, and what the last line of a stopped command says.

    Args:
        then: what can be done after a stop, where the command trains no run.
        at_once: whether the first signal stops already: there is nothing to save.
    """

    def __init__(self, then: str = "", *, at_once: bool = False) -> None:
        super().__init__()
        self._state: dict[str, Any] = {"then": then, "at_once": at_once, "folder": "", "said": False}
        self._guard: int | None = None
        """Descriptor on which the guard reads the state."""

    def runs_in(self, folder: Path) -> None:
        """The folder of the run that is trained now; a resume reads its checkpoints."""
        self._tell(folder=str(folder))

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """A context in which the first signal stops, as in an evaluation between trainings."""
        self._tell(at_once=True)
        try:
            yield
        finally:
            self._tell(at_once=self.is_set())  # the guard may read the signal only now

    @property
    def stops(self) -> bool:
        """Whether the next signal stops the command."""
        return self.is_set() or bool(self._state["at_once"])

    def say_stopped(self) -> None:
        """Print the last line of a command that was stopped."""
        click.echo(guard.last_line(self._state["folder"], self._state["then"]), err=True)
        self._tell(said=True)

    def tell_children(self) -> None:
        """Tell the guard this process's children, before a signal may end it: later they are nobody's."""
        self._tell(children=sorted(guard.children(os.getpid())))

    def guarded_by(self, descriptor: int) -> None:
        """Tell a guard the state, now and when it changes."""
        self._guard = descriptor
        self._tell(terminal=guard.terminal())

    def _tell(self, **changes: Any) -> None:
        self._state |= changes
        if self._guard is not None:
            with suppress(OSError):  # it has ended: somebody killed it
                os.write(self._guard, json.dumps(self._state).encode() + b"\n")


@contextmanager
def interruptible(then: str = "", *, at_once: bool = False) -> Iterator[Interruption]:
    """An event that the first SIGINT or SIGTERM sets.

    The second signal raises KeyboardInterrupt, and so does SIGTERM after `STEP_SECONDS`; the command then
    ends with exit code 130 and a line that says how to go on. It also restores the default handlers: a third
    one ends the process at once. After `CLOSE_SECONDS` the guard (`guard.py`) does, with all children.

    Args:
        then, at_once: see `Interruption`.
    """
    interruption = Interruption(then, at_once=at_once)
    if threading.current_thread() is not threading.main_thread():
        yield interruption  # only the main thread may handle signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if not interruption.stops:
            interruption.set()
            within = f" within {STEP_SECONDS:g} s" if number == signal.SIGTERM else ""
            say(f"\nfinishing the step{within}; press again to stop at once")
            return
        interruption.set()
        interruption.tell_children()
        for watched in SIGNALS:
            signal.signal(watched, signal.SIG_DFL)
        # They would print traces of what is interrupted, and what can't close without a loop, after the
        # last line.
        for name in ("asyncio", "coterie"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        warnings.simplefilter("ignore", RuntimeWarning)
        sys.unraisablehook = lambda _: None
        say("\nstopping")
        raise KeyboardInterrupt

    with _guarded(interruption):
        previous = {watched: signal.signal(watched, handle) for watched in SIGNALS}
        try:
            yield interruption
        except KeyboardInterrupt:
            if not interruption.is_set():
                raise
            interruption.say_stopped()
            raise click.exceptions.Exit(INTERRUPTED) from None
        finally:
            for watched, handler in previous.items():
                signal.signal(watched, signal.SIG_DFL if interruption.is_set() else handler)


def say(text: str) -> None:
    """Print a line on stderr from a handler of signals."""
    try:
        click.echo(text, err=True)
    except RuntimeError:  # the signal came while stderr was being written to
        with suppress(OSError, ValueError):  # stderr is no file
            os.write(sys.stderr.fileno(), f"{text}\n".encode())


@contextmanager
def _guarded(interruption: Interruption) -> Iterator[None]:
    """A context with a guard. It lives on after a signal, until this process has ended."""
    if sys.platform == "win32":  # no wake-up by a pipe, and no such signals
        yield
        return
    state, ours = os.pipe()
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), str(state), str(STEP_SECONDS),
             str(CLOSE_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[state],
            start_new_session=True,  # Ctrl-C in a terminal is for the command
        )  # fmt: skip
    finally:
        os.close(state)
    assert process.stdin is not None
    signals = process.stdin.fileno()
    os.set_blocking(signals, False)
    before = signal.set_wakeup_fd(signals, warn_on_full_buffer=False)
    interruption.guarded_by(ours)
    try:
        yield
    finally:
        if not interruption.is_set():
            signal.set_wakeup_fd(before)
            process.kill()
            process.wait()
            process.stdin.close()
            os.close(ours)
        else:
            _left.append(process)


def _forget() -> None:
    """In a forked child: a Ctrl-C reaches it too, and its guard would count two."""
    with suppress(ValueError):  # its thread was not the main one
        signal.set_wakeup_fd(-1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


_left: list[subprocess.Popen[bytes]] = []
"""Guards that end with this process."""
