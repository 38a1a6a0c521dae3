"""What goes between ranks: pickled commands and answers."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from typing import Any

from coterie.backends.cluster import wire
from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import origin_of


@dataclass(frozen=True, slots=True)
class SentBuild:
    """A plugin's `build` on another rank. It makes no components: they live in the run's process."""

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


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is not SentBuild and hasattr(kind, "make") and hasattr(kind, "run") and kind is not type:
            return SentBuild, (value.name, value.path, value.run)
        return NotImplemented


def dumps(value: Any) -> bytes:
    """Pickle a value for other ranks; the `build` of plugins is replaced by a `SentBuild`."""
    stream = io.BytesIO()
    _Pickler(stream, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return stream.getvalue()


def command(method: str, arguments: tuple[Any, ...]) -> bytes:
    """A command for other ranks.

    Raises:
        ConfigError: an argument can't be pickled; a plugin among the arguments is named.
    """
    try:
        return dumps((method, arguments))
    except Exception as error:  # what is pickled raises what it likes
        origin = next((origin_of(part) for part in _plugins(arguments) if not _pickles(part)), None)
        raise ConfigError(
            f"{origin or method} can't be sent to the other ranks",
            path=origin.path if origin is not None else "trainer.ranks",
            why=f"{type(error).__name__}: {error}",
            fix="keep what can't be pickled out of its attributes, and its class out of functions; or train "
            "with trainer.ranks=1",
        ) from error


def _plugins(arguments: tuple[Any, ...]) -> list[Any]:
    parts = [part for argument in arguments for part in (argument, *_fields(argument))]
    return [part for part in parts if origin_of(part).path]


def _fields(value: Any) -> list[Any]:
    return [getattr(value, name, None) for name in getattr(type(value), "__dataclass_fields__", ())]


def _pickles(value: Any) -> bool:
    try:
        dumps(value)
    except Exception:
        return False
    return True


def sent_error(error: BaseException, rank: int) -> bytes:
    """An exception of a rank for rank 0, which `cluster.wire.received_error` reads."""
    return wire.sent_error(error, f"on rank {rank}", dumps, path="trainer.ranks")
