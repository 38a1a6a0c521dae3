"""Whether the programs that a sandbox runs at the same time fit into the memory of this machine."""

from __future__ import annotations

from collections.abc import Mapping

from coterie.core.errors import ConfigError
from coterie.core.protocols import Limits
from coterie.machine import machine_memory

LEAST_MB = 64
"""Least 2^20 bytes that a program has besides the packages that its worker has imported."""


def check_fits(
    workers: int, limits: Mapping[str, Limits], *, in_memory: bool, path: str, by_default: bool
) -> None:
    """Refuse programs that together may take more memory than this machine has.

    Args:
        workers: programs at the same time.
        limits: of the programs, by the path of the setting that has them.
        in_memory: whether the programs' files are in memory (a tmpfs).
        path: the sandbox's.
        by_default: whether `workers` is the number of CPUs.

    Raises:
        ConfigError: what takes how much, how many run at once, and how much there is.
    """
    memory = machine_memory()
    if memory is None:
        return
    has = memory >> 20
    for place, limit in limits.items():
        each = limit.memory_mb + (limit.disk_mb if in_memory else 0)
        if workers * each <= has:
            continue
        disk = f" and {limit.disk_mb:,} MB of files, which are in memory (disk_mb)" if in_memory else ""
        most = has // each
        fix = f"set {path}.workers to at most {most}, or lower" if most else "lower"
        raise ConfigError(
            f"{workers} programs at a time may take {workers * each:,} MB, and this machine has {has:,} MB",
            path=place,
            why=f"each may take {limit.memory_mb:,} MB of memory (memory_mb){disk}; `workers` is {workers}"
            + (", the number of CPUs" if by_default else ""),
            fix=f"{fix} {place}.memory_mb" + (" or disk_mb" if in_memory else ""),
        )


def check_holds(imported_mb: int, limits: Limits, path: str) -> None:
    """Refuse a limit of memory that the packages alone take.

    Args:
        imported_mb: address space of a worker with its packages, in 2^20 bytes.
        path: of the limits.

    Raises:
        ConfigError: with both numbers.
    """
    least = imported_mb + LEAST_MB
    if limits.memory_mb < least:
        raise ConfigError(
            f"memory_mb is {limits.memory_mb}, and the imported packages take {imported_mb} MB",
            path=path,
            why="a program begins with them, and the limit counts its whole address space",
            fix=f"raise it: {least} at least, 2048 for work with data; or set preload: []",
        )
