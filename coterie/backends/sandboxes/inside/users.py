"""Who runs the programs where there are no namespaces, and what holds them.

A worker that is root gives each cell a user id that nothing else on the host has: two programs at a time, the
two sides of a judged run for example, are two users. The worker stays root and never holds a program's data.
If other users can't read this Python, the programs keep the capability to read every file, and Landlock
decides what they open; without Landlock they can import only what the worker has imported. Programs of an
ordinary user keep its id. Landlock, the filter and PR_SET_DUMPABLE hold them.

(Root without capabilities would be no user for programs: the kernel counts no processes of root.)
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import sys
from typing import Any, NamedTuple, NoReturn

from . import ids, kernel, landlock, seccomp, spaces

MORE = """
    argparse asyncio bz2 concurrent.futures configparser difflib errno fcntl fileinput fnmatch getopt glob
    graphlib gzip hashlib hmac http.client logging lzma multiprocessing pathlib pickle
    platform pprint resource sched secrets selectors shelve shlex socket sqlite3 subprocess termios timeit
    tomllib unittest urllib.request uuid xml.etree.ElementTree zipfile zlib zoneinfo
"""
"""Modules that are imported before the forks where programs can't read this Python."""


class Held(NamedTuple):
    """What holds the programs of a worker."""

    ids: tuple[int, int] | None
    """First and last user id for cells; None: programs keep the worker's user."""
    reads: str
    """How cells' users read this Python: `all` may, `capability`, or `preloaded`: not at all."""
    landlock: int
    """ABI; 0: not used."""
    filter: bool
    processes: bool
    """Whether RLIMIT_NPROC counts the processes of a cell alone."""
    bounded: bool
    """Whether RLIMIT_NPROC bounds the processes of this user at all; not those of root."""
    shown: tuple[str, ...]
    """Files and folders that programs can read, with Landlock."""
    listed: tuple[str, ...] = ()
    """Folders whose names they can list."""
    packages: tuple[str, ...] = ()
    """Those of `shown` that are no part of the system or of this Python."""

    def hello(self) -> dict[str, Any]:
        scoped = self.landlock >= landlock.SCOPES
        return {
            "users": self.ids is not None,
            "reads": self.reads,
            "landlock": self.landlock,
            "seccomp": self.filter,
            "processes": self.processes,
            "bounded": self.bounded,
            "hidden": kernel.dumpable() == 0,
            "apart": self.ids is not None or (self.landlock > 0 and (self.filter or scoped)),
        }

    def order(self) -> dict[str, Any]:
        """What a cell needs to know, with a user id of its own, which the descriptor `reserved` keeps."""
        names = ("reads", "landlock", "filter", "shown", "listed")
        user, reserved = ids.draw(self.ids) if self.ids else (None, -1)
        return {"user": user, "reserved": reserved, **{name: getattr(self, name) for name in names}}


def find(orders: dict[str, Any], base: str) -> Held:
    """Try, in children of the worker, what works. `orders["without"]`: protections that tests switch off.

    Raises:
        OSError: the users of cells can't reach `base`, the folder of the runs.
    """
    import shutil  # with namespaces no process needs it, and each library makes forks slower

    system = [*landlock.SYSTEM, *spaces.shown_by_default()]
    shown = (*landlock.without(system, orders.get("hidden", ())), *orders["shown"], *landlock.ETC)
    listed = (*system, *orders.get("folders", ()))
    abi = 0 if "landlock" in orders["without"] else landlock.version()
    tried = f"{base}/{os.getpid()}-trial"  # named like a folder of a cell: removed after a kill, too
    folder = f"{tried}/folder"
    os.makedirs(folder)
    open(f"{folder}.beside", "wb").close()
    try:
        # The lambdas run before `abi` changes.
        if abi < landlock.LEAST or not spaces.succeeds(lambda: landlock.works(folder, abi)):
            abi = 0
    finally:
        shutil.rmtree(tried, ignore_errors=True)
    held = Held(_ids(), "all", abi, False, False, False, shown, listed, tuple(orders["shown"]))
    filters = "filter" not in orders["without"] and spaces.succeeds(lambda: _filters(held))
    if held.ids is not None and not spaces.succeeds(lambda: _reads(held)):
        capable = held._replace(reads="capability")
        trusted = abi and filters and spaces.succeeds(lambda: _reads(capable))
        held = capable if trusted else held._replace(reads="preloaded")
    if held.ids is not None and not spaces.succeeds(lambda: _reaches(held, base)):
        raise OSError(
            f"users of programs can't reach {base}: set TMPDIR to a folder that every user can enter"
        )
    counts = held.ids is not None and spaces.succeeds(lambda: _counts(held))
    bounded = held.ids is not None or spaces.succeeds(_bounded)
    return held._replace(filter=filters, processes=counts, bounded=bounded)


def _ids() -> tuple[int, int] | None:
    if os.getuid() != 0:
        return None
    given = ids.available()
    return given if given is not None and spaces.succeeds(lambda: take(given[0], reads=False)) else None


def take(user: int, *, reads: bool) -> bool:
    """Become this user for good, without capabilities; with `reads` the one to read every file is kept.

    Raises:
        OSError: this process may not.
    """
    if reads:
        kernel.prctl(kernel.PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    if reads:
        kernel.keep_reading()
    else:
        kernel.drop_capabilities()
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)  # a change of user sets it to fs.suid_dumpable
    return (os.getresuid(), os.getresgid()) == ((user,) * 3, (user,) * 3)


def _as_program(held: Held, folder: str) -> None:
    """Become, in a throw-away child, what a program will be."""
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if held.ids is not None:
        take(ids.draw(held.ids)[0], reads=held.reads == "capability")
    if held.landlock:
        landlock.restrict(folder, held.shown, held.landlock, held.listed)


def _reads(held: Held) -> NoReturn:
    """Exit with 0 if programs can execute this Python, import from it, and read what is shown."""
    _as_program(held, "/nonexistent")
    for path in held.packages:
        os.close(os.open(path, os.O_RDONLY))
    python = os.path.realpath(sys.executable)
    os.execv(python, [python, "-I", "-S", "-c", "import json, _ctypes"])


def _reaches(held: Held, base: str) -> bool:
    _as_program(held._replace(landlock=0), base)
    return os.path.isdir(f"{base}/.")


def _filters(held: Held) -> bool:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    return seccomp.works(lambda: _filter(shared=held.ids is None))


def _filter(*, shared: bool) -> bool:
    # The kernel can't ask the cell, whose processes a pid namespace would show.
    return seccomp.install(alone=False, process=os.getpid(), shared=shared, sigchld="pretend")


def _counts(held: Held) -> bool:
    """Whether a limit of two processes allows one child and no second."""
    _as_program(held._replace(landlock=0), "/nonexistent")
    resource.setrlimit(resource.RLIMIT_NPROC, (2, 2))
    first = os.fork()
    if first == 0:
        signal.pause()
    try:
        second = os.fork()
    except BlockingIOError:
        return True
    else:
        if second == 0:
            os._exit(0)
        return False
    finally:
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)


def _bounded() -> bool:
    """Whether the limit holds for this user, which has a process: this one."""
    kernel.drop_capabilities()
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
    try:
        child = os.fork()
    except BlockingIOError:
        return True
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return False


def settle(order: dict[str, Any]) -> str:
    """Make the folder of a cell and, in its first process, take its user. Returns the folder.

    Raises:
        OSError: the user can't be taken.
    """
    worker, user = os.getppid(), order["user"]
    box = os.path.join(order["base"], f"{worker}-{os.getpid()}")
    os.mkdir(box, 0o700)
    kernel.prctl(kernel.PR_SET_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the worker's handler is not for cells
    if user is None:
        kernel.drop_capabilities()
    else:
        os.chown(box, user, user)
        take(user, reads=order["reads"] == "capability")
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
    if os.getppid() != worker:
        os._exit(1)
    return box


def restrict(order: dict[str, Any], box: str) -> None:
    """Hold the program: what it opens, then what it calls.

    Raises:
        OSError: a restriction that worked in the worker's trial is refused.
    """
    if order["landlock"]:
        landlock.restrict(box, order["shown"], order["landlock"], order["listed"])
    if order["filter"] and not _filter(shared=order["user"] is None):
        raise OSError("the system call filter was refused")


def end_all(user: int) -> None:
    """Kill all processes of a cell's user but this one, which has that user."""
    assert os.getresuid() == (user,) * 3 and user >= ids.RANGES[-1][0], "kill(-1) would reach other processes"
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)


def end_all_in_child(user: int) -> None:
    """Kill all processes of a cell whose first process is gone; the caller is root."""

    def end() -> bool:
        take(user, reads=False)
        end_all(user)
        return True

    spaces.succeeds(end)
