"""One thread for all heavy computation of a process.

Each thread that starts an OpenMP region gets its own workers, and idle workers spin on the cores that the
others need. Engine and trainer take turns anyway, so they share one thread. The event loop stays free to step
environments and to wait for sandboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, TypeVar

T = TypeVar("T")


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="coterie-compute")


async def compute(work: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Run a blocking function in the compute thread; calls run in the order of arrival."""
    return await asyncio.get_running_loop().run_in_executor(_pool(), partial(work, *arguments, **named))
