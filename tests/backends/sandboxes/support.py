"""Helpers of the tests of sandbox `local`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

from coterie.backends.sandboxes.fusion import SandboxFusion
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Limits, Program, Ran

T = TypeVar("T")
LIMITS = Limits(cpu_seconds=2, wall_seconds=5, memory_mb=256, disk_mb=8, output_kb=4)


def inside(go: Callable[[LocalSandbox], Awaitable[T]], **settings: Any) -> T:
    """The result of `go` with an open sandbox of one worker."""

    async def opened() -> T:
        sandbox = LocalSandbox(LocalSandbox.Config(**{"workers": 1, "limits": LIMITS, **settings}))
        await sandbox.open()
        try:
            return await go(sandbox)
        finally:
            await sandbox.close()

    return asyncio.run(opened())


def ran(code: str, settings: dict[str, Any] | None = None, **given: Any) -> Ran:
    """The result of a program. The programs of a module share the sandboxes, but for those with settings."""
    if settings and {*settings} != {"namespaces"}:
        return inside(lambda sandbox: sandbox.run(Program(code=code, **given)), **settings)
    kind = (settings or {}).get("namespaces", "auto")
    if not _shared:
        _shared["loop"] = asyncio.new_event_loop()
    loop = _shared["loop"]
    if kind not in _shared:
        sandbox = LocalSandbox(LocalSandbox.Config(workers=1, limits=LIMITS, namespaces=kind))
        loop.run_until_complete(sandbox.open())
        _shared[kind] = sandbox
    result: Ran = loop.run_until_complete(_shared[kind].run(Program(code=code, **given)))
    return result


_shared: dict[str, Any] = {}
"""An event loop, and sandboxes by their `namespaces`."""


def close_shared() -> None:
    """Close the sandboxes of `ran`."""
    loop = _shared.pop("loop", None)
    while _shared:
        loop.run_until_complete(_shared.popitem()[1].close())
    if loop is not None:
        loop.close()


def used(box: SandboxFusion, use: Callable[[SandboxFusion], Awaitable[T]]) -> T:
    """The result of `use` with this sandbox, open."""

    async def opened() -> T:
        await box.open()
        try:
            return await use(box)
        finally:
            await box.close()

    return asyncio.run(opened())


def descendants(root: int) -> list[int]:
    """Process ids of all descendants of `root`, in order of depth."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    pids = [root]
    for pid in pids:
        pids.extend(child for child, parent in parents.items() if parent == pid)
    return pids[1:]
