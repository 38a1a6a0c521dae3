"""Hostile programs are contained and fail; nothing is left running, and the next run is unharmed."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.backends.sandboxes.local import LocalSandbox
from coterie.backends.sandboxes.protections import protections
from coterie.core.protocols import Limits, Program, Ran
from tests.backends.sandboxes.hostile import BEFORE, HOSTILE, REFUSED

LIMITS = Limits(
    cpu_seconds=0.3, wall_seconds=1.0, memory_mb=256, disk_mb=4, processes=8, open_files=32, output_kb=16
)
MARK = f"hostile{os.getpid() % 10**7}"
PAGE = Path(__file__).parents[3] / "docs" / "sandbox.md"
INSTEAD = {"mount namespace": "Landlock", "process count": "process count"}
"""What stops the same programs without namespaces. The filter stands in for the network namespace, the hunt
for orphans for the pid namespace, and the CPU clock for the limited tmpfs."""


def left_running() -> list[str]:
    """Processes of this machine that carry the mark."""
    names = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == MARK:
                names.append(comm.parent.name)
        except OSError:
            continue
    return names


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def opened(loop: asyncio.AbstractEventLoop, namespaces: str) -> Iterator[LocalSandbox]:
    sandbox = LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, namespaces=namespaces))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_API_KEY", "hostile")
        loop.run_until_complete(sandbox.open())
    yield sandbox
    loop.run_until_complete(sandbox.close())


@pytest.fixture(scope="module")
def apart(loop: asyncio.AbstractEventLoop) -> Iterator[LocalSandbox]:
    yield from opened(loop, "auto")


@pytest.fixture(scope="module")
def plain(loop: asyncio.AbstractEventLoop) -> Iterator[LocalSandbox]:
    yield from opened(loop, "off")


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The targets of the programs: a file, a port and a socket of the host process."""
    secret = tmp_path_factory.mktemp("ours") / "secret.txt"
    secret.write_text("hostile")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as named:
        named.bind(f"\0{MARK}")
        named.listen()
        port = str(server.getsockname()[1])
        yield {"mark": MARK, "secret": str(secret), "port": port, "name": MARK}


def attack(loop: asyncio.AbstractEventLoop, sandbox: LocalSandbox, code: str) -> Ran:
    async def go() -> Ran:
        await sandbox.run(Program(code="secret = 'hidden-in-the-run-before'"))
        ran = await sandbox.run(Program(code=code, collect=("**/*",)))
        after = await sandbox.run(
            Program(code="import os; print(os.listdir('.'), os.listdir(os.environ['TMPDIR']))")
        )
        assert (after.status, after.stdout) == ("finished", "[] []\n"), after
        return ran

    return loop.run_until_complete(go())


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_contained(
    name: str, loop: asyncio.AbstractEventLoop, apart: LocalSandbox, targets: dict[str, str]
) -> None:
    hostile = HOSTILE[name]
    active = {protection.name for protection in apart.report() if protection.active}
    if not active.issuperset(hostile.stopped_by):
        pytest.skip(f"this host lacks: {', '.join(sorted(set(hostile.stopped_by) - active))}")
    began = time.monotonic()
    ran = attack(loop, apart, (BEFORE + hostile.code + REFUSED).format(**targets))
    assert "ESCAPED" not in ran.stdout, ran
    assert ran.status in hostile.ends, ran
    assert time.monotonic() - began < LIMITS.wall_seconds + 1.5
    assert left_running() == []
    assert apart.pool is not None and apart.pool.lost == 0
    assert "hostile" not in str(ran.files) and not any(b"ld.so" in data for data in ran.files.values())


BEYOND = ("full_disk",)
"""Without namespaces nothing bounds the sum of all files."""


@pytest.mark.parametrize("name", [name for name in HOSTILE if name not in BEYOND])
def test_it_is_contained_without_namespaces(
    name: str, loop: asyncio.AbstractEventLoop, plain: LocalSandbox, targets: dict[str, str]
) -> None:
    active = {protection.name for protection in plain.report() if protection.active}
    needed = {INSTEAD[stop] for stop in HOSTILE[name].stopped_by if stop in INSTEAD}
    if not active.issuperset(needed):
        pytest.skip(f"this host lacks: {', '.join(sorted(needed - active))}")
    ran = attack(loop, plain, (BEFORE + HOSTILE[name].code + REFUSED).format(**targets))
    assert "ESCAPED" not in ran.stdout, ran
    assert ran.status in HOSTILE[name].ends, ran
    assert left_running() == []
    assert not any(b"ld.so" in data for data in ran.files.values())


def test_the_page_names_every_program_and_what_stops_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    documented = {name: tuple(part.strip() for part in parts.split(",")) for name, parts in rows}
    assert {name: documented.get(name) for name in HOSTILE} == {
        name: hostile.stopped_by for name, hostile in HOSTILE.items()
    }


def test_every_protection_is_on_the_page_and_every_stop_is_a_protection() -> None:
    names = [protection.name for protection in protections({})]
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in names if f"| {name} |" not in page] == []
    assert {name for hostile in HOSTILE.values() for name in hostile.stopped_by} <= set(names)
