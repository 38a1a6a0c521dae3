"""What this machine has; imports nothing of Coterie."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def machine_memory() -> int | None:
    """Bytes of memory that this machine gives its programs, or this container; None: unknown."""
    limits: list[int] = []
    with suppress(OSError, ValueError, AttributeError):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups 2 and 1
        with suppress(OSError, ValueError):
            limits.append(int(Path("/sys/fs/cgroup", file).read_text(encoding="ascii")))
    return min((limit for limit in limits if limit > 0), default=None)
