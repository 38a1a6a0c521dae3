"""What goes between ranks: pickled commands and answers, and exceptions that keep their origin."""

from __future__ import annotations

import importlib.util
import io
import pickle
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins.origin import origin_of
from coterie.discovery import plugins


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


# ------------------------------------------------------------------------------------------------- exceptions


def sent_error(error: BaseException, rank: int) -> bytes:
    """An exception with its class, arguments, attributes and notes; a bug brings its traceback."""
    exit_ = error if isinstance(error, SystemExit) else error.__cause__
    if isinstance(exit_, SystemExit):
        error = _without_exit(error, exit_, rank)
    where = f"on rank {rank}"
    if not isinstance(error, UserError):
        where += ":\n" + "".join(traceback.format_exception(error)).rstrip()
    error.add_note(where)
    try:
        data = dumps((type(error), error.args, vars(error)))
        received_error(data)
    except Exception:  # an exception that can't be pickled, or can't be made again
        text = f"{type(error).__name__}: {error}"
        data = dumps((RuntimeError, (text,), {"__notes__": list(getattr(error, "__notes__", ()))}))
    return data


def _without_exit(error: BaseException, exit_: SystemExit, rank: int) -> UserError:
    """A call of `sys.exit` as an error, with its line: rank 0 would end without a word."""
    places = traceback.extract_tb(exit_.__traceback__)
    why = f"{places[-1].filename}, line {places[-1].lineno}, in {places[-1].name}" if places else ""
    if isinstance(error, UserError):  # it names the plugin
        error.why, error.__cause__ = f"on rank {rank}: {why}", None
        return error
    return UserError(f"rank {rank} called sys.exit({exit_.code!r})", path="trainer.ranks", why=why)


def received_error(data: bytes) -> BaseException:
    """The exception of `sent_error`."""
    kind, arguments, attributes = pickle.loads(data)
    error: BaseException = kind.__new__(kind, *arguments)  # an __init__ may take other arguments
    error.__dict__.update(attributes)
    return error


# ---------------------------------------------------------------------------------------------------- imports


def import_places() -> tuple[list[str], dict[str, str]]:
    """Where this process imports from: `sys.path`, and the files of plugins by the names of their modules."""
    files = {
        report.name: str(Path(report.distribution).resolve())
        for report in plugins().reports
        if report.distribution.endswith(".py") and Path(report.distribution).is_file()
    }
    return [str(Path(place).resolve()) for place in sys.path], files


def import_from(places: list[str], files: Mapping[str, str]) -> None:
    """Import from where rank 0 does.

    Raises:
        Exception: what a plugin's file raises when it is imported.
    """
    sys.path.extend(place for place in places if place not in sys.path)
    for name, file in files.items():
        spec = importlib.util.spec_from_file_location(name, file)
        if name not in sys.modules and spec is not None and spec.loader is not None:
            sys.modules[name] = module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
