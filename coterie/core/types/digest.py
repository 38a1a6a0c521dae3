"""Digests of plain values: equal values have equal digests, in every process."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence, Set as AbstractSet
from typing import Any

import numpy as np


def digest(value: Any) -> str:
    """Hex digest (128 bits) of a value made of dataclasses, containers, numbers, strings, bytes and arrays.

    A dataclass may state as `recorded_name` the name of its class in digests that files have.

    Raises:
        TypeError: the value holds an object of another type.
    """
    hasher = hashlib.blake2b(digest_size=16)
    for part in _parts(value):
        hasher.update(part)
    return hasher.hexdigest()


def ids_sha256(ids: Sequence[int]) -> str:
    """sha256 of token ids as little-endian int64: the value of `Decision.prompt_sha256`."""
    return hashlib.sha256(np.array(ids, dtype="<i8").tobytes()).hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if value is None or isinstance(value, (bool, int, float, str)):
        yield f"{type(value).__name__}:{value!r};".encode()
    elif isinstance(value, bytes):
        yield b"b%d:" % len(value) + value
    elif isinstance(value, np.ndarray):
        yield f"array:{value.dtype.str}{value.shape};".encode() + np.ascontiguousarray(value).tobytes()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield f"{getattr(value, 'recorded_name', type(value).__qualname__)}(".encode()
        for field in dataclasses.fields(value):
            yield f"{field.name}=".encode()
            yield from _parts(getattr(value, field.name))
        yield b")"
    elif isinstance(value, Mapping):
        yield b"{"
        for key in sorted(value, key=repr):
            yield from _parts(key)
            yield from _parts(value[key])
        yield b"}"
    elif isinstance(value, AbstractSet):
        yield b"<"
        for item in sorted(value, key=repr):
            yield from _parts(item)
        yield b">"
    elif isinstance(value, Sequence):
        yield b"["
        for item in value:
            yield from _parts(item)
        yield b"]"
    else:
        fix = "fix: define digest(state) on the environment"
        raise TypeError(f"a {type(value).__name__} can't be digested; {fix}")
