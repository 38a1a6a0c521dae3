"""One worker: prepares what programs are forked from, and serves. With namespaces it forks the parents of
the runs for that (alone.py). Without them it gets orders from the host process over a socket, forks a cell
for each program, watches the wall clock, and reports how the cells ended. A worker never holds a program or
its output: these go directly between the host process and the cell, so the memory that the next cell is
forked from has nothing of a run.

An order is one message: {"cells": [{"fds": n, ...}, ...], "wall": seconds}, sent with the descriptors of all
cells. {"kill": i} ends a cell. The answer: {"ended": [{"why", "signal", "wall"}, ...]}.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
import types
from typing import Any, NoReturn

from . import alone, cell, clock, kernel, packages, program, seccomp, spaces, users

_GRACE = 0.1
"""Seconds for the other cell of a pair after the first has ended; an honest candidate ends by itself."""
_REPORT = 1.0
"""Seconds for a cell to report on a program that it has to end; then it is killed."""
_OTHERS = 5.0
"""Seconds that a worker waits, at its end, for other workers that end too: a process that was killed takes a
moment to be gone, longer on a busy machine."""
_MESSAGE = 1 << 16
_COMMON = """
    abc array ast bisect builtins codecs collections collections.abc contextlib copy dataclasses
    datetime decimal enum fractions functools heapq inspect io itertools json linecache math numbers
    operator os os.path random re select signal string struct sys textwrap threading time traceback
    types typing warnings weakref
"""
"""Modules that programs often import; they are imported once, before the forks. Each module makes each fork
slower, one with a shared library by most: so those that few programs import are in _RARE."""
_RARE = "base64 calendar cmath csv queue shutil statistics tempfile unicodedata"
"""Imported too where there are no namespaces: a user may not be able to read the interpreter's folder."""


def main(arguments: list[str]) -> None:
    """Serve until the sockets, file descriptors, are closed. The first message of the first one has the
    settings (pool.py); with namespaces there is one for each side of a judged run."""
    parent = os.getppid()
    control, *others = (socket.socket(fileno=int(number)) for number in arguments)
    orders = json.loads(control.recv(1 << 20))
    try:
        _first_in_line_for_the_oom_killer()
        kernel.one_arena()
        for name in [*_COMMON.split(), *(() if orders["alone"] else _RARE.split())]:
            importlib.import_module(name)
        held: users.Held | None = None
        if orders["alone"]:
            view = spaces.enter([*spaces.shown_by_default(), *orders["shown"]], orders.get("hidden", []))
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # for what it starts
        else:
            view = (clock.view(), -1)
            kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
            held = users.find(orders, orders["base"])
            for name in users.MORE.split() if held.reads == "preloaded" else ():
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)
            kernel.prctl(kernel.PR_SET_SUBREAPER, 1)
            signal.signal(signal.SIGTERM, lambda *_: _give_up(orders["base"], parent))
            kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                _give_up(orders["base"], parent)
        # Inherited by the cells. Without a handler of SIGINT, pid 1 of a namespace never gets it from inside;
        # a blocked SIGCHLD can be waited for.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        folders, variables = orders.get("folders", []), orders.get("environment", {})
        packages.load(orders.get("modules", []), orders["shown"], folders, variables, view[0])
        _preload(orders["preload"])
        mounts = os.open("self/ns/mnt", os.O_RDONLY, dir_fd=view[0]) if orders["alone"] else -1
        view = view if clock.can_scan(view[0]) else (-1, view[1])
        if held is not None:
            worker = Worker(control, orders["base"], held, view)
            # The kernel sends it when the host process is gone, the pool when it drops this worker alone.
            signal.signal(signal.SIGTERM, lambda *_: worker.leave(last=os.getppid() != parent))
        holds = held.hello() if held else {"apart": True, **spaces.probe()}
        hello = {"alone": held is None, "clock": view[0] >= 0, "mb": packages.size(view[0]), **holds}
        kernel.no_more_privileges(kernel.DAC_READ_SEARCH if held and held.reads == "capability" else -1)
        seccomp.prepare()
        program.prepare(folders, variables)
    except packages.UnusableModule as error:
        hello = {"fault": "a package can't be imported ahead", "unusable": list(error.args)}
    except BaseException as error:
        hello = {"fault": f"{type(error).__name__}: {error}"}
    text = json.dumps(hello).encode()
    if "fault" in hello or held is not None:
        _say(control, text, orders["base"])
    if "fault" in hello:
        os._exit(1)
    _settle_memory()
    if held is None:
        alone.fork_parents([control, *others], view, mounts, text)
    worker.serve()
    worker.leave(last=True)


def _settle_memory() -> None:
    """Prepare for forks: pages that a child's collection of garbage does not touch stay shared."""
    gc.collect()
    kernel.trim()
    gc.freeze()
    gc.disable()  # programs enable it


def _say(control: socket.socket, text: bytes, base: str) -> None:
    try:
        control.send(text)
    except OSError:  # the host process is gone
        remove_runs(base)
        os._exit(1)


def _preload(sources: list[list[str]]) -> None:
    """Make modules from (name, is a package, source), so that runs need not compile them."""
    for name, package, source in sources:
        module = types.ModuleType(name)
        module.__package__ = name if package else name.rpartition(".")[0]
        if package:
            module.__path__ = []
        sys.modules[name] = module
        exec(compile(source, f"{name}.py", "exec"), module.__dict__)


def _first_in_line_for_the_oom_killer() -> None:
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # without /proc the kernel decides by size alone


class Worker:
    """The loop of a worker without namespaces, and the cells of its present job."""

    def __init__(self, control: socket.socket, base: str, held: users.Held, view: tuple[int, int]) -> None:
        self.view = view
        self.control, self.base = control, base
        self.held = held
        self.killed: list[int] = []  # users of cells that were killed, whose processes may live
        self.reserved: list[int] = []  # descriptors that keep the users of the cells

    def serve(self) -> None:
        while True:
            message, descriptors, _, _ = socket.recv_fds(self.control, _MESSAGE, 32)
            if not message:
                return
            order = json.loads(message)
            if "cells" in order:
                ended = self.job(order, list(descriptors))
                self.control.send(json.dumps({"ended": ended}).encode())

    def job(self, order: dict[str, Any], descriptors: list[int]) -> list[dict[str, Any]]:
        """Run the cells of one order to their end."""
        pids: list[int] = []
        lives = [os.pipe() for _ in order["cells"]]  # each closes with its cell
        fds = [[descriptors.pop(0) for _ in range(given["fds"])] for given in order["cells"]]
        began = time.monotonic()
        for given in order["cells"]:
            given |= {"base": self.base, **self.held.order()}
        self.killed = [given.get("user") or 0 for given in order["cells"]]
        self.reserved = [given.pop("reserved", -1) for given in order["cells"]]
        for number, given in enumerate(order["cells"]):
            pid = kernel.fork()
            if pid == 0:
                keep = {*fds[number], lives[number][1]}
                for descriptor in {
                    self.control.fileno(),
                    *itertools.chain(*lives, *fds),
                    *self.reserved,
                } - keep:
                    _close(descriptor)
                cell.main(given, fds[number], count=len(order["cells"]), view=self.view)
            pids.append(pid)
        live = {life: (number, pid) for number, (pid, (life, _)) in enumerate(zip(pids, lives, strict=True))}
        for descriptor in (*itertools.chain(*fds), *(theirs for _, theirs in lives)):
            _close(descriptor)
        ended = self._watch(live, began, order["wall"])
        return [ended[number] for number in sorted(ended)]

    def _watch(
        self, live: dict[int, tuple[int, int]], began: float, wall: float
    ) -> dict[int, dict[str, Any]]:
        why = dict.fromkeys([number for number, _ in live.values()], "")
        due = dict.fromkeys(why, began + wall)  # when a cell is stopped
        ended: dict[int, dict[str, Any]] = {}
        poll = select.poll()
        for descriptor in (self.control.fileno(), *live):
            poll.register(descriptor, select.POLLIN)
        while live:
            left = min(due[number] for number, _ in live.values()) - time.monotonic()
            ready = poll.poll(max(0.0, left) * 1000 + 1)
            if left <= 0:
                self._stop(live, why, due, "with" if 0 in ended else "wall")
            for descriptor, _ in ready:
                if descriptor == self.control.fileno():
                    message = self.control.recv(_MESSAGE)
                    if not message:
                        self.leave(last=True)
                    only = json.loads(message).get("kill")
                    if not why.get(only, "asked"):
                        due[only] = 0.0
                        self._stop(live, why, due, "asked")
                elif descriptor in live:
                    poll.unregister(descriptor)
                    os.close(descriptor)
                    number, pid = live.pop(descriptor)
                    _, status = os.waitpid(pid, 0)
                    if status == 0:
                        self.killed[number] = 0  # it has ended all that it left
                    ended[number] = {
                        "why": why[number],
                        "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
                        "wall": time.monotonic() - began,
                    }
                    if number == 0 and 1 in due:  # time for the other cell to end and answer
                        due[1] = min(due[1], time.monotonic() + _GRACE)
        self._clear()
        return ended

    def leave(self, *, last: bool) -> NoReturn:
        """End this process and all that it runs.

        `last`: no worker starts any more, since the pool is closed or the host process is gone.
        """
        self._clear()
        if last:
            remove_runs(self.base)
        os._exit(0)

    def _clear(self) -> None:
        """Remove what cells left."""
        for user in filter(None, self.killed):
            users.end_all_in_child(user)
        for reservation in self.reserved:
            _close(reservation)
        self.killed, self.reserved = [], []
        cell.sweep()
        cell.remove_folders(self.base, os.getpid())

    def _stop(
        self, live: dict[int, tuple[int, int]], why: dict[int, str], due: dict[int, float], reason: str
    ) -> None:
        """Have the cells that are due end their programs and report; kill those that didn't in `_REPORT`."""
        now = time.monotonic()
        for number, pid in live.values():
            if due[number] <= now:
                os.kill(pid, signal.SIGKILL if why[number] else signal.SIGTERM)
                why[number], due[number] = why[number] or reason, now + _REPORT


def _give_up(base: str, parent: int) -> NoReturn:
    """End a worker that doesn't serve yet."""
    if os.getppid() != parent:
        remove_runs(base)
    os._exit(1)


def remove_runs(base: str, seconds: float = _OTHERS) -> None:
    """Remove the folder of the runs, once no other worker has a folder in it; with namespaces there is none.

    A worker that was killed leaves its folders, so the others remove them when it is gone.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            for worker in {name.partition("-")[0] for name in os.listdir(base)}:
                if worker == str(os.getpid()) or _has_ended(worker):
                    cell.remove_folders(base, int(worker))
            os.rmdir(base)
        except FileNotFoundError:
            return  # another worker has removed it
        except OSError:
            time.sleep(0.01)
        else:
            return


def _has_ended(pid: str) -> bool:
    fields = kernel.stat(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _close(descriptor: int) -> None:
    with contextlib.suppress(OSError):
        os.close(descriptor)


if __name__ == "__main__":
    main(sys.argv[1:])
