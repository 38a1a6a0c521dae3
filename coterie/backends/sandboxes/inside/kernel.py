"""System calls that Python's `os` lacks, through ctypes on libc. Each raises OSError."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import math
import os
import resource
import struct
from typing import Any

NEWNS, NEWUTS, NEWIPC = 0x20000, 0x4000000, 0x8000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 32, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP = 1, 4, 24
PR_SET_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47
PR_GET_DUMPABLE, PR_SET_KEEPCAPS = 3, 8
_MOUNT_SETATTR = 442  # the same number on every architecture
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_CAPABILITY_VERSION_3 = 0x20080522

signals: Any = importlib.import_module("_signal")
"""The functions that `signal` wraps in slow Python code."""
libc = ctypes.CDLL(None, use_errno=True)
_with_the_gil = ctypes.PyDLL(None, use_errno=True)
for _name in ("capset", "mount", "prctl", "setns", "signalfd", "syscall", "unshare"):
    getattr(libc, _name)  # it stays bound, so that a run need not look it up
_M_ARENA_MAX = -8


def call(name: str, *arguments: object) -> int:
    """Call libc's function; raises an OSError with its name if it returns -1."""
    answer: int = getattr(libc, name)(*arguments)
    if answer == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return answer


def fork() -> int:
    """fork(2) without Python's hooks (`os.register_at_fork`), each of which copies pages that are shared.

    For a process with one thread. The child has the random state of its parent, and its thread objects have
    the parent's native id.
    """
    pid: int = _with_the_gil.fork()
    if pid == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"fork: {os.strerror(number)}")
    return pid


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    word = ctypes.c_ulong
    call("prctl", option, word(value), word(third), word(0), word(0))


def unshare(flags: int) -> None:
    call("unshare", flags)


def setns(descriptor: int, kind: int) -> None:
    call("setns", descriptor, kind)


def mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    call(
        "mount",
        source.encode(),
        target.encode(),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        data.encode() or None,
    )


def protect(target: str, flags: int) -> None:
    """Add flags such as MS_RDONLY to a mount and to all mounts below it.

    mount_setattr(2) works recursively (Linux 5.12). Older kernels change only the topmost mount, which keeps
    its present flags, since a less privileged namespace may not drop them.
    """
    attributes = (ctypes.c_uint64 * 4)(flags & (MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC), 0, 0, 0)
    done = libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_long(_AT_FDCWD),
        ctypes.c_char_p(target.encode()),
        ctypes.c_long(_AT_RECURSIVE),
        ctypes.byref(attributes),
        ctypes.c_long(ctypes.sizeof(attributes)),
    )
    if done == -1:
        present = os.statvfs(target).f_flag & 0xFFF  # ST_RDONLY and the like have the numbers of MS_RDONLY
        mount("none", target, None, MS_REMOUNT | MS_BIND | present | flags)


def pivot_root(new: str, old: str) -> None:
    """Make `new` the root; the previous root is then at `old` (below `new`)."""
    number = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine)
    if number is None:
        call("pivot_root", new.encode(), old.encode())
        return
    call("syscall", ctypes.c_long(number), ctypes.c_char_p(new.encode()), ctypes.c_char_p(old.encode()))


def only(descriptors: list[int], failing: int = -1) -> int:
    """Make these descriptors 0, 1, ... and close all others but `failing`, which exec closes; its number."""
    kept = descriptors if failing < 0 else [*descriptors, failing]
    high = max(*kept, len(kept)) + 1
    copies = [os.dup2(source, high + at, inheritable=False) for at, source in enumerate(kept)]
    for at, copy in enumerate(copies):
        os.dup2(copy, at, inheritable=at < len(descriptors))
    os.closerange(len(kept), 1 << 16)
    return len(descriptors)


def bounds(
    cpu: float, memory_mb: int, disk_mb: int, open_files: int, others: dict[int, int]
) -> list[tuple[int, tuple[int, int]]]:
    """The kernel's limits of a program, soft and hard, which hold for each process.

    The CPU time of all processes together is limited elsewhere; the limit here is a backstop.

    Args:
        others: further limits, by their number.
    """
    wanted = {
        resource.RLIMIT_CPU: math.ceil(cpu) + 1,
        resource.RLIMIT_AS: memory_mb << 20,
        resource.RLIMIT_DATA: memory_mb << 20,
        resource.RLIMIT_FSIZE: disk_mb << 20,
        resource.RLIMIT_NOFILE: open_files,
        resource.RLIMIT_CORE: 0,
        **others,
    }
    limits = []
    for name, value in wanted.items():
        hard = _hard(name)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        limits.append((name, (value, value)))
    return limits


@functools.cache
def _hard(name: int) -> int:
    """The hard limit of this process, which nothing changes."""
    return resource.getrlimit(name)[1]


def children() -> float:
    """CPU seconds of the children that this process has waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def stat(pid: str, proc: int | None = None) -> list[bytes]:
    """What /proc says of a process behind its command: state, parent, ... (proc(5)); empty: it is gone.

    Args:
        proc: a descriptor of /proc; None: this process's.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/stat" if proc is None else f"{pid}/stat", os.O_RDONLY, dir_fd=proc)
        try:
            return os.read(descriptor, 1024).rpartition(b")")[2].split()
        finally:
            os.close(descriptor)
    except OSError:
        return []


def family() -> dict[int, float]:
    """{pid: CPU seconds, with reaped children} of all descendants of this process; empty without /proc."""
    parents, used = {}, {}
    try:
        pids = [name for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for pid in pids:
        if fields := stat(pid):
            parents[int(pid)] = int(fields[1])
            used[int(pid)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    ours, grown = {os.getpid()}, True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in ours} - ours
        ours, grown = ours | more, bool(more)
    return {pid: used[pid] for pid in ours - {os.getpid()}}


def no_more_privileges(but: int = -1) -> None:
    """For this process and its descendants: no exec gains privileges, and none are left to gain.

    Args:
        but: a capability that may still be made inheritable.
    """
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop, word = libc.prctl, ctypes.c_ulong
    zero = word(0)
    for capability in range(64):
        # Past the last capability, or not permitted; in both cases none is left to drop.
        if capability != but and drop(PR_CAPBSET_DROP, word(capability), zero, zero, zero) == -1:
            break


_CAPABILITIES = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
_CAPSET = ctypes.byref(_CAPABILITIES[0]), ctypes.byref(_CAPABILITIES[1])


def drop_capabilities() -> None:
    """Drop all capabilities."""
    call("capset", *_CAPSET)


def one_arena() -> None:
    """Use one heap for all threads: glibc reserves 64 MiB of the limited address space per thread's heap."""
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Return the free pages of the heap to the kernel: a fork copies the table of all pages."""
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


DAC_READ_SEARCH, _AMBIENT_RAISE = 2, 2
_READING = (ctypes.c_uint32 * 6)(*[1 << DAC_READ_SEARCH] * 3)


def keep_reading() -> None:
    """Keep one capability, over exec too: to read every file and to enter every folder.

    For a process that has changed its user with PR_SET_KEEPCAPS.
    """
    call("capset", _CAPSET[0], ctypes.byref(_READING))
    prctl(PR_CAP_AMBIENT, _AMBIENT_RAISE, DAC_READ_SEARCH)


def dumpable() -> int:
    """0: other processes of the same user can't read this process's memory, environment and open files."""
    word = ctypes.c_ulong(0)
    return call("prctl", PR_GET_DUMPABLE, word, word, word, word)


def signalfd(signals: list[int]) -> int:
    """A descriptor that is readable while one of these blocked signals is pending."""
    mask = (ctypes.c_uint64 * 16)(sum(1 << (number - 1) for number in signals))
    return call("signalfd", -1, mask, os.O_CLOEXEC | os.O_NONBLOCK)


def signalled(descriptor: int, wanted: int) -> bool:
    """Read the signals of a signalfd; whether this process's parent sent `wanted`."""
    arrived = False
    with contextlib.suppress(BlockingIOError):
        while data := os.read(descriptor, 128):  # struct signalfd_siginfo
            number, _, code, sender = struct.unpack_from("=IiiI", data)
            # The id of a sender outside this pid namespace is 0, as is getppid there.
            arrived = arrived or (number == wanted and code == 0 and sender == os.getppid())
    return arrived
