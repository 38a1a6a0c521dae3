"""Tensors and adapters in files that vLLM's processes read: in shared memory where there is room."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coterie.core.errors import WriteError

log = logging.getLogger("coterie")
T = TypeVar("T")

SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _LOCK = "coterie-vllm-", ".lock"
CHUNK = 2**30
"""Most bytes of one file of tensors; a larger tensor has a file of its own."""


class Folders:
    """A folder in shared memory, and one on a disk for what doesn't fit there."""

    def __init__(self) -> None:
        self._folders: dict[Path, Path] = {}
        self._held: list[int] = []
        """Descriptors that hold the folders' locks."""
        self._skipped: set[Path] = set()

    def write(self, name: str, size: int, write: Callable[[Path], None]) -> Path:
        """Let `write` make the file or folder `name`, in the first place with room for it.

        Args:
            size: bytes that it will take.

        Raises:
            WriteError: no place takes it.
        """
        reasons = []
        for place in self._places():
            path = None
            try:
                path = self._folder(place) / name
                free = shutil.disk_usage(place).free
                if free < size:  # writing to a memory map of a full tmpfs kills the process
                    raise OSError(f"{size} bytes are needed, {free} are free")
                write(path)
                return path
            except Exception as error:  # safetensors has an exception type of its own for a full disk
                reasons.append(f"{place}: {error}")
                if path is not None:
                    remove(path)
                if place not in self._skipped:
                    self._skipped.add(place)
                    log.warning("weights for vLLM can't be written to %s: %s", place, error)
        raise WriteError(
            "weights for vLLM can't be written",
            why="; ".join(reasons),
            fix="free space there, or set TMPDIR to a folder with room",
        )

    def close(self) -> None:
        """Remove all that was written, and what killed processes have left beside it."""
        for place, folder in self._folders.items():
            shutil.rmtree(folder, ignore_errors=True)
            remove_abandoned(place)
        self._folders.clear()
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()

    def _places(self) -> list[Path]:
        disk = Path(tempfile.gettempdir())
        return [SHARED_MEMORY, disk] if SHARED_MEMORY.is_dir() else [disk]

    def _folder(self, place: Path) -> Path:
        if place not in self._folders:
            for each in self._places():
                remove_abandoned(each)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # the kernel lets go when this process ends, however
            self._folders[place] = folder
            self._held.append(descriptor)
        return self._folders[place]


def remove_abandoned(place: Path) -> None:
    """Remove the folders of processes that were killed: nobody holds their locks."""
    for folder in place.glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another user's, another thing's, or one that is being made
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)


class TensorFiles:
    """Tensors in safetensors files of at most `chunk` bytes, `at_once` of them at a time."""

    def __init__(self, chunk: int = CHUNK, at_once: int = 1) -> None:
        self._folders, self._chunk, self._at_once, self._count = Folders(), chunk, at_once, 0

    def written(self, named_tensors: Iterable[tuple[str, Any]]) -> Generator[Path | None, None, None]:
        """Files with all tensors; each is removed before the `at_once`-th after it is written.

        With several at once the last item is None: the next one is asked for while a file is read.

        Raises:
            WriteError: there is no room for a file.
        """
        from safetensors.torch import save_file

        there = deque[Path]()
        try:
            for part in chunks(named_tensors, self._chunk):
                tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in part}
                size = sum(tensor.nbytes for tensor in tensors.values()) + 2**16
                self._count += 1
                if len(there) == self._at_once:
                    remove(there.popleft())
                write = partial(save_file, tensors)
                there.append(self._folders.write(f"{self._count}.safetensors", size, write))
                yield there[-1]
            if self._at_once > 1:
                yield None
        finally:
            for path in there:
                remove(path)

    def close(self) -> None:
        self._folders.close()


@asynccontextmanager
async def made_ahead(items: Generator[T | None, None, None]) -> AsyncIterator[AsyncIterator[T]]:
    """What a blocking generator yields up to its end, or to None.

    The first item is made at the entry, each later one in a thread while the one before is used. The
    generator is closed at the exit.
    """

    def step() -> asyncio.Task[T | None]:
        return asyncio.create_task(asyncio.to_thread(next, items, None))

    making = step()

    async def each() -> AsyncIterator[T]:
        nonlocal making
        while (item := await asyncio.shield(making)) is not None:
            making = step()
            yield item

    try:
        await asyncio.shield(making)
        yield each()
    finally:
        await asyncio.wait({making})  # a generator can't be closed while a thread runs it
        if not making.cancelled():
            making.exception()  # it was raised already, or what ended the use of the items was first
        items.close()


def chunks(named_tensors: Iterable[tuple[str, Any]], most: int) -> Iterator[list[tuple[str, Any]]]:
    """Runs of tensors with at most `most` bytes together, in order."""
    part: list[tuple[str, Any]] = []
    size = 0
    for name, tensor in named_tensors:
        if part and size + tensor.nbytes > most:
            yield part
            part, size = [], 0
        part.append((name, tensor))
        size += tensor.nbytes
    if part:
        yield part


def remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
