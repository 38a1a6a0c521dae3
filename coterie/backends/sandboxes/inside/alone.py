"""The warm parent of runs with namespaces: one run at a time, each in namespaces of its own.

Each worker has two parents, for the two sides of a judged run. A parent is a fork of the worker, the first
process of a pid namespace in which there is nothing else but the run, so it can read the clocks of all the run's
processes, which can neither see it nor send it a signal.

A run is a new pid namespace in that of its parent, with two processes: its first one (first.py), and the
program's. The latter is a fork of the parent. It mounts its folder, reads the program from its channel, gives up
its privileges and starts it. The parent never holds a program's data: it waits, watches the clock, ends the run
and reports how it ended. Files that are brought back are read by another fork, after all the run's processes
have ended.

An order is one message: {"cell": {"fds": n, ...}, "count": runs of the job, "wall": seconds}, sent with the run's
descriptors. {"kill": why} ends the run. The answer: {"why", "exit", "signal", "over", "cpu", "wall"}.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
from typing import Any, NoReturn

from . import cell, clock, first, kernel, program, seccomp, spaces

_MESSAGE = 1 << 16
_CLOEXEC = 0x40000000  # MSG_CMSG_CLOEXEC
_ENOUGH = struct.calcsize("=8i")


class Parent:
    """Serves the orders of one socket, one run after the other."""

    def __init__(self, control: socket.socket, view: tuple[int, int]) -> None:
        self.control, self.view = control, view
        self._here = os.pidfd_open(os.getpid())

    def serve(self) -> None:
        """Serve until the socket is closed."""
        while True:
            message, ancillary, _, _ = self.control.recvmsg(_MESSAGE, socket.CMSG_SPACE(_ENOUGH), _CLOEXEC)
            if not message:
                return
            order = json.loads(message)
            if "cell" in order:  # or it comes too late to end a run
                self.control.send(json.dumps(self._run(order, _descriptors(ancillary))).encode())

    def _run(self, order: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run a program to its end. `fds`: channel, stdout, stderr, then the program's 3 and 4."""
        given, began = order["cell"], time.monotonic()
        ours, theirs = socket.socketpair()
        reaper = pid = 0
        try:
            # unshare(2) sets the pid namespace of later children; setns(2) sets it back.
            kernel.unshare(kernel.NEWPID)
            reaper = first.start()
            pid = kernel.fork()
            if pid == 0:
                _become_program(given, fds, theirs, order["count"], self.view)
        except OSError as error:
            fault = f"{type(error).__name__}: {error}"
        finally:
            theirs.close()
            for descriptor in fds[1:]:
                os.close(descriptor)
            kernel.setns(self._here, kernel.NEWPID)
        if pid:
            run = _Run(pid, reaper, given, self.control, ours, self.view)
            ended = run.watch(began + order["wall"])
            if given["collects"]:
                run.collect(fds[0])
        else:
            ended = {"fault": fault, "why": "", "signal": 0}
            _end(reaper)
        ours.close()
        os.close(fds[0])
        return {**ended, "wall": time.monotonic() - began}


class _Run:
    """A run while it lasts."""

    def __init__(
        self,
        pid: int,
        reaper: int,
        given: dict[str, Any],
        control: socket.socket,
        ours: socket.socket,
        view: tuple[int, int],
    ) -> None:
        self._pid, self._reaper, self._given = pid, reaper, given
        self._control, self._ours = control, ours
        self._clock = clock.Clock(pid, *view)
        self._folder = -1
        """The working folder; -1: it isn't needed, or the program has not begun."""
        self._listener = -1

    def watch(self, until: float) -> dict[str, Any]:
        """Wait for the program, end it where it is time or the host process asks for it, and all that it left.

        Args:
            until: time.monotonic() of its wall limit.
        """
        limit: float = self._given["cpu"]
        over, why, killed = False, "", False
        poll, ended = select.poll(), os.pidfd_open(self._pid)
        for descriptor in (ended, self._control.fileno(), self._ours.fileno()):
            poll.register(descriptor, select.POLLIN)
        wait = min(cell.SHORT, limit)
        while True:
            ready = poll.poll(1000 * max(0.0, min(wait, until - time.monotonic())) + 1)
            if any(descriptor == ended for descriptor, _ in ready):
                break
            for descriptor, event in ready:
                if descriptor == self._ours.fileno():
                    poll.unregister(descriptor)
                    self._take(poll)
                elif descriptor == self._control.fileno():
                    why = why or self._asked()
                elif event & select.POLLIN:
                    clock.answer(descriptor, self._clock)
                else:  # no process is left that the kernel could ask about
                    poll.unregister(descriptor)
            over = over or self._clock.exceeds(limit)
            if not why and time.monotonic() >= until:
                why = "wall"
            if (over or why) and not killed:
                killed = True
                os.kill(self._pid, signal.SIGKILL)
            wait = self._clock.pause(limit)
        os.close(ended)
        return {**self._ended(killed, over), "why": why}

    def _ended(self, killed: bool, over: bool) -> dict[str, Any]:
        """End all that the program left; the result of the run."""
        _, status = os.waitpid(self._pid, 0)
        result = {"exit": None, "signal": int(signal.SIGKILL)} if killed else cell.ended_by(status)
        result["over"] = over = over or result.get("over", False)
        result["stopped"] = killed and not over
        _end(self._reaper)
        if self._listener >= 0:
            os.close(self._listener)
        result["cpu"] = self._clock.final(over, self._given["cpu"])
        return result

    def _take(self, poll: select.poll) -> None:
        """Take what the program sends before it begins; nothing if it has ended."""
        names, ancillary, _, _ = self._ours.recvmsg(2, socket.CMSG_SPACE(_ENOUGH), _CLOEXEC)
        for name, descriptor in zip(names, _descriptors(ancillary), strict=True):
            if name == ord("f"):
                self._folder = descriptor
            else:
                self._listener = descriptor
                poll.register(descriptor, select.POLLIN)

    def _asked(self) -> str:
        """Why the host process ends the run."""
        message = self._control.recv(_MESSAGE)
        if not message:
            os._exit(0)  # it is gone, and all that runs here ends with this process
        return str(json.loads(message).get("kill", ""))

    def collect(self, channel: int) -> None:
        """Have a fork answer with the files that the program left."""
        if self._folder < 0:
            return
        pid = kernel.fork()
        if pid == 0:
            try:
                kernel.drop_capabilities()
                os.fchdir(self._folder)
                cell.report(channel, {}, ".", self._given)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(self._folder)
        os.waitpid(pid, 0)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    return [number for _, _, data in ancillary for (number,) in struct.iter_unpack("=i", data)]


def _end(reaper: int) -> None:
    """End the first process of a run, if there is one, and with it all others."""
    if reaper:
        os.kill(reaper, signal.SIGKILL)
        os.waitpid(reaper, 0)


def _become_program(
    order: dict[str, Any], fds: list[int], parent: socket.socket, count: int, view: tuple[int, int]
) -> NoReturn:
    """Prepare the folder, which no other process sees, and start the program in this process."""
    channel = fds[0]
    try:
        spaces.private_folder(order["disk_mb"])
        kernel.drop_capabilities()
        header, stdin = cell.lay_out(spaces.BOX, channel)
        # The kernel counts tasks by user: the worker's four processes and the first one of each run, too.
        order["nproc"] = order["processes"] * count + 4 + count
        sent = {}
        if order["collects"]:
            sent["f"] = os.open(spaces.BOX, os.O_RDONLY | os.O_DIRECTORY)
        listener = seccomp.install_asking() if view[1] >= 0 else -1
        if listener >= 0:
            sent["l"] = listener
        if sent:
            rights = struct.pack(f"={len(sent)}i", *sent.values())
            parent.sendmsg(["".join(sent).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        order["filtered"] = listener >= 0
    except BaseException as error:
        cell.send(channel, {"fault": f"{type(error).__name__}: {error}"})
        os._exit(1)
    program.start(order, header, spaces.BOX, [stdin, *fds[1:]], alone=True)


def fork_parents(controls: list[socket.socket], view: tuple[int, int]) -> NoReturn:
    """Fork a parent for each socket, wait for the first that ends, and end with it: so all end together."""
    here = os.pidfd_open(os.getpid())
    for control in controls:
        kernel.unshare(kernel.NEWPID)
        pid = kernel.fork()
        if pid == 0:
            os.close(here)
            for other in controls:
                if other is not control:
                    other.close()
            Parent(control, view).serve()
            os._exit(0)
        kernel.setns(here, kernel.NEWPID)
    for control in controls:
        control.close()
    os.wait()
    os._exit(0)
