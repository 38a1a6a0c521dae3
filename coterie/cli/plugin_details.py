"""What `coterie plugins show` says of a plugin: gathered from the registry, the class and its Config."""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from coterie.cli.plugin_example import example
from coterie.compose.described import Field, documented, fields, source_of
from coterie.compose.kinds import CAPABILITIES, members
from coterie.core.errors import PluginError, UserError, did_you_mean
from coterie.core.plugins import FILES, KINDS, UNCONFIGURED
from coterie.discovery import Entry, Plugins, Report


@dataclass(frozen=True, slots=True)
class Member:
    """An optional member of a kind."""

    signature: str
    meaning: str
    capability: str


@dataclass(slots=True)
class Details:
    """All that is shown of one component."""

    kind: str
    name: str
    distribution: str
    """Of a file, its path."""
    version: str
    entry_point: str
    """`name = module` of the package; empty: the plugin is a file."""
    target: str
    """`module:attribute`, or the file that a recipe, an overlay or a column is."""
    file: str = ""
    line: int | None = None
    docstring: str = ""
    config: list[Field] = field(default_factory=list)
    policy: list[Field] = field(default_factory=list)
    """What a trainer or an engine reads of a policy's table."""
    example: str = ""
    """YAML with the settings' defaults at its place in a recipe, or the command that uses the component."""
    members: list[Member] = field(default_factory=list)
    """The optional members that the class has."""
    hooks: list[str] = field(default_factory=list)
    """Hooks that its distribution implements."""
    errors: list[str] = field(default_factory=list)
    """What keeps the component from being imported, then those of its distribution."""
    warnings: list[str] = field(default_factory=list)


def find(manager: Plugins, name: str) -> tuple[list[Entry], list[Report]]:
    """The components of NAME, KIND:NAME or DIST:NAME; and the plugins that an entry point or a distribution
    of that name has, where no component has it.

    Raises:
        PluginError: nothing has that name; the nearest name is in the message.
    """
    registry = manager.registry
    prefix, colon, rest = name.rpartition(":")
    every = [entry for kind in KINDS for entry in registry.qualified(kind)]
    if colon and prefix in KINDS:
        every, name = [entry for entry in every if entry.kind == prefix], rest
    elif colon:
        every, name = [entry for entry in every if _is_of(entry, prefix)], rest
    if entries := [entry for entry in every if entry.name == name]:
        return entries, []
    reports = [report for report in manager.reports if name in _names_of(report)]
    if reports and not colon:
        return [], reports
    known = {entry.name for entry in every} | {
        other for report in manager.reports for other in _names_of(report)
    }
    what = f"no {prefix + ' ' if prefix in KINDS else ''}plugin is called '{name}'"
    if colon and prefix not in KINDS:
        known, what = {entry.name for entry in every}, f"'{prefix}' registers nothing called '{name}'"
        if not every:
            known = {*KINDS, *(report.distribution for report in manager.reports)}
            raise PluginError(f"'{prefix}' is no kind and no distribution", fix=did_you_mean(prefix, known))
    raise PluginError(what, why="; ".join(registry.absent), fix=did_you_mean(name, known))


def _is_of(entry: Entry, distribution: str) -> bool:
    return distribution in (entry.distribution, Path(entry.distribution).name, Path(entry.distribution).stem)


def _names_of(report: Report) -> set[str]:
    return {report.name, report.distribution, Path(report.distribution).name}


def details(manager: Plugins, entry: Entry) -> Details:
    """What can be said of a component; what can't be imported is in its errors."""
    reports = [report for report in manager.reports if report.distribution == entry.distribution]
    provides = [report for report in reports if entry.name in report.provides.get(entry.kind, ())]
    report = next(iter(provides or reports), Report("", entry.distribution, ""))
    target = entry.target if isinstance(entry.target, str) else _name_of(entry.target)
    shown = Details(
        kind=entry.kind,
        name=entry.name,
        distribution=entry.distribution,
        version=report.version,
        entry_point=f"{report.name} = {report.module}" if report.version else "",
        target=target,
        hooks=sorted(report.hooks),
        warnings=list(report.warnings),
    )
    _load(shown, entry)
    shown.errors += [error for error in report.errors if error not in shown.errors]
    if entry.kind in FILES:
        shown.file = str(target)
        _read_file(shown, entry)
    shown.example = shown.example or _usage(shown, entry, manager)
    return shown


def _load(shown: Details, entry: Entry) -> None:
    """Add what the class and its schemas say, each as far as it can be imported."""
    if entry.kind in FILES:
        return
    for name in () if entry.kind in UNCONFIGURED else ("Config", "Policy"):
        if (model := _tried(shown, lambda name=name: entry.attribute(name))) is not None:  # type: ignore[misc]
            setattr(shown, name.lower(), list(fields(model)))
            if name == "Config":
                shown.example = example(entry, model)
    loaded = _tried(shown, entry.load)
    if loaded is None:
        place = source_of(str(entry.target))
        shown.docstring, shown.file = place.docstring, place.file
        return
    if entry.kind == "command":
        loaded = loaded.callback or loaded
    shown.docstring = (inspect.getdoc(loaded) or "").replace("\b\n", "")
    shown.file, shown.line, _ = source_of(loaded)
    if inspect.isclass(loaded):
        for capability in CAPABILITIES.get(entry.kind, ()):
            if all(hasattr(loaded, member) for member in members(capability)):
                texts = documented(capability)
                shown.members += [Member(member, text, capability.__name__) for member, text in texts]


def _tried(shown: Details, make: Callable[[], Any]) -> Any:
    """The result, or None with the error noted: a missing extra, an import that fails."""
    try:
        return make()
    except UserError as error:
        if str(error) not in shown.errors:
            shown.errors.append(str(error))
        return None


def _name_of(thing: Any) -> str:
    module = getattr(thing, "__module__", "") or type(thing).__module__
    return f"{module}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def _read_file(shown: Details, entry: Entry) -> None:
    from coterie.recipes import read_yaml
    from coterie.recipes.layers import file_of

    def read() -> tuple[Path, Any]:
        path = file_of(entry)
        return path, read_yaml(path)

    if (both := _tried(shown, read)) is not None:
        shown.file, shown.docstring = str(both[0]), str(both[1].get("summary", ""))


def _usage(shown: Details, entry: Entry, manager: Plugins) -> str:
    """The command that uses the component; of a component without settings, its table in a recipe."""
    is_its = manager.registry.find(entry.kind, entry.name) is entry
    name = entry.name if is_its else f"{entry.distribution}:{entry.name}"
    commands = {
        "recipe": f"coterie run {name}",
        "overlay": f"coterie run RECIPE --with {name}",
        "study": f"coterie reproduce {name}",
        "column": f"coterie reproduce STUDY --columns {name}",
        "command": f"coterie {name}",
    }
    if entry.kind in commands:
        return commands[entry.kind]
    return "" if shown.errors else example(entry, BaseModel)


def of_report(report: Report) -> Iterator[tuple[str, str]]:
    """What is shown of a plugin: its module, requirements, hooks and warnings."""
    if report.version:
        yield "entry point", f"{report.name} = {report.module}"
        try:
            required = importlib.metadata.requires(report.distribution) or []
        except importlib.metadata.PackageNotFoundError:
            required = []
        yield "requires", ", ".join(text for text in required if "extra ==" not in text) or "nothing"
    yield "hooks", ", ".join(sorted(report.hooks)) or "none"
    for kind, names in report.provides.items():
        yield kind, ", ".join(sorted(names))
