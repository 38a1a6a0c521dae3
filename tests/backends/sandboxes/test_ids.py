"""User ids of programs: none twice at a time."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from coterie.backends.sandboxes.inside import ids
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Program
from tests.backends.sandboxes.support import inside


def test_an_id_is_not_drawn_again_before_its_descriptor_is_closed() -> None:
    first = 2_000_000_000 + 2 * os.getpid()  # ids of no other test
    drawn = dict(ids.draw((first, first + 1)) for _ in range(2))
    assert {*drawn} == {first, first + 1}
    with pytest.raises(OSError, match="are in use"):
        ids.draw((first, first + 1))
    os.close(drawn[first])
    again, reserved = ids.draw((first, first + 1))
    assert again == first
    for descriptor in (reserved, drawn[first + 1]):
        os.close(descriptor)


def test_an_id_that_has_processes_is_not_drawn() -> None:
    with pytest.raises(OSError, match="are in use"):
        ids.draw((os.getuid(), os.getuid()))


@pytest.mark.skipif(os.getuid() != 0 or ids.available() is None, reason="gives users away: root's alone")
def test_the_users_of_two_programs_are_reserved_until_both_have_ended() -> None:
    code = "import os, time\nprint(os.getuid(), len(os.listdir('/proc/self/fd')))\ntime.sleep(.4)"

    async def go(sandbox: LocalSandbox) -> tuple[set[str], list[str], set[str]]:
        sandbox.without = ("landlock",)  # it would hide /proc
        await sandbox.close()
        await sandbox.open()
        before = names()
        run = asyncio.ensure_future(sandbox.run_pair(Program(code=code), Program(code=code)))
        while not run.done() and len(names() - before) < 2:
            await asyncio.sleep(0.01)
        during = names() - before
        one, other, _ = await run
        return during, [one.stdout, other.stdout], names() & during

    def names() -> set[str]:
        words = Path("/proc/net/unix").read_text().split()
        return {word.removeprefix("@coterie-user-") for word in words if word.startswith("@coterie-user-")}

    during, printed, after = inside(go, namespaces="off")
    users, descriptors = zip(*(line.split() for line in printed), strict=True)
    assert {*users} <= during and len({*users}) == 2 and not {*users} & after
    assert {*descriptors} <= {"5", "6"}  # the streams, the channel of the pair, and of listdir
