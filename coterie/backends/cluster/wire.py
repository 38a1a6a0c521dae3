"""What goes between processes of a run: pickles; results of methods, exceptions that keep their origin; code.

A run's other processes import the same plugins, of the same versions, on every node.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import importlib.metadata
import io
import linecache
import operator
import os
import pickle
import socket
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from coterie.backends.remote.secrets import redacted
from coterie.core.errors import ConfigError, UserError
from coterie.discovery import plugins
from coterie.discovery.files import contents, load_plugin_file

Answered = tuple[bool, Any]
"""(whether the method returned, what it returned or the exception as `sent_error` writes it)."""


# ---------------------------------------------------------------------------------------- results, exceptions


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, or its class where it has none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def sent_error(error: BaseException, where: str, path: str = "") -> bytes:
    """An exception with its class, arguments, attributes and notes; a bug brings its traceback.

    Its cause comes with it where it says what to send of that, as its attribute `sent_cause`.

    Args:
        where: the process that raises it, after a preposition: `on rank 1`.
        path: the setting that an exit of the process is told with.
    """
    cause: BaseException | None = getattr(error, "sent_cause", None)
    caused = b"" if cause is None else sent_error(cause, where)
    exit_ = error if isinstance(error, SystemExit) else error.__cause__
    if isinstance(exit_, SystemExit):
        error = _without_exit(error, exit_, where, path)
    if not isinstance(error, UserError):
        where += ":\n" + redacted("".join(traceback.format_exception(error)).rstrip())
    error.add_note(where)
    try:
        data = compact((type(error), error.args, vars(error), caused))
        received_error(data)
    except Exception:  # an exception that can't be pickled, or can't be made again
        text = f"{type(error).__name__}: {error}"
        data = compact((RuntimeError, (text,), {"__notes__": list(getattr(error, "__notes__", ()))}, caused))
    return data


def _without_exit(error: BaseException, exit_: SystemExit, where: str, path: str) -> UserError:
    """A call of `sys.exit` as an error, with its line: the process would end without a word."""
    places = traceback.extract_tb(exit_.__traceback__)
    why = f"{places[-1].filename}, line {places[-1].lineno}, in {places[-1].name}" if places else ""
    if isinstance(error, UserError):  # it names the plugin
        error.why, error.__cause__ = f"{where}: {why}", None
        return error
    process = where.partition(" ")[2]
    return UserError(f"{process} called sys.exit({exit_.code!r})", path=path, why=why)


def received_error(data: bytes) -> BaseException:
    """The exception of `sent_error`."""
    kind, arguments, attributes, caused = pickle.loads(data)
    error: BaseException = kind.__new__(kind, *arguments)  # an __init__ may take other arguments
    error.__dict__.update(attributes)
    if caused:
        error.__cause__ = received_error(caused)
    return error


def answered(method: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Answered]]:
    """A method of an actor that returns its exception, since Ray would wrap one in a class of its own.

    The actor's class names its `process`, for the note of an exception.
    """

    @functools.wraps(method)
    async def call(self: Any, *arguments: Any) -> Answered:
        try:
            return True, await method(self, *arguments)
        except Exception as error:
            return False, sent_error(error, f"in {self.process}")

    return call


def unwrapped(answer: Answered) -> Any:
    """What the method returned; its exception is raised."""
    returned, value = answer
    if returned:
        return value
    raise received_error(value)


# ---------------------------------------------------------------------------------------------------- pickles


def compact(value: Any) -> bytes:
    """The pickle of a value; `pickle.loads` makes the value of it.

    Small dataclasses take less than half of the time that Python takes to write them: a frozen dataclass with
    slots has pickling of Python's own, which looks up its fields for each object. Here an object is its class
    and the tuple of its values. A plugin's `build` travels without what it builds with.
    """
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


@functools.cache
def _setters(cls: type) -> tuple[Callable[[Any, Any], None], ...]:
    """What sets the fields of an object, also of one that is frozen."""
    return tuple(getattr(cls, field.name).__set__ for field in dataclasses.fields(cls))


def made(cls: type, *values: Any) -> Any:
    """The object of a class with these values of its fields."""
    new: Any = object.__new__(cls)
    any(map(operator.call, _setters(cls), repeat(new), values))  # a setter returns None; a loop takes longer
    return new


# ----------------------------------------------------------------------------------------- code, environments

SAME = "install the same versions on every node, and start the cluster anew"


@dataclasses.dataclass(frozen=True, slots=True)
class Code:
    """What a process imports. Picklable."""

    places: tuple[str, ...]
    """`sys.path`, absolute."""
    versions: Mapping[str, str]
    """By distribution: of Coterie, of plugins, and of the libraries whose versions change results."""
    files: Mapping[str, bytes]
    """Plugin files, by absolute path."""


def replace_variables(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables, or unset them (None); returns their values before."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """A context with environment variables set, or unset (None), for what starts in it."""
    before = replace_variables(values)
    try:
        yield
    finally:
        replace_variables(before)


def own_code() -> Code:
    """The code of this process."""
    files = {str(path): content for path, content in contents(plugins()).items()}
    return Code(tuple(str(Path(place).resolve()) for place in sys.path), _versions(), files)


def _versions() -> dict[str, str]:
    versions = {}
    plugged = {r.distribution for r in plugins().reports if not r.distribution.endswith(".py")}
    for name in sorted({*plugged, "torch", "transformers", "peft", "numpy", "ray"}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def use_code(code: Code) -> None:
    """Import from where the run's process does, and load its plugin files.

    Raises:
        ConfigError: this node has other versions, or another content of a plugin file.
        PluginError: a plugin file doesn't import here.
    """
    sys.path.extend(place for place in code.places if place not in sys.path)
    here = _versions()
    differing = [
        f"{name} {here.get(name, 'is missing')} instead of {code.versions.get(name, 'none')}"
        for name in sorted({*code.versions, *here})
        if code.versions.get(name) != here.get(name)
    ]
    if differing:
        what = f"{_node()} has other packages than the run's process"
        raise ConfigError(what, path="cluster", why="; ".join(differing), fix=SAME)
    for file, content in code.files.items():
        with _here(Path(file), content) as path:
            load_plugin_file(path)


def _node() -> str:
    """This node's host, its address and its id: containers and virtual machines may share a host's name."""
    ray: Any = sys.modules.get("ray")  # a rank may be no process of Ray's
    if ray is None or not ray.is_initialized():
        return f"node {socket.gethostname()}"
    node = ray.get_runtime_context().get_node_id()
    return f"node {socket.gethostname()} ({ray.util.get_node_ip_address()}, Ray's node {node[:12]})"


@contextmanager
def _here(file: Path, content: bytes) -> Iterator[Path]:
    """The plugin file on this node, to be imported; where it has none, a copy that is removed afterwards."""
    if file.is_file():
        if file.read_bytes() != content:
            what = f"{_node()} has another content of the plugin file {file}"
            raise ConfigError(
                what, path="cluster", fix="copy the file there, or remove the one that is there"
            )
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="coterie-plugins-") as folder:
        copy = Path(folder) / file.name
        copy.write_bytes(content)
        yield copy
    lines = content.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[str(copy)] = len(content), None, lines, str(copy)  # tracebacks show its lines
