"""Digests of plain values: equal values have equal digests, in every process."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from functools import lru_cache
from typing import Any

import numpy as np

_fields: Callable[[Any], Sequence[dataclasses.Field[Any]]] = lru_cache(maxsize=1024)(dataclasses.fields)


def digest(value: Any) -> str:
    """Hex digest (128 bits) of a value made of dataclasses, containers, numbers, strings, bytes and arrays.

    A dataclass may state as `recorded_name` the name of its class in digests that files have.

    Raises:
        TypeError: the value holds an object of another type.
    """
    parts: list[bytes] = []
    _write(value, parts.append)
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def ids_sha256(ids: Sequence[int]) -> str:
    """sha256 of token ids as little-endian int64: the value of `Decision.prompt_sha256`."""
    return hashlib.sha256(np.array(ids, dtype="<i8").tobytes()).hexdigest()


def _write(value: Any, write: Callable[[bytes], None]) -> None:
    kind = type(value)
    if kind is tuple or kind is list:  # first, as most values of states are
        write(b"[")
        for item in value:
            _write(item, write)
        write(b"]")
    elif value is None or isinstance(value, (bool, int, float, str)):
        write(f"{kind.__name__}:{value!r};".encode())
    elif isinstance(value, bytes):
        write(b"b%d:" % len(value) + value)
    elif isinstance(value, np.ndarray):
        write(f"array:{value.dtype.str}{value.shape};".encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        write(f"{getattr(value, 'recorded_name', kind.__qualname__)}(".encode())
        for field in _fields(kind):
            write(f"{field.name}=".encode())
            _write(getattr(value, field.name), write)
        write(b")")
    elif isinstance(value, (Sequence, AbstractSet)):
        opens, closes = (b"<", b">") if isinstance(value, AbstractSet) else (b"[", b"]")
        write(opens)
        for item in sorted(value, key=repr) if opens == b"<" else value:
            _write(item, write)
        write(closes)
    elif isinstance(value, Mapping):
        write(b"{")
        for key in sorted(value, key=repr):
            _write(key, write)
            _write(value[key], write)
        write(b"}")
    else:
        raise TypeError(f"a {kind.__name__} can't be digested; fix: define digest(state) on the environment")
