"""Tensors and adapters in files that vLLM's processes read: in shared memory where there is room."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coterie.backends.engines.vllm.server import Adapter
from coterie.backends.engines.vllm.settings import RANKS
from coterie.backends.models.versions import Versions
from coterie.core.errors import ConfigError, WriteError

log = logging.getLogger("coterie")
T = TypeVar("T")

SHARED_MEMORY = Path("/dev/shm")
_PREFIX, _LOCK = "coterie-vllm-", ".lock"
CHUNK = 2**30
"""Most bytes of one file of tensors; a larger tensor has a file of its own."""


class Folders:
    """A folder in shared memory, and one on a disk for what doesn't fit there."""

    def __init__(self) -> None:
        self.made: dict[Path, Path] = {}
        """By place: the folder in it."""
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
                path = self.folder(place) / name
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
        for place, folder in self.made.items():
            shutil.rmtree(folder, ignore_errors=True)
            remove_abandoned(place)
        self.made.clear()
        for descriptor in self._held:
            os.close(descriptor)
        self._held.clear()

    def _places(self) -> list[Path]:
        disk = Path(tempfile.gettempdir())
        return [SHARED_MEMORY, disk] if SHARED_MEMORY.is_dir() else [disk]

    def folder(self, place: Path) -> Path:
        """The folder in a place, made and locked by its first use."""
        if place not in self.made:
            for each in self._places():
                remove_abandoned(each)
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            descriptor = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # the kernel lets go when this process ends, however
            self.made[place] = folder
            self._held.append(descriptor)
        return self.made[place]


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
        self.folders, self.chunk, self._at_once, self._count = Folders(), chunk, at_once, 0

    def written(self, named_tensors: Iterable[tuple[str, Any]]) -> Generator[Path | None, None, None]:
        """Files with all tensors; each is removed before the `at_once`-th after it is written.

        With several at once the last item is None: the next one is asked for while a file is read.

        Raises:
            WriteError: there is no room for a file.
        """
        from safetensors.torch import save_file

        there = deque[Path]()
        try:
            for part in chunks(named_tensors, self.chunk):
                tensors = {name: tensor.detach().contiguous().cpu() for name, tensor in part}
                size = sum(tensor.nbytes for tensor in tensors.values()) + 2**16
                self._count += 1
                if len(there) == self._at_once:
                    remove(there.popleft())
                write = partial(save_file, tensors)
                there.append(self.folders.write(f"{self._count}.safetensors", size, write))
                yield there[-1]
            if self._at_once > 1:
                yield None
        finally:
            for path in there:
                remove(path)

    def close(self) -> None:
        self.folders.close()


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


class AdapterVersions:
    """The adapters of one base: for each policy the newest version, and older ones that are needed.

    A step that is pinned to a version leases it; a request uses one from its start to its end. A version that
    has been replaced is handed to `discard` when its last lease and its last request end, and its folder is
    removed then.

    Args:
        discard: takes a version that nobody uses any more; called on the event loop.
    """

    def __init__(self, discard: Callable[[Adapter], None]) -> None:
        self._discard = discard
        self.versions: Versions[Adapter] = Versions(lambda policy, adapter: self._drop_unused(adapter))
        """By policy. Requests that name no version get the newest that was put there."""
        self._uses: Counter[int] = Counter()
        """By id: the requests that use it."""
        self._ids = itertools.count(1)
        self._folders = Folders()

    @property
    def held(self) -> list[Adapter]:
        """All that requests may name: the newest versions, and those with a lease."""
        return self.versions.values()

    def write(self, policy: str, version: int, settings: Any, tensors: Mapping[str, Any]) -> Adapter:
        """Write a version in PEFT's format, under a name, an id and a path that no other version has.

        Args:
            settings: PEFT's configuration of the adapter.
            tensors: by PEFT's names in a file.

        Raises:
            WriteError: neither shared memory nor the temporary folder has room.
        """
        from safetensors.torch import save_file

        number = next(self._ids)
        copies = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}

        def write(folder: Path) -> None:
            folder.mkdir()
            settings.save_pretrained(folder)
            save_file(copies, folder / "adapter_model.safetensors")

        size = sum(tensor.nbytes for tensor in copies.values()) + 2**16
        path = self._folders.write(f"{number}", size, write)
        return Adapter(f"{policy}@{version}.{number}", number, str(path))

    @contextmanager
    def use(self, policy: str, version: int | None = None) -> Iterator[tuple[Adapter, int]]:
        """A version's adapter (None: the newest's) and its version; it stays loaded meanwhile.

        Raises:
            SystemFault: the version is not held.
        """
        version = self.versions.version(policy) if version is None else version
        adapter = self.versions.at(policy, version)
        self._uses[adapter.id] += 1
        try:
            yield adapter, version
        finally:
            self._uses[adapter.id] -= 1
            self._drop_unused(adapter)

    def close(self) -> None:
        """Remove all folders."""
        self.versions.clear()
        self._folders.close()

    def _drop_unused(self, adapter: Adapter) -> None:
        """Drop a version, unless it is held or a request uses it."""
        if self._uses[adapter.id]:
            return
        del self._uses[adapter.id]
        if adapter not in self.held:
            self._drop(adapter)

    def _drop(self, adapter: Adapter) -> None:
        self._discard(adapter)
        # vLLM has read the files; it reads them again only for requests that name the adapter.
        remove(Path(adapter.path))


def adapter_tensors(weights: Any) -> dict[str, Any]:
    """The tensors of a handle's adapter by PEFT's names in a file (without the adapter's own name)."""
    if weights.tensors is not None:
        return {_file_name(name, weights.adapter): tensor for name, tensor in weights.tensors()}
    from peft import get_peft_model_state_dict

    state: dict[str, Any] = get_peft_model_state_dict(weights.module, adapter_name=weights.adapter)
    return state


def largest_rank(settings: Any) -> int:
    """The largest rank of any layer of an adapter."""
    return max([settings.r, *(settings.rank_pattern or {}).values()])


def rank_for(adapters: Mapping[str, Any], policy: str) -> int:
    """The rank that vLLM is started with for these adapters' configurations; 0 without any.

    Raises:
        ConfigError: vLLM has none that large; `policy` is named.
    """
    largest = max((largest_rank(settings) for settings in adapters.values()), default=0)
    rank = next((known for known in RANKS if known >= largest), None) if adapters else 0
    if rank is None:
        raise wrong_rank(policy, largest, f"vLLM has none larger than {RANKS[-1]}")
    return rank


def wrong_rank(policy: str, rank: int, why: str) -> ConfigError:
    return ConfigError(
        f"vLLM can't take an adapter of rank {rank}",
        path=f"policies.{policy}.lora.rank",
        why=why,
        fix="use a smaller rank, or engine.type: hf",
    )


def _file_name(name: str, adapter: str) -> str:
    plain = name.replace(f".{adapter}.", ".")
    return plain if plain.startswith("base_model.model.") else f"base_model.model.{plain}"
