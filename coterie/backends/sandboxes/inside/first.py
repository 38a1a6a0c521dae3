"""The first process of a run's pid namespace: it reaps orphans, and its end ends all inside.

It is no interpreter but a program of one page, since a fork of an interpreter copies 400 pages before it
waits. It has no memory of the worker, no capability and no open file but /dev/null. The kernel delivers no
signal from inside to it.

On architectures without it an interpreter does the same.
"""

from __future__ import annotations

import os
import signal
import struct
from typing import NoReturn

from . import kernel

PATH = "/first"
"""The program's place in the root of a worker."""
_CODE = {
    # wait4(-1, 0, WNOHANG, 0) until no child has ended; rt_sigtimedwait({SIGCHLD}, 0, 0, 8); and again
    "x86_64": (
        62,
        "b83d000000"  # reap: mov eax, 61
        "48c7c7ffffffff"  # mov rdi, -1
        "31f6"  # xor esi, esi
        "ba01000000"  # mov edx, 1
        "4531d2"  # xor r10d, r10d
        "0f05"  # syscall
        "85c0"  # test eax, eax
        "7fe4"  # jg reap
        "b880000000"  # mov eax, 128
        "488d3d10000000"  # lea rdi, [rip + set]
        "31f6"  # xor esi, esi
        "31d2"  # xor edx, edx
        "41ba08000000"  # mov r10d, 8
        "0f05"  # syscall
        "ebca"  # jmp reap
        "6690"  # to a multiple of 8
        "0000010000000000",  # set: SIGCHLD
    ),
    "aarch64": (
        183,
        "00008092"  # reap: mov x0, -1
        "010080d2"  # mov x1, 0
        "220080d2"  # mov x2, 1
        "030080d2"  # mov x3, 0
        "882080d2"  # mov x8, 260
        "010000d4"  # svc 0
        "1f000071"  # cmp w0, 0
        "2cffff54"  # b.gt reap
        "00010010"  # adr x0, set
        "010080d2"  # mov x1, 0
        "020080d2"  # mov x2, 0
        "030180d2"  # mov x3, 8
        "281180d2"  # mov x8, 137
        "010000d4"  # svc 0
        "f2ffff17"  # b reap
        "1f2003d5"  # nop
        "0000010000000000",  # set: SIGCHLD
    ),
}
"""ELF's number of a machine, and the code. SIGCHLD is blocked, as in the worker, so it stays pending."""
_AT = 0x400000
_HEADERS = 64 + 56


def program(architecture: str = "") -> bytes:
    """The ELF file of the program for this machine or another one (elf(5)); empty where there is no code."""
    machine, code = _CODE.get(architecture or os.uname().machine, (0, ""))
    if not machine:
        return b""
    size = _HEADERS + len(code) // 2
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, _AT + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _AT, _AT, size, size, 0x1000)  # PT_LOAD, to read and execute
    return identity + header + segment + bytes.fromhex(code)


def start() -> int:
    """Start the first process in the pid namespace of this process's next child; returns its pid.

    Raises:
        OSError: no process can be started.
    """
    # It fails on another machine, and below a root from which nothing may be executed. To try would already
    # make the first process of the namespace, which ends with that.
    if os.access(PATH, os.X_OK):
        return os.posix_spawn(PATH, [PATH], {})
    pid = kernel.fork()
    if pid == 0:
        _reap()
    return pid


def _reap() -> NoReturn:
    try:
        os.closerange(3, 1 << 16)
        kernel.drop_capabilities()
        while True:
            signal.sigwait([signal.SIGCHLD])
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                continue
    finally:
        os._exit(1)
