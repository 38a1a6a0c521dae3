"""Pickles of what goes between the processes of a run.

Small dataclasses take less than half of the time that Python takes to write them: a frozen dataclass with
slots has pickling of Python's own, which looks up its fields for each object. Here an object is its class and
the tuple of its values. A plugin's `build` travels without what it builds with.
"""

from __future__ import annotations

import copyreg
import dataclasses
import io
import operator
import pickle
from collections.abc import Callable
from functools import cache
from itertools import repeat
from typing import Any

from coterie.core.errors import ConfigError


def compact(value: Any) -> bytes:
    """The pickle of a value; `pickle.loads` makes the value of it."""
    buffer = io.BytesIO()
    _CompactPickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


@dataclasses.dataclass(frozen=True, slots=True)
class SentBuild:
    """A plugin's `build` in another process. It makes no components: they live in the run's process."""

    name: str
    path: str
    run: Any

    def make(self, kind: str, table: Any, path: str) -> Any:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            f"a {kind} can't be made on another rank",
            path=path,
            why="components belong to the run's process",
            fix="make it in the plugin's constructor, or train with trainer.ranks=1",
        )


def _sent_build(build: Any) -> Any:
    return SentBuild, (build.name, build.path, build.run)


class _Reducers(dict[type, Callable[[Any], Any]]):
    """A function for each class of builds, and of dataclasses with slots; made when the class first comes."""

    def __missing__(self, cls: type) -> Callable[[Any], Any]:
        if cls in copyreg.dispatch_table:
            return copyreg.dispatch_table[cls]
        if cls is not SentBuild and hasattr(cls, "make") and hasattr(cls, "run"):
            self[cls] = _sent_build
            return _sent_build
        if not dataclasses.is_dataclass(cls) or "__slots__" not in vars(cls) or _own_pickling(cls):
            raise KeyError(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        if len(names) < 2:  # an attrgetter of one name gives no tuple
            raise KeyError(cls)
        values = operator.attrgetter(*names)

        def reduced(value: Any) -> tuple[Any, ...]:
            return made, (cls, *values(value))

        self[cls] = reduced
        return reduced


def _own_pickling(cls: type) -> bool:
    """Whether a class says itself how it is pickled. What `dataclass` adds says the same as `compact`."""
    states = [getattr(cls, name, None) for name in ("__getstate__", "__setstate__")]
    return (
        any(
            getattr(cls, name) is not getattr(object, name)
            for name in ("__new__", "__reduce__", "__reduce_ex__")
        )
        or any(getattr(state, "__module__", None) not in (None, "dataclasses") for state in states)
        or hasattr(cls, "__getnewargs__")
        or hasattr(cls, "__getnewargs_ex__")
    )


class _CompactPickler(pickle.Pickler):
    dispatch_table = _Reducers()


@cache
def _setters(cls: type) -> tuple[Callable[[Any, Any], None], ...]:
    """What sets the fields of an object, also of one that is frozen."""
    return tuple(getattr(cls, field.name).__set__ for field in dataclasses.fields(cls))


def made(cls: type, *values: Any) -> Any:
    """The object of a class with these values of its fields."""
    new: Any = object.__new__(cls)
    any(map(operator.call, _setters(cls), repeat(new), values))  # a setter returns None; a loop takes longer
    return new
