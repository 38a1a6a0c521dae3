"""What keeps a program on a SandboxFusion server apart from the server, from other runs and from the other
side of its judge. Sent there as text with the wrapper: standard library only, Python 3.9 or later.

- `users`: each program has a user id of its own. This needs a server that is root, and a Python that other
  users can read.
- `landlock`: all programs have the server's user, and each is in a Landlock domain of its own: it opens
  nothing but the system's folders and its own, and neither signals nor traces a process out of its domain.

In both cases a filter refuses sockets: whoever reaches the server's port runs programs as the server's user.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import socket
import stat
import struct
import sys
from typing import NamedTuple

from .inside import kernel, landlock, seccomp

ALWAYS = (1_879_048_192, 2_147_352_576)
"""User ids that no system assigns (systemd.io/UIDS-GIDS), where all ids are mapped."""
OFTEN = (30_000, 60_000)
"""User ids that containers have and seldom use."""
DRAWS = 100
SYSTEM = (
    "/usr",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/bin",
    "/sbin",
    "/etc/alternatives",
    "/etc/ssl/certs",
)
CONFIGURATION = ("ld.so.cache", "localtime", "passwd", "group", "nsswitch.conf", "mime.types", "inputrc")
DEVICES = [f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")]


class Apart(NamedTuple):
    """How the programs of one run are kept apart."""

    by: str
    """`users`, `landlock`, or nothing."""
    why: str
    """Why nothing keeps them apart."""
    users: list[int | None]
    """The user of each program; None: the server's."""
    abi: int
    """The version of Landlock that restricts them, 0 without it."""
    filtered: bool
    """Whether a filter of system calls is there."""


def find(count: int, box: str) -> tuple[Apart, list[socket.socket]]:
    """How `count` programs can be kept apart; also the sockets that reserve their users while they are open.

    Args:
        box: the folder of the run.
    """
    filtered = os.uname().machine in _COLUMNS
    abi = landlock.version()
    if abi < landlock.LEAST or any(os.path.commonpath([place, box]) == place for place in python_folders()):
        abi = 0  # who may read the Python's folder may read all runs
    users, held, why = draw_users(count)
    by = "users" if users else "landlock" if abi >= landlock.SCOPES else ""
    if not filtered:
        by, why = "", f"there is no filter of system calls for {os.uname().machine}"
    elif not by:
        why = f"{why}, and its kernel has no Landlock that holds back signals (Linux 6.12)"
    return Apart(by, "" if by else why, users or [None] * count, abi, filtered), held


# ---------------------------------------------------------------------------------------------------- users


def draw_users(count: int) -> tuple[list[int | None], list[socket.socket], str]:
    """(user ids for this run alone, sockets that reserve them, why there are none)."""
    if os.geteuid() != 0:
        return [], [], f"the server is not root (its user is {os.geteuid()})"
    unreadable = closed_folder()
    if unreadable:
        return [], [], f"other users may not read the server's Python: {unreadable}"
    ids = next((ids for ids in (ALWAYS, OFTEN) if mapped("uid_map", ids) and mapped("gid_map", ids)), None)
    if ids is None:
        return [], [], "the server has no user ids to give away"
    users: list[int | None] = []
    held: list[socket.socket] = []
    for _ in range(DRAWS):
        user = random.SystemRandom().randrange(*ids)
        taken = socket.socket(socket.AF_UNIX)
        try:
            taken.bind(f"\0coterie-user-{user}")  # one name for all runs on this server
        except OSError as error:
            taken.close()
            if error.errno == errno.EADDRINUSE:
                continue
        else:
            held.append(taken)
        users.append(user)
        if len(users) == count:
            return users, held, ""
    return [], held, "all of the server's user ids are in use"


def closed_folder() -> str:
    """A part of this Python's path that other users may not read; empty: they may read all."""
    for path in (sys.executable, os.__file__):
        path = os.path.realpath(path)
        while path != "/":
            if not os.stat(path).st_mode & (stat.S_IROTH if os.path.isfile(path) else stat.S_IXOTH):
                return path
            path = os.path.dirname(path)
    return ""


def mapped(name: str, ids: tuple[int, int]) -> bool:
    """Whether this user namespace has all of these ids."""
    try:
        with open(f"/proc/self/{name}") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
    except OSError:
        return False
    return any(first <= ids[0] and ids[1] <= first + count for first, _, count in ranges)


# ------------------------------------------------------------------------------------- the program's process


def confine(apart: Apart, number: int, box: str, *, sigchld: bool) -> None:
    """Take from this process what a program must not have. Raises OSError if a protection fails.

    Args:
        number: of the program in its run.
        box: the program's folder.
        sigchld: whether it may set the action of SIGCHLD.
    """
    user = apart.users[number]
    kernel.no_more_privileges()
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.drop_capabilities()  # exec gives none back: the bounding set is empty
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)  # the change of user removed an earlier one
    if apart.abi:
        landlock.restrict(box, readable(), DEVICES, apart.abi)
    if apart.filtered:
        install_filter(shared=user is None, sigchld=sigchld)


def readable() -> list[str]:
    """Folders and files of the server that a program may read."""
    return [*SYSTEM, *python_folders(), *(f"/etc/{name}" for name in CONFIGURATION)]


def python_folders() -> list[str]:
    """Folders of this Python."""
    places = [
        sys.prefix,
        sys.exec_prefix,
        sys.base_prefix,
        sys.base_exec_prefix,
        os.path.dirname(os.__file__),
    ]
    places += [os.path.dirname(sys.executable), os.path.dirname(os.path.realpath(sys.executable))]
    return sorted({real for place in places for real in (place, os.path.realpath(place))})


# --------------------------------------------------------------------------------------------------- filter

_COLUMNS = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""By machine: the column of the numbers below, and AUDIT_ARCH."""
_CLONE, _CLONE3, _PRLIMIT = (56, 220), (435, 435), (302, 261)
_SOCKET, _SOCKETPAIR, _SIGACTION = (41, 198), (53, 199), (13, 134)
_OF_A_PROCESS = ((203, 122), (144, 119), (142, 118), (314, 274))
"""sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr: the process is the first argument."""
_OF_SOMEONE = ((141, 140), (251, 30))
"""setpriority, ioprio_set: the process is the second argument."""
_OF_FILES = (
    (90, -1), (91, 52), (268, 53), (452, 452), (92, -1), (93, 55), (94, -1), (260, 54), (188, 5), (189, 6),
    (190, 7), (197, 14), (198, 15), (199, 16), (463, 463), (466, 466), (132, -1), (235, -1), (261, -1),
    (280, 88), (469, 469),
)  # fmt: skip
"""chmod, chown, setxattr, removexattr and utime with their variants: Landlock doesn't know them."""
_LOAD, _JEQ, _JSET, _JGE, _AND, _RET = 0x20, 0x15, 0x45, 0x35, 0x54, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NEW_NAMESPACES, _STREAM, _SIGCHLD = 0x7E020080, 1, 17


def install_filter(*, shared: bool, sigchld: bool) -> None:
    """Refuse sockets, and what inside/seccomp.py refuses to every program.

    Args:
        shared: whether the program has the server's user. Then it also pretends to change modes and owners of
            files, which all belong to this user, and refuses to slow other processes down.
        sigchld: whether the action of SIGCHLD may be set. Else this is pretended: children of a process that
            ignores it are missing from the CPU time.
    """
    code = _filter(shared, sigchld)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    held = ctypes.create_string_buffer(program, len(program))
    kernel.prctl(22, 2, ctypes.addressof(held))  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def _filter(shared: bool, sigchld: bool) -> bytes:
    """The filter as BPF code."""
    column, machine = _COLUMNS[os.uname().machine]
    verdicts = (_ALLOW, _ERRNO | errno.EPERM, _ERRNO | errno.EACCES, _ERRNO | errno.ENOSYS, _ERRNO)
    allow, refuse, closed, missing, pretend = (_op(_RET, value) for value in verdicts)
    code = [_op(_LOAD, 4), _op(_JEQ, machine, 1, 0), _op(_RET, _KILL), _op(_LOAD, 0)]
    if column == 0:
        code += [_op(_JGE, 0x40000000, 0, 1), missing]  # x32

    def when(number: int, *body: bytes) -> None:
        if number >= 0:
            code.extend([_op(_JEQ, number, 0, len(body)), *body])

    for number in seccomp._numbers(seccomp._DENIED).values():
        when(number, refuse)
    when(_CLONE3[column], missing)  # its flags can't be read here; libc falls back to clone
    when(_CLONE[column], _low(0), _op(_JSET, _NEW_NAMESPACES, 0, 1), refuse, allow)
    when(_PRLIMIT[column], _low(0), _op(_JEQ, 0, 1, 0), refuse, allow)
    when(_SOCKET[column], closed)
    local = [_low(0), _op(_JEQ, socket.AF_UNIX, 1, 0), closed]  # a datagram could go to any local socket
    when(_SOCKETPAIR[column], *local, _low(1), _op(_AND, 0xF), _op(_JEQ, _STREAM, 1, 0), closed, allow)
    if not sigchld:
        reading = [_low(1), _op(_JEQ, 0, 0, 3), _op(_LOAD, 28), _op(_JEQ, 0, 0, 1), allow, pretend]
        when(_SIGACTION[column], _low(0), _op(_JEQ, _SIGCHLD, 1, 0), allow, *reading)
    if shared:
        for argument, table in ((0, _OF_A_PROCESS), (1, _OF_SOMEONE)):
            for calls in table:
                when(calls[column], _low(argument), _op(_JEQ, 0, 1, 0), refuse, allow)
        for calls in _OF_FILES:
            when(calls[column], pretend)
    return b"".join([*code, allow])


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


def _low(argument: int) -> bytes:
    return _op(_LOAD, 16 + 8 * argument)


def hide() -> None:
    """Keep this process's memory and its files in /proc from others of its user; if libc lacks prctl, the
    protection is missing."""
    with contextlib.suppress(OSError, AttributeError):
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
