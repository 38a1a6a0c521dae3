"""Discovery of plugins through the entry-point group `coterie`.

pluggy finds a plugin's hook implementations and checks their signatures. This module adds isolation: an
entry point that fails to import, misspells a hook, has a wrong signature or takes a name that is taken is
*reported*, with its distribution and its error, and everything else works. Nothing here runs when `coterie`
is imported; `plugins()` makes the manager on first use.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import logging
import os
from functools import cache
from types import ModuleType
from typing import Any

import pluggy

from coterie import deprecations
from coterie.core.errors import PluginError, UserError, did_you_mean, type_text
from coterie.core.plugins import KINDS
from coterie.discovery import api_version, hookspecs
from coterie.discovery.imports import Report as Report, import_fix, raised, removal, timed
from coterie.discovery.registry import ExampleEntry, Registry

GROUP = "coterie"
log = logging.getLogger("coterie")

_IRREGULAR = {"loss": "losses", "sandbox": "sandboxes", "study": "studies"}
KIND_OF: dict[str, str] = {f"register_{_IRREGULAR.get(kind, kind + 's')}": kind for kind in KINDS}
"""Registration hook -> kind."""
EXAMPLES = "register_examples"
"""The hook for examples of components, which only a check reads."""


class Plugins(pluggy.PluginManager):
    """The plugin manager, with a registry of what plugins register and a report on each plugin."""

    def __init__(self) -> None:
        super().__init__(GROUP)
        self.add_hookspecs(hookspecs)
        self.registry = Registry()
        self.reports: list[Report] = []
        self._report = Report("", "", "")
        self._told: set[tuple[Any, type]] = set()

    def load(self, only: frozenset[str] | None = None) -> None:
        """Load the entry points: our own first, then the others in a stable order.

        Args:
            only: limits third-party plugins to these entry-point or distribution names.
        """
        seen: set[tuple[str, str]] = set()
        known: set[str] = set()
        entries = sorted(importlib.metadata.entry_points(group=GROUP), key=_order)
        for entry in entries:
            distribution, version = (entry.dist.name, entry.dist.version) if entry.dist else ("unknown", "")
            twice = (distribution, entry.value) in seen  # by an editable install beside a wheel
            seen.add((distribution, entry.value))
            known |= {entry.name, distribution}
            if not (distribution == "coterie" or only is None or {entry.name, distribution} & only):
                self.registry.absent.append(f"COTERIE_PLUGINS leaves out '{entry.name}' of {distribution}")
                continue
            if twice:
                continue
            report = Report(entry.name, distribution, version, module=entry.value)
            if importlib.metadata.EntryPoint.pattern.match(entry.value) is None:
                self.reports.append(report)
                self.fail(report, f"its value {entry.value!r} names no module", "write `name = module`")
                continue
            try:
                with timed(report, _without(entry, entries)):
                    module = entry.load()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a stranger's module may raise anything, even SystemExit
                self.reports.append(report)
                self.fail_import(report, error)
            else:
                self.add(module, report)
        for name in sorted((only or frozenset()) - known):
            near = did_you_mean(name, known)
            log.warning("COTERIE_PLUGINS names '%s', which no installed plugin has: %s", name, near)

    def add(self, module: Any, report: Report) -> None:
        """Register a plugin's hook implementations and call its registration hooks, each by itself.

        Raises:
            PluginError: with `COTERIE_STRICT_PLUGINS=1`, where something is wrong with it.
        """
        self.reports.append(report)
        self._report = report
        try:
            self._add(module, report)
        except (KeyboardInterrupt, PluginError):
            raise
        except BaseException as error:  # an object may raise at any look at it
            fix = f"correct the module, or remove the plugin: {removal(report.distribution)}"
            self.fail(report, f"its hooks can't be read: {raised(error)}", fix, error)

    def _add(self, module: Any, report: Report) -> None:
        what, fix = api_version.refusal(api_version.stated(module), report.distribution)
        if what:
            self.fail(report, what, fix)
            return
        if not hasattr(module, "__dict__"):  # a number, a list, an array
            what = f"{report.module or report.name} is {type_text(module)}, which has no hooks"
            point = f"{report.name} = {report.module.partition(':')[0]}"
            self.fail(report, what, f"name the module that has them: `{point}`")
            return
        if self.is_registered(module):  # two distributions name one module
            module, shared = ModuleType(report.name), module
            vars(module).update(vars(shared))
        try:
            self.register(module, name=f"{report.distribution}:{report.name}")
        except ValueError as error:  # two entry points of one name
            what, fix = str(error).partition("\n")[0], "give each entry point of a package a name of its own"
            self.fail(report, what, fix, error)
            return
        callers = self.get_hookcallers(module) or []
        for caller in callers:
            report.hooks.append(caller.name)
            if entry := deprecations.deprecated("hook", caller.name):
                report.warnings.append(entry.text())
                deprecations.warn(f"plugin '{report.name}' of {report.distribution}", entry.text())
            for implementation in caller.get_hookimpls():
                if implementation.plugin is module and caller.name in KIND_OF:
                    self._call_registration(caller.name, implementation.function, report)
                elif implementation.plugin is module and caller.name == EXAMPLES:
                    self._call_examples(implementation.function, report)
        if not callers and report.ok:
            self.fail(report, "it implements no hook", "is `@coterie.hookimpl` missing above its functions?")

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> pluggy.HookimplOpts | None:
        """The options of a hook implementation, or None; a wrong one is reported and left out."""
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None and name in (*KIND_OF, EXAMPLES) and inspect.isroutine(getattr(plugin, name)):
            what = f"`{name}` is never called: `@coterie.hookimpl` is missing above it"
            self.fail(self._report, what, "write it there, or rename the function if it is no hook")
        if options is not None:
            what, fix = _problem(options["specname"] or name, options, getattr(plugin, name))
            if what:
                self.fail(self._report, what, fix)
                return None
        return options

    def _call_registration(self, hook: str, function: Any, report: Report) -> None:
        def register(name: str, target: Any, config: Any = None, policy: Any = None) -> None:
            try:
                self.registry.add(KIND_OF[hook], name, target, report.distribution, config, policy)
            except PluginError as error:
                self.fail(report, str(error), cause=error)
            else:
                report.provides.setdefault(KIND_OF[hook], []).append(name)

        register.__qualname__ = "register"  # as a wrong call names it
        try:
            function(register=register)
        except (KeyboardInterrupt, PluginError):
            raise  # PluginError: strict mode
        except BaseException as error:  # also SystemExit, which would end the command without a word
            what = f"hook '{hook}' raised {raised(error)}"
            fix = f"correct the hook (it only calls `register`), or {removal(report.distribution)}"
            self.fail(report, what, fix, error)

    def _call_examples(self, function: Any, report: Report) -> None:
        def register(kind: str, name: str, target: Any) -> None:
            self.registry.examples.append(ExampleEntry(kind, name, target, report.distribution))

        try:
            function(register=register)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # told by a check: no run needs an example
            text = f"hook '{EXAMPLES}' raised {raised(error)}"
            self.registry.examples.append(ExampleEntry("", "", None, report.distribution, text))

    def fail_import(self, report: Report, error: BaseException) -> None:
        """Report a plugin whose import raised; one for another version of the API as such.

        Raises:
            PluginError: with `COTERIE_STRICT_PLUGINS=1`.
        """
        statement = api_version.stated_in_source(error, report.module.partition(":")[0])
        what, fix = api_version.refusal(statement, report.distribution)
        text = f"import failed: {raised(error)}"
        if what:
            self.fail(report, f"{what} ({text})", fix, error)
        else:
            self.fail(report, text, import_fix(error, report.distribution), error)

    def fail(self, report: Report, what: str, fix: str = "", cause: BaseException | None = None) -> None:
        """Report a broken plugin.

        Raises:
            PluginError: with `COTERIE_STRICT_PLUGINS=1`.
        """
        message = str(UserError(what, fix=fix))
        report.ok = False
        report.errors.append(message)
        first = message.partition("\n")[0]
        self.registry.absent.append(f"plugin '{report.name}' of {report.distribution} is broken: {first}")
        if os.environ.get("COTERIE_STRICT_PLUGINS") == "1":
            raise PluginError(
                f"plugin '{report.name}' of {report.distribution}: {message}",
                fix="unset COTERIE_STRICT_PLUGINS to go on without it",
            ) from cause

    def observers(self) -> set[str]:
        """The distributions, and the files, of the plugins that observe runs."""
        hooks = {name for name in vars(self.hook) if name in hookspecs.WHEN}
        return {report.distribution for report in self.reports if hooks & set(report.hooks)}

    def notify(self, hook: str, **arguments: Any) -> None:
        """Call the observers of a hook; each is isolated. Its failure is logged, once an exception's type."""
        for observer in getattr(self.hook, hook).get_hookimpls():
            wanted = inspect.signature(observer.function).parameters
            try:
                observer.function(**{name: arguments[name] for name in wanted})
            except Exception as error:
                distribution, kind = observer.plugin_name.partition(":")[0], type(error)
                if (observer.function, kind) not in self._told:
                    self._told.add((observer.function, kind))
                    log.warning("plugin %s: %s raised %s", distribution, hook, raised(error))


def _order(entry: importlib.metadata.EntryPoint) -> tuple[bool, str, str]:
    distribution = entry.dist.name if entry.dist else "unknown"
    return distribution != "coterie", distribution, entry.name


def _without(entry: importlib.metadata.EntryPoint, entries: list[importlib.metadata.EntryPoint]) -> str:
    """How to go on without an entry point's plugin."""
    others = sorted({other.name for other in entries if _order(other)[0] and other.name != entry.name})
    named = ",".join(others) if len(others) <= 6 else "the names of the others"
    return f"COTERIE_PLUGINS={named or chr(39) * 2} leaves it out"


def _problem(hook: str, options: pluggy.HookimplOpts, function: Any) -> tuple[str, str]:
    """(what, fix) of what is wrong with an implementation of a hook; empty texts: nothing."""
    specification: Any = getattr(hookspecs, hook, None)
    if not hasattr(specification, "coterie_spec"):
        hooks = [known for known, value in vars(hookspecs).items() if hasattr(value, "coterie_spec")]
        fix = "rename the function, or name the hook: `@coterie.hookimpl(specname=...)`"
        return f"unknown hook '{hook}': {did_you_mean(hook, hooks)}", fix
    gives = list(inspect.signature(specification).parameters)
    right = f"write `def {hook}({', '.join(gives)})`"
    if options["wrapper"] or options["hookwrapper"]:
        return f"hook '{hook}': a wrapper is never called", "leave `wrapper` out"
    if inspect.iscoroutinefunction(function):
        return f"hook '{hook}': is `async def`, and nothing awaits it", right
    takes = inspect.signature(function).parameters
    if any(
        parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in takes.values()
    ):
        return f"hook '{hook}': takes *args or **kwargs; name its arguments", right
    if unknown := [name for name in takes if name not in gives]:
        what = f"hook '{hook}': has an argument '{unknown[0]}' that the hook doesn't give"
        return what, right
    if hook in (*KIND_OF, EXAMPLES) and not takes:
        return f"hook '{hook}': takes no argument `register`, so it can register nothing", right
    return "", ""


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
    for report in manager.reports:
        if not report.ok:
            log.warning("plugin '%s' of %s: %s", report.name, report.distribution, "; ".join(report.errors))
    if not any(report.distribution == "coterie" for report in manager.reports):
        # Run from a source tree that isn't installed: the built-ins are missing, and every error
        # after this one would only be a consequence.
        raise UserError(
            "Coterie's own plugins were not found",
            why="the package is not installed",
            fix="pip install -e . in the source tree",
        )
    return manager
