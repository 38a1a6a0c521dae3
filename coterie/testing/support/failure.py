"""How a check fails: what is wrong, where, and how to fix it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.core.training.builder import PROTOCOL

KINDS_OF_COMPONENTS = ("increment", "potential", "counterfactual")


class ConformanceError(AssertionError):
    """A plugin breaks the contract of its kind.

    Args:
        what: what is wrong, with the values that show it.
        where: the class and the method.
        fix: what to change.
    """

    def __init__(self, what: str, *, where: str, fix: str = "") -> None:
        self.what, self.where, self.fix = what, where, fix
        super().__init__(f"{where}: {what}" + (f"\n  fix: {fix}" if fix else ""))


def require(holds: object, what: str, *, where: str, fix: str = "") -> None:
    """Raise unless it holds.

    Raises:
        ConformanceError: it doesn't.
    """
    if not holds:
        raise ConformanceError(what, where=where, fix=fix)


@contextmanager
def guarded(where: str, fix: str = "") -> Iterator[None]:
    """An exception of the plugin's becomes a failure that names the place; the cause is kept."""
    try:
        yield
    except ConformanceError:
        raise
    except Exception as error:
        what = f"raised {type(error).__name__}: {error}"
        raise ConformanceError(what, where=where, fix=fix) from error


def lacking(protocol: type, plugin: Any) -> list[str]:
    """What a Protocol asks for and an object (or, of its methods, a class) doesn't have."""
    methods = [
        name
        for name, value in vars(protocol).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]
    # The values of a class may be set in its constructor; its methods can't.
    values = [] if inspect.isclass(plugin) else [n for n in protocol.__annotations__ if not n.startswith("_")]
    return [name for name in (*methods, *values) if not hasattr(plugin, name)]


def require_kind(plugin: Any, kind: str) -> str:
    """Raise unless the object has what its kind needs; returns the name of its class."""
    name, protocol = type(plugin).__name__, PROTOCOL[kind]
    missing = lacking(protocol, plugin)
    require(
        not missing,
        f"lacks {', '.join(missing)}",
        where=name,
        fix=f"see coterie.core.protocols.{protocol.__name__}",
    )
    return name


def require_components(plugin: Any, where: str) -> None:
    """Raise unless `components` and `weights` are declared as the Mix reads them."""
    for component, kind in dict(plugin.components).items():
        require(
            isinstance(component, str) and component and "." not in component,
            f"{component!r} is no name of a component",
            where=f"{where}.components",
            fix="a word without dots",
        )
        require(
            kind in KINDS_OF_COMPONENTS,
            f"component '{component}' is of kind {kind!r}",
            where=f"{where}.components",
            fix=f"one of: {', '.join(KINDS_OF_COMPONENTS)}",
        )
    for component, weight in dict(plugin.weights).items():
        require(
            component in plugin.components,
            f"a weight for '{component}', which is not among the components",
            where=f"{where}.weights",
            fix="declare it in `components`, or remove the weight",
        )
        require(finite(weight), f"'{component}' weighs {weight!r}", where=f"{where}.weights", fix="a number")


def require_scores(table: Any, plugin: Any, roles: tuple[str, ...], where: str) -> None:
    """Raise unless it is {(role or TEAM, component): number or None} for these roles."""
    from coterie.core.types import TEAM

    require(hasattr(table, "items"), f"{table!r} is no table of scores", where=where)
    for place, value in table.items():
        require(
            isinstance(place, tuple) and len(place) == 2,
            f"{place!r} names no score",
            where=where,
            fix="(role, component), or (coterie.TEAM, component)",
        )
        role, component = place
        require(
            component in plugin.components,
            f"a score for '{component}', which is not among the components",
            where=where,
            fix="declare it in `components`, with its kind",
        )
        require(
            role == TEAM or role in roles,
            f"a score for role '{role}', which does not act here ({', '.join(roles)} do)",
            where=where,
            fix="score the roles that acted, or coterie.TEAM",
        )
        require(
            value is None or finite(value),
            f"the score of {role}.{component} is {value!r}",
            where=where,
            fix="a finite number, or None where it is missing",
        )


def finite(value: Any) -> bool:
    """Whether it is a real number, neither NaN nor infinite."""
    try:
        return not isinstance(value, (str, bytes)) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False
