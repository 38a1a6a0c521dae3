"""Digests of plain values: equal values have equal digests, in every process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from typing import Any

import numpy as np


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


@functools.cache
def _frame(kind: type) -> tuple[bytes, list[tuple[str, bytes]]]:
    """What stands before a dataclass's values, and its fields with what stands before each."""
    name = getattr(kind, "recorded_name", kind.__qualname__)
    return f"{name}(".encode(), [
        (field.name, f"{field.name}=".encode()) for field in dataclasses.fields(kind)
    ]


def _write(value: Any, write: Callable[[bytes], None]) -> None:
    if value is None or isinstance(value, (bool, int, float, str)):
        write(f"{type(value).__name__}:{value!r};".encode())
    elif isinstance(value, bytes):
        write(b"b%d:" % len(value) + value)
    elif isinstance(value, np.ndarray):
        write(f"array:{value.dtype.str}{value.shape};".encode() + np.ascontiguousarray(value).tobytes())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        start, fields = _frame(type(value))
        write(start)
        for name, mark in fields:
            write(mark)
            _write(getattr(value, name), write)
        write(b")")
    elif isinstance(value, (list, tuple)):
        write(b"[")
        for item in value:
            _write(item, write)
        write(b"]")
    elif isinstance(value, Mapping):
        write(b"{")
        for key in sorted(value, key=repr):
            _write(key, write)
            _write(value[key], write)
        write(b"}")
    elif isinstance(value, AbstractSet):
        write(b"<")
        for item in sorted(value, key=repr):
            _write(item, write)
        write(b">")
    elif isinstance(value, Sequence):
        _write(tuple(value), write)
    else:
        fix = "fix: define digest(state) on the environment"
        raise TypeError(f"a {type(value).__name__} can't be digested; {fix}")
