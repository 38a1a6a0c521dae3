"""What other ranks make in tests of the rank program. Without torch, so that a rank starts quickly."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import Origin, plugin_call


class Target:
    """Does on rank 1 what it is asked to; on rank 0 nothing of the kind."""

    def __init__(self, number: int = 1) -> None:
        self.number = number

    def place(self) -> tuple[int, int]:
        return self.number, os.getpid()

    def add(self, *numbers: int) -> int:
        return sum(numbers) + self.number

    def refuse(self) -> None:
        if self.number:
            raise ConfigError("it is wrong", path="trainer.device", why="a test", fix="none")

    def fail(self) -> None:
        """A bug on rank 1, which rank 0 sees as a collective that fails."""
        if self.number:
            raise ZeroDivisionError("by a test")
        time.sleep(0.2)
        raise RuntimeError("Connection closed by peer")

    def leave(self) -> None:
        """A library on rank 1 calls `sys.exit`."""
        if self.number:
            sys.exit(3)
        time.sleep(0.2)
        raise RuntimeError("Connection closed by peer")

    def leave_plugin(self) -> None:
        with plugin_call(Origin("loss", "mine", "my-package", "loss"), "__call__"):
            self.leave()

    def die(self) -> None:
        if self.number:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        raise RuntimeError("Connection closed by peer")

    def fail_here(self) -> None:
        if self.number:
            time.sleep(600)
        raise RuntimeError("a bug of rank 0")

    def sleep(self, seconds: float) -> None:
        if self.number:
            time.sleep(seconds)

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def write(self, file: str) -> None:
        """Write this process's id, and wait like a rank in a collective."""
        if self.number:
            Path(file).write_text(str(os.getpid()))
            time.sleep(600)


class StrangeError(Exception):
    """An exception that can't be pickled."""
