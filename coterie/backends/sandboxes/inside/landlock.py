"""Landlock through its system calls: what a program may open, where there is no mount namespace.

Rules allow access below a path, and all else is refused (landlock(7)). They cover opening, making, moving and
removing files. They do not cover stat(2), access(2), readlink(2) and chdir(2), so names and sizes can be
seen, nor chmod(2), chown(2), utime(2) and setxattr(2), which do nothing by the filter (seccomp.py).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Sequence

from . import kernel

LEAST = 3
"""Least ABI that is used: below it (Linux 6.2) a file that can't be opened can be truncated."""
SCOPES = 6
"""ABI from which signals and abstract sockets outside of the program are refused too (Linux 6.12)."""
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin")
"""Folders of the system that programs may read, with namespaces too."""
ETC = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same numbers on every architecture
_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
_MAKE_CHAR, _MAKE_BLOCK, _TRUNCATE, _IOCTL = 1 << 6, 1 << 11, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE
_TCP, _SCOPED = 3, 3  # bind and connect; abstract sockets and signals


def version() -> int:
    """The kernel's ABI of Landlock; 0: it has none, or it is switched off."""
    return max(0, _syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))


def restrict(folder: str, readable: Sequence[str], abi: int, listed: Sequence[str] = ()) -> None:
    """Let this process and its descendants use `folder` and DEVICES, read and execute `readable`, and list
    the names in `listed` and below.

    Nothing else can be opened. It is permanent, over fork and exec; needs PR_SET_NO_NEW_PRIVS.

    Raises:
        OSError: the kernel refuses.
    """
    every = (1 << (16 if abi >= 5 else 15)) - 1  # with ABI 5, ioctl(2) on devices
    fields = (every, _TCP if abi >= 4 else 0, _SCOPED if abi >= SCOPES else 0)
    count = 3 if abi >= SCOPES else 2 if abi >= 4 else 1
    attributes = struct.pack(f"={count}Q", *fields[:count])
    ruleset = _checked(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    try:
        _allow(ruleset, folder, every & ~(_MAKE_CHAR | _MAKE_BLOCK | _IOCTL))
        for path in readable:
            _allow(ruleset, path, _EXECUTE | _READ | _READ_DIR)
        for path in listed:
            _allow(ruleset, path, _READ_DIR)
        for path in DEVICES:
            _allow(ruleset, path, _READ | _WRITE | _TRUNCATE)
        _checked(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def without(paths: Sequence[str], hidden: Sequence[str]) -> list[str]:
    """What to allow, so that all below `paths` is allowed but for the hidden folders, which are real paths.

    A rule covers all that is below its path, and none takes a part of it back.
    """
    allowed: list[str] = []
    for path in map(os.path.realpath, paths):
        if path in hidden:
            continue
        if not any(folder.startswith(f"{path}/") for folder in hidden):
            allowed.append(path)
            continue
        try:
            inner = [entry.path for entry in os.scandir(path) if not entry.is_symlink()]
        except OSError:
            continue
        allowed += without(inner, hidden)
    return allowed


def _allow(ruleset: int, path: str, access: int) -> None:
    """Allow `access` below a path, if there is such a path."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(path):
            access &= _OF_FILES
        rule = struct.pack("=Qi", access, descriptor)
        _checked(
            _ADD,
            ctypes.c_int(ruleset),
            ctypes.c_int(_PATH_BENEATH),
            ctypes.c_char_p(rule),
            ctypes.c_uint32(0),
        )
    finally:
        os.close(descriptor)


def works(folder: str, abi: int) -> bool:
    """Whether the restrictions hold, tried on this process, which must be a throw-away child."""
    beside = f"{folder}.beside"
    os.listdir("/")
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    restrict(folder, ["/usr"], abi)
    os.close(os.open(f"{folder}/file", os.O_WRONLY | os.O_CREAT))
    os.unlink(f"{folder}/file")
    os.listdir("/usr")
    os.close(os.open("/dev/null", os.O_WRONLY))
    for attempt in (
        lambda: os.listdir("/"),
        lambda: os.mkdir(f"{folder}.new"),
        lambda: os.truncate(beside, 0),
    ):
        if not _refused(attempt, errno.EACCES):
            return False
    return abi < SCOPES or _refused(lambda: os.kill(os.getppid(), 0))


def _refused(attempt: Callable[[], object], number: int = errno.EPERM) -> bool:
    try:
        attempt()
    except OSError as error:
        return error.errno == number
    return False


def _syscall(number: int, *arguments: object) -> int:
    done: int = kernel.libc.syscall(ctypes.c_long(number), *arguments)
    return done


def _checked(number: int, *arguments: object) -> int:
    done = _syscall(number, *arguments)
    if done == -1:
        code = ctypes.get_errno()
        raise OSError(code, f"landlock: {os.strerror(code)}")
    return done
