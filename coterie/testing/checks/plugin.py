"""`check_plugin`: a module's hooks are known, and every registered target is usable."""

from __future__ import annotations

import copy
import importlib.metadata
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ValidationError

from coterie.compose.kinds import PROTOCOL, methods_of
from coterie.compose.rules.table import check
from coterie.compose.settings import REFERRED
from coterie.compose.tables import ComponentTable, component_tables
from coterie.core.config import PolicyConfig, RunConfig
from coterie.core.errors import ConfigError, MissingExtra, UserError, did_you_mean, type_text
from coterie.core.plugins import DECLARING, FILES, PluginConfig, Table, composed_fields
from coterie.discovery import GROUP, Entry, Plugins, Report, plugins
from coterie.discovery.registry import A_CLASS
from coterie.discovery.validation import explain
from coterie.recipes.layers import gather, read_overlay, resolve, resource_path
from coterie.recipes.merging import EVERY_SCALE, Layers
from coterie.testing.checks.unconfigured import check_column, check_command, check_study
from coterie.testing.support.failure import (
    ConformanceError,
    guarded,
    lacking,
    require,
    require_arguments,
    require_coroutines,
    require_read,
)


def check_plugin(module: Any, *, extras: bool = False) -> None:
    """Check a plugin's module, the one that its entry point in the group `coterie` names.

    - It implements at least one hook; every hook is known, has its `@hookimpl`, and takes only arguments that
      the hook passes.
    - Registration doesn't fail, and registers no name twice, nor one that Coterie or another installed
      distribution has; a command `run` would never be called by that name.
    - What is registered beside a target (`config`, `policy`) imports, without optional packages too, and is
      the target's own.
    - Every registered target imports. A component is a class with the constructor `cls(config, build)`, a
      `Config` that refuses unknown keys, and the methods of its kind with the arguments that the core passes,
      in their order, `async def` exactly where the kind's are. The same holds for the optional members that
      it has.
      A recipe is a YAML file that resolves, at each of its scales too, with keys that the chosen plugins
      know; an overlay is a YAML file with the keys of a recipe but `extends`, `with` and `name`. A column
      passes `check_column`, a study `check_study`, a command `check_command`.

    Args:
        module: the module, or any object with the hook implementations.
        extras: whether targets that need an optional package of Coterie must be importable too.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = getattr(module, "__name__", type(module).__name__)
    manager, report = Plugins(), Report(name, name, "")
    with _lenient():
        manager.add(module, report)
    require(report.ok, "; ".join(report.errors), name, fix="the hooks are in docs/writing_plugins.md")
    entries = [manager.registry.find(kind, n) for kind, names in report.provides.items() for n in names]
    for entry in entries:
        _check_taken(entry, f"{entry.kind} '{entry.name}' of {name}", module)
    with registered(entries):
        for entry in sorted(entries, key=lambda entry: entry.kind in FILES):  # these name the others
            check_entry(entry, f"{entry.kind} '{entry.name}' of {name}", extras)


def _check_taken(entry: Entry, where: str, module: Any) -> None:
    """Raise where another installed distribution, or Coterie, has the name: the plugin would lose it."""
    registry = plugins().registry
    if entry.name not in registry.names(entry.kind):
        return
    taken = registry.find(entry.kind, entry.name)
    same = taken.target is entry.target or (isinstance(entry.target, str) and taken.target == entry.target)
    loaded_file = taken.distribution.endswith(".py")  # by -p, so it is no neighbour
    if same or loaded_file:
        return
    installed = importlib.metadata.entry_points(group=GROUP)
    of_module = [entry for entry in installed if entry.value == getattr(module, "__name__", "")]
    if any(entry.dist is not None and entry.dist.name == taken.distribution for entry in of_module):
        return
    require(
        False,
        f"the name is taken by {taken.distribution}: beside it, '{entry.name}' is that one",
        where,
        fix=f"choose another name, e.g. one that begins with yours; yours is only had as "
        f"'DISTRIBUTION:{entry.name}'",
    )


@contextmanager
def _lenient() -> Iterator[None]:
    """Report all errors instead of raising the first one."""
    strict = os.environ.pop("COTERIE_STRICT_PLUGINS", None)
    try:
        yield
    finally:
        if strict is not None:
            os.environ["COTERIE_STRICT_PLUGINS"] = strict


def check_entry(entry: Entry, where: str, extras: bool) -> None:
    """Check what is registered: a class of its kind, a recipe that resolves, a study, a command.

    Args:
        where: the place that errors name.
        extras: whether an optional package of Coterie that is missing is an error.

    Raises:
        ConformanceError: what is wrong.
    """
    if entry.kind in ("recipe", "overlay"):
        check_layer(entry, where)
        return
    if entry.kind == "column":
        check_column(entry.target, where)
        return
    with guarded(f"{where}: registration"):  # needs no optional package: that is what they are beside it for
        for schema in entry.declared:
            entry.attribute(schema)
    try:
        target = entry.load()
    except MissingExtra as error:
        require(not extras, str(error), where, fix="install the extra")
        return
    except UserError as error:
        raise ConformanceError(
            str(error), where=where, fix="register a `package.module:Object` that can be imported"
        ) from error
    if entry.kind == "command":
        check_command(target, where)
        return
    if entry.kind == "study":
        check_study(target, where)
        return
    require(inspect.isclass(target), f"is {type_text(target)}, and no class", where, fix=A_CLASS)
    with guarded(f"{where}: registration"):
        entry.check(target)
    _check_class(target, entry.kind, where)


def _check_class(target: type, kind: str, where: str) -> None:
    protocol = PROTOCOL[kind]
    missing = lacking(protocol, target)
    fix = f"see coterie.{protocol.__name__}"
    require(not missing, f"{target.__name__} lacks {', '.join(missing)}", where, fix=fix)
    require_read(target, kind, f"{where}: {target.__name__}")
    with guarded(f"{where}: constructor", "it is called as cls(config, build)"):
        inspect.signature(target).bind(None, None)
    config = getattr(target, "Config", None)
    if config is not None:
        model = inspect.isclass(config) and issubclass(config, PluginConfig)
        require(model, "Config is no PluginConfig", where, fix="class Config(coterie.PluginConfig)")
        strict = config.model_config.get("extra") == "forbid"
        require(strict, "Config takes unknown keys", where, fix="leave `extra` as PluginConfig has it")
    policy = getattr(target, "Policy", None) if kind in DECLARING else None
    if policy is not None:
        model = inspect.isclass(policy) and issubclass(policy, PolicyConfig)
        require(model, "Policy is no PolicyConfig", where, fix="class Policy(coterie.PolicyConfig)")
    for name in (name for name, _ in methods_of(kind) if name in vars(protocol)):
        called = callable(getattr(target, name, None))
        require(called, f"{target.__name__}.{name} can't be called", where, fix=fix)
    require_arguments(target, kind, f"{where}: {target.__name__}", every=True)
    require_coroutines(target, kind, f"{where}: {target.__name__}", every=True)


_FIX = "a path, or `package:file.yaml`"


@contextmanager
def registered(entries: Iterable[Entry]) -> Iterator[None]:
    """A context in which the process knows these entries too, so that recipes may name them."""
    registry = plugins().registry
    lent = [entry for entry in entries if entry.name not in registry.names(entry.kind)]
    for entry in lent:
        registry.add(entry.kind, entry.name, entry.target, entry.distribution, entry.config, entry.policy)
    try:
        yield
    finally:
        for entry in lent:
            registry.discard(entry)


def check_layer(entry: Entry, where: str) -> None:
    """Check a registered recipe or overlay, inside `registered`.

    A recipe resolves, alone and at each scale, and each component's table has keys of its plugin's Config and
    values that it accepts. Keys that are missing are left to the user. An overlay has a configuration's keys.

    Raises:
        ConformanceError: everything that is wrong, each with the path of its key.
    """
    with guarded(where, _FIX):
        path = resource_path(entry.target)
    require(path.is_file(), f"there is no file {path}", where, fix=_FIX)
    errors: dict[str, UserError] = {}
    with _gathered(errors):
        if entry.kind == "overlay":
            _check_overlay(read_overlay(path)[0], errors)
        else:
            _check_recipe(gather(path), errors)
    if errors:
        fix = "`coterie config` shows the keys and where they are set"
        raise ConformanceError("\n".join(errors), where=where, fix=fix) from next(iter(errors.values()))


@contextmanager
def _gathered(errors: dict[str, UserError]) -> Iterator[None]:
    """A context whose error is added to the others, each once; what an optional package lacks is none."""
    try:
        yield
    except MissingExtra:
        return
    except UserError as error:
        errors.setdefault(str(error), error)


def _check_recipe(merged: Layers, errors: dict[str, UserError]) -> None:
    for scale in (None, *(merged.table.get("scales") or {})):
        with _gathered(errors):
            resolved = resolve(copy.deepcopy(merged), scale=scale)
            for component in component_tables(resolved.table):
                with _gathered(errors):
                    _check_component(component)
            if not errors:
                check(resolved.config, policies=False)


def _check_overlay(overlay: Table, errors: dict[str, UserError]) -> None:
    for error in _unknown(overlay, RunConfig, (), ["summary", "scales", EVERY_SCALE]):
        errors.setdefault(str(error), error)
    for block in (overlay, *(overlay.get("scales") or {}).values(), overlay.get(EVERY_SCALE)):
        for component in component_tables(block or {}):  # the types of others are the recipes' to say
            with _gathered(errors):
                if isinstance(component.table, Mapping) and "type" in component.table:
                    _check_component(component)


def _unknown(
    table: Mapping[str, Any], model: type[BaseModel], path: tuple[str, ...], also: Sequence[str]
) -> Iterator[ConfigError]:
    """The unknown keys of an overlay's table, and of the tables inside that a schema describes."""
    for key, value in table.items():
        if key in ("scales", EVERY_SCALE):
            blocks = (value or {}).items() if key == "scales" else [("", value)]
            for name, block in blocks:
                yield from _unknown(block or {}, RunConfig, tuple(filter(None, (key, name))), ())
        elif key not in model.model_fields and key not in also:
            fix = did_you_mean(str(key), [*model.model_fields, *also])
            yield ConfigError(f"unknown key '{key}'", path=".".join((*path, str(key))), fix=fix)
        elif isinstance(value, Mapping) and key in model.model_fields:
            inner = model.model_fields[key].annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from _unknown(value, inner, (*path, str(key)), ())


def _check_component(component: ComponentTable) -> None:
    """Check the settings of a component, and of those inside it, without making any."""
    path, kind, name, _, also = component
    settings, registry = component.settings, plugins().registry
    plugin = settings.pop("type", name if name in registry.names(kind) else None)
    if plugin is None:
        return  # the user's to choose
    try:
        model = registry.config_of(kind, str(plugin), path=f"{path}.type")
    except MissingExtra:
        return
    if model is None:
        for key in settings:
            raise ConfigError(f"unknown key '{key}'", path=f"{path}.{key}", why=f"'{plugin}' has no settings")
        return
    try:
        model.model_validate(settings)
    except ValidationError as error:
        if any(problem["type"] != "missing" for problem in error.errors()):
            raise explain(error, model, settings, path, also) from None
    for field, inner in composed_fields(model).items():
        value = settings.get(field)
        if isinstance(value, str) and inner in REFERRED:
            continue  # an entry of the run's table, perhaps of another layer: whoever composes it knows
        if isinstance(value, (str, Mapping)):
            _check_component(ComponentTable(f"{path}.{field}", inner, "", value))
