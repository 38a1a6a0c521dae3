"""What this machine has, and what helps where its disk refuses a write; imports nothing of Coterie."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

WRITE_FIXES = {
    "no space left|quota exceeded": "free space on the disk",
    "name too long": "choose a shorter name",
    "no such file": "make its folder, or name another one",
    "permission denied|not permitted": "fix the permissions, or name another folder",
    "read-only file": "use a disk that can be written, and copy a run's folder to it",
    "file exists|(not|is) a directory": "name another path: something else is there",
    "": "free space on the disk or fix the permissions",
}
"""What a system says of a write that failed -> what helps."""


def machine_memory() -> int | None:
    """Bytes of memory that this machine gives its programs, or this container; None: unknown."""
    limits: list[int] = []
    with suppress(OSError, ValueError, AttributeError):  # not on Windows
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for file in ("memory.max", "memory/memory.limit_in_bytes"):  # of cgroups 2 and 1
        with suppress(OSError, ValueError):
            limits.append(int(Path("/sys/fs/cgroup", file).read_text(encoding="ascii")))
    return min((limit for limit in limits if limit > 0), default=None)


def write_fix(reason: str) -> str:
    """What helps where a system says this of a write that failed."""
    return next(fix for words, fix in WRITE_FIXES.items() if re.search(words, reason, re.IGNORECASE))
