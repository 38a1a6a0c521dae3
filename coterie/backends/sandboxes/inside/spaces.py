"""The namespaces and the read-only root of a worker, and the additional namespaces of each run.

Each worker has a user, network (empty: loopback is down), ipc, uts, cgroup, pid and mount namespace. In its
mount namespace the root is a tmpfs with the interpreter and the system's libraries bound read-only, and
nothing else: no home, no /proc, no /sys. Each run has another pid and mount namespace, with a tmpfs of
limited size that is removed with the run.

A worker that is root builds its root first (only root may be able to read the interpreter's folder) and then
becomes nobody. An ordinary user does all of it inside the user namespace.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

from . import first, kernel, seccomp
from .landlock import DEVICES, ETC, SYSTEM

NOBODY = 65534
BOX = "/box"
_TMP, _WORK = f"{BOX}/tmp", f"{BOX}/work"
_NEWCGROUP = 0x02000000


def enter(shown: list[str], hidden: list[str]) -> tuple[int, int]:
    """Enter new namespaces, with a root that has the interpreter and `shown` without `hidden`, and no
    privileges outside. `shown` counts where it is inside a hidden folder.

    Returns in the first process of the new pid namespace; its parent waits and ends with it. The result is
    descriptors of the host's /proc and /proc/loadavg, which programs never get (clock.py). Raises OSError if
    the kernel or its administrator forbids it.
    """
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    load = os.open("/proc/loadavg", os.O_RDONLY)
    built = False
    if os.getuid() == 0 and _is_root_of_the_host():
        try:
            kernel.unshare(kernel.NEWNS)
        except PermissionError:
            pass  # root in a container needs a user namespace first, like other users
        else:
            _build_root(shown, hidden)
            built = True
    user, group = become_nobody()
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it
    # After a change of user, root owns the files of /proc/self until the process is dumpable again.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    spaces = kernel.NEWUSER | kernel.NEWPID | kernel.NEWNET | kernel.NEWIPC | kernel.NEWUTS | kernel.NEWNS
    kernel.unshare(spaces | _NEWCGROUP)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        descriptor = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        os.write(descriptor, text.encode())
        os.close(descriptor)
    kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
    if not built:
        _build_root(shown, hidden)
    inner = os.fork()
    if inner:
        _wait_for(inner)
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
    return proc, load


def become_nobody() -> tuple[int, int]:
    """Give up root permanently; an ordinary user doesn't change. Returns (user, group)."""
    if os.getuid() == 0:
        try:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        except OSError as error:
            # Root of a user namespace that maps no other user; outside it is an ordinary user.
            if error.errno not in (errno.EINVAL, errno.EPERM):
                raise
    return os.getuid(), os.getgid()


def _is_root_of_the_host() -> bool:
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() == ["0", "0", str(2**32 - 1)]


def _wait_for(inner: int) -> NoReturn:
    for descriptor in range(3, 64):
        with contextlib.suppress(OSError):
            os.close(descriptor)
    os.waitpid(inner, 0)
    os._exit(0)


def _build_root(shown: list[str], hidden: list[str]) -> None:
    """Make a new / on a tmpfs, with the system's programs and `shown` bound read-only; detach the old one."""
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    stage = next(folder for folder in ("/tmp", "/mnt", "/usr") if os.path.isdir(folder))
    kernel.mount("coterie", stage, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
    os.mkdir(f"{stage}/old")
    os.chdir(stage)
    kernel.pivot_root(stage, f"{stage}/old")
    os.chdir("/")
    for path in SYSTEM:
        _show(path)
    outside, inside = _parted(shown, hidden)
    for path in outside:
        if not os.path.exists(path):
            _bind(path)
    _hide(hidden, inside)
    os.makedirs("/etc", exist_ok=True)
    for path in ETC:
        _show(path)
    os.mkdir("/dev")
    for name in DEVICES:
        _bind(name, kernel.MS_NOSUID | kernel.MS_NOEXEC)
    os.mkdir(BOX)
    if code := first.program():
        descriptor = os.open(first.PATH, os.O_CREAT | os.O_WRONLY, 0o555)
        os.write(descriptor, code)
        os.close(descriptor)
    if not os.path.lexists("/tmp"):  # it exists if a folder of packages is below it
        os.symlink(f"{BOX}/tmp", "/tmp")
    os.symlink(f"{BOX}/tmp", "/dev/shm")
    os.symlink(f"{BOX}/stdin", "/dev/stdin")  # elsewhere it leads through /proc
    kernel.call("umount2", b"/old", kernel.MNT_DETACH)
    os.rmdir("/old")
    kernel.mount(
        "none",
        "/",
        None,
        kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV,
        "size=1m",
    )


def _show(path: str) -> None:
    """Have the host's link, file or folder at the same path, if it has one."""
    if os.path.islink(f"/old{path}"):
        os.symlink(os.readlink(f"/old{path}"), path)
    elif os.path.exists(f"/old{path}"):
        _bind(path)


def _parted(shown: list[str], hidden: list[str]) -> tuple[list[str], list[str]]:
    """What is shown outside of the hidden folders, and inside; shorter paths first."""
    inside = [path for path in shown if any(path.startswith(f"{folder}/") for folder in hidden)]
    return sorted({*shown} - {*inside}, key=len), sorted({*inside}, key=len)


def _hide(hidden: list[str], inside: list[str]) -> None:
    """Cover folders by empty ones, in which only `inside` is bound."""
    for folder in hidden:
        if not os.path.isdir(folder):
            continue
        kernel.mount("hidden", folder, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "size=1m,mode=755")
        for path in inside:
            if path.startswith(f"{folder}/") and not os.path.exists(path):
                _bind(path)
        flags = kernel.MS_REMOUNT | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
        kernel.mount("none", folder, None, flags, "size=1m")


def _bind(path: str, flags: int = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV) -> None:
    """Bind the host's `path` at the same path."""
    source = f"/old{path}"
    if os.path.isdir(source):
        os.makedirs(path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.mount(source, path, None, kernel.MS_BIND | kernel.MS_REC)
    kernel.protect(path, flags)


def private_folder(disk_mb: int) -> None:
    """Mount a run's tmpfs of at most `disk_mb` at BOX, with the folders of a program, and enter the working
    folder. No process outside of this mount namespace, which is the run's, can see it."""
    size = f"size={disk_mb}m,nr_inodes={max(1024, 256 * disk_mb)},mode=700"
    kernel.mount("box", BOX, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, size)
    os.mkdir(_TMP)
    os.mkdir(_WORK)
    os.chdir(_WORK)


def probe() -> dict[str, bool]:
    """Try in a child which protections work here besides the namespaces: {"seccomp", "processes"}.

    `processes`: RLIMIT_NPROC counts the processes of this user namespace (Linux 5.14), not all of the user's.
    """
    return {"seccomp": succeeds(_try_seccomp), "processes": succeeds(_try_processes)}


def succeeds(attempt: Callable[[], object]) -> bool:
    """Whether `attempt`, in a child of its own, returns something true."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if attempt() else 1)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def _try_seccomp() -> bool:
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    return seccomp.works(lambda: seccomp.install(alone=True))


def _try_processes() -> bool:
    """Whether one more process can start besides the worker's two processes and this one."""
    kernel.drop_capabilities()
    resource.setrlimit(resource.RLIMIT_NPROC, (4, 4))
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return True


def shown_by_default() -> list[str]:
    """The folders of this interpreter."""
    prefixes = {os.path.realpath(path) for path in (sys.base_prefix, sys.base_exec_prefix)}
    executable = os.path.dirname(os.path.realpath(sys.executable))
    return sorted(path for path in prefixes | {executable} if path not in ("/", "/usr", "/bin"))
