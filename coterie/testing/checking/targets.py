"""What `coterie check TARGET` names: a component by its name, a module, a file, a distribution."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import inspect
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.compose.kinds import PROTOCOL, members
from coterie.core.errors import PluginError, UserError, did_you_mean
from coterie.core.plugins import FILES, KINDS, Plugin
from coterie.discovery import GROUP, Entry, Report, plugins
from coterie.discovery.files import load_plugin_file
from coterie.testing.checking.results import Broken, Checked
from coterie.testing.support.failure import lacking

_IMPORTED, _FREE = "it is imported, and its hooks are known", "its names are free"
_WHERE = "modules are looked for where Python looks, and in this folder; a file is named with its .py"
_HOOKS_FIX = "the hooks are in docs/writing_plugins.md"
HOOK_FIX = "correct the hook: it only calls register(kind, name, target)"


@dataclass(slots=True)
class NamedComponents:
    """The components that a target names, and what is known of it before any is tried."""

    entries: list[Entry] = field(default_factory=list)
    plugins: list[Checked] = field(default_factory=list)
    """Of each entry point or file that the target names: its hooks and names."""


def find_target(text: str, kind: str | None = None) -> NamedComponents:
    """What a target names.

    Args:
        text: NAME, KIND:NAME, DISTRIBUTION:NAME, a file of Python, a module, MODULE:Object, a distribution.
        kind: the kind of component, where a name or an object is of several.

    Raises:
        UserError: there is no such thing; the nearest names are in the message.
    """
    if kind is not None and kind not in KINDS:
        raise UserError(f"'{kind}' is no kind of plugin", fix=did_you_mean(kind, KINDS))
    first, colon, rest = text.partition(":")
    if colon and first in KINDS:
        kind, text = first, rest
    if text.endswith(".py") or ("/" in text and Path(text).is_file()):
        return _of_kind(_file(Path(text)), kind)
    entries = _named(text, kind)
    reports = [
        report for report in plugins().reports if _same(text, report.distribution) or _same(text, report.name)
    ]
    if reports:
        return _of_kind(_joined(reports, entries), kind)
    if entries:
        return NamedComponents(_ordered(entries))
    if ":" in text:
        return NamedComponents([_object(text, kind)])
    if re.fullmatch(r"[A-Za-z_][\w.]*", text) and _is_module(text):
        return _of_kind(_module(text), kind)
    raise _unknown(text, kind)


def _of_kind(target: NamedComponents, kind: str | None) -> NamedComponents:
    if kind is not None:
        has = sorted({entry.kind for entry in target.entries})
        target.entries = [entry for entry in target.entries if entry.kind == kind]
        if not target.entries and all(result.ok for result in target.plugins):
            fix = f"it has components of: {', '.join(has)}" if has else "look at `coterie plugins`"
            raise UserError(f"there is no component of the kind '{kind}' in it", fix=fix)
    return target


def _named(text: str, kind: str | None) -> list[Entry]:
    """Every component of a name, in all kinds and distributions."""
    registry, named = plugins().registry, list[Entry]()
    for each in KINDS if kind is None else (kind,):
        for entry in registry.qualified(each):
            if text in (entry.name, f"{entry.distribution}:{entry.name}"):
                named.append(entry)
    return named


def _same(text: str, distribution: str) -> bool:
    """Whether two names of a distribution are the same to an installer."""
    first, second = (re.sub(r"[-_.]+", "-", name).lower() for name in (text, distribution))
    return first == second


def _ordered(entries: Iterable[Entry]) -> list[Entry]:
    """Components first, then the files that name them; each once."""
    unique = {(entry.kind, entry.distribution, entry.name): entry for entry in entries}
    return sorted(unique.values(), key=lambda entry: (entry.kind in FILES, KINDS.index(entry.kind)))


def _joined(reports: Iterable[Report], entries: Iterable[Entry]) -> NamedComponents:
    """A distribution, or one of its entry points, with what else has the name."""
    target, joined = NamedComponents(), list[Entry]()
    for report in reports:
        target.plugins.append(_hooks(report))
        for kind, names in report.provides.items():
            for entry in plugins().registry.qualified(kind):
                if entry.distribution == report.distribution and entry.name in names:
                    joined.append(entry)
        joined += _taken(report)
    target.entries = _ordered([*joined, *entries])
    return target


def _taken(report: Report) -> list[Entry]:
    """The components of a distribution that lost their name to another: `provides` lacks them."""
    entries = [entry for kind in KINDS for entry in plugins().registry.qualified(kind)]
    provided = {(kind, name) for kind, names in report.provides.items() for name in names}
    several = sum(other.distribution == report.distribution for other in plugins().reports) > 1
    return [
        entry
        for entry in entries
        if entry.distribution == report.distribution
        and (entry.kind, entry.name) not in provided
        and not several
    ]


def _hooks(report: Report) -> Checked:
    """What is known of an entry point or file: whether it was imported, its hooks, its names."""
    result = Checked("plugin", report.name, report.distribution)
    for error in report.errors:
        taken = "already registered by" in error
        what, _, fix = error.partition("\n  fix: ")
        if taken and report.distribution.endswith(".py"):
            fix = "choose another name, e.g. one that begins with yours"
        promise = _FREE if taken else _IMPORTED
        result.broken.append(Broken(promise, what, report.name, fix or _HOOKS_FIX))
    of_broken = {broken.promise for broken in result.broken}
    result.kept = [text for text in (_IMPORTED, _FREE) if text not in of_broken]
    _check_examples(report, result)
    _check_entry_point(report, result)
    return result


def _check_examples(report: Report, result: Checked) -> None:
    """Tell of examples that belong to no component of the distribution."""
    registry = plugins().registry
    for example in registry.examples:
        if example.distribution != report.distribution:
            continue
        known = [entry.name for entry in registry.qualified(example.kind)] if example.kind in KINDS else []
        what = example.error
        fix = HOOK_FIX
        if not what and example.kind not in KINDS:
            what = f"an example of '{example.name}' is of the kind {example.kind!r}"
            fix = did_you_mean(str(example.kind), KINDS)
        elif not what and example.name not in known:
            what = f"an example names the {example.kind} '{example.name}', which it doesn't register"
            fix = did_you_mean(str(example.name), known)
        if what:
            result.broken.append(Broken("its examples are of its components", what, report.name, fix))


def _check_entry_point(report: Report, result: Checked) -> None:
    """Tell of another distribution's entry point of the same name: `COTERIE_PLUGINS` takes both."""
    others = {
        other.distribution
        for other in plugins().reports
        if other.name == report.name and other.distribution != report.distribution
    }
    if others:
        what = f"the entry point '{report.name}' is also one of {', '.join(sorted(others))}"
        fix = "give it the name of your distribution, in pyproject.toml under [project.entry-points.coterie]"
        result.broken.append(Broken(_FREE, what, report.name, fix))


def _file(path: Path) -> NamedComponents:
    """A file that is loaded as `-p` loads it."""
    if not path.is_file():
        raise UserError(f"no such plugin file: {path}", fix="name a Python file")
    manager = plugins()
    try:
        load_plugin_file(path, manager)
    except PluginError as error:
        report = next((report for report in manager.reports if report.distribution == str(path)), None)
        if report is None:  # it was not imported
            what = f"{error.what}: {error.why}" if error.why else error.what
            return _not_imported(path.stem, str(path), what, error.fix)
    report = next(report for report in manager.reports if report.distribution == str(path))
    return _joined([report], ())


def _not_imported(name: str, place: str, what: str, fix: str) -> NamedComponents:
    result = Checked("plugin", name, place, broken=[Broken(_IMPORTED, what, place, fix)])
    return NamedComponents(plugins=[result])


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def _module(name: str) -> NamedComponents:
    """A module: one of plugins, which has hooks, or one of components."""
    installed = [entry for entry in importlib.metadata.entry_points(group=GROUP) if entry.value == name]
    names = {(entry.name, entry.dist.name) for entry in installed if entry.dist is not None}
    reports = [report for report in plugins().reports if (report.name, report.distribution) in names]
    if reports:
        return _joined(reports, ())
    try:
        module = importlib.import_module(name)
    except Exception as error:
        what = f"fails when it is imported: {type(error).__name__}: {error}"
        return _not_imported(name, name, what, "correct the module: a run imports it too")
    if any(hasattr(value, "coterie_impl") for value in vars(module).values() if inspect.isroutine(value)):
        manager, report = plugins(), Report(name, name, "")
        manager.add(module, report)
        return _joined([report], ())
    entries = [
        _entry_of(f"{name}:{attribute}", value, None)
        for attribute, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == name and issubclass(value, Plugin) and _kinds(value)
    ]
    if not entries:
        what = f"the module {name} has neither hooks nor components"
        raise UserError(what, fix="@coterie.hookimpl over its hooks, or name MODULE:Class")
    return NamedComponents(_ordered(entries))


def _object(text: str, kind: str | None) -> Entry:
    """`package.module:Object`, which needs no registration."""
    first = text.partition(":")[0]
    known = {name for report in plugins().reports for name in (report.distribution, report.name)}
    if first in known and not _is_module(first):
        raise _unknown(text, kind)
    if not _is_module(first):
        raise UserError(
            f"there is no module '{first}'", fix=f"{did_you_mean(first, (*KINDS, *known))}; {_WHERE}"
        )
    from coterie.discovery import import_object

    return _entry_of(text, import_object(text, "what is to be checked"), kind)


def _entry_of(text: str, target: Any, kind: str | None) -> Entry:
    """The entry of an object: the registered one, where it is registered."""
    for each in KINDS if kind is None else (kind,):
        for entry in plugins().registry.qualified(each):
            if entry.target == text or entry.target is target:
                return entry
    kinds = [kind] if kind is not None else _kinds(target)
    if len(kinds) != 1:
        what = (
            f"{text} may be of the kinds {', '.join(kinds)}"
            if kinds
            else f"{text} is of no kind of component"
        )
        fix = (
            f"say which: {kinds[0]}:{text}" if kinds else f"say which: KIND:{text}, of {', '.join(PROTOCOL)}"
        )
        raise UserError(what, fix=fix)
    return Entry(kinds[0], text, text, text.partition(":")[0].partition(".")[0])


def _kinds(target: Any) -> list[str]:
    """The kinds whose methods a class has, those of which it has most first."""
    if not inspect.isclass(target):
        return []
    sizes = {
        kind: sum(members(protocol).values()) + (kind in ("estimator", "loss"))
        for kind, protocol in PROTOCOL.items()
        if not lacking(protocol, target) and _called(kind, target)
    }
    most = max(sizes.values(), default=0)
    return [kind for kind, size in sizes.items() if size == most]


def _called(kind: str, target: type) -> bool:
    """Whether a class can be called as its kind is: estimators take `check` too, losses have a length."""
    if kind == "estimator":
        return "__call__" in dir(target) and hasattr(target, "check")
    if kind == "loss":
        return "__call__" in dir(target) and hasattr(target, "length")
    return True


def _unknown(text: str, kind: str | None) -> UserError:
    registry = plugins().registry
    name = text.rpartition(":")[2]
    known = {known for each in (KINDS if kind is None else (kind,)) for known in registry.names(each)}
    known |= {report.distribution for report in plugins().reports}
    what = f"no {kind or 'component'}, module or distribution is called '{text}'"
    return UserError(what, why="; ".join(registry.absent), fix=f"{did_you_mean(name, known)}; {_WHERE}")
