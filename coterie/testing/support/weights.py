"""What an engine reads from `Weights`, as a digest: two versions can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.types import Weights
from coterie.testing.support.failure import guarded, require


def weights_digest(weights: Weights) -> str | None:
    """A digest of the tensors, of the module, or of the files in the folder; None: there is nothing to read.

    It is computed while the weights may be read, since a trainer may change a module in place.
    """
    hasher, numbers = hashlib.sha256(), 0
    for name, value in sorted(_values(weights), key=lambda pair: pair[0]):
        hasher.update(f"{name}:{len(value)}:".encode() + value)
        numbers += len(value)
    return hasher.hexdigest() if numbers else None


def digest_of(trainer: Any, name: str) -> dict[str, str]:
    """What a trainer's `digest` returns.

    Raises:
        ConformanceError: it is no table by policy.
    """
    with guarded(f"{name}.digest"):
        digests = trainer.digest()
    fix = "{policy: sha256 of its weights}"
    require(isinstance(digests, Mapping), f"returned {digests!r:.200}", f"{name}.digest", fix=fix)
    return dict(digests)


def _values(weights: Weights) -> Iterator[tuple[str, bytes]]:
    if weights.tensors is not None:
        for name, tensor in weights.tensors():
            yield name, _bytes(tensor)
    elif weights.module is not None:
        yield from _of_module(weights.module, weights.adapter)
    elif weights.folder is not None:
        folder = Path(weights.folder)
        for file in folder.rglob("*"):
            if file.is_file():
                yield str(file.relative_to(folder)), file.read_bytes()


def _of_module(module: Any, adapter: str | None) -> Iterator[tuple[str, bytes]]:
    """The tensors of a module, or those of one adapter of it; of another object the arrays and numbers."""
    if not callable(getattr(module, "state_dict", None)):
        yield from _of_object(module, "", ())
        return
    state = module.state_dict()
    of_adapter = {name: tensor for name, tensor in state.items() if adapter and adapter in name.split(".")}
    for name, tensor in (of_adapter or state).items():
        yield name, _bytes(tensor)


def _of_object(value: Any, name: str, inside: tuple[int, ...]) -> Iterator[tuple[str, bytes]]:
    if id(value) in inside:
        return
    inside = (*inside, id(value))
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        yield name, _bytes(value)
    elif isinstance(value, float):
        yield name, repr(value).encode()
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _of_object(inner, f"{name}[{key!r}]", inside)
    elif isinstance(value, (str, bytes, int, AbstractSet, type)) or value is None:
        return  # names and settings, which are no weights
    elif isinstance(value, Sequence):
        for index, inner in enumerate(value):
            yield from _of_object(inner, f"{name}[{index}]", inside)
    else:
        for attribute, inner in getattr(value, "__dict__", {}).items():
            if not attribute.startswith("_"):  # what a class caches for itself
                yield from _of_object(inner, f"{name}.{attribute}", inside)


def _bytes(tensor: Any) -> bytes:
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        try:
            tensor = tensor.numpy()
        except TypeError:  # numpy has no bfloat16; every one is a float32
            tensor = tensor.float().numpy()
    return np.ascontiguousarray(tensor).tobytes()
