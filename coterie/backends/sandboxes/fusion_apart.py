"""What keeps a program on a SandboxFusion server apart from the server, from other runs and from the other
side of its judge. Sent there as text with the wrapper: standard library only, Python 3.9 or later.

- `users`: each program has a user id of its own. This needs a server that is root, and a Python that other
  users can read.
- `landlock`: all programs have the server's user, and each is in a Landlock domain of its own: it opens
  nothing but the system's folders and its own, and neither signals nor traces a process out of its domain.

In both cases a filter refuses sockets: whoever reaches the server's port runs programs as the server's user.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import NamedTuple

from .inside import ids, kernel, landlock, seccomp

MORE = (
    "/etc/ssl/certs", "/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/mime.types", "/etc/inputrc",
)  # fmt: skip
"""What programs may read here, and not in sandbox `local`: names of users, certificates."""


class Apart(NamedTuple):
    """How the programs of one run are kept apart."""

    by: str
    """`users`, `landlock`, or nothing."""
    why: str
    """Why nothing keeps them apart."""
    users: list[int | None]
    """The user of each program; None: the server's."""
    abi: int
    """The version of Landlock that restricts them, 0 without it."""
    filtered: bool
    """Whether a filter of system calls is there."""


def find(count: int, box: str) -> tuple[Apart, list[int]]:
    """How `count` programs can be kept apart; also the open descriptors that reserve their users.

    Args:
        box: the folder of the run.
    """
    filtered = seccomp.known()
    abi = landlock.version()
    if abi < landlock.LEAST or any(os.path.commonpath([place, box]) == place for place in python_folders()):
        abi = 0  # who may read the Python's folder may read all runs
    users, held, why = draw_users(count)
    by = "users" if users else "landlock" if abi >= landlock.SCOPES else ""
    if not filtered:
        by, why = "", f"there is no filter of system calls for {os.uname().machine}"
    elif not by:
        why = f"{why}, and its kernel has no Landlock that holds back signals (Linux 6.12)"
    return Apart(by, "" if by else why, users or [None] * count, abi, filtered), held


# ---------------------------------------------------------------------------------------------------- users


def draw_users(count: int) -> tuple[list[int | None], list[int], str]:
    """(user ids for this run alone, descriptors that reserve them, why there are none)."""
    if os.geteuid() != 0:
        return [], [], f"the server is not root (its user is {os.geteuid()})"
    unreadable = closed_folder()
    if unreadable:
        return [], [], f"other users may not read the server's Python: {unreadable}"
    given = ids.available()
    if given is None:
        return [], [], "the server has no user ids to give away"
    try:
        drawn = [ids.draw(given) for _ in range(count)]
    except OSError as error:
        return [], [], str(error)
    return [user for user, _ in drawn], [reserved for _, reserved in drawn if reserved >= 0], ""


def closed_folder() -> str:
    """A part of this Python's path that other users may not read; empty: they may read all."""
    for path in (sys.executable, os.__file__):
        path = os.path.realpath(path)
        while path != "/":
            if not os.stat(path).st_mode & (stat.S_IROTH if os.path.isfile(path) else stat.S_IXOTH):
                return path
            path = os.path.dirname(path)
    return ""


# ------------------------------------------------------------------------------------- the program's process


def confine(apart: Apart, number: int, box: str, *, sigchld: str) -> None:
    """Take from this process what a program must not have. Raises OSError if a protection fails.

    Args:
        number: of the program in its run.
        box: the program's folder.
        sigchld: what happens when it sets the action of SIGCHLD (inside/seccomp.py).
    """
    user = apart.users[number]
    kernel.no_more_privileges()
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    kernel.drop_capabilities()  # exec gives none back: the bounding set is empty
    kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)  # the change of user removed an earlier one
    if apart.abi:
        readable = [*landlock.SYSTEM, *python_folders(), *landlock.ETC, *MORE]
        landlock.restrict(box, readable, apart.abi)
    # Signals are not its matter: users or Landlock's scopes hold them, and shells send them to their jobs.
    if apart.filtered and not seccomp.install(alone=False, shared=user is None, sigchld=sigchld):
        raise OSError("the system call filter was refused")


def python_folders() -> list[str]:
    """Folders of this Python."""
    places = [
        sys.prefix,
        sys.exec_prefix,
        sys.base_prefix,
        sys.base_exec_prefix,
        os.path.dirname(os.__file__),
    ]
    places += [os.path.dirname(sys.executable), os.path.dirname(os.path.realpath(sys.executable))]
    return sorted({real for place in places for real in (place, os.path.realpath(place))})
