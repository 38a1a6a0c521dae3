"""The system call filter, run by an interpreter of its code."""

from __future__ import annotations

import os
import struct

import pytest

from coterie.backends.sandboxes.inside import seccomp

ARCHITECTURE = seccomp._ARCHITECTURES.get(os.uname().machine, 0)
EPERM, ENOSYS, EACCES = (0x00050000 | number for number in (1, 38, 13))
ALLOW, ASK = 0x7FFF0000, 0x7FC00000


def verdict(code: bytes, call: int, *arguments: int) -> int:
    """What the kernel does with a call: classic BPF over struct seccomp_data."""
    data = struct.pack("<iIQ6Q", call, ARCHITECTURE, 0, *arguments, *[0] * (6 - len(arguments)))
    at = value = 0
    while True:
        kind, yes, no, operand = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if kind == 0x06:
            return int(operand)
        if kind == 0x20:
            (value,) = struct.unpack_from("<I", data, operand)
            continue
        holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[kind]
        at += yes if holds else no


@pytest.mark.parametrize("asks", [False, True])
def test_exactly_the_calls_of_the_table_are_denied(asks: bool) -> None:
    code = seccomp.build(alone=True, process=0, asks=asks)
    denied = set(seccomp._numbers(seccomp._DENIED).values())
    conditional = set(seccomp._numbers(seccomp._CONDITIONAL).values())
    assert denied and {call for call in range(600) if verdict(code, call) == EPERM} == denied
    for call in set(range(600)) - denied - conditional:
        assert verdict(code, call) == ALLOW, call


def test_the_arguments_of_some_calls_decide() -> None:
    number = seccomp._numbers(seccomp._CONDITIONAL)
    code = seccomp.build(alone=True, process=0)
    asking = seccomp.build(alone=True, process=0, asks=True)
    assert verdict(code, number["socket"], 1) == ALLOW and verdict(code, number["socket"], 2) == EACCES
    assert verdict(code, number["clone"], 0x10000000) == EPERM and verdict(code, number["clone3"]) == ENOSYS
    assert verdict(code, number["prlimit64"], 7) == EPERM
    for action in (1, 1 << 32):  # an address; 0 only reads
        assert verdict(code, number["rt_sigaction"], 17, action) == EPERM
        assert verdict(asking, number["rt_sigaction"], 17, action) == ASK
        assert verdict(asking, number["rt_sigaction"], 15, action) == ALLOW
    for one in (code, asking):
        assert verdict(one, number["rt_sigaction"], 17, 0) == ALLOW
