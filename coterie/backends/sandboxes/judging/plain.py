"""Plain data as bytes and back, in frames on a file descriptor. Sent into the sandbox: stdlib only.

Plain data are None, Ellipsis, bool, int, float, complex, str, bytes, bytearray, range, slice, Decimal,
Fraction, date, time, datetime, timedelta, timezone, and list, tuple, dict, set, frozenset, Counter,
OrderedDict, defaultdict, deque and the views of dicts; exactly these types, no subclass. These classes, and
the other classes of `builtins`, are plain data too. A named tuple crosses as its class's name, the fields
and the values.

The reader builds only these types: no bytes from a writer can carry code, a method or an identity across. For
a named tuple it makes a plain class. A defaultdict arrives without its factory if that is no such class. A
`tzinfo` is a `timezone`.

One byte names the type. Then follow the length and the bytes of a number or text, or the number of parts and
the parts. All lengths are 4 bytes, the most significant first.
"""

from __future__ import annotations

import os
import struct
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from .plain_types import (
    BUILD,
    CLASSES,
    FORMS,
    MANY,
    METACLASSES,
    NAMES,
    NotPlain,
    decimal_of,
    decimal_text,
    lost_factory,
    named_parts,
    spread,
)

MAX_BYTES = 1 << 24
"""Largest size of one packed value."""
MAX_ITEMS = 1 << 20
"""Most values in one packed value, at all depths: 2^19 empty deques, the costliest, take 400 MiB rebuilt."""
MAX_DEPTH = 64
MAX_CLASSES = 64
"""Most classes of named tuples in one packed value."""


def pack(value: Any, *, factories: bool = False) -> bytes:
    """The bytes of plain data. Raises NotPlain.

    Args:
        factories: whether to refuse a defaultdict whose factory would stay behind.
    """
    packer = _Packer(factories)
    try:
        packer.put(value, 0)
    except NotPlain:
        raise
    except Exception as error:  # a class that overrides its attributes, a dict that a thread changes
        raise NotPlain(f"it can't be read: {type(error).__name__}") from None
    return bytes(packer.out)


def unpack(data: bytes) -> Any:
    """The plain data of bytes in `pack`'s format; safe for bytes of any origin.

    Raises NotPlain, MemoryError.
    """
    reader = _Reader(data)
    try:
        value = reader.get(0)
    except (NotPlain, MemoryError):
        raise
    except Exception as error:  # a list as a key, a day that no month has
        raise NotPlain(f"{type(error).__name__}: {error}"[:200]) from None
    if reader.at != len(data):
        raise NotPlain(f"{len(data) - reader.at} bytes after the value")
    return value


_FIXED: dict[bytes, Any] = {b"N": None, b"T": True, b"F": False, b"E": ...}
_TAGS = {type(None): b"N", type(...): b"E"}


class _Packer:
    def __init__(self, factories: bool) -> None:
        self.factories = factories
        self.out = bytearray()
        self.items = 0
        self.classes: set[Any] = set()

    def put(self, value: Any, depth: int) -> None:
        self.items += 1
        if depth > MAX_DEPTH:
            raise NotPlain(f"nested deeper than {MAX_DEPTH}")
        if self.items > MAX_ITEMS:
            raise NotPlain(f"more than {MAX_ITEMS} values")
        kind = type(value)
        if kind is int:
            if value.bit_length() >= 8 * MAX_BYTES:
                raise NotPlain("an int that is too large")
            self._sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        elif kind is str:
            self._sized(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is bool:
            self.out += b"T" if value else b"F"
        elif kind in _TAGS:
            self.out += _TAGS[kind]
        elif kind is float:
            self.out += b"f" + struct.pack(">d", value)
        elif kind is complex:
            self.out += b"c" + struct.pack(">dd", value.real, value.imag)
        elif kind is bytes:
            self._sized(b"b", value)
        elif kind is bytearray:
            self._sized(b"a", value)
        elif kind is Decimal:
            self._sized(b"x", decimal_text(value))
        elif kind in FORMS:
            if self.factories and kind is defaultdict and lost_factory(value):
                raise NotPlain("a defaultdict whose factory is no class of plain data")
            tag, parts_of, _, keys = FORMS[kind]
            parts = list(parts_of(value))
            if keys is not None and len(parts) > MANY:
                spread(parts[keys])
            self._all(tag, parts, depth)
        else:
            self._rare(value, depth)

    def _rare(self, value: Any, depth: int) -> None:
        if type(value) in METACLASSES and value in NAMES:
            self._sized(b"B", NAMES[value].encode())
            return
        parts = named_parts(value)
        if parts is None:
            raise NotPlain(f"an object of type {type(value).__name__} is not plain data")
        self.classes.add(_limited(self.classes, parts))
        self._all(b"n", parts, depth)

    def _all(self, tag: bytes, parts: Sequence[Any], depth: int) -> None:
        self.out += tag + struct.pack(">I", len(parts))
        for part in parts:
            self.put(part, depth + 1)

    def _sized(self, tag: bytes, data: bytes | bytearray) -> None:
        if len(self.out) + len(data) > MAX_BYTES:
            raise NotPlain(f"more than {MAX_BYTES} bytes")
        self.out += tag + struct.pack(">I", len(data)) + data


def _limited(classes: set[Any], parts: Sequence[Any]) -> Any:
    """The names of a named tuple; raises NotPlain where they are one class too many."""
    names = (parts[0], parts[1])
    if names not in classes and len(classes) >= MAX_CLASSES:
        raise NotPlain(f"more than {MAX_CLASSES} classes of named tuples")
    return names


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.items = 0
        self.classes: set[Any] = set()

    def get(self, depth: int) -> Any:
        self.items += 1
        if depth > MAX_DEPTH or self.items > MAX_ITEMS:
            raise NotPlain("too deep or too many values")
        tag = self._take(1)
        if tag in _FIXED:
            return _FIXED[tag]
        if tag == b"f":
            return struct.unpack(">d", self._take(8))[0]
        if tag == b"c":
            return complex(*struct.unpack(">dd", self._take(16)))
        (length,) = struct.unpack(">I", self._take(4))
        if tag == b"i":
            return int.from_bytes(self._take(length), "big", signed=True)
        if tag == b"s":
            return self._take(length).decode("utf-8", "surrogatepass")
        if tag == b"b":
            return self._take(length)
        if tag == b"a":
            return bytearray(self._take(length))
        if tag == b"x":
            return decimal_of(self._take(length))
        if tag == b"B":
            return CLASSES[self._take(length).decode()]
        if tag not in BUILD:
            raise NotPlain(f"no type has the tag {tag!r}")
        if length > len(self.data) - self.at:  # every part takes a byte
            raise NotPlain("fewer values than announced")
        parts = [self.get(depth + 1) for _ in range(length)]
        if tag == b"n":
            self.classes.add(_limited(self.classes, parts))
        return BUILD[tag](parts)

    def _take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) != count:
            raise NotPlain("it ends in the middle of a value")
        self.at += count
        return part


def send(fd: int, value: Any) -> None:
    """Write one value as a frame. Raises NotPlain (before anything is written), OSError."""
    rest = memoryview(frame(pack(value)))
    while rest:
        rest = rest[os.write(fd, rest) :]


def frame(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def missing(held: bytes | bytearray) -> int:
    """How many bytes a frame still lacks whose beginning is `held`; below 0: so many come after it.

    Raises NotPlain for a frame that is too long.
    """
    if len(held) < 4:
        return 4 - len(held)
    (length,) = struct.unpack(">I", held[:4])
    if length > MAX_BYTES + 5:  # the tag and the length of one text of maximal size
        raise NotPlain(f"a frame of {length} bytes")
    return int(4 + length - len(held))


def receive(fd: int) -> Any:
    """Read one frame. Raises EOFError if the other side has ended, NotPlain for malformed bytes, OSError."""
    held = bytearray()
    while count := missing(held):
        part = os.read(fd, min(count, 1 << 16))
        if not part:
            raise EOFError("the other side has closed the channel")
        held += part
    return unpack(bytes(held[4:]))
