"""The system call filter, run by an interpreter of its code."""

from __future__ import annotations

import os
import struct

import pytest

from coterie.backends.sandboxes.inside import seccomp

ARCHITECTURE = seccomp.ARCHITECTURES.get(os.uname().machine, 0)
EPERM, ENOSYS, EACCES, PRETENDED = (0x00050000 | number for number in (1, 38, 13, 0))
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
        if kind == 0x54:
            value &= operand
            continue
        holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[kind]
        at += yes if holds else no


@pytest.mark.parametrize("sigchld", ["refuse", "ask", "pretend", "allow"])
def test_exactly_the_calls_of_the_table_are_denied(sigchld: str) -> None:
    code = seccomp.build(alone=True, sigchld=sigchld)
    denied = set(seccomp.numbers_of(seccomp.DENIED).values())
    conditional = set(seccomp.numbers_of(seccomp.CONDITIONAL).values())
    assert denied and {call for call in range(600) if verdict(code, call) == EPERM} == denied
    forks = set(seccomp.numbers_of(seccomp.FORKS).values()) if sigchld == "ask" else set()
    for call in set(range(600)) - denied - conditional:
        assert verdict(code, call) == (ASK if call in forks else ALLOW), call


def test_the_arguments_of_some_calls_decide() -> None:
    number = seccomp.numbers_of(seccomp.CONDITIONAL)
    ends = {"refuse": EPERM, "ask": ASK, "pretend": PRETENDED, "allow": ALLOW}
    codes = {sigchld: seccomp.build(alone=True, sigchld=sigchld) for sigchld in ends}
    code = codes["refuse"]
    assert verdict(code, number["socket"], 1) == ALLOW and verdict(code, number["socket"], 2) == EACCES
    assert verdict(code, number["clone"], 0x10000000) == EPERM and verdict(code, number["clone3"]) == ENOSYS
    for flags in (0x8000, 0x8011, 0x18000, 0x3D8F00):  # CLONE_PARENT, with a signal, of a thread
        assert verdict(code, number["clone"], flags) == EPERM
    assert verdict(code, number["prlimit64"], 7) == EPERM
    assert [verdict(code, number["fcntl"], 3, command) for command in (1031, 1032, 8)] == [
        EPERM, ALLOW, ALLOW,
    ]  # fmt: skip
    for sigchld, end in ends.items():
        for action in (1, 1 << 32):  # an address; 0 only reads
            assert verdict(codes[sigchld], number["rt_sigaction"], 17, action) == end
            assert verdict(codes[sigchld], number["rt_sigaction"], 15, action) == ALLOW
        assert verdict(codes[sigchld], number["rt_sigaction"], 17, 0) == ALLOW
        assert verdict(codes[sigchld], number["clone"], 0x3D0F00) == ALLOW  # a thread
        fork = verdict(codes[sigchld], number["clone"], 0x1200011)
        assert fork == (ASK if sigchld == "ask" else ALLOW)


@pytest.mark.parametrize("process", [None, 7])
@pytest.mark.parametrize("shared", [False, True])
def test_without_namespaces_the_user_and_who_holds_signals_decide(process: int | None, shared: bool) -> None:
    code = seccomp.build(alone=False, process=process, shared=shared)
    number = seccomp.numbers_of(seccomp.CONDITIONAL) | seccomp.numbers_of(seccomp.CONDITIONAL_OUTSIDE)
    denied = {**seccomp.numbers_of(seccomp.DENIED), **seccomp.numbers_of(seccomp.DENIED_OUTSIDE)}.values()
    files = seccomp.numbers_of(seccomp.PRETENDED).values()
    assert {call for call in range(600) if verdict(code, call) == EPERM} - {*number.values()} == {*denied}
    assert {call for call in range(600) if verdict(code, call) == PRETENDED} == (
        {*files} if shared else set()
    )
    assert verdict(code, number["socket"], 1) == EACCES
    assert verdict(code, number["clone"], 0x8011) == EPERM and verdict(code, number["clone"], 17) == ALLOW
    assert [verdict(code, number["socketpair"], 1, kind) for kind in (1, 0x80001, 2, 5)] == [
        ALLOW, ALLOW, EACCES, ALLOW,
    ]  # fmt: skip
    others = EPERM if process else ALLOW
    assert [verdict(code, number["kill"], pid) for pid in (7, 0, 8, -1 & 0xFFFFFFFF)] == [
        ALLOW, ALLOW, others, others,
    ]  # fmt: skip
    assert verdict(code, number["fcntl"], 0, 1031) == EPERM
    assert verdict(code, number["tgkill"], 8) == others
    owners = (8, 10, 15)  # F_SETOWN, F_SETSIG, F_SETOWN_EX
    assert [verdict(code, number["fcntl"], 0, command) for command in (*owners, 4)] == [*[others] * 3, ALLOW]
    slower = EPERM if process or shared else ALLOW
    assert (
        verdict(code, number["sched_setaffinity"], 8) == verdict(code, number["setpriority"], 0, 8) == slower
    )
    assert (
        verdict(code, number["sched_setaffinity"], 0) == verdict(code, number["setpriority"], 0, 0) == ALLOW
    )
