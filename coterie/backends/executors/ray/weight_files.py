"""Weights in safetensors files of a disk that all nodes see, in place of Ray's object store.

What is no tensor (a module without its tensors, a tokenizer) still travels through Ray: nothing of a file is
ever unpickled.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import logging
import pickle
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
from coterie.backends.cluster.shared_folder import FIX, FOLDER, LAG, check_seen
from coterie.backends.executors.ray.shipping import Receiver, SentWeights
from coterie.core.errors import ConfigError, UserError
from coterie.core.storage.atomic import TEMPORARY, sync_file, sync_folder, written
from coterie.core.types import Weights

log = logging.getLogger("coterie")
_STATE, _TENSORS, _MODULE = "state/", "tensors/", "module/"
"""Prefixes of names in a file, by the field of `SentWeights` that they belong to."""


@dataclass(frozen=True, slots=True)
class OnDisk:
    """A `SentWeights` whose tensors are in a file. Picklable."""

    sent: SentWeights
    """Without its tensors."""
    file: str
    order: tuple[str, ...]
    """The names in the file, in their order."""

    @property
    def weights(self) -> Weights:
        return self.sent.weights

    @property
    def introduces(self) -> bool:
        return self.sent.introduces

    def read(self) -> tuple[SentWeights, dict[str, Any]]:
        """The weights with their tensors, in this process's memory, and the tensors of their module.

        Raises:
            UserError: the file can't be read here.
        """
        tensors = _read(Path(self.file), self.weights)
        state = {n.removeprefix(_STATE): tensors[n] for n in self.order if n.startswith(_STATE)}
        listed = [(n.removeprefix(_TENSORS), tensors[n]) for n in self.order if n.startswith(_TENSORS)]
        known = self.sent
        whole = replace(
            known,
            state=None if known.state is None else state,
            tensors=None if known.tensors is None else listed,
        )
        return whole, {name: tensors[name] for name in self.order if name.startswith(_MODULE)}


async def received(receiver: Receiver, sent: SentWeights | OnDisk) -> Weights:
    """The weights that were sent; a file is read beside the event loop.

    Raises:
        UserError: it can't be read here.
    """
    if not isinstance(sent, OnDisk):
        return receiver.receive(sent)
    whole, tensors = await asyncio.to_thread(sent.read)
    return receiver.receive(whole, lambda data: _Unpickler(io.BytesIO(data), tensors).load())


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

        tensors: dict[str, Any] = {_STATE + name: tensor for name, tensor in (sent.state or {}).items()}
        tensors |= {_TENSORS + name: tensor for name, tensor in sent.tensors or ()}
        pickled = sent.pickled
        if pickled and sent.module:  # a module of torch's
            skeleton = io.BytesIO()
            pickler = _Pickler(skeleton)
            pickler.dump(pickle.loads(pickled))
            pickled, tensors = skeleton.getvalue(), tensors | pickler.tensors
        if not tensors:
            return sent
        bare = replace(
            sent,
            pickled=pickled,
            state=None if sent.state is None else {},
            tensors=None if sent.tensors is None else [],
        )
        weights = sent.weights
        file = self.folder / f"{next(self._numbers)}-version-{weights.version}.safetensors"
        temporary = file.with_name(f"{TEMPORARY}{file.name}")
        with written(f"version {weights.version} of the weights of '{weights.policy}' to {self.folder}"):
            try:
                save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, temporary)
                sync_file(temporary)
                temporary.replace(file)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
            sync_folder(self.folder)
        if sent.introduces:
            self._introductions.add(str(file))
        return OnDisk(bare, str(file), tuple(tensors))

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


class _Pickler(pickle.Pickler):
    """Pickles an object without its tensors, which it keeps."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def persistent_id(self, thing: Any) -> tuple[str, bool | None] | None:
        """(its name, whether a parameter requires gradients; None: it is no parameter), of a tensor."""
        import torch

        if not isinstance(thing, torch.Tensor):
            return None
        name = self._names.setdefault(id(thing), f"{_MODULE}{len(self._names)}")
        # A copy: safetensors takes no two tensors in one storage.
        self.tensors.setdefault(name, thing.detach().clone(memory_format=torch.contiguous_format))
        return name, thing.requires_grad if isinstance(thing, torch.nn.Parameter) else None


class _Unpickler(pickle.Unpickler):
    """The object that `_Pickler` has pickled, with its tensors."""

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
