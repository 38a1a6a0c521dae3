"""Environment variables with secrets: Ray's processes are started without them.

Whoever is on a node can read the environment of a process, and Ray shows that of an actor in its dashboard.
So the variables are taken out while Ray starts, and a process that needs some gets them in a method call.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager

_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(?![A-Za-z])", re.IGNORECASE)
_PLAIN = ("HOME", "PATH", "USER", "LANG", "PWD", "TMPDIR", "PYTHONPATH", "LD_LIBRARY_PATH")
"""Variables that are no secrets although a setting names them: processes can't do without."""


def secret_variables(named: Collection[str]) -> dict[str, str]:
    """The variables of this process with secrets, by their names or since a configuration names them.

    Ray's own are left out: its processes know each other by them.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("RAY_") and (_SECRET.search(name) or (name in named and name not in _PLAIN))
    }


@contextmanager
def without(names: Collection[str]) -> Iterator[None]:
    """A context without some environment variables: processes that are started in it don't have them."""
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)
