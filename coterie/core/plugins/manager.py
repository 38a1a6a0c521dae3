"""Discovery of plugins through the entry-point group `coterie`.

Each entry point is loaded by itself: one that fails to import, misspells a hook, has a wrong signature or
takes a name that is taken is *reported*, with its distribution and its error, and everything else works.
Nothing here runs when `coterie` is imported; `plugins()` makes the manager on first use.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from coterie.core.errors import PluginError, UserError, did_you_mean
from coterie.core.plugins import hookspecs
from coterie.core.plugins.registry import KINDS, Registry

GROUP = "coterie"
log = logging.getLogger("coterie")

_IRREGULAR = {"loss": "losses", "sandbox": "sandboxes", "study": "studies"}
KIND_OF: dict[str, str] = {f"register_{_IRREGULAR.get(kind, kind + 's')}": kind for kind in KINDS}
"""Registration hook -> kind."""


@dataclass(slots=True)
class Report:
    """What became of one entry point or file."""

    name: str
    distribution: str
    version: str
    ok: bool = True
    errors: list[str] = field(default_factory=list)
    provides: dict[str, list[str]] = field(default_factory=dict)


class Plugins:
    """The manager, the registry and the reports."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.reports: list[Report] = []
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        for hook, kind in KIND_OF.items():
            getattr(self._manager.hook, hook).call_historic(kwargs={"register": self._registrar(kind)})
        self._current: Report | None = None
        self._implementations: dict[str, list[tuple[str, Any]]] = {"episode_ended": [], "step_ended": []}

    def load(self, only: frozenset[str] | None = None) -> None:
        """Load the entry points: our own first, then everybody else's in a stable order.

        Args:
            only: limits third-party plugins to these entry-point or distribution names.
        """
        found = sorted(
            importlib.metadata.entry_points(group=GROUP),
            key=lambda e: (_distribution(e)[0] != "coterie", _distribution(e)[0], e.name),
        )
        seen: set[tuple[str, str]] = set()
        for entry in found:
            distribution, version = _distribution(entry)
            if (distribution, entry.value) in seen:  # an editable install beside a wheel lists it twice
                continue
            seen.add((distribution, entry.value))
            if distribution != "coterie" and only is not None and not {entry.name, distribution} & only:
                continue
            report = Report(entry.name, distribution, version)
            self.reports.append(report)
            try:
                module = entry.load()
            except BaseException as error:  # a stranger's module may raise anything, even SystemExit
                if isinstance(error, KeyboardInterrupt):
                    raise
                self._fail(report, f"import failed: {type(error).__name__}: {error}", error)
                continue
            self.register(module, report)

    def load_file(self, path: Path) -> None:
        """Load one file as a plugin (`coterie run -p my_plugin.py`); here an error is the user's to fix.

        Raises:
            PluginError: the file doesn't import, or its hooks are wrong.
        """
        if not path.is_file():
            raise PluginError(f"no such plugin file: {path}", path="-p")
        name = path.stem
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise PluginError(f"{path} is not a Python file", path="-p")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(name, module)  # so that `my_plugin:Object` and pickling find it
        report = Report(name, str(path), "")
        self.reports.append(report)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise PluginError(
                f"{path} fails when it is imported", path="-p", why=f"{type(error).__name__}: {error}"
            ) from error
        self.register(module, report)
        if not report.ok:
            raise PluginError(f"{path} is not a working plugin", path="-p", why="; ".join(report.errors))

    def register(self, module: Any, report: Report) -> None:
        """Take a plugin's hook implementations, each checked against its spec."""
        for name, function in _marked(module):
            spec = getattr(hookspecs, name, None)
            if spec is None:
                self._fail(report, f"unknown hook '{name}': {did_you_mean(name, _hook_names())}")
                continue
            wrong = _signature_error(spec, function)
            if wrong:
                self._fail(report, f"hook '{name}': {wrong}")
            elif name.startswith("register_"):
                self._call_registration(name, function, report)
            else:
                self._implementations[name].append((report.distribution, function))
        if not report.provides and report.ok and not any(_marked(module)):
            self._fail(report, "it implements no hook: is `@coterie.hookimpl` missing?")

    def _call_registration(self, hook: str, function: Any, report: Report) -> None:
        # A holder with this one function, so that one hook's failure doesn't reach the plugin's others.
        # The hooks are historic: pluggy asks the implementation as soon as its holder is registered.
        holder = ModuleType(f"{report.name}.{hook}")
        setattr(holder, hook, function)
        self._current = report
        try:
            self._manager.register(holder, name=f"{report.distribution}:{report.name}:{hook}")
        except Exception as error:
            if isinstance(error, PluginError):
                raise  # strict mode
            self._fail(report, f"hook '{hook}' raised {type(error).__name__}: {error}", error)
        finally:
            self._current = None

    def _registrar(self, kind: str) -> Any:
        def register(name: str, target: Any) -> None:
            report = self._current
            assert report is not None, "a registration hook was called outside of loading"
            try:
                self.registry.add(kind, name, target, report.distribution)
            except PluginError as error:
                self._fail(report, str(error), error)
            else:
                report.provides.setdefault(kind, []).append(name)

        return register

    def _fail(self, report: Report, message: str, cause: BaseException | None = None) -> None:
        report.ok = False
        report.errors.append(message)
        if os.environ.get("COTERIE_STRICT_PLUGINS") == "1":
            raise PluginError(
                f"plugin '{report.name}' of {report.distribution}: {message}",
                fix="unset COTERIE_STRICT_PLUGINS to go on without it",
            ) from cause

    def notify(self, hook: str, **arguments: Any) -> None:
        """Tell observers; each is isolated, and a failing one is logged by name."""
        for distribution, function in self._implementations[hook]:
            wanted = inspect.signature(function).parameters
            try:
                function(**{name: value for name, value in arguments.items() if name in wanted})
            except Exception as error:
                log.warning("plugin %s: %s raised %s: %s", distribution, hook, type(error).__name__, error)


def _hook_names() -> list[str]:
    return [
        name for name, value in vars(hookspecs).items() if callable(value) and hasattr(value, "coterie_spec")
    ]


def _marked(module: Any) -> Iterable[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        options = getattr(value, "coterie_impl", None)
        if callable(value) and options is not None:
            yield options.get("specname") or name, value


def _signature_error(spec: Any, function: Any) -> str:
    allowed = list(inspect.signature(spec).parameters)
    for name, parameter in inspect.signature(function).parameters.items():
        if (
            parameter.kind is inspect.Parameter.VAR_KEYWORD
            or parameter.kind is inspect.Parameter.VAR_POSITIONAL
        ):
            return "takes *args or **kwargs; name its arguments"
        if name not in allowed:
            return f"has an argument '{name}' that the hook doesn't give; it gives {', '.join(allowed)}"
    return ""


def _distribution(entry: importlib.metadata.EntryPoint) -> tuple[str, str]:
    return (entry.dist.name, entry.dist.version) if entry.dist is not None else ("unknown", "")


@cache
def plugins() -> Plugins:
    """The process's plugins, loaded on first use.

    `COTERIE_PLUGINS=a,b` limits third-party plugins (empty: none); `COTERIE_STRICT_PLUGINS=1` raises where
    one is broken.
    """
    limit = os.environ.get("COTERIE_PLUGINS")
    only = None if limit is None else frozenset(name.strip() for name in limit.split(",") if name.strip())
    manager = Plugins()
    manager.load(only)
    if not any(report.distribution == "coterie" for report in manager.reports):
        # Run from a source tree that isn't installed: the built-ins are missing, and every error
        # after this one would only be a consequence.
        raise UserError(
            "Coterie's own plugins were not found",
            why="the package is not installed",
            fix="pip install -e . in the source tree",
        )
    return manager
