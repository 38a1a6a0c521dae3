"""Weights in safetensors files of a disk that all nodes see, in place of Ray's object store.

What is no tensor (a module without its tensors, a tokenizer) still travels through Ray: nothing of a file is
ever unpickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import pickle
import secrets
import shutil
import socket
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.processes import FOLDER
from coterie.backends.cluster.wire import first_line
from coterie.backends.executors.ray.shipping import Receiver, SentWeights
from coterie.core.errors import ConfigError, UserError
from coterie.core.storage.atomic import TEMPORARY, sync_file, sync_folder, write_atomic, written
from coterie.core.types import Weights

FIX = (
    f"name a folder of a disk that all nodes have at the same path ({FOLDER}), or set cluster.weights=auto "
    "(Ray's object store)"
)
LAG = 10.0
"""Seconds after which what one node has written is seen by another, on a network file system."""
ANSWER = 60.0
"""Least seconds that a node has to start a process, and to read a file there."""


def check_seen(ray: Any, folder: Path, seconds: float) -> None:
    """Write a file, and let a process of every node read it. Makes the folder.

    Args:
        seconds: which a node has for its answer, at least.

    Raises:
        WriteError: this process can't write it.
        UserError: a node doesn't see it, with each node's reason.
    """
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
    probe, content = folder / f"probe-{secrets.token_hex(4)}", secrets.token_hex(16)
    write_atomic(probe, content)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        answers = [_asked(ray, node["NodeID"], probe) for node in nodes]
        deadline = time.monotonic() + max(seconds, ANSWER)
        blind = []
        for node, answer in zip(nodes, answers, strict=True):
            try:
                host, read = ray.get(answer, timeout=max(deadline - time.monotonic(), 1.0))
            except ray.exceptions.RayError as error:
                host, read = node["NodeManagerHostname"], f"its process: {first_line(error)}"
            if read != content:
                why = read if ":" in read else "the file has another content there: it is another disk"
                blind.append(f"node {host} ({node['NodeManagerAddress']}): {why}")
    finally:
        with suppress(OSError):
            probe.unlink()
    if blind:
        what = f"{len(blind)} of {len(nodes)} nodes can't read what the run writes to {folder}"
        raise UserError(what, path="cluster.weights", why="\n".join(blind), fix=FIX)


def _asked(ray: Any, node: str, probe: Path) -> Any:
    """A reference to the answer of a node."""
    there = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
    task = ray.remote(read_there).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return task.remote(str(probe))


def read_there(path: str, lag: float = LAG) -> tuple[str, str]:
    """(this host, the content of a file, or `Error: why` where it can't be read)."""
    deadline = time.monotonic() + lag
    while True:
        try:
            return socket.gethostname(), Path(path).read_text()
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or time.monotonic() > deadline:
                return socket.gethostname(), f"{type(error).__name__}: {error}"
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A `SentWeights` whose tensors are in a file. Picklable."""

    weights: Weights
    """Without module, tokenizer and tensors."""
    introduces: bool
    """As `SentWeights.introduces`."""
    pickled: bytes
    """The `SentWeights` without its tensors, and with its module in place of the pickled one."""
    file: str

    def read(self) -> SentWeights:
        """The weights with their tensors, in this process's memory.

        Raises:
            UserError: the file can't be read here.
        """
        tensors = _read(Path(self.file), self.weights)
        sent: SentWeights = _TensorUnpickler(io.BytesIO(self.pickled), tensors).load()
        return sent


async def received(receiver: Receiver, sent: SentWeights | OnDisk) -> Weights:
    """The weights that were sent; a file is read beside the event loop.

    Raises:
        UserError: it can't be read here.
    """
    if isinstance(sent, OnDisk):
        sent = await asyncio.to_thread(sent.read)
    return receiver.receive(sent)


def opened(connection: Connection, folder: Path | None) -> WeightFiles | None:
    """Prepare the files of `cluster.weights: disk`.

    Args:
        folder: the run's.

    Returns:
        the files; None: weights go through the object store.

    Raises:
        ConfigError: no folder is named, and the run has none.
        UserError: a node doesn't see the folder, or this one can't write there.
    """
    settings = connection.settings
    if settings.weights != "disk":
        return None
    place = Path(settings.weights_folder).expanduser().resolve() if settings.weights_folder else folder
    if place is None:
        what = "weights have no folder: none is named, and the run has none"
        raise ConfigError(
            what, path=FOLDER, fix="name a folder that all nodes see, or give the run one (--out)"
        )
    name = "sent_weights"
    if settings.weights_folder and not place.is_dir():
        what = f"there is no folder {place}"
        raise ConfigError(what, path=FOLDER, fix="make it, on a disk that all nodes see, or correct the name")
    if settings.weights_folder:  # two runs may name one folder
        of = str(folder.resolve()) if folder is not None else uuid.uuid4().hex
        name = f"coterie-weights-{hashlib.sha256(of.encode()).hexdigest()[:12]}"
    files = WeightFiles(place.resolve() / name)
    try:
        check_seen(connection.ray, files.folder, settings.timeout)
    except BaseException:
        files.close()
        raise
    return files


class WeightFiles:
    """The files of one run, in a folder of theirs.

    Args:
        folder: what is in it is removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count()
        self._introductions: set[str] = set()
        """Files that each later receiver needs, too."""
        shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
        with written(folder):
            folder.mkdir(parents=True)

    def store(self, sent: SentWeights) -> SentWeights | OnDisk:
        """Write the tensors; a reader sees the whole file or none. What has no tensors is returned as it is.

        Raises:
            WriteError: the disk is full or read-only. No part of a file is left.
        """
        from safetensors.torch import save_file

        module = pickle.loads(sent.pickled) if sent.pickled and sent.module else sent.pickled
        skeleton = io.BytesIO()
        pickler = _TensorPickler(skeleton)
        pickler.dump(replace(sent, pickled=module))
        if not pickler.tensors:
            return sent
        weights = sent.weights
        file = self.folder / f"{next(self._numbers)}-version-{weights.version}.safetensors"
        temporary = file.with_name(f"{TEMPORARY}{file.name}")
        with written(f"version {weights.version} of the weights of '{weights.policy}' to {self.folder}"):
            try:
                save_file(pickler.tensors, temporary)
                sync_file(temporary)
                temporary.replace(file)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
            sync_folder(self.folder)
        if sent.introduces:
            self._introductions.add(str(file))
        return OnDisk(weights, sent.introduces, skeleton.getvalue(), str(file))

    def drop(self, stored: Any) -> None:
        """Remove the file of a version that nobody needs any more."""
        if isinstance(stored, OnDisk) and stored.file not in self._introductions:
            with suppress(OSError):
                Path(stored.file).unlink()

    def close(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _read(file: Path, weights: Weights) -> Mapping[str, Any]:
    from safetensors.torch import load

    deadline = time.monotonic() + LAG
    while True:
        try:
            return load(file.read_bytes())  # no memory map: the file may be removed at any time
        except Exception as error:
            if isinstance(error, FileNotFoundError) and time.monotonic() < deadline:
                time.sleep(0.2)  # a network file system shows it a little later
                continue
            raise UserError(
                f"version {weights.version} of the weights of '{weights.policy}' can't be read on node "
                f"{socket.gethostname()}",
                path="cluster.weights",
                why=f"{type(error).__name__}: {error}",
                fix=FIX,
            ) from error


class _TensorPickler(pickle.Pickler):
    """Pickles an object without its tensors, which it keeps."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[str, Any] = {}
        self._names: dict[int, str] = {}
        self._storages: set[int] = set()

    def persistent_id(self, thing: Any) -> tuple[str, bool | None] | None:
        """(its name, whether a parameter requires gradients; None: it is no parameter), of a tensor."""
        import torch

        if not isinstance(thing, torch.Tensor):
            return None
        name = self._names.setdefault(id(thing), str(len(self._names)))
        if name not in self.tensors:
            kept = thing.detach().contiguous()
            storage = kept.untyped_storage().data_ptr()
            # safetensors takes no two tensors in one storage.
            self.tensors[name] = kept.clone() if storage in self._storages else kept
            self._storages.add(storage)
        return name, thing.requires_grad if isinstance(thing, torch.nn.Parameter) else None


class _TensorUnpickler(pickle.Unpickler):
    """The object that `_TensorPickler` has pickled, with its tensors."""

    def __init__(self, file: io.BytesIO, tensors: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._tensors, self._made = tensors, dict[str, Any]()

    def persistent_load(self, which: tuple[str, bool | None]) -> Any:
        import torch

        name, trained = which
        if name not in self._made:
            tensor = self._tensors[name]
            self._made[name] = (
                tensor if trained is None else torch.nn.Parameter(tensor, requires_grad=trained)
            )
        return self._made[name]
