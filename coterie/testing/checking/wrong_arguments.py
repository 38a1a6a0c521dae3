"""Arguments of an example that have another type than those of its kind's check."""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Mapping
from typing import Any

from coterie.core.errors import PluginError, did_you_mean
from coterie.testing.checking.cases import arguments_of, check_of
from coterie.testing.example import Example


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
