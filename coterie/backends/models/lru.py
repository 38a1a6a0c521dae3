"""A small cache that drops the least recently used value."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Lru(Generic[K, V]):
    """At most `size` values by key. Unlike `functools.lru_cache`, it is picklable."""

    __slots__ = ("_size", "_values")

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        value = self._values.pop(key, None)
        if value is not None:
            self._values[key] = value  # dicts keep insertion order: reinsertion makes it the newest
        return value

    def put(self, key: K, value: V) -> V:
        self._values.pop(key, None)
        self._values[key] = value
        if len(self._values) > self._size:
            del self._values[next(iter(self._values))]
        return value

    def of(self, key: K, make: Callable[[], V]) -> V:
        """The value of the key, made by `make` and stored if it is missing."""
        value = self.get(key)
        return self.put(key, make()) if value is None else value
