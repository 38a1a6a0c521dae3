"""The system calls that programs may not use: a seccomp filter, built without libseccomp.

The filter lists denied calls instead of allowed ones: programs are Python with the whole standard library,
and the namespaces limit what a call can reach. The filter denies rarely used and error-prone parts of the
kernel, and calls whose effects outlive a run or escape its accounting. It is permanent, over fork and exec
(seccomp(2); classic BPF, linux/filter.h).

Sent to SandboxFusion servers too: Python 3.9 or later.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable
from typing import Any

from . import kernel

_LOAD, _JEQ, _JGE, _JSET, _RET, _AND = 0x20, 0x15, 0x35, 0x45, 0x06, 0x54
_ALLOW, _ERRNO, _KILL, _ASK = 0x7FFF0000, 0x00050000, 0x80000000, 0x7FC00000
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_NEW_LISTENER, _SET_FILTER, _SECCOMP = 8, 1, {"x86_64": 317, "aarch64": 277}
_X32 = 0x40000000
_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWUSER and its like, NEWTIME too
_PARENT = 0x8000  # CLONE_PARENT: a child of the process that the program is a fork of, which waits for none
_THREAD = 0x10000  # CLONE_THREAD
_AF_UNIX, _SIGCHLD = 1, 17
_TYPE, _STREAM, _SEQPACKET = 0xF, 1, 5  # of a socket, without SOCK_CLOEXEC and SOCK_NONBLOCK
_SETPIPE_SZ = 1031  # F_SETPIPE_SZ takes pages that all pipes of the user share, those of other runs too
_OWNERS = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX: with O_ASYNC a signal to any process of the user
_IOCTLS = (0x8901, 0x8902, 0x5452, 0x5412, 0x541C)  # FIOSETOWN, SIOCSPGRP, FIOASYNC, TIOCSTI, TIOCLINUX
_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1

DENIED = """
    ptrace 101 117; process_vm_readv 310 270; process_vm_writev 311 271; kcmp 312 272; mount 165 40;
    umount2 166 39; pivot_root 155 41; chroot 161 51; unshare 272 97; setns 308 268; bpf 321 280;
    perf_event_open 298 241; add_key 248 217; request_key 249 218; keyctl 250 219; kexec_load 246 104;
    kexec_file_load 320 294; init_module 175 105; finit_module 313 273; delete_module 176 106;
    reboot 169 142; swapon 167 224; swapoff 168 225; acct 163 89; settimeofday 164 170;
    clock_settime 227 112; adjtimex 159 171; clock_adjtime 305 266; userfaultfd 323 282;
    name_to_handle_at 303 264; open_by_handle_at 304 265; syslog 103 116; quotactl 179 60;
    lookup_dcookie 212 18; fanotify_init 300 262; memfd_create 319 279; shmget 29 194; shmctl 31 195;
    shmat 30 196; semget 64 190; semctl 66 191; semtimedop 220 192; semop 65 193; msgget 68 186;
    msgctl 71 187; msgrcv 70 188; msgsnd 69 189; mq_open 240 180; mq_unlink 241 181; personality 135 92;
    move_pages 279 239; migrate_pages 256 238; vhangup 153 58; iopl 172 -; ioperm 173 -; modify_ldt 154 -;
    uselib 134 -; io_uring_setup 425 425; io_uring_enter 426 426; io_uring_register 427 427;
    open_tree 428 428; move_mount 429 429; fsopen 430 430; fsconfig 431 431; fsmount 432 432;
    fspick 433 433; pidfd_getfd 438 438; process_madvise 440 440; mount_setattr 442 442;
    quotactl_fd 443 443; memfd_secret 447 447; inotify_init 253 -; inotify_init1 294 26
"""
"""Name, number on x86_64, number on aarch64."""
CONDITIONAL = """
    clone 56 220; clone3 435 435; socket 41 198; prlimit64 302 261; rt_sigaction 13 134; kill 62 129;
    tkill 200 130; tgkill 234 131; rt_sigqueueinfo 129 138; rt_tgsigqueueinfo 297 240;
    pidfd_send_signal 424 424; fcntl 72 25
"""
"""The same for calls whose arguments decide."""
FORKS = "fork 57 -; vfork 58 -"
"""The same for calls that make a process, besides clone."""
DENIED_OUTSIDE = """
    connect 42 203; bind 49 200; listen 50 201; accept 43 202; accept4 288 242; process_mrelease 448 448;
    mq_timedsend 242 182; mq_timedreceive 243 183; mq_notify 244 184
"""
"""Denied without namespaces: what reaches a socket, process or file of the same user."""
CONDITIONAL_OUTSIDE = """
    socketpair 53 199; ioctl 16 29; setpriority 141 140; ioprio_set 251 30;
    sched_setparam 142 118; sched_setscheduler 144 119; sched_setaffinity 203 122; sched_setattr 314 274
"""
PRETENDED = """
    chmod 90 -; fchmod 91 52; fchmodat 268 53; fchmodat2 452 452; chown 92 -; fchown 93 55; lchown 94 -;
    fchownat 260 54; utime 132 -; utimes 235 -; futimesat 261 -; utimensat 280 88; setxattr 188 5;
    lsetxattr 189 6; fsetxattr 190 7; setxattrat 463 463; removexattr 197 14; lremovexattr 198 15;
    fremovexattr 199 16; removexattrat 466 466; file_setattr 469 469
"""
"""Without effect, and successful, where programs share the user of the run: they change its files, and
Landlock doesn't cover them. With an error, shutil.copy and tarfile would fail."""
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The AUDIT_ARCH numbers of the kernel."""


def numbers_of(table: str) -> dict[str, int]:
    """Name -> number on this machine; empty on other architectures."""
    column = {"x86_64": 1, "aarch64": 2}.get(os.uname().machine)
    rows = [row.split() for row in table.split(";")]
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"} if column else {}


def _op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value & 0xFFFFFFFF)


def _deny(error: int = errno.EPERM) -> bytes:
    return _op(_RET, _ERRNO | error)


def _low(argument: int) -> bytes:
    return _op(_LOAD, 16 + 8 * argument)


def _high(argument: int) -> bytes:
    return _op(_LOAD, 20 + 8 * argument)


def _when(number: int, body: list[bytes]) -> list[bytes]:
    """Apply `body`, which ends in a verdict, to one call."""
    return [_op(_JEQ, number, 0, len(body)), *body]


@functools.cache
def build(*, alone: bool, process: int | None = None, shared: bool = False, sigchld: str = "refuse") -> bytes:
    """The filter as BPF code; empty on machines whose calls are not in the table.

    Args:
        alone: whether the program has its own namespaces. Without them no socket is allowed but pairs of
            streams.
        process: the only process that the program may signal, since kill(-1) would reach all processes of its
            user; None: namespaces, users or Landlock's scopes hold its signals.
        shared: whether other processes and their files have the program's user: it only pretends to change
            modes, owners, times and attributes of files.
        sigchld: what happens when the action of SIGCHLD is set, which hides children from the CPU time:
            `ask`: the kernel asks the cell (clock.py), before each fork too; `refuse`; `pretend`: nothing,
            and it reports success; `allow`.
    """
    denied, conditional = numbers_of(DENIED), numbers_of(CONDITIONAL)
    if not denied:
        return b""
    architecture = ARCHITECTURES[os.uname().machine]
    allow = _op(_RET, _ALLOW)
    code = [_op(_LOAD, 4), _op(_JEQ, architecture, 1, 0), _op(_RET, _KILL), _op(_LOAD, 0)]
    if os.uname().machine == "x86_64":
        code += [_op(_JGE, _X32, 0, 1), _deny(errno.ENOSYS)]
    # clone3 has its flags behind a pointer, which a filter can't read; libc falls back to clone.
    code += _when(conditional["clone3"], [_deny(errno.ENOSYS)])
    fork = _op(_RET, _ASK) if sigchld == "ask" else allow
    outside = [_low(0), _op(_JSET, _NEW_NAMESPACES | _PARENT, 0, 1), _deny()]
    code += _when(conditional["clone"], [*outside, _op(_JSET, _THREAD, 0, 1), allow, fork])
    # Only local sockets: VSOCK, for example, ignores network namespaces.
    family = [_low(0), _op(_JEQ, _AF_UNIX, 0, 1), allow, _deny(errno.EACCES)]
    code += _when(conditional["socket"], family if alone else [_deny(errno.EACCES)])
    # Only a process's own limits: the cell's first process has the same user.
    code += _when(conditional["prlimit64"], [_low(0), _op(_JEQ, 0, 1, 0), _deny(), allow])
    refused = (_SETPIPE_SZ, *_OWNERS) if process is not None else (_SETPIPE_SZ,)
    code += _when(conditional["fcntl"], _unless(1, refused))
    if sigchld != "allow":
        # Its action may be read: the second argument is then no address.
        last = {"ask": _op(_RET, _ASK), "refuse": _deny(), "pretend": _deny(0)}[sigchld]
        read_only = [_low(1), _op(_JEQ, 0, 0, 3), _high(1), _op(_JEQ, 0, 0, 1), allow, last]
        code += _when(conditional["rt_sigaction"], [_low(0), _op(_JEQ, _SIGCHLD, 1, 0), allow, *read_only])
    verdicts = dict.fromkeys(denied.values(), _deny())
    if sigchld == "ask":
        verdicts |= dict.fromkeys(numbers_of(FORKS).values(), fork)
    if not alone:
        code += _sockets()
        verdicts |= dict.fromkeys(numbers_of(DENIED_OUTSIDE).values(), _deny())
        if shared:
            verdicts |= dict.fromkeys(numbers_of(PRETENDED).values(), _deny(0))
        if process is not None:
            code += _signals(conditional, process)
        if shared or process is not None:
            code += _priorities(process or 0)
    return b"".join([*code, *_unconditional(verdicts), allow])


def _unconditional(verdicts: dict[int, bytes]) -> list[bytes]:
    """Calls by number. They are in groups of ascending numbers, so that a call is compared with few: the
    kernel runs the filter for each call once while it installs it."""
    code, numbers = [], sorted(verdicts)
    for at in range(0, len(numbers), 8):
        group = numbers[at : at + 8]
        ends = [_op(_RET, _ALLOW), *sorted({verdicts[number] for number in group})]
        code.append(_op(_JGE, group[-1] + 1, len(group) + len(ends), 0))
        for n, number in enumerate(group, 1):
            code.append(_op(_JEQ, number, len(group) - n + ends.index(verdicts[number]), 0))
        code += ends
    return code


def _only(process: int) -> list[bytes]:
    """Deny a call whose first argument is another process."""
    return [_low(0), _op(_JEQ, process, 1, 0), _deny(), _op(_RET, _ALLOW)]


def _zero_or(process: int, argument: int = 0) -> list[bytes]:
    """Deny a call whose argument is another process; 0 is the caller, or its process group."""
    return [_low(argument), _op(_JEQ, 0, 2, 0), *_only(process)[1:]]


def _signals(calls: dict[str, int], process: int) -> list[bytes]:
    """Allow signals to one process alone."""
    code = _when(calls["kill"], _zero_or(process))  # kill(0) reaches the program's own session alone
    for name in ("tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
        code += _when(calls[name], _only(process))
    code += _when(calls["pidfd_send_signal"], [_deny()])
    return code + _when(numbers_of(CONDITIONAL_OUTSIDE)["ioctl"], _unless(1, _IOCTLS))


def _priorities(process: int) -> list[bytes]:
    """Allow changes of priorities and CPUs for one process alone."""
    calls, code = numbers_of(CONDITIONAL_OUTSIDE), []
    for name in ("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"):
        code += _when(calls[name], _zero_or(process))
    for name, kind in (("setpriority", _PRIO_PROCESS), ("ioprio_set", _IOPRIO_WHO_PROCESS)):
        code += _when(calls[name], [_low(0), _op(_JEQ, kind, 1, 0), _deny(), *_zero_or(process, 1)])
    return code


def _sockets() -> list[bytes]:
    """Allow pairs of streams alone; DENIED_OUTSIDE has the rest."""
    # A datagram of a pair can be sent to any abstract socket of the host: sendto(2) has an address.
    streams = [_low(1), _op(_AND, _TYPE), _op(_JEQ, _STREAM, 2, 0), _op(_JEQ, _SEQPACKET, 1, 0)]
    family = [_low(0), _op(_JEQ, _AF_UNIX, 1, 0), _deny(errno.EACCES)]
    number = numbers_of(CONDITIONAL_OUTSIDE)["socketpair"]
    return _when(number, [*family, *streams, _deny(errno.EACCES), _op(_RET, _ALLOW)])


def _unless(argument: int, values: tuple[int, ...]) -> list[bytes]:
    """Deny a call whose argument has one of these values."""
    tests = [_op(_JEQ, value, len(values) - at, 0) for at, value in enumerate(values)]
    return [_low(argument), *tests, _op(_RET, _ALLOW), _deny()]


@functools.cache
def _laid_out(code: bytes) -> tuple[Any, Any]:
    """A struct sock_fprog for prctl(2), and the buffer that it points to."""
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    return ctypes.create_string_buffer(program, len(program)), buffer


def prepare() -> None:
    """Build the filters of programs with namespaces in advance, so that runs need not build them."""
    for sigchld in ("refuse", "ask"):
        _laid_out(build(alone=True, sigchld=sigchld))
    _asking()


@functools.cache
def _asking() -> tuple[Any, ...]:
    """The arguments of syscall(2) that install_asking calls; none where it can't."""
    code = build(alone=True, sigchld="ask")
    number = _SECCOMP.get(os.uname().machine)
    if not code or number is None:
        return ()
    return *map(ctypes.c_long, (number, _SET_FILTER, _NEW_LISTENER)), _laid_out(code)[0]


def known() -> bool:
    """Whether the table has the numbers of this machine's calls."""
    return os.uname().machine in ARCHITECTURES


def install(
    *, alone: bool, process: int | None = None, shared: bool = False, sigchld: str = "refuse"
) -> bool:
    """Filter this process and its descendants; the arguments are those of `build`. Needs PR_SET_NO_NEW_PRIVS.
    False: not available here."""
    code = build(alone=alone, process=process, shared=shared, sigchld=sigchld)
    if not code:
        return False
    try:
        kernel.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(_laid_out(code)[0]))
    except OSError:
        return False
    return True


def works(install_it: Callable[[], bool]) -> bool:
    """Whether the filter can be installed and refuses a call, tried on this process, a throw-away child."""
    if not install_it():
        return False
    try:
        kernel.call("ptrace", 0, 0, 0, 0)
    except PermissionError:
        return True
    return False


def install_asking() -> int:
    """Filter a program with namespaces.

    Returns the descriptor through which the kernel asks its cell before the action of SIGCHLD is set, and
    before a process is made; -1 if it can't (before Linux 5.5, or where this process is already supervised in
    this way): nothing is filtered then.
    """
    arguments = _asking()
    listener: int = kernel.libc.syscall(*arguments) if arguments else -1
    return listener


@functools.cache
def sets_an_action(call: int) -> bool:
    """Whether this call, which the kernel asks about, is rt_sigaction; the others make a process."""
    return call == numbers_of(CONDITIONAL)["rt_sigaction"]
