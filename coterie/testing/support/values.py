"""Fingerprints of values, copies through pickle, and overwriting of mutable parts."""

from __future__ import annotations

import dataclasses
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from coterie.core.types.digest import digest
from coterie.testing.support.failure import ConformanceError, require


def fingerprint(value: Any) -> str:
    """A digest of a value: equal for equal values, different when anything inside differs."""
    try:
        return digest(value)
    except TypeError:  # a class that `digest` does not know
        return hashlib.blake2b(pickled(value, type(value).__name__), digest_size=16).hexdigest()


@contextmanager
def unchanged(value: Any, what: str, where: str, fix: str = "copy what it changes") -> Iterator[None]:
    """A context that leaves a value as it is.

    Args:
        what: the value's name: "the task".

    Raises:
        ConformanceError: it was changed.
    """
    mark = fingerprint(value)
    yield
    require(fingerprint(value) == mark, f"changed {what}", where, fix=fix)


def pickled(value: Any, where: str) -> bytes:
    """The value's pickle.

    Raises:
        ConformanceError: the value can't be pickled, so no other process could receive it.
    """
    try:
        return pickle.dumps(value)
    except Exception as error:  # pickle raises whatever an object's hooks raise
        raise ConformanceError(
            f"a {type(value).__name__} can't be pickled: {error}",
            where=where,
            fix="use plain data, dataclasses of importable modules, and no open files or functions",
        ) from error


def copied(value: Any, where: str) -> Any:
    """The value as another process would receive it."""
    try:
        return pickle.loads(pickled(value, where))
    except ConformanceError:
        raise
    except Exception as error:
        raise ConformanceError(
            f"a {type(value).__name__} can be pickled but not read back: {error}",
            where=where,
            fix="give its class a constructor that pickle can call, or __reduce__",
        ) from error


def spoil(value: Any) -> None:
    """Overwrite every mutable part of a value, to show whether its giver still uses those parts."""
    if isinstance(value, np.ndarray):
        if value.flags.writeable and value.size and value.dtype.kind in "biuf":
            value.flat[0] = 0 if value.flat[0] else 1
    elif isinstance(value, Mapping):
        for inner in list(value.values()):
            spoil(inner)
        if isinstance(value, dict):
            value.clear()
            value["spoilt"] = True
    elif isinstance(value, (list, tuple)):
        for inner in value:
            spoil(inner)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, set):
        value.add("spoilt")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            spoil(getattr(value, field.name))
