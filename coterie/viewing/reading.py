"""Reading run folders that may be another user's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.core.errors import RunFolderError


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn what the system refuses about a run folder into an error of the user.

    Raises:
        RunFolderError: the folder, or a file in it, can't be read.
    """
    try:
        yield
    except OSError as error:
        fix = "ask the run's owner to let you read the folder, or copy it"
        raise RunFolderError(f"{path} can't be read", why=str(error), fix=fix) from error
