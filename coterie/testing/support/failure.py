"""`ConformanceError` (what is wrong, where, how to fix it) and the checks that every kind shares."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

from coterie.compose.kinds import PROTOCOL, coroutines, ignored, is_async, methods_of
from coterie.core.errors import SystemFault, nearest
from coterie.core.plugins.origin import raised_at
from coterie.core.rollout.rewards import LARGEST_SCORE
from coterie.core.types import TEAM, ComponentKind, Score
from coterie.discovery.members import HasVocabulary
from coterie.testing.support.promises import promise
from coterie.testing.support.time_limit import Overdue, caller, in_time, watched

OF_KIND = "it has the members of its kind, and no misspelt one"
"""The promise with which each check begins."""
KINDS_OF_COMPONENTS = get_args(ComponentKind)
TAKES = "let it take what it was called with here: a run may call it so"
_ANSWERS = "start or repair what it asks, and check again: it gave no answer, whatever it was asked"
_BOUND = "bound its loops, and give what it waits for a timeout: a run would wait for it too"


class ConformanceError(AssertionError):
    """A plugin breaks the contract of its kind.

    Args:
        what: what is wrong, with the values that show it.
        where: the class and the method.
        fix: what to change.
    """

    def __init__(self, what: str, *, where: str, fix: str = "") -> None:
        fix = unawaited(what, where) or fix
        self.what, self.where, self.fix = what, where, fix
        super().__init__(f"{where}: {what}" + (f"\n  fix: {fix}" if fix else ""))


def require(holds: object, what: str, where: str, fix: str = "") -> None:
    """Raise unless the condition holds.

    Raises:
        ConformanceError: the condition doesn't hold.
    """
    if not holds:
        raise ConformanceError(what, where=where, fix=fix)


class ConformanceWarning(UserWarning):
    """A plugin does what is seldom meant: what, where, and how to say that it is meant."""


def warn(what: str, where: str, fix: str) -> None:
    """Warn of what a plugin does."""
    warnings.warn(f"{where}: {what}\n  fix: {fix}", ConformanceWarning, stacklevel=2)


@contextmanager
def guarded(where: str, fix: str = "", factor: float = 1.0) -> Iterator[None]:
    """Turn an exception of the plugin, or an exit, into a ConformanceError with the place and the cause.

    A call that doesn't return in time is one too.

    Args:
        factor: of the time limit of a call.
    """
    try:
        with watched(caller(2), factor):
            yield
    except ConformanceError:
        raise
    except Overdue as error:
        what = f"has not returned after {error.watch.seconds:g} s{_stood_at(error)}"
        raise ConformanceError(what, where=where, fix=_BOUND) from error
    except (Exception, SystemExit) as error:
        what = f"raised {type(error).__name__}: {error}"
        fix = _ANSWERS if isinstance(error, SystemFault) else explained(error) or fix or TAKES
        raise ConformanceError(what, where=where, fix=fix) from error


def _stood_at(error: BaseException | None) -> str:
    """Where a call was when it was interrupted, of the error or of what it was made of; empty: unknown."""
    while error is not None:
        if where := raised_at(error):
            return where
        error = error.__cause__ or error.__context__
    return ""


def lacking(protocol: type, plugin: Any) -> list[str]:
    """Members of a Protocol that an object lacks; of a class only the methods are checked."""
    methods = [
        name
        for name, value in vars(protocol).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, property))
    ]
    attributes = [name for name in protocol.__annotations__ if not name.startswith("_")]
    if inspect.isclass(plugin):  # its constructor may set attributes
        attributes = []
    return [
        name
        for name in (*methods, *attributes)
        if not hasattr(plugin, name) or (name in methods and inspect.getattr_static(plugin, name) is None)
    ]


def require_kind(plugin: Any, kind: str) -> str:
    """Raise unless the object has the members of its kind; return the name of its class."""
    promise(OF_KIND)
    name, protocol = type(plugin).__name__, PROTOCOL[kind]
    missing = lacking(protocol, plugin)
    require(not missing, f"lacks {', '.join(missing)}", name, fix=f"see coterie.{protocol.__name__}")
    require_read(plugin, kind, name)
    require_coroutines(plugin, kind, name)
    require_arguments(plugin, kind, name)
    return name


def require_read(plugin: Any, kind: str, where: str) -> None:
    """Raise where a plugin, or its class, has a misspelt member, or a part of a capability."""
    for text in ignored(plugin, kind):
        require(False, f"has {text}", where, fix="rename it, or begin its name with an underscore")


def require_coroutines(plugin: Any, kind: str, where: str, *, every: bool = False) -> None:
    """Raise where a method of a plugin, or of its class, is `async def` and isn't awaited.

    Args:
        every: also raise where one is awaited and isn't `async def`.
    """
    for name, awaited in coroutines(plugin, kind).items():
        method = inspect.unwrap(getattr(type(plugin) if name == "__call__" else plugin, name))
        if inspect.isclass(plugin) and name == "__call__":
            method = inspect.getattr_static(plugin, name, None)
        if not inspect.isroutine(method):  # e.g. a property, or an object that is called
            continue
        fix = f"def {name}: nothing awaits it"
        require(awaited or not is_async(method), "is asynchronous", f"{where}.{name}", fix=fix)
        if every:
            fix = f"write it as `async def {name}`"
            require(not awaited or is_async(method), "is not asynchronous", f"{where}.{name}", fix=fix)


async def awaited(where: str, method: Any, *arguments: Any, fix: str = "") -> Any:
    """The result of a method that is awaited, called at the place `where`, which ends with its name.

    Args:
        fix: as of `guarded`.

    Raises:
        ConformanceError: it raised, or returned nothing that can be awaited.
    """
    factor = 10.0 if where.endswith(".open") else 1.0
    with guarded(where, fix, factor):
        returned = method(*arguments)
        fix = f"write it as `async def {where.rpartition('.')[2].partition(' ')[0]}`"
        require(inspect.isawaitable(returned), "is not asynchronous", where, fix=fix)
        return await in_time(returned, factor)


def check_vocabulary(plugin: Any, where: str) -> None:
    """Raise unless `vocabulary`, where the plugin has it, gives words."""
    if isinstance(plugin, HasVocabulary):
        where = f"{where}.vocabulary"
        with guarded(where):
            given = plugin.vocabulary()
            require(not isinstance(given, str), f"is the text {given!r}", where, fix="a list of words")
            words = list(given)
        wrong = [word for word in words if not isinstance(word, str) or word.split() != [word]]
        require(not wrong, f"{wrong[:1]!r} is no word", where, fix="texts without white space")


def require_components(plugin: Any, where: str) -> None:
    """Raise unless `components` and `weights` are declared as RewardWeights reads them."""
    for component, kind in dict(plugin.components).items():
        require(
            isinstance(component, str) and component and "." not in component,
            f"{component!r} is no name of a component",
            f"{where}.components",
            fix="a name without dots",
        )
        require(
            kind in KINDS_OF_COMPONENTS,
            f"component '{component}' is of kind {kind!r}",
            f"{where}.components",
            fix=f"one of: {', '.join(KINDS_OF_COMPONENTS)}",
        )
    for component, weight in dict(plugin.weights).items():
        require(
            component in plugin.components,
            f"a weight for '{component}', which is not among the components",
            f"{where}.weights",
            fix="declare it in `components`, or remove the weight",
        )
        require(finite(weight), f"'{component}' weighs {weight!r}", f"{where}.weights", fix="a number")


def require_scores(table: Any, plugin: Any, roles: tuple[str, ...], where: str) -> None:
    """Raise unless the table is {(role or TEAM, component): number or None} for these roles."""
    fix = "return {(role, component): number}; coterie.TEAM is a role"
    require(hasattr(table, "items"), f"{table!r} is no table of scores", where, fix=fix)
    for place, value in table.items():
        require(
            isinstance(place, tuple) and len(place) == 2,
            f"{place!r} names no score",
            where,
            fix="(role, component), or (coterie.TEAM, component)",
        )
        role, component = place
        require(
            component in plugin.components,
            f"a score for '{component}', which is not among the components",
            where,
            fix="declare it in `components`, with its kind",
        )
        require(
            role == TEAM or role in roles,
            f"a score for role '{role}', which does not act in this stage ({', '.join(roles)} do)",
            where,
            fix="score the roles that acted, or coterie.TEAM",
        )
        number = value.value if isinstance(value, Score) else value
        require(
            number is None or finite(number),
            f"the score of {role}.{component} is {value!r}",
            where,
            fix="a finite number, or None where it is missing",
        )
        require(
            number is None or abs(float(number)) <= LARGEST_SCORE,
            f"the score of {role}.{component} is {value!r}, which a run calls missing",
            where,
            fix=f"a number from -{LARGEST_SCORE:g} to {LARGEST_SCORE:g}",
        )
        texts = (value.comment, value.reason) if isinstance(value, Score) else ()
        require(
            all(isinstance(text, str) for text in texts),
            f"the score of {role}.{component} is {value!r}",
            where,
            fix="its comment and its reason are texts",
        )


def finite(value: Any) -> bool:
    """Whether the value is a real number, neither NaN nor infinite."""
    try:
        return not isinstance(value, (str, bytes)) and math.isfinite(value)
    except Exception:  # whatever the conversion of a plugin's own type raises
        return False


def require_arguments(plugin: Any, kind: str, where: str, *, every: bool = False) -> None:
    """Raise where a method of a plugin, or of its class, can't be called as its Protocol says.

    An optional method takes the Protocol's arguments. No method has the name of one parameter at another's
    place: both would then get the wrong value, without an error. Other names, and more parameters with
    defaults, are sound.

    Args:
        every: also raise where a method that isn't optional can't take the arguments.
    """
    cls = plugin if inspect.isclass(plugin) else type(plugin)
    required = vars(PROTOCOL[kind])
    for name, expected in methods_of(kind):
        method = getattr(cls, name, None)
        if not callable(method):
            continue
        signature = inspect.signature(expected)
        if isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod)):
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        try:
            taken = inspect.signature(method)
        except ValueError:  # a builtin without a signature
            continue
        text = str(signature).replace("'", "")
        if swapped := _swapped(taken, signature):
            require(False, swapped, f"{where}.{name}", f"its arguments are passed by position: {text}")
        if (every or name not in required) and (error := _refused(taken, signature)):
            what = f"can't be called as {text}: {error}"
            require(False, what, f"{where}.{name}", fix="accept these arguments")


def _refused(taken: inspect.Signature, signature: inspect.Signature) -> TypeError | None:
    """Why a method doesn't take a Protocol's arguments, by position or by name; None: it does."""
    required = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is parameter.empty
    ]
    keywords = {parameter.name: None for parameter in required if parameter.kind is parameter.KEYWORD_ONLY}
    positional = [None] * (len(required) - len(keywords))
    try:
        taken.bind(*positional, **keywords)
    except TypeError as error:
        return error
    return None


def _swapped(taken: inspect.Signature, signature: inspect.Signature) -> str:
    """What a parameter is that has the name of another one of the Protocol's; empty: none has."""
    names = _positional(signature)
    for given, name in zip(_positional(taken), names, strict=False):
        if given != name and given in names:
            return f"has the parameter `{given}` where `{name}` is passed"
    return ""


def _positional(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in signature.parameters.values() if parameter.kind in kinds]


_COROUTINE = re.compile(r"<coroutine object ([\w.<>]+) at 0x")


def unawaited(what: str, where: str) -> str:
    """How to fix a coroutine that stands in an error where a value was wanted; empty: there is none.

    Args:
        what, where: of the error.
    """
    match = _COROUTINE.search(what)
    if match is None:
        return ""
    name = match[1].rpartition(".")[2]
    if f".{name}" in where or f" {name} returned" in what:
        return f"write it as `def {name}`: nothing awaits it"
    return f"`await` is missing where `{name}` is called: it is `async def`"


def explained(error: BaseException) -> str:
    """How to fix an exception whose message names no cause; empty: nobody knows."""
    if isinstance(error, TypeError) and "'coroutine'" in str(error):
        return "`await` is missing where an `async def` is called"
    given = getattr(error, "obj", None) if isinstance(error, AttributeError) else None
    of_ours = type(given).__module__.startswith("coterie.") and dataclasses.is_dataclass(given)
    if not of_ours or isinstance(given, type):
        return ""
    name, known = type(given).__name__, [field.name for field in dataclasses.fields(given)]  # type: ignore[arg-type]
    near = nearest(str(getattr(error, "name", "")), known)
    scope = f" (scope '{name[:-4].lower()}')" if name.endswith("View") else ""
    meant = f"; did you mean '{near}'?" if near else ""
    return f"a {name}{scope} has {', '.join(known)}{meant}"
