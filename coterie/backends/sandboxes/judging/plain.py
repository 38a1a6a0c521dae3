"""Plain data as bytes and back, in frames on a file descriptor. Sent into the sandbox: stdlib only.

Plain data are None, bool, int, float, complex, str, bytes, and list, tuple, dict, set, frozenset, Counter,
OrderedDict, defaultdict and deque of plain data; exactly these types, no subclass. The reader builds only
these types: no bytes from a writer can carry code, a method or an identity across. (A defaultdict arrives
without its factory, a deque without its `maxlen`.)

One byte names the type. Then follow the length and the bytes of a number or text, or the number of items of a
container and the items. All lengths are 4 bytes, the most significant first.
"""

from __future__ import annotations

import collections
import os
import struct
from collections.abc import Callable, Iterable
from typing import Any

MAX_BYTES = 1 << 24
"""Largest size of one packed value."""
MAX_ITEMS = 1 << 20
"""Most values in one packed value, at all depths: 2^20 empty sets, the costliest, take 216 MiB rebuilt."""
MAX_DEPTH = 64

_LISTS: dict[type, bytes] = {
    list: b"l",
    tuple: b"t",
    set: b"S",
    frozenset: b"Z",
    collections.deque: b"Q",
}
_DICTS: dict[type, bytes] = {
    dict: b"d",
    collections.Counter: b"C",
    collections.OrderedDict: b"O",
    collections.defaultdict: b"D",
}
_FIXED: dict[bytes, Any] = {b"N": None, b"T": True, b"F": False}
_BUILD: dict[bytes, Callable[[list[Any]], Any]] = {
    b"t": tuple,
    b"l": list,
    b"Q": collections.deque,
    b"S": set,
    b"Z": frozenset,
    b"d": dict,
    b"C": lambda pairs: collections.Counter(dict(pairs)),
    b"O": collections.OrderedDict,
    b"D": lambda pairs: collections.defaultdict(None, pairs),
}
_KEYED = frozenset(_DICTS.values())
_DISTINCT = _KEYED | {b"S", b"Z"}


class NotPlain(ValueError):
    """The value is not plain data, or is larger or deeper than allowed."""


def pack(value: Any) -> bytes:
    """The bytes of plain data. Raises NotPlain."""
    packer = _Packer()
    packer.put(value, 0)
    return bytes(packer.out)


def unpack(data: bytes) -> Any:
    """The plain data of bytes in `pack`'s format; safe for bytes of any origin. Raises NotPlain."""
    reader = _Reader(data)
    try:
        value = reader.get(0)
    except (UnicodeDecodeError, TypeError) as error:  # TypeError: a list as a key
        raise NotPlain(str(error)) from None
    if reader.at != len(data):
        raise NotPlain(f"{len(data) - reader.at} bytes after the value")
    return value


class _Packer:
    def __init__(self) -> None:
        self.out = bytearray()
        self.items = 0

    def put(self, value: Any, depth: int) -> None:
        self.items += 1
        if depth > MAX_DEPTH:
            raise NotPlain(f"nested deeper than {MAX_DEPTH}")
        if self.items > MAX_ITEMS:
            raise NotPlain(f"more than {MAX_ITEMS} values")
        kind = type(value)
        if value is None:
            self.out += b"N"
        elif kind is bool:
            self.out += b"T" if value else b"F"
        elif kind is int:
            if value.bit_length() >= 8 * MAX_BYTES:
                raise NotPlain("an int that is too large")
            self._sized(b"i", value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        elif kind is float:
            self.out += b"f" + struct.pack(">d", value)
        elif kind is complex:
            self.out += b"c" + struct.pack(">dd", value.real, value.imag)
        elif kind is str:
            self._sized(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is bytes:
            self._sized(b"b", value)
        elif kind in _LISTS:
            self._all(_LISTS[kind], len(value), value, depth)
        elif kind in _DICTS:
            self._all(_DICTS[kind], len(value), (part for pair in value.items() for part in pair), depth)
        else:
            raise NotPlain(f"an object of type {kind.__name__} is not plain data")

    def _all(self, tag: bytes, count: int, values: Iterable[Any], depth: int) -> None:
        self.out += tag + struct.pack(">I", count)
        for value in values:
            self.put(value, depth + 1)

    def _sized(self, tag: bytes, data: bytes) -> None:
        if len(self.out) + len(data) > MAX_BYTES:
            raise NotPlain(f"more than {MAX_BYTES} bytes")
        self.out += tag + struct.pack(">I", len(data)) + data


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.items = 0

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
        if tag not in _BUILD:
            raise NotPlain(f"no type has the tag {tag!r}")
        return self._container(tag, length, depth)

    def _container(self, tag: bytes, count: int, depth: int) -> Any:
        if count > len(self.data) - self.at:  # every item takes a byte
            raise NotPlain("fewer values than announced")
        if tag in _KEYED:
            parts = [(self.get(depth + 1), self.get(depth + 1)) for _ in range(count)]
        else:
            parts = [self.get(depth + 1) for _ in range(count)]
        built = _BUILD[tag](parts)
        if tag in _DISTINCT and len(built) != count:
            raise NotPlain("a key that comes twice")
        return built

    def _take(self, count: int) -> bytes:
        part = self.data[self.at : self.at + count]
        if len(part) != count:
            raise NotPlain("it ends in the middle of a value")
        self.at += count
        return part


def send(fd: int, value: Any) -> None:
    """Write one value as a frame. Raises NotPlain (before anything is written), OSError."""
    data = pack(value)
    rest = memoryview(struct.pack(">I", len(data)) + data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def receive(fd: int) -> Any:
    """Read one frame. Raises EOFError if the other side has ended, NotPlain for malformed bytes, OSError."""
    (length,) = struct.unpack(">I", _exactly(fd, 4))
    if length > MAX_BYTES + 5:  # the tag and the length of one text of maximal size
        raise NotPlain(f"a frame of {length} bytes")
    return unpack(_exactly(fd, length))


def _exactly(fd: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = os.read(fd, min(count - len(data), 1 << 16))
        if not part:
            raise EOFError("the other side has closed the channel")
        data += part
    return bytes(data)
