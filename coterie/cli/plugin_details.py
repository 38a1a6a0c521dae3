"""What `coterie plugins show` says of a plugin: gathered from the registry, the class and its Config."""

from __future__ import annotations

import importlib.metadata
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from coterie.compose.described import Field, default_of, documented, fields, source_of
from coterie.compose.kinds import CAPABILITIES, members
from coterie.compose.tables import MAPS, TABLES, component_tables
from coterie.core.config import to_yaml
from coterie.core.errors import PluginError, UserError, did_you_mean
from coterie.core.plugins import FILES, KINDS, UNCONFIGURED, Table, composed_fields
from coterie.discovery import Entry, Plugins, Report, plugins
from coterie.discovery.validation import validate


@dataclass(frozen=True, slots=True)
class OptionalMember:
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
    members: list[OptionalMember] = field(default_factory=list)
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
                shown.members += [OptionalMember(member, text, capability.__name__) for member, text in texts]


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


COMMENT = "# Not valid yet: {}\n"


def example(entry: Entry, model: type[BaseModel]) -> str:
    """YAML of a component's table with the defaults of its Config; what is required is taken from a recipe.

    The table is one that the Config accepts, where the required settings can be found.
    """
    taken = _from_recipes(entry)
    required, optional = _tables(entry.kind, model, taken)
    wrong = ""
    examples = {
        info.alias or name: info.examples[0] for name, info in model.model_fields.items() if info.examples
    }
    required |= {key: examples[key] for key in required.keys() & examples.keys() - taken.keys()}
    for table in ({**required, **optional}, {**required, **optional, **examples}, required, taken):
        problem = _problem(model, table)
        if not problem:
            return _placed(entry, table)
        wrong = wrong or problem
    return COMMENT.format(wrong) + _placed(entry, {**required, **optional})


def _tables(kind: str, model: type[BaseModel], taken: Table) -> tuple[Table, Table]:
    """The required settings, and the others with defaults, null and deprecated ones left out."""
    required: Table = {}
    optional: Table = {}
    composed = composed_fields(model)
    for name, info in model.model_fields.items():
        key = info.alias or name
        if info.is_required():
            sample = _component(composed[name]) if name in composed else _sample(info.annotation)
            refers = name in composed and isinstance(taken.get(key), str)  # to another table of that recipe
            required[key] = sample if refers else taken.get(key, sample)
        elif not info.deprecated:
            default = default_of(info)
            plain = _without_null(to_jsonable_python(default, fallback=lambda thing: None))
            if plain is not None:
                optional[key] = plain
    return required, optional


def _without_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_null(inner) for key, inner in value.items() if inner is not None}
    return value


def _problem(model: type[BaseModel], table: Table) -> str:
    """Why the Config refuses a table; empty: it doesn't."""
    if open_settings := [key for key, value in table.items() if value == "..."]:
        return f"fill in {', '.join(open_settings)}"
    try:
        validate(model, table)
    except UserError as error:
        return " ".join(str(error).split())
    except Exception as error:  # a validator of the plugin's that expects components and gets their tables
        return f"{type(error).__name__}: {error}"
    return ""


def _sample(annotation: Any) -> Any:
    """A value of a type for a required setting; `...` where there is no obvious one."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _sample(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin in (Union, UnionType):
        return next(iter([_sample(kind) for kind in arguments if kind is not NoneType]))
    if isinstance(annotation, type) and issubclass(annotation, (int, float)):
        return annotation(1)
    return "..."


def _component(kind: str) -> Any:
    """A component of a kind that needs no settings."""
    registry = plugins().registry
    for name in sorted(registry.names(kind), key=lambda name: name != "heuristic"):
        entry = registry.find(kind, name)
        if entry.distribution == "coterie":
            try:
                model = entry.attribute("Config")
            except UserError:
                continue
            if model is None or not any(info.is_required() for info in model.model_fields.values()):
                return {"type": name}
    return "..."


def _from_recipes(entry: Entry) -> Table:
    """The settings that a registered recipe gives the component; those of its own distribution first."""
    from coterie.recipes import read_yaml
    from coterie.recipes.layers import file_of

    recipes = plugins().registry.entries("recipe")
    for recipe in sorted(recipes, key=lambda recipe: recipe.distribution != entry.distribution):
        try:
            path = file_of(recipe)
            if not re.search(rf"\b{re.escape(entry.name)}\b", Path(path).read_text(encoding="utf-8")):
                continue
            table = read_yaml(path)
        except (UserError, OSError):
            continue
        for _, kind, name, component, _ in component_tables(table):
            named = kind == entry.kind and isinstance(component, dict)
            if named and component.get("type", name) == entry.name:
                rest = {"type", "policy", "weights", "tools", "concurrency", "max_missing", "show_thoughts"}
                return {key: value for key, value in component.items() if key not in rest}
    return {}


def _placed(entry: Entry, settings: Table) -> str:
    """The table under the keys of a recipe under which it stands."""
    table: Any = {"type": entry.name, **settings}
    if entry.kind == "role":
        return to_yaml(
            {"team": {"roles": {entry.name: {"type": entry.name, "policy": "learner", **settings}}}}
        )
    for place, kind in MAPS.items():
        if kind == entry.kind:
            return to_yaml({place: {entry.name: table}})
    return to_yaml({next(place for place, kind in TABLES.items() if kind == entry.kind): table})
