"""`check_plugin`: a module's hooks are known, and every registered target is usable."""

from __future__ import annotations

import importlib.metadata
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from coterie.compose.kinds import PROTOCOL
from coterie.core.config import PolicyConfig
from coterie.core.errors import MissingExtra, UserError, type_text
from coterie.core.plugins import DECLARING, FILES, PluginConfig
from coterie.discovery import GROUP, Entry, Plugins, Report, plugins
from coterie.testing.checks.column import check_column
from coterie.testing.checks.command import check_command
from coterie.testing.checks.recipe import check_layer, registered
from coterie.testing.checks.study import check_study
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
    installed = importlib.metadata.entry_points(group=GROUP)
    of_module = [entry for entry in installed if entry.value == getattr(module, "__name__", "")]
    of_author = {entry.dist.name for entry in of_module if entry.dist is not None}
    same = taken.target is entry.target or (isinstance(entry.target, str) and taken.target == entry.target)
    loaded_file = taken.distribution.endswith(".py")  # by -p, so it is no neighbour
    if same or loaded_file or taken.distribution in of_author:
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
    require(inspect.isclass(target), f"is {type_text(target)}", where, fix="a class")
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
    for name, expected in vars(protocol).items():
        if (name.startswith("_") and name != "__call__") or not inspect.isfunction(expected):
            continue
        method = getattr(target, name, None)
        require(callable(method), f"{target.__name__}.{name} can't be called", where, fix=fix)
    require_arguments(target, kind, f"{where}: {target.__name__}", every=True)
    require_coroutines(target, kind, f"{where}: {target.__name__}", every=True)
