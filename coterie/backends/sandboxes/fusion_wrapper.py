"""The wrapper of every program on a SandboxFusion server. It is sent there as text: standard library only,
Python 3.9 or later.

The stock server stalls on more than about 200 KB of output, measures wall time only, fetches files by literal
paths and gives its own environment to the program. So the program runs as a child of the wrapper, with its
own pipes, limits and user (fusion_apart.py). The two sides of a judge are two such children, each watched by
a fork of the wrapper. The wrapper writes the result to one file, which the server returns. The file has a
nonce that no program ever sees. `NONCE started` on standard output means that the wrapper was started, exit
code 0 that the file is complete.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from . import fusion_apart
from .fusion_apart import Apart
from .fusion_sides import PATIENCE, Result, run_side
from .inside import kernel
from .inside.globs import matches

GRACE = 0.2  # seconds that a candidate has to end after the tests; an honest one ends by itself
LONG = 1000  # most characters of a nested folder's path


def main(encoded: str, source: str) -> None:
    """Run the order's program, or its pair of programs, and write the report.

    Args:
        encoded: the order, JSON in base64.
        source: path of the file that contains the order, with its nonce.
    """
    order = json.loads(base64.b64decode(encoded))
    with contextlib.suppress(OSError):
        os.unlink(source)
    become_parent()
    place = os.path.abspath(order["report"])
    print(order["nonce"], "started", flush=True)
    report = {"nonce": order["nonce"], **run(order)}
    with open(place, "x") as file:
        json.dump(report, file)
        file.flush()
        written = os.fstat(file.fileno())
    status = os.lstat(place)
    if (written.st_dev, written.st_ino) != (status.st_dev, status.st_ino):
        sys.exit(3)  # the program swapped the folder


def become_parent() -> None:
    """Keep this process's memory and its files in /proc from others of its user, where libc has prctl, and
    make it the parent of orphaned descendants."""
    for option, value in ((kernel.PR_SET_DUMPABLE, 0), (kernel.PR_SET_SUBREAPER, 1)):
        with contextlib.suppress(OSError, AttributeError):
            kernel.prctl(option, value)


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Run the order's programs; the report's contents."""
    programs = order["programs"]
    folder = os.getcwd()
    for program in programs:
        program["box"] = os.path.join(folder, program["box"])
    lost = [path for program in programs for path in lay_out(program)]
    if lost:
        return {"lost": lost}
    apart, held = fusion_apart.find(len(programs), folder)
    how = {"apart": apart.by, "shared": apart.why, "landlock": apart.abi, "filtered": apart.filtered}
    if order["refuse"] and not apart.by:
        return {**how, "refused": True}
    for program, user in zip(programs, apart.users):  # noqa: B905 (Python 3.9)
        if user is not None:
            give(program["box"], user)
    written = b""
    if len(programs) == 1:
        results = [run_side(programs[0], 0, apart, [])]
    else:
        results, written = run_pair(programs, apart, order["report_bytes"])
    for program, result in zip(programs, results):  # noqa: B905
        if "fault" in result:
            return result
        result["files"] = bring_back(program, result)
    clear(folder)
    for reservation in held:
        os.close(reservation)
    return {**how, "results": results, "written": base64.b64encode(written).decode()}


def lay_out(program: dict[str, Any]) -> list[str]:
    """Write the code and stdin; files that the server did not write."""
    home = os.path.join(program["box"], "work")
    for folder in (home, os.path.join(program["box"], "tmp")):
        os.makedirs(folder, exist_ok=True)
    for name in ("code", "stdin"):
        with open(os.path.join(program["box"], program["names"][name]), "wb") as file:
            file.write(base64.b64decode(program[name]))
    os.chmod(program["box"], 0o700)
    return [path for path in program["files"] if not os.path.isfile(os.path.join(home, path))]


def give(box: str, user: int) -> None:
    """Give the box to the program's user; the folder around it can be traversed, not listed."""
    os.chmod(os.path.dirname(box), 0o711)
    for folder, _, names in os.walk(box):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, user, user)


# ----------------------------------------------------------------------------------------------------- pair


def run_pair(programs: list[dict[str, Any]], apart: Apart, keep: int) -> tuple[list[Result], bytes]:
    """Run two programs with a socket pair between their descriptors 3.

    The second is started once the first has written a byte to its descriptor 5: then it is hidden. The second
    is killed when the first has ended.

    Args:
        keep: bytes kept of what the first writes to its descriptor 4.

    Returns: the results of both, and these bytes.
    """
    link = [end.detach() for end in socket.socketpair()]
    report, ready, stop = os.pipe(), os.pipe(), os.pipe()
    foreign = [link[1], report[0], ready[0], stop[1]]
    first = fork_side(programs[0], 0, apart, [link[0], report[1], ready[1]], None, foreign)
    for descriptor in (link[0], report[1], ready[1]):
        os.close(descriptor)
    if not os.read(ready[0], 1):
        os.close(link[1])
        ended: Result = {"status": "killed", "exit_code": None, "stdout": "", "stderr": "", "dropped": 0}
        ended |= {"cpu_seconds": 0.0, "wall_seconds": 0.0, "reason": "it was not started"}
        results, written = listen([first], report[0], stop[1], keep)
        return [*results, ended], written
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(programs[0]["box"], programs[0]["names"]["code"]))
    second = fork_side(programs[1], 1, apart, [link[1]], stop[0], [report[0], first])
    os.close(link[1])
    return listen([first, second], report[0], stop[1], keep)


def fork_side(
    program: dict[str, Any], number: int, apart: Apart, links: list[int], stop: int | None, foreign: list[int]
) -> int:
    """Watch a program in a fork of this process, which is as hidden; the descriptor of its result.

    Args:
        foreign: descriptors that the fork closes, so that the ends of the others are seen.
    """
    ours, theirs = os.pipe()
    if os.fork():
        os.close(theirs)
        return ours
    try:
        for descriptor in (ours, *foreign):
            os.close(descriptor)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        become_parent()
        result = run_side(program, number, apart, links, stop)
        with open(theirs, "w") as file:
            json.dump(result, file)
    finally:
        os._exit(0)


def listen(sides: list[int], report: int, stop: int, keep: int) -> tuple[list[Result], bytes]:
    """Read the results and the report; stops the second side `GRACE` after the end of the first."""
    texts = {descriptor: bytearray() for descriptor in (*sides, report)}
    deadline = None
    with selectors.DefaultSelector() as selector:
        for descriptor in texts:
            selector.register(descriptor, selectors.EVENT_READ)
        while any(side in selector.get_map() for side in sides):
            wait = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready = selector.select(wait)
            for key, _ in ready:
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fd)
                    if key.fd == sides[0]:
                        deadline = time.monotonic() + GRACE
                if key.fd != report or len(texts[report]) < keep:
                    texts[key.fd] += data
            if deadline is not None and time.monotonic() >= deadline and stop >= 0:
                os.write(stop, b"1")
                stop, deadline = -1, None
        drain(report, texts[report])
    return [json.loads(texts[side]) for side in sides], bytes(texts[report][:keep])


def drain(report: int, text: bytearray) -> None:
    """Read what is left; no more comes, since the writers have ended."""
    os.set_blocking(report, False)
    with contextlib.suppress(BlockingIOError):
        while data := os.read(report, 1 << 16):
            text += data


# ---------------------------------------------------------------------------------------------------- files


def bring_back(program: dict[str, Any], result: Result) -> dict[str, str]:
    """The files that the globs name; a program that wrote too much is changed to `killed`."""
    disk = program["limits"]["disk_mb"]
    files, wrote = collect(os.path.join(program["box"], "work"), program["collect"], disk << 20)
    if wrote > disk << 20 and result["status"] in ("finished", "failed"):
        result.update(status="killed", exit_code=None, reason=f"wrote more than {disk} MB")
    return files


def collect(home: str, globs: list[str], bound: int) -> tuple[dict[str, str], int]:
    """({path: base64} of files that match the globs, bytes of all files); links are ignored."""
    files: dict[str, str] = {}
    wrote = 0
    folders = [] if os.path.islink(home) else [home]  # a program may put a link in its place
    while folders:
        try:
            entries = sorted(os.scandir(folders.pop()), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            relative = os.path.relpath(entry.path, home)
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            if not entry.is_file(follow_symlinks=False):
                continue
            wrote += entry.stat(follow_symlinks=False).st_size
            wanted = any(matches(relative.split("/"), glob.split("/")) for glob in globs)
            if not wanted or wrote > bound:
                continue
            try:
                relative.encode()
                with open(entry.path, "rb") as file:
                    files[relative] = base64.b64encode(file.read()).decode()
            except (OSError, UnicodeError):  # unreadable, or a name that is not valid text
                continue
    return files, wrote


def clear(folder: str) -> None:
    """Remove the folder's contents. The server's own removal raises for folders that are nested too deep, so
    what is not removed in time is cut into trees that the server can remove."""
    inside = (os.path.join(folder, name) for name in os.listdir(folder))
    roots = [path for path in inside if not os.path.islink(path)]  # chmod follows links that it is given
    run_quietly("chmod", "-R", "u+rwX", *roots)
    cut, folders = 0, [folder]
    while folders:
        try:
            inner = [entry.path for entry in os.scandir(folders.pop()) if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for path in inner:
            if len(path) > len(folder) + LONG:
                cut, place = cut + 1, os.path.join(folder, f"cut-{cut}")
                os.rename(path, place)
                path = place
            folders.append(path)
    run_quietly("rm", "-rf", *(os.path.join(folder, name) for name in os.listdir(folder)))


def run_quietly(*command: str) -> None:
    """Run a system tool within `PATIENCE`; its success is not checked."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        subprocess.run(command, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False)
