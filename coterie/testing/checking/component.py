"""`check` and `check_component`: components, tried with their examples or with what can be derived."""

from __future__ import annotations

import asyncio
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from coterie.core.errors import ConfigError, MissingExtra, PluginError, SystemFault, UserError
from coterie.core.plugins import UNCONFIGURED
from coterie.discovery import Entry, import_object, plugins
from coterie.testing.checking.cases import Case, arguments_of, check_of
from coterie.testing.checking.derived import cases
from coterie.testing.checking.hangs import raised_in
from coterie.testing.checking.results import Broken, Checked, warn_of_unchecked, whole
from coterie.testing.checking.targets import HOOK_FIX, find_target
from coterie.testing.example import Example
from coterie.testing.support.failure import OF_KIND, TAKES, ConformanceError, ConformanceWarning, explained
from coterie.testing.support.kept_state import left_behind, running
from coterie.testing.support.opening import BesideError
from coterie.testing.support.promises import Promises, promise, recorded
from coterie.testing.support.time_limit import Overdue

SHRINKING = 5.0
"""Seconds in which a smaller example is looked for."""
_EXAMPLES = "its examples are known"
_MADE = "it can be made from its table"
_REGISTERED = {
    "recipe": "it resolves, at each of its scales, and every key is known",
    "overlay": "every key is known",
    "column": "its variants resolve, at each scale",
    "study": "its module is imported",
    "command": "its module is imported",
}
_UNANSWERED = ("answered none of the requests", "needs an engine")
_UNSCORED = ("gave None for each", "gave no score for any", "raised PolicyFault for each")
"""Parts of errors that may mean that nobody knows what the component scores."""

OnBroken = Callable[[Checked], None]


def check_component(
    entry: Entry,
    example: Example | Sequence[Example] | None = None,
    *,
    promises: Promises | None = None,
    on_broken: OnBroken | None = None,
    shrink: bool = True,
) -> Checked:
    """Check one component in this process, and say what is kept, broken and unchecked.

    Args:
        entry: the component, as the registry has it.
        example: how it is tried; by default its registered examples, else what recipes of its distribution,
            `demonstrate`, `vocabulary` and the kit's game give.
        promises: the recorder of the promises that are looked at.
        on_broken: called with the result before a smaller example is looked for, which may hang.
        shrink: whether one is looked for.
    """
    begin, threads = time.monotonic(), running()
    result = Checked(entry.kind, entry.name, entry.distribution)
    promises = promises if promises is not None else Promises()
    with recorded(promises):
        try:
            _check(entry, example, result, promises, on_broken, shrink)
        except ConformanceError as error:
            result.broken.append(_broken(error, promises.current))
        except (Exception, SystemExit) as error:  # an example's module may fail in any way
            result.broken.append(_broken(error, promises.current))
    if text := left_behind(threads):
        result.notes.append(f"warning: {text}")
        warnings.warn(f"{result.label}: {text}", ConformanceWarning, stacklevel=2)
    of_broken = {broken.promise for broken in result.broken}
    result.kept += [text for text in promises.begun if text not in of_broken]
    result.seconds = time.monotonic() - begin
    return result


def _check(
    entry: Entry,
    example: Example | Sequence[Example] | None,
    result: Checked,
    promises: Promises,
    on_broken: OnBroken | None,
    shrink: bool,
) -> None:
    from coterie.testing.checks.plugin import check_entry

    where = f"{entry.kind} '{entry.name}' of {entry.distribution}"
    promise(_REGISTERED.get(entry.kind, "its class has the members of its kind, with their arguments"))
    try:
        check_entry(entry, where, extras=True)
    except ConformanceError as error:
        if "needs the extra" in error.what or isinstance(error.__context__, MissingExtra):
            result.unchecked.append(error.what.replace("\n", " "))
            promises.forget()
            result.tried = False
            return
        raise
    if entry.kind in UNCONFIGURED:
        return
    given = [example] if isinstance(example, Example) else example
    if given is None:
        given = _examples(entry)
    if given:
        promise(_EXAMPLES)
    result.tried = False
    for case in cases(entry, given):
        result.unchecked += [text for text in case.unchecked if text not in result.unchecked]
        if not case.runs:
            continue
        with _warned(result):
            raised = run_case(case)
        if raised is None:
            result.tried = True
            result.notes.append(f"checked with {case.source}")
            continue
        if (reason := _outside(case, raised)) is not None:
            result.unchecked.append(reason)
            promises.forget()
            continue
        broken = _broken(raised, promises.current, case)
        result.broken.append(broken)
        if on_broken is not None:
            on_broken(result)
        if shrink and isinstance(raised, ConformanceError):
            result.broken[-1] = _smallest(case, raised, broken)
        return


@contextmanager
def _warned(result: Checked) -> Iterator[None]:
    """A context whose warnings are issued as ever; those of the checks are notes of the result too."""
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        yield
    for warning in issued:
        if warning.category.__module__.startswith("coterie.testing"):
            result.notes.append(f"warning: {_line(warning.message)}")
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def run_case(case: Case) -> BaseException | None:
    """Call the check; returns what it raised."""
    promise(_MADE)
    try:
        try:
            positional, named = case.made(), case.named()
        except UserError as error:
            if part := _part(case, error):
                raise BesideError(error.what, where=error.path, fix=error.fix, part=part) from error
            raise
        promise(OF_KIND)
        check_of(case.kind)(*positional, **named)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        return error
    return None


def _part(case: Case, error: UserError) -> str:
    """What a component is only checked with, where an error of making says that it is at fault; else empty.

    What an example names wrongly is the example's fault.
    """
    for kind, path in (("environment", "env"), ("role", "team.roles.")):
        blames = error.what.startswith(f"{kind} '") or not case.given
        if kind != case.kind and blames and error.path.startswith(path):
            return "its environment" if kind == "environment" else "the role that reads the answers"
    return ""


def _examples(entry: Entry) -> list[Example]:
    """The examples that are registered for a component.

    Raises:
        PluginError: one can't be imported, or is none.
    """
    registry, result = plugins().registry, list[Example]()
    for registered in registry.examples:
        if registered.distribution != entry.distribution:
            continue
        if registered.error or (registered.kind, registered.name) == (entry.kind, entry.name):
            promise(_EXAMPLES)
        if registered.error:
            raise PluginError(registered.error, fix=HOOK_FIX)
        if (registered.kind, registered.name) != (entry.kind, entry.name):
            continue
        target, what = registered.target, f"the example of {entry.label}"
        if isinstance(target, str):
            target = import_object(target, what)
        for item in target if isinstance(target, (list, tuple)) else [target]:
            if not isinstance(item, Example):
                raise PluginError(f"{what} is {item!r:.200}", fix="coterie.testing.Example(...)")
            result.append(item)
    return result


def _outside(case: Case, error: BaseException) -> str | None:
    """Why an error says nothing against the component; None where it does."""
    cause = error.__cause__ if isinstance(error, ConformanceError) else error
    if isinstance(cause, MissingExtra):
        return " ".join(str(cause).split())
    reason = None if case.given else _lacking(case, error, cause)
    if reason is None and isinstance(error, BesideError):
        return f"{error.part} is broken: {_line(f'{error.where}: {error.what}')}; check that first"
    return reason


def _lacking(case: Case, error: BaseException, cause: BaseException | None) -> str | None:
    """What a case that no example gives may lack, where an error says so."""
    if isinstance(cause, ConfigError) and not isinstance(error, ConformanceError):
        return f"{_line(cause)}; give settings: Example({{...}})"
    if isinstance(cause, (UserError, SystemFault, OSError)) and not isinstance(cause, PluginError):
        return f"what it needs is not here: {_line(cause)}; give an Example with a stand-in"
    if isinstance(error, ConformanceError) and cause is not None:
        method = error.where.rpartition(".")[2]
        if method in case.guessed and not explained(cause) and not isinstance(cause, Overdue):
            return f"{error.where} {error.what} with guessed arguments; give an Example"
    if not isinstance(error, ConformanceError):
        return None
    if any(text in error.what for text in _UNANSWERED):
        return f"{_line(error.what)}; give an Example with a stand-in"
    if (case.guessed or case.unchecked) and any(text in error.what for text in _UNSCORED):
        return f"{_line(error.what)}; give an Example with answers that it can score"
    return None


def _line(error: object) -> str:
    return " ".join(str(error).split())


def _broken(error: BaseException, current: str, case: Case | None = None) -> Broken:
    """The promise that an error breaks."""
    example = case.code() if case is not None else ""
    place = _place(error)
    if isinstance(error, ConformanceError):
        where = f"{error.where} ({place})" if place else error.where
        return Broken(current, error.what, where, error.fix, example)
    if isinstance(error, UserError):
        what = f"{error.what}: {error.why}" if error.why and error.fix else error.what
        return Broken(current, what, error.path or place, error.fix or error.why, example)
    what = f"raised {type(error).__name__}: {error}"
    if place:
        return Broken(current, what, place, explained(error) or TAKES, example)
    frames = traceback.extract_tb(error.__traceback__)
    line = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    fix = "look at the example's arguments; where they are sound, this is an error of Coterie's check"
    return Broken(current, f"the check {what}{line}", "", fix, example)


def _place(error: BaseException) -> str:
    """File, line and function of the plugin that raised; empty where Coterie raised by itself."""
    cause = error.__cause__ if isinstance(error, ConformanceError) else error
    while isinstance(cause, PluginError) and cause.__cause__ is not None:
        cause = cause.__cause__
    if cause is None or isinstance(cause, Overdue):  # whose text has its place
        return ""
    frames = reversed(traceback.extract_tb(cause.__traceback__))
    return raised_in([(frame.filename, frame.lineno or 0, frame.name) for frame in frames])


def _smallest(case: Case, error: ConformanceError, broken: Broken) -> Broken:
    """The same promise, with the smallest example that breaks it within the time."""
    last: list[ConformanceError] = [error]

    def breaks(smaller: Case) -> bool:
        with recorded(Promises()) as again:
            raised = run_case(smaller)
        same = isinstance(raised, ConformanceError) and raised.where == error.where
        if same and again.current == broken.promise and isinstance(raised, ConformanceError):
            last.append(raised)
            return True
        return False

    fewest = smallest(case, breaks, seconds=SHRINKING)
    return _broken(last[-1], broken.promise, fewest)


COUNTS = ("episodes", "turns", "tasks", "seeds", "texts", "limit")
"""Arguments that say how much a check does."""
_SEEDS = 8


def smallest(case: Case, breaks: Callable[[Case], bool], *, seconds: float) -> Case:
    """The case with fewer and shorter arguments, found by calling the check again and again.

    Args:
        breaks: whether a case breaks the same promise at the same place.
        seconds: after which the smallest one so far is returned.
    """
    until = time.monotonic() + seconds
    moved = True
    while moved:
        moved = False
        for smaller in _smaller(case):
            if time.monotonic() > until:
                return case
            if breaks(smaller):
                case, moved = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    """Cases that are smaller in one argument, those that save most time first."""
    given = {**arguments_of(case.kind), **case.arguments}
    for name in COUNTS:
        value = given.get(name)
        if isinstance(value, int) and value > 1:
            yield case.with_arguments(**{name: 1})
            if name == "episodes":  # another episode may be the one that fails
                for seed in range(1, _SEEDS):
                    yield case.with_arguments(episodes=1, seed=seed)
            if value > 3:
                yield case.with_arguments(**{name: value // 2})
    for name, value in case.arguments.items():
        if isinstance(value, (list, tuple)) and len(value) > 1 and name not in ("order", "roles"):
            for part in _parts(value):
                yield case.with_arguments(**{name: part})
    for name, value in case.arguments.items():
        if name in ("good", "feedback", "texts") and isinstance(value, (list, tuple)) and len(value) == 1:
            yield case.with_arguments(**{name: value[:0]})


def _parts(value: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Each item alone, the halves, and all but one."""
    if len(value) <= 12:
        yield from (value[index : index + 1] for index in range(len(value)))
    middle = len(value) // 2
    if len(value) > 3:
        yield from (value[:middle], value[middle:])
    if 2 < len(value) <= 12:
        yield from ([*value[:index], *value[index + 1 :]] for index in range(len(value)))


def check(
    name: str,
    /,
    kind: str | None = None,
    settings: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> list[Checked]:
    """Check what a name stands for, as `coterie check` does, in this process.

        def test_my_plugins(coterie_check):
            coterie_check("my_package")
            coterie_check("countdown", settings={"start": 3}, roles=["counter"], act=["2", "1", "what?"])

    Args:
        name: a registered name, `KIND:NAME`, `DISTRIBUTION:NAME`, `module:Class`, a file, a module, or an
            installed distribution.
        kind: the kind of component, where a name or a class is of several.
        settings: the component's table without its `type`.
        arguments: those of `coterie.testing.Example`: `env`, `order`, and what the kind's check takes.
            Without any the registered examples are used, or what can be derived.

    Returns:
        What is kept, broken and unchecked, by component. A warning `coterie.testing.NotChecked` tells of each
        that was not checked, or not wholly.

    Raises:
        ConformanceError: a promise is broken; the message is the report.
        UserError: the name stands for nothing, or arguments are given for several components.
    """
    if not isinstance(name, str):
        module = getattr(name, "__module__", None)
        text = f"{module}:{name.__qualname__}" if module else getattr(name, "__name__", "MODULE")
        raise UserError(f"what is to be checked is {name!r:.200}", fix=f"name it: check({text!r})")
    target = find_target(name, kind)
    example = Example(settings, **arguments) if settings is not None or arguments else None
    if example is not None and len(target.entries) != 1:
        what = f"arguments are given, and '{name}' names {len(target.entries)} components"
        raise UserError(what, fix="name one, e.g. 'environment:NAME'")
    results = [*target.plugins, *(check_component(entry, example) for entry in target.entries)]
    broken = [result for result in results if not result.ok]
    if broken:
        first = broken[0].broken[0]
        raise ConformanceError(whole(broken), where=first.where or broken[0].label, fix=first.fix)
    warn_of_unchecked(results)
    return results
