"""The process that bounds the end of a command: after the last signal it kills what hangs.

A handler of Python's can't run while C code keeps the main thread, nor can any thread while it keeps the
interpreter's lock. The kernel's part of a handler always runs, and writes the signal's number into a pipe
(`signal.set_wakeup_fd`). This process reads the other end, so it needs nothing of the command's process.

    first SIGINT           the command finishes its step and saves it
    first SIGTERM          it has `step` seconds for that; then this process sends a second one
    second, or at_once     it has `close` seconds to close; then it is killed, with its children

It runs as a script (`python guard.py PID STATE STEP CLOSE`), and imports the standard library alone. The
children of a command are found on Linux only.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import Any

TICK = 0.1
"""Seconds between two looks at the children, once the command must end."""
CLEAN = 0.4
"""Seconds in which a dead command's children may end by themselves, and clean up."""
Child = tuple[int, str]
"""A process: its id, and when it began."""


def last_line(folder: str, then: str = "") -> str:
    """The last line of a command that was stopped.

    Args:
        folder: of the run that it trained; empty: it trained none.
        then: what else can be done, where there is no run.
    """
    if not folder:
        return "stopped" + f"; {then}" * bool(then)
    steps = [-1]
    with suppress(OSError):
        names = os.listdir(os.path.join(folder, "checkpoints"))
        steps += [int(name[5:]) for name in names if name.startswith("step-") and name[5:].isdecimal()]
    if max(steps) < 0:
        return f"stopped; there is no checkpoint in {folder}, so start the run again"
    return f"stopped; resume from step {max(steps)} with: coterie run --resume {folder}"


def children(pid: int) -> set[Child]:
    """The processes below a process, but for Python's resource trackers, which clean up and end."""
    below: dict[int, list[int]] = {}
    begun: dict[int, str] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdecimal():
            with suppress(OSError):
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                below.setdefault(int(fields[1]), []).append(int(name))
                begun[int(name)] = fields[19]
    family, todo = set[Child](), [pid]
    while todo:
        for child in below.get(todo.pop(), ()):
            if child != os.getpid() and not _tracks(child):
                family.add((child, begun[child]))
                todo.append(child)
    return family


def _tracks(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"resource_tracker" in file.read()
    except OSError:
        return False


def alive(child: Child) -> bool:
    """Whether it is this process still, and no zombie."""
    try:
        with open(f"/proc/{child[0]}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return fields[19] == child[1] and fields[0] not in "ZX"
    except (OSError, IndexError):
        return False


class Guard:
    """Watches one command.

    Args:
        pid: of the command, this process's parent.
        state: descriptor from which the command's state is read, a line of JSON each time it changes.
        step, close: seconds, see above.
    """

    def __init__(self, pid: int, state: int, step: float, close: float) -> None:
        self.pid, self._step, self._close = pid, step, close
        self._state_file, self._told, self._rest = state, dict[str, Any](), b""
        self._again = self._end = float("inf")
        self._signals = 0
        self._known = set[Child]()

    def watch(self) -> None:
        """Return once the command's process has ended, or needs no guard any more."""
        handle = os.pidfd_open(self.pid) if hasattr(os, "pidfd_open") else 0
        watched = {0, handle}
        while watched:
            armed = self._end < float("inf")
            due = min(self._again, self._end) - time.monotonic()
            wait = None if due == float("inf") else max(0.0, min(due, TICK) if armed else due)
            ready = select.select(watched, [], [], wait)[0]
            if armed:
                self._known |= children(self.pid)
            if handle and handle in ready:
                break
            if 0 in ready:
                numbers = os.read(0, 512)
                if not numbers:  # the command's last moments
                    watched.discard(0)
                for number in numbers:
                    self._heard(number)
            if time.monotonic() >= self._again:
                self._again = float("inf")
                with suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGTERM)
                self._must_end()
            if time.monotonic() >= self._end:
                self._kill(handle)
                break
        if self._end < float("inf"):
            self._say()
            self.kill_children()

    def _heard(self, number: int) -> None:
        if number not in (signal.SIGINT, signal.SIGTERM):
            return
        self._signals += 1
        if self._signals > 1 or self.state().get("at_once"):
            self._must_end()
        elif number == signal.SIGTERM:
            self._again = time.monotonic() + self._step

    def _must_end(self) -> None:
        self._end = min(self._end, time.monotonic() + self._close)
        self._known |= children(self.pid)

    def state(self) -> dict[str, Any]:
        """The newest state that the command has told."""
        with suppress(BlockingIOError):
            while part := os.read(self._state_file, 1 << 16):
                self._rest += part
        *lines, self._rest = self._rest.split(b"\n")
        if lines:
            self._told = json.loads(lines[-1])
        return self._told

    def _kill(self, handle: int) -> None:
        """Kill the command: by SIGINT, for which it has no handler after a second signal, or by SIGKILL."""
        for number in (signal.SIGINT, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            if handle and select.select([handle], [], [], 0.2)[0]:
                break

    def _say(self) -> None:
        """Write the last line of a command that could not: it was killed, here or by a third signal."""
        state = self.state()
        if not state.get("said"):
            restore(state.get("terminal"))
            with suppress(OSError):
                line = last_line(state.get("folder", ""), state.get("then", ""))
                os.write(2, f"{line}\n".encode(errors="replace"))

    def kill_children(self) -> None:
        """Kill the children that don't end by themselves; the command may have named some before it ended."""
        named = self.state().get("children", ())
        self._known |= {(pid, begun) for pid, begun in named if pid != os.getpid()}
        end = time.monotonic() + CLEAN
        while any(map(alive, self._known)) and time.monotonic() < end:
            time.sleep(0.02)
        for child in self._known:
            if alive(child):
                with suppress(OSError):
                    os.kill(child[0], signal.SIGKILL)


def terminal() -> Any:
    """The attributes of the terminal on stderr, as JSON has them; None: there is none."""
    if not os.isatty(2):
        return None
    import termios

    *flags, characters = termios.tcgetattr(2)
    return [*flags, [each.decode("latin-1") if isinstance(each, bytes) else each for each in characters]]


def restore(attributes: Any) -> None:
    """Give the terminal its attributes back, and the cursor, which a progress bar hides."""
    if attributes is None:
        return
    import termios

    *flags, characters = attributes
    characters = [each.encode("latin-1") if isinstance(each, str) else each for each in characters]
    with suppress(termios.error, OSError):
        termios.tcsetattr(2, termios.TCSANOW, [*flags, characters])
        os.write(2, b"\x1b[?25h\r\n")


def main(pid: int, state: int, step: float, close: float) -> None:
    """Guard the command with this process id."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(state, False)
    if os.getppid() == pid:
        Guard(pid, state, step, close).watch()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]))
