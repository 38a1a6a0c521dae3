"""A case: a component, made from its table, and the arguments with which its kind's check is called."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coterie import testing
from coterie.core.errors import PluginError, did_you_mean
from coterie.testing.example import Example


def check_of(kind: str) -> Callable[..., None]:
    """The function that checks a kind of component."""
    check: Callable[..., None] = getattr(testing, f"check_{kind}")
    return check


def arguments_of(kind: str) -> dict[str, Any]:
    """The arguments that a kind's check takes by name, with their defaults (`inspect.Parameter.empty`)."""
    parameters = inspect.signature(check_of(kind)).parameters.values()
    return {item.name: item.default for item in parameters if item.kind is item.KEYWORD_ONLY}


@dataclass(frozen=True, slots=True)
class Built:
    """A component that is made anew for each call of a check, as `coterie.testing.build` makes it."""

    kind: str
    table: Mapping[str, Any]
    name: str = ""
    order: Sequence[Any] | None = None
    env: Any = None
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Other top-level tables of the configuration."""
    later: bool = False
    """Whether the check is given a function that makes it."""

    def make(self) -> Any:
        """The component, or the function."""
        from coterie.testing.support.building import build

        def now() -> Any:
            more = {"name": self.name, "order": self.order, "env": self.env, **self.tables}
            return build(self.kind, dict(self.table), **more)

        return now if self.later else now()

    def __repr__(self) -> str:
        only_type = list(self.table) == ["type"]
        parts = [repr(self.kind), repr(self.table["type"] if only_type else dict(self.table))]
        named = {"name": self.name or None, "order": self.order, "env": self.env, **self.tables}
        parts += [f"{key}={value!r}" for key, value in named.items() if value is not None]
        return f"{'lambda: ' if self.later else ''}build({', '.join(parts)})"


@dataclass(frozen=True, slots=True)
class Case:
    """One call of a kind's check."""

    kind: str
    subject: Built
    beside: tuple[Built, ...] = ()
    """Further positional arguments: the environment of a transition mode."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    source: str = "its defaults"
    """Where settings and arguments come from."""
    given: bool = False
    """Whether they are an example's, so that it must be possible to make and to check the component."""
    guessed: tuple[str, ...] = ()
    """Methods whose exceptions say that the arguments were guessed wrong, and not that the plugin is."""
    unchecked: tuple[str, ...] = ()
    """What this case leaves unchecked, and what to give."""
    runs: bool = True
    """Whether enough is known to call the check."""

    def made(self) -> list[Any]:
        """The positional arguments of the check."""
        return [part.make() for part in (self.subject, *self.beside)]

    def named(self) -> dict[str, Any]:
        """The arguments that are passed by name, with their components made."""
        return {name: _made(value) for name, value in self.arguments.items()}

    def with_arguments(self, **changes: Any) -> Case:
        """The case with other arguments."""
        return replace(self, arguments={**self.arguments, **changes})

    def code(self) -> str:
        """The call, as it can be pasted into a test; arguments that have their default value are left out."""
        defaults = arguments_of(self.kind)
        parts = [repr(part) for part in (self.subject, *self.beside)]
        parts += [
            f"{name}={_code(value)}"
            for name, value in self.arguments.items()
            if not (name in defaults and _same(defaults[name], value))
        ]
        return f"check_{self.kind}({', '.join(parts)})"


def _made(value: Any) -> Any:
    if isinstance(value, Built):
        return value.make()
    if isinstance(value, dict):
        return {key: _made(inner) for key, inner in value.items()}
    return value


def _same(first: Any, second: Any) -> bool:
    try:
        return type(first) is type(second) and bool(first == second)
    except Exception:  # arrays, and whatever a plugin's type does
        return False


def _code(value: Any) -> str:
    """The value in Python; functions by their name."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_code(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        inner = ", ".join(_code(item) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, (type, Built)):
        fields = {item.name: getattr(value, item.name) for item in dataclasses.fields(value) if item.init}
        defaults = {item.name: item.default for item in dataclasses.fields(value)}
        given = {name: each for name, each in fields.items() if not _same(defaults[name], each)}
        return f"{type(value).__name__}({', '.join(f'{name}={_code(each)}' for name, each in given.items())})"
    if callable(value) and hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    return repr(value)


def refuse_wrong(example: Example, kind: str, label: str) -> None:
    """Refuse arguments that the check lacks, or that it would take for something else.

    A text is no list of texts, a table no list of answers, and fewer than one of anything is no check.

    Args:
        label: of the component, for the error.

    Raises:
        PluginError: an argument is wrong.
    """
    known = arguments_of(kind)
    hints = typing.get_type_hints(check_of(kind))
    for name, value in example.arguments.items():
        if name not in known or name == "order":
            what = f"an example of {label} has the argument `{name}`, which no {kind} takes"
            raise PluginError(what, fix=did_you_mean(name, known))
        if fix := _wanted(name, value, hints.get(name, Any), known[name]):
            raise PluginError(f"an example of {label} has {name}={value!r:.200}", fix=fix)
    if isinstance(example.order, str):
        raise PluginError(
            f"an example of {label} has order={example.order!r}", fix=f"a list: [{example.order!r}]"
        )
    if not isinstance(example.skip, str):
        what = f"an example of {label} has skip={example.skip!r}"
        raise PluginError(what, fix='say why: skip="it needs a GPU; tested by tests/test_gpu.py"')


def _wanted(name: str, value: Any, annotation: Any, default: Any) -> str:
    """What an argument has to be; empty: it is."""
    kinds = [typing.get_origin(part) or part for part in _parts(annotation)]
    if collections.abc.Sequence in kinds:
        if isinstance(value, str):
            return f"a list: {name}=[{value!r}]"
        if isinstance(value, Mapping):
            function = ", or a function (role, observation, generator) -> a text" * (name == "act")
            return f"a list{function}; a table by role is none"
        if collections.abc.Callable in kinds and callable(value):
            return ""
        given = value is None or hasattr(value, "__iter__") or hasattr(value, "__getitem__")
        return "" if given else f"a list: {name}=[...]"
    if collections.abc.Mapping in kinds:
        return "" if isinstance(value, Mapping) or value is None else f"a table: {name}={{...}}"
    if kinds == [bool]:
        return "" if isinstance(value, bool) else "True or False"
    if kinds == [int]:
        whole = isinstance(value, int) and not isinstance(value, bool)
        least = 1 if default is inspect.Parameter.empty or default > 0 else None
        if whole and (least is None or value >= least):
            return ""
        return f"a whole number{' of 1 or more' if least else ''}"
    return ""


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)
