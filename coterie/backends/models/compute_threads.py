"""One thread for all heavy computation of a process; two where it generates while it updates.

Each thread that starts an OpenMP region gets its own workers, and idle workers spin on the cores that the
others need. Where engine and trainer take turns (`schedule.max_staleness: 0`) they share one thread. The
event loop stays free to step environments and to wait for sandboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _pool(name: str) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"coterie-{name}")


async def compute(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Run a blocking function in the compute thread; calls run in the order of arrival."""
    return await asyncio.get_running_loop().run_in_executor(
        _pool("compute"), partial(work, *arguments, **named)
    )


async def compute_beside(work: Callable[..., T], *arguments: Any) -> T:
    """Run a blocking function in a thread beside the compute thread: generation while the trainer updates."""
    return await asyncio.get_running_loop().run_in_executor(_pool("beside"), partial(work, *arguments))
