"""The warm parent of runs with namespaces: one run at a time, each in namespaces of its own.

Each worker has two parents, for the two sides of a judged run. A parent is a fork of the worker, the first
process of a pid namespace in which there is nothing else but the run, so it can read the clocks of all the
run's processes, which can neither see it nor send it a signal.

A run is a new pid namespace in that of its parent, with two processes: its first one (first.py), and the
program's. The latter is a fork of the parent, which makes its folder, empty, and enters the run's mount
namespace for that. The fork reads the program from its channel, gives up its privileges and starts it. The
parent never holds a program's data: it waits, watches the clock, ends the run and reports how it ended.
Files that are brought back are read by another fork, after all the run's processes have ended.

An order is one message: {"cell": {"fds": n, ...}, "count": runs of the job, "wall": seconds}, sent with the
run's descriptors. {"kill": why} ends the run. The answer: {"why", "exit", "signal", "over", "cpu", "wall"}.
"""

from __future__ import annotations

import fcntl
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
_ALL_CHILDREN = 0x40000000  # __WALL: whatever signal tells of their end
_ENOUGH = struct.calcsize("=8i")
_LOW, _HIGH = 5, 16
"""How many descriptors a program begins with at most, and the first that is a parent's."""
_NEW = os.O_CREAT | os.O_EXCL
_MAIN, _STDIN = f"{spaces.BOX}/main.py", f"{spaces.BOX}/stdin"


class Parent:
    """Serves the orders of one socket, one run after the other.

    What is the same for all runs is made here, and so is all of a run that needs none of its data: in a fork
    each page that is written is copied first. Descriptors below _LOW are for those of programs.
    """

    def __init__(self, control: socket.socket, view: tuple[int, int], mounts: int) -> None:
        self._control = socket.socket(fileno=_high(control.detach()))
        self._view = _high(view[0]), _high(view[1])
        self._mounts = _high(mounts)
        self._here = _high(os.pidfd_open(os.getpid()))
        self._null = _high(os.open("/dev/null", os.O_RDWR))
        self._free(_LOW)

    def _free(self, count: int) -> None:
        """Let the first descriptors lead nowhere."""
        for number in range(count):
            os.dup2(self._null, number)

    def serve(self) -> None:
        """Serve until the socket is closed."""
        while True:
            message, ancillary, _, _ = self._control.recvmsg(_MESSAGE, socket.CMSG_SPACE(_ENOUGH), _CLOEXEC)
            if not message:
                return
            order = json.loads(message)
            if "cell" in order:  # or it comes too late to end a run
                self._control.send(json.dumps(self._run(order, _descriptors(ancillary))).encode())

    def _run(self, order: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        """Run a program to its end. `fds`: channel, stdout, stderr, then the program's 3 and 4."""
        given, began = order["cell"], time.monotonic()
        try:
            run = self._start(given, fds, order["count"])
        except OSError as error:
            fault = f"{type(error).__name__}: {error}"
            ended = {"fault": fault, "why": "", "signal": 0}
        else:
            ended = run.watch(self._control, began + order["wall"])
            if given["collects"]:
                run.collect(fds[0])
        for descriptor in fds:
            os.close(descriptor)
        return {**ended, "wall": time.monotonic() - began}

    def _start(self, given: dict[str, Any], fds: list[int], count: int) -> _Run:
        """Start the two processes of a run. Raises OSError."""
        # The kernel counts tasks by user: the worker's four processes and the first one of each run, too.
        given["nproc"] = given["processes"] * count + 4 + count
        bounds = program.limits(given)
        ours, theirs = socket.socketpair()
        reaper = pid = 0
        opened: list[int] = []
        try:
            # unshare(2) sets the pid namespace of later children; setns(2) sets it back. The mount namespace
            # is this process's too, as long as it prepares the run's folder.
            kernel.unshare(kernel.NEWPID | kernel.NEWNS)
            spaces.private_folder(given["disk_mb"])
            opened = [os.open(_MAIN, _NEW | os.O_WRONLY, 0o644), -1, -1]
            if not given["input"]:
                opened[1] = os.open(_STDIN, _NEW | os.O_RDONLY, 0o644)
            if given["collects"]:
                opened[2] = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
            reaper = first.start()
            for number, descriptor in enumerate((opened[1], *fds[1:])):
                if descriptor >= 0:
                    os.dup2(descriptor, number)
            pid = kernel.fork()
            if pid == 0:
                try:
                    _become_program(given, fds, opened[0], theirs, bounds, asked=self._view[1] >= 0)
                finally:
                    os._exit(1)
        except OSError:
            ours.close()
            _end(reaper)
            raise
        finally:
            kernel.setns(self._here, kernel.NEWPID)
            kernel.setns(self._mounts, kernel.NEWNS)  # and to its root
            theirs.close()
            self._free(len(fds))
            for descriptor in opened[:2]:
                if descriptor >= 0:
                    os.close(descriptor)
        return _Run(pid, reaper, given, ours, opened[2], self._here, self._view)


class _Run:
    """A run while it lasts."""

    def __init__(
        self,
        pid: int,
        reaper: int,
        given: dict[str, Any],
        ours: socket.socket,
        folder: int,
        here: int,
        view: tuple[int, int],
    ) -> None:
        self._here = here
        self._pid, self._reaper, self._given = pid, reaper, given
        self._ours, self._folder = ours, folder
        self._clock = clock.CpuClock(pid, *view)
        self._listener = -1
        self._forked = True
        """Whether it may have made other processes: the kernel asks before it makes the first."""

    def watch(self, control: socket.socket, until: float) -> dict[str, Any]:
        """Wait for the program; end it where it is time or the host process asks, and all that it left.

        Args:
            until: time.monotonic() of its wall limit.
        """
        limit: float = self._given["cpu"]
        asks, sends = control.fileno(), self._ours.fileno()
        over, why, killed = False, "", False
        poll, ended = select.poll(), os.pidfd_open(self._pid)
        for descriptor in (ended, asks, sends):
            poll.register(descriptor, select.POLLIN)
        wait = min(cell.SHORT, limit)
        while True:
            ready = poll.poll(1000 * max(0.0, min(wait, until - time.monotonic())) + 1)
            if any(descriptor == ended for descriptor, _ in ready):
                break
            for descriptor, event in ready:
                if descriptor == sends:
                    poll.unregister(descriptor)
                    self._take(poll)
                elif descriptor == asks:
                    why = why or _asked(control)
                elif event & select.POLLIN:
                    self._forked = True
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
        if self._forked:
            _end_the_rest(self._reaper, self._here)
        result: dict[str, Any] = {"exit": None, "signal": int(signal.SIGKILL), "over": over}
        if not killed:
            result = cell.ended_by(status)
        over = result["over"] = over or result["over"]
        result["stopped"] = killed and not over
        _end(self._reaper)
        self._ours.close()
        if self._listener >= 0:
            os.close(self._listener)
        result["cpu"] = self._clock.final(over, self._given["cpu"])
        return result

    def _take(self, poll: select.poll) -> None:
        """Take the descriptor through which the kernel asks (seccomp.py); none if the program has ended."""
        for descriptor in _descriptors(self._ours.recvmsg(1, socket.CMSG_SPACE(_ENOUGH), _CLOEXEC)[1]):
            self._listener, self._forked = descriptor, False
            poll.register(descriptor, select.POLLIN)

    def collect(self, channel: int) -> None:
        """Have a fork answer with the files that the program left."""
        pid = kernel.fork()
        if pid == 0:
            try:
                kernel.drop_capabilities()
                _enter(self._folder)
                cell.report(channel, {}, self._given)
                os._exit(0)
            finally:
                os._exit(1)
        os.close(self._folder)
        os.waitpid(pid, 0)


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    return [number for _, _, data in ancillary for (number,) in struct.iter_unpack("=i", data)]


def _enter(folder: int) -> None:
    """Enter a working folder by its descriptor: a link may be in its place. It may be closed, too."""
    mode = os.fstat(folder).st_mode
    os.fchmod(folder, 0o700)
    os.fchdir(folder)
    os.fchmod(folder, mode & 0o7777)


def _end(reaper: int) -> None:
    """End the first process of a run, if there is one, and with it all others."""
    if reaper:
        os.kill(reaper, signal.SIGKILL)
        _wait_for(reaper)


def _wait_for(pid: int) -> None:
    """Wait for the end of a child in a run's pid namespace, and reap all others that end meanwhile.

    Where no filter refuses CLONE_PARENT, a program can make children of this process. While one of them has
    ended and isn't reaped, it counts as alive: for kill(-1), and for the kernel, which ends the first process
    of a pid namespace after all others. For that reason the first process is never reaped too early here.
    """
    while os.waitpid(-1, _ALL_CHILDREN)[0] != pid:
        pass


def _asked(control: socket.socket) -> str:
    """Why the host process ends the run."""
    message = control.recv(_MESSAGE)
    if not message:
        os._exit(0)  # it is gone, and all that runs here ends with this process
    return str(json.loads(message).get("kill", ""))


def _high(descriptor: int) -> int:
    """The same file at a descriptor that no program has; -1 stays."""
    if descriptor < 0:
        return descriptor
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(descriptor)
    return moved


def _end_the_rest(reaper: int, here: int) -> None:
    """Kill all that the program left, and have the first process of the run reap it: when that process is
    killed, the kernel reaps the others without counting their CPU time.

    Args:
        here: a pidfd of this process.
    """
    there = os.pidfd_open(reaper)
    try:
        kernel.setns(there, kernel.NEWPID)
        killer = kernel.fork()
        if killer == 0:
            _kill_all()
    finally:
        kernel.setns(here, kernel.NEWPID)
        os.close(there)
    _wait_for(killer)


def _kill_all() -> NoReturn:
    """Kill all but the first process of the pid namespace until there is no other, then end this process."""
    try:
        kernel.drop_capabilities()
        assert os.getpid() > 1, "outside the run's pid namespace kill(-1) would reach other processes"
        while True:
            os.kill(-1, signal.SIGKILL)
            time.sleep(0.0005)
    finally:  # none is left
        os._exit(0)


def _become_program(
    order: dict[str, Any],
    fds: list[int],
    main: int,
    parent: socket.socket,
    bounds: list[tuple[int, tuple[int, int]]],
    *,
    asked: bool,
) -> NoReturn:
    """Take the program's data, give up what it may not have, and start it in this process.

    Args:
        main: a descriptor of its main.py, which is empty.
        bounds: of program.limits.
        asked: whether the parent answers the kernel.
    """
    channel = fds[0]
    try:
        kernel.drop_capabilities()
        source = cell.exactly(channel, order["code"])
        cell.write(main, source)
        if order["input"]:
            cell.take_stdin(spaces.BOX, channel, order["input"])
        argv = cell.lay_out(spaces.BOX, channel, order)
        listener = seccomp.install_asking() if asked else -1
        if listener >= 0:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=i", listener))
            parent.sendmsg([b"."], [rights])
        else:
            seccomp.install(alone=True)
    except BaseException as error:
        cell.send(channel, {"fault": f"{type(error).__name__}: {error}"})
        os._exit(1)
    program.start_alone(bounds, argv, len(fds), source, order["entry"])


def fork_parents(controls: list[socket.socket], view: tuple[int, int], mounts: int, hello: bytes) -> NoReturn:
    """Fork a parent for each socket, wait for the first that ends, and end with it: so all end together.

    Args:
        mounts: a descriptor of this process's mount namespace.
        hello: what the host process gets when they serve.
    """
    here = os.pidfd_open(os.getpid())
    for control in controls:
        kernel.unshare(kernel.NEWPID)
        pid = kernel.fork()
        if pid == 0:
            os.close(here)
            for other in controls:
                if other is not control:
                    other.close()
            Parent(control, view, mounts).serve()
            os._exit(0)
        kernel.setns(here, kernel.NEWPID)
    controls[0].send(hello)
    for control in controls:
        control.close()
    os.wait()
    os._exit(0)
