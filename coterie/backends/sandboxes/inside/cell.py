"""The first process of a run without namespaces: prepares its folder, starts the program, measures it, ends
what it left, and collects files. It adopts orphaned descendants. With namespaces alone.py has its part, and
uses what is here.

It reads the program from its channel (job.py) and answers there: 8 bytes of length, a JSON header, then the
files.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import stat
import struct
import time
from collections.abc import Collection, Iterator
from typing import Any, NoReturn

from . import clock, ids, kernel, program, users
from .globs import matches

_ENTRIES = 20_000
_DEEP = 100
"""Levels of folders that are removed in one piece."""
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
SHORT = 0.05
"""Seconds that a program runs before its cell looks at it."""


def main(order: dict[str, Any], fds: list[int], *, count: int, view: tuple[int, int] = (-1, -1)) -> NoReturn:
    """Do one run without namespaces, then end this process. `fds`: channel, stdout, stderr, then the
    program's 3 and 4; `view`: descriptors for its clock."""
    channel = fds[0]
    gc.disable()  # this process is short, and a collection writes to many shared pages
    kernel.signals.pthread_sigmask(
        signal.SIG_BLOCK, [signal.SIGTERM]
    )  # the worker's request to end the program
    try:
        box = users.settle(order)
        for folder in ("work", "tmp"):
            os.mkdir(f"{box}/{folder}")
        os.chdir(f"{box}/work")  # to stay in it: the program may put a link in its place
        source = exactly(channel, order["code"])
        _make(f"{box}/main.py", source)
        take_stdin(box, channel, order["input"])
        os.unlink(f"{box}/stdin")  # with namespaces, /dev/stdin leads to it
        argv = lay_out(box, channel, order)
        order["nproc"] = _tasks(order, count)
        signals = kernel.signalfd([signal.SIGCHLD, signal.SIGTERM])
        poll = select.poll()
        poll.register(signals, select.POLLIN)
        pid = kernel.fork()
        if pid == 0:
            program.start(order, argv, box, [0, *fds[1:]], source)
        # While the program lives it shares this process's memory, and each page that is written is copied.
        poll.poll(1000 * min(SHORT, order["cpu"]))
        for descriptor in fds[1:]:
            os.close(descriptor)
        kernel.drop_capabilities()
        measured = clock.CpuClock(pid, *view)
        result = watch(pid, order["cpu"], measured, poll, signals)
        if order.get("user") is not None:
            users.end_all(order["user"])
        sweep()
        result["cpu"] = measured.final(result["over"], order["cpu"])
        report(channel, result, order)
        remove(box)
    except BaseException as error:
        send(channel, {"fault": f"{type(error).__name__}: {error}"})
        os._exit(1)
    os._exit(0)


def _tasks(order: dict[str, Any], count: int) -> int:
    """The limit of tasks, which the kernel counts by user: the program's, and those that are not its own."""
    if order["user"] is not None:
        return int(order["processes"] + 1)
    return int(order["processes"] * count + ids.tasks_of_user(os.getuid()))


def report(channel: int, result: dict[str, Any], order: dict[str, Any]) -> None:
    """Answer with how the program ended, and with the files that the host process asks for, after all that
    the program left has ended. The program's working folder is this process's."""
    if not order["collects"]:
        send(channel, result)
        return
    header = framed(channel)
    room = header.get("room", order["disk_mb"] << 20)
    files, left = collect(".", header["collect"], room, header.get("inputs", ()))
    result |= left
    result["same"] = _unchanged(".", files, header.get("known", {}))
    send(channel, result, ".", files)


def lay_out(box: str, channel: int, order: dict[str, Any]) -> list[str]:
    """Write the files as they arrive: a program begins with what this process holds.

    Returns the arguments.
    """
    if not order["more"]:
        return []
    header = framed(channel)
    for path, size in header["files"]:
        os.makedirs(os.path.dirname(f"{box}/{path}"), exist_ok=True)
        _arrive(f"{box}/{path}", channel, size)
    argv: list[str] = header["argv"]
    return argv


def take_stdin(box: str, channel: int, size: int) -> None:
    """Write stdin as it arrives; it becomes descriptor 0."""
    _arrive(f"{box}/stdin", channel, size)
    os.dup2(os.open(f"{box}/stdin", os.O_RDONLY), 0)


def _arrive(path: str, channel: int, size: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    while size:
        part = _part(channel, min(size, _CHUNK))
        write(descriptor, part)
        size -= len(part)
    os.close(descriptor)


def _make(path: str, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    write(descriptor, data)
    os.close(descriptor)


def framed(channel: int) -> dict[str, Any]:
    """Read 8 bytes of length and a JSON header."""
    (length,) = struct.unpack("<Q", exactly(channel, 8))
    header: dict[str, Any] = json.loads(exactly(channel, length))
    return header


def exactly(channel: int, size: int) -> bytes:
    """Read so many bytes. Raises EOFError if fewer arrive."""
    parts = []
    while size:
        parts.append(_part(channel, min(size, _CHUNK)))
        size -= len(parts[-1])
    return b"".join(parts)


def _part(channel: int, size: int) -> bytes:
    part = os.read(channel, size)
    if not part:
        raise EOFError("the program did not arrive whole")
    return part


def send(channel: int, header: dict[str, Any], root: str = "", files: dict[str, int] | None = None) -> None:
    """Answer with a header and files of `root`, by path with their sizes, read as they are sent."""
    same = header.get("same", ())
    sent = {path: size for path, size in (files or {}).items() if path not in same}
    header["files"] = list(sent.items())
    text = json.dumps(header).encode()
    try:
        write(channel, struct.pack("<Q", len(text)) + text)
        for path, size in sent.items():
            descriptor = os.open(f"{root}/{path}", _READ)
            while size:
                part = os.read(descriptor, min(size, _CHUNK))
                write(channel, part or bytes(min(size, _CHUNK)))  # nothing changes it any more
                size -= len(part) or min(size, _CHUNK)
            os.close(descriptor)
    except OSError:
        pass  # the host process has abandoned this run


def _unchanged(root: str, files: dict[str, int], known: dict[str, list[Any]]) -> list[str]:
    """The files that have the content that the program was given: [sha256, size] by path."""
    alike = [path for path, size in files.items() if path in known and known[path][1] == size]
    if not alike:
        return []
    try:
        import hashlib  # few programs are given files that are known
    except ImportError:  # without namespaces the interpreter's folder may be closed
        return []
    same = []
    for path in alike:
        with open(os.open(f"{root}/{path}", _READ), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == known[path][0]:
                same.append(path)
    return same


def ended_by(status: int) -> dict[str, Any]:
    """The result of a program that ended with this status of waitpid(2)."""
    code = os.waitstatus_to_exitcode(status)
    over = code == -signal.SIGXCPU
    return {"exit": code if code >= 0 else None, "signal": max(0, -code), "over": over}


def write(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def watch(
    pid: int, limit: float, measured: clock.CpuClock, poll: select.poll, signals: int
) -> dict[str, Any]:
    """Wait for the program, reap other processes that end, and kill the program above its CPU time (seconds)
    or if the worker asks for it.

    `poll` waits for `signals`, a signalfd of SIGCHLD and SIGTERM, and for a seccomp.install_asking.

    Returns {"exit": code or None, "signal": number, "over": bool, "stopped": bool}.
    """
    stopped = False
    while True:
        while True:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                ended, status = pid, 0
            if ended == pid:
                return ended_by(status)
            if ended == 0:
                break
        over = measured.exceeds(limit)
        if over or stopped:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return {"exit": None, "signal": signal.SIGKILL, "over": over, "stopped": not over}
        for descriptor, event in poll.poll(1000 * measured.pause(limit)):
            if descriptor == signals:
                stopped = kernel.signalled(signals, signal.SIGTERM) or stopped
            elif event & select.POLLIN:
                clock.answer(descriptor, measured)
            else:  # no process is left that the kernel could ask about
                poll.unregister(descriptor)


def sweep() -> None:
    """Without a pid namespace: kill all descendants of this process until there are none."""
    for _ in range(1000):
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return  # orphans become children of this process, so there are none
        for pid in kernel.family():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


def remove_folders(base: str, worker: int) -> None:
    """Without a mount namespace: remove the folders that cells could not remove."""
    for name in os.listdir(base):
        if name.startswith(f"{worker}-"):
            remove(os.path.join(base, name))


def remove(folder: str) -> None:
    """Remove a folder, however deep it is, as far as this user may; nothing in it changes any more.

    shutil.rmtree opens every folder on its way, so a deep one is cut into pieces first.
    """
    import shutil  # with namespaces no process needs it, and each library makes forks slower

    count, folders = 0, [folder]
    while folders:
        try:
            inner = [entry.path for entry in os.scandir(folders.pop()) if entry.is_dir(follow_symlinks=False)]
            for path in inner:
                with contextlib.suppress(OSError):  # the program may have closed it
                    os.chmod(path, 0o700)
                if path.count("/") > folder.count("/") + _DEEP:
                    count += 1
                    os.rename(path, path := f"{folder}/.deep-{count}")
                folders.append(path)
        except OSError:
            continue
    shutil.rmtree(folder, ignore_errors=True)


def collect(
    root: str, patterns: list[str], room: int, inputs: Collection[str] = ()
) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Regular files below `root` that match a glob, and their sizes; and what else matches, by reason.

    Files of `inputs` aren't brought back. `left`: paths without enough room, `links`: links and special
    files, `closed`: files and folders that can't be read, and names that aren't UTF-8. No link is followed,
    and at most `room` bytes are in what is returned: a sparse file can be larger than the disk.
    """
    files: dict[str, int] = {}
    left: list[str] = []
    links: list[str] = []
    closed: list[str] = []
    wanted = [pattern.split("/") for pattern in patterns]
    for path, plain in _walk(root) if wanted else ():
        if plain is None:
            closed.append(path)
            continue
        if path in inputs or not any(matches(path.split("/"), pattern) for pattern in wanted):
            continue
        if not plain:
            links.append(path)
            continue
        try:
            descriptor = os.open(f"{root}/{path}", _READ)
        except OSError:
            closed.append(path)
            continue
        status = os.fstat(descriptor)
        os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            continue
        if status.st_size > room:
            left.append(path)
            continue
        files[path] = status.st_size
        room -= status.st_size
    return files, {"left": left[:20], "links": links[:20], "closed": closed[:20]}


def _walk(root: str) -> Iterator[tuple[str, bool | None]]:
    """Relative paths of all but folders, in order of name, and whether each is a regular file; reads at most
    `_ENTRIES` names. With None: folders that can't be read, and names that aren't UTF-8, as ASCII."""
    stack, seen = [""], 0
    while stack:
        folder = stack.pop()
        try:
            with os.scandir(f"{root}/{folder}") as listed:
                entries = []
                for entry in listed:
                    seen += 1
                    if seen > _ENTRIES:
                        break
                    entries.append(entry)
        except OSError:  # not readable, or a path that is longer than the kernel allows
            yield ascii(folder or ".")[:200], None
            continue
        folders = []
        for entry in sorted(entries, key=lambda listed_entry: listed_entry.name):
            path = f"{folder}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                folders.append(f"{path}/")
            elif _utf8(path):
                yield path, entry.is_file(follow_symlinks=False)
            else:
                yield ascii(path)[:200], None
        stack.extend(reversed(folders))


def _utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
