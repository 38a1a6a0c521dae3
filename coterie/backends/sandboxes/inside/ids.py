"""User ids for programs, each reserved as long as its run: two programs at a time are two users.

Sent to SandboxFusion servers too: Python 3.9 or later.
"""

from __future__ import annotations

import errno
import os
import random
import socket

RANGES = ((1_879_048_192, 2_147_352_575), (30_000, 59_999))
"""First and last user ids: that no system assigns (systemd.io/UIDS-GIDS), where all ids are mapped; and that
containers have and seldom use."""
_DRAWS = 100
_LARGE = 1 << 20
"""In a range of so many ids, none is in use by chance."""


def available() -> tuple[int, int] | None:
    """The first range that this user namespace has for users and groups."""
    return next((ids for ids in RANGES if _mapped("uid_map", *ids) and _mapped("gid_map", *ids)), None)


def _mapped(name: str, first: int, last: int) -> bool:
    try:
        with open(f"/proc/self/{name}", encoding="ascii") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
    except OSError:
        return False
    return any(start <= first and last < start + count for start, _, count in ranges)


def draw(ids: tuple[int, int]) -> tuple[int, int]:
    """A user id of this range, and a descriptor that reserves it among all sandboxes while it is open; -1
    where no socket may be bound.

    Raises:
        OSError: none is free.
    """
    first, last = ids
    for _ in range(_DRAWS):
        user = random.SystemRandom().randint(first, last)
        if last - first < _LARGE and tasks_of_user(user):
            continue
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0coterie-user-{user}")
        except OSError as error:
            reserved.close()
            if error.errno == errno.EADDRINUSE:
                continue
            return user, -1
        return user, reserved.detach()
    raise OSError(errno.EAGAIN, f"all user ids from {first} to {last} are in use")


def tasks_of_user(user: int) -> int:
    """Processes and threads of a user on the host; 0 if /proc is not readable."""
    count = 0
    try:
        for name in os.listdir("/proc"):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == user:
                count += len(os.listdir(f"/proc/{name}/task"))
    except OSError:
        pass
    return count
