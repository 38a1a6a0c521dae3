"""(kind, name) -> plugin, loaded when it is chosen.

Names are unique within a kind; a taken name is refused and both distributions are named. Where two
distributions want the same name, `distribution:name` selects one; `package.module:Object` names an object
that is not registered.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import MissingExtra, PluginError, did_you_mean, type_text
from coterie.core.plugins import DECLARING, FILES, KINDS, UNCONFIGURED
from coterie.core.plugins.base import PluginConfig
from coterie.core.plugins.origin import raised_at
from coterie.discovery.imports import import_fix, install_fix, raised
from coterie.extras import EXTRA_OF

IN_A_FILE = "if a file of yours has it: -p FILE.py; in Python: coterie.load_plugin_file(FILE)"
A_CLASS = "register the class itself, or 'module:Class'"


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered plugin."""

    kind: str
    name: str
    target: Any
    """The object, or `"module:attribute"`."""
    distribution: str
    config: Any = None
    """The target's `Config`, registered beside it: the class, or `"module:Class"`."""
    policy: Any = None
    """The target's `Policy`, likewise."""

    @property
    def label(self) -> str:
        return f"{self.kind} '{self.name}' of {self.distribution}"

    @property
    def declared(self) -> dict[str, Any]:
        """What was registered beside the target, by the name of the class attribute."""
        both = {"Config": self.config, "Policy": self.policy}
        return {attribute: value for attribute, value in both.items() if value is not None}

    def load(self, path: str = "") -> Any:
        """The object itself; `path` is where the configuration names it, for errors."""
        if not isinstance(self.target, str) or self.kind in FILES:
            return self.target
        return import_object(self.target, self.label, path, self.distribution)

    def load_class(self, path: str = "") -> Any:
        """The class itself, where plugins of the kind are made from tables.

        Raises:
            PluginError: it is no class. For the rest as `Registry.load`.
        """
        target = self.load(path)
        if not inspect.isclass(target):
            why = f"it is {type_text(target)}"
            raise PluginError(f"{self.label} is no class", path=path, why=why, fix=A_CLASS)
        return target

    def attribute(self, name: str, path: str = "") -> Any:
        """The class's `Config` or `Policy`, or None. What was registered is imported without the target.

        Raises:
            PluginError: it can't be imported or is no class, or the `Config` is no PluginConfig.
            MissingExtra: its module needs an optional package that isn't there.
        """
        model = self.declared[name] if name in self.declared else getattr(self.load_class(path), name, None)
        if isinstance(model, str):
            model = import_object(model, f"the {name} of {self.label}", path, self.distribution)
        is_config = isinstance(model, type) and issubclass(model, PluginConfig)
        if name == "Config" and model is not None and not is_config:
            what, why = f"the Config of {self.label} is no PluginConfig", "unknown keys would be ignored"
            fix = "class Config(coterie.PluginConfig)"
            raise PluginError(what, path=path, why=f"{why}; it is {model!r}", fix=fix)
        return model

    def check(self, target: Any, path: str = "") -> None:
        """Check that what was registered beside the target is the target's own.

        Raises:
            PluginError: `target` has another `Config` or `Policy`.
        """
        for name in self.declared:
            registered, of_target = self.attribute(name, path), getattr(target, name, None)
            if of_target is not registered:
                what = f"{self.label} has another {name} than the one registered beside it"
                why = f"registered: {registered!r}; the class's: {of_target!r}"
                fix = f"write `{name} = {registered.__name__}` in the class"
                raise PluginError(what, path=path, why=why, fix=fix)


@dataclass(frozen=True, slots=True)
class ExampleEntry:
    """What a plugin registered as examples of a component; nothing of it is looked at until a check."""

    kind: Any
    name: Any
    target: Any
    """A `coterie.testing.Example`, several in a list, or `"module:attribute"`."""
    distribution: str
    error: str = ""
    """What the hook raised, in place of an example."""


class Registry:
    """What is registered, by kind and name."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
        self._qualified: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
        self.examples: list[ExampleEntry] = []
        """For `coterie check`; a run reads none."""
        self.absent: list[str] = []
        """Why a name may be missing: plugins that are broken or left out."""

    def add(
        self, kind: str, name: str, target: Any, distribution: str, config: Any = None, policy: Any = None
    ) -> None:
        """Register one plugin.

        Args:
            config, policy: the target's `Config` and `Policy`, to be read without importing the target.

        Raises:
            PluginError: the name is taken (it can still be had as `distribution:name`), or `config` or
                `policy` is neither a class nor `"module:Class"`, or the kind has none.
        """
        if not isinstance(name, str) or not name or ":" in name:
            raise PluginError(
                f"{kind} name {name!r} is not a plain word", fix="use letters, digits, '-' and '_'"
            )
        entry = Entry(kind, name, target, distribution, config, policy)
        for attribute, value in entry.declared.items():
            if kind in UNCONFIGURED or (attribute == "Policy" and kind not in DECLARING):
                raise PluginError(f"{kind} '{name}': a {kind} has no {attribute}", fix="leave it out")
            if not isinstance(value, type) and not (isinstance(value, str) and ":" in value):
                what = f"{kind} '{name}': the {attribute} is neither a class nor 'module:Class'"
                raise PluginError(what, why=f"got {value!r}")
        self._qualified[kind][f"{distribution}:{name}"] = entry
        taken = self._entries[kind].get(name)
        if taken is not None:
            in_a_file = distribution.endswith(".py")  # a file with a fault is refused as a whole
            raise PluginError(
                f"{kind} '{name}' of {distribution} is already registered by {taken.distribution}",
                fix="choose another name"
                + ("" if in_a_file else f", or select it as '{distribution}:{name}'"),
            )
        self._entries[kind][name] = entry

    def discard(self, entry: Entry) -> None:
        """Forget an entry."""
        self._entries[entry.kind].pop(entry.name, None)
        self._qualified[entry.kind].pop(f"{entry.distribution}:{entry.name}", None)

    def qualified(self, kind: str) -> list[Entry]:
        """Every entry of a kind, with those that lost their name to another distribution."""
        return [entry for _, entry in sorted(self._qualified[kind].items())]

    def names(self, kind: str) -> list[str]:
        return sorted(self._entries[kind])

    def entries(self, kind: str) -> list[Entry]:
        return [self._entries[kind][name] for name in self.names(kind)]

    def find(self, kind: str, name: str, *, path: str = "") -> Entry:
        """The entry of a name, of `distribution:name`, or of `package.module:Object`.

        Raises:
            PluginError: no plugin has that name; the nearest name is in the message.
        """
        entry = self._entries[kind].get(name) or self._qualified[kind].get(name)
        if entry is not None:
            return entry
        if name.partition(":")[0].replace(".", "_").isidentifier() and ":" in name:
            return Entry(kind, name, name, name.split(":")[0].split(".")[0])
        raise PluginError(f"unknown {kind} '{name}'", path=path, **self.hints(name, self._entries[kind]))

    def hints(self, name: str, known: Iterable[str], fix: str = "") -> dict[str, Any]:
        """`why` and `fix` of an error about an unknown name: the nearest, and plugins that may have it."""
        return {"why": "; ".join(self.absent), "fix": f"{did_you_mean(name, known)}{fix} ({IN_A_FILE})"}

    def load(self, kind: str, name: str, *, path: str = "") -> Any:
        """The plugin object itself.

        Raises:
            PluginError: unknown, or its module doesn't import.
            MissingExtra: its module needs an optional package that isn't there.
        """
        return self.find(kind, name, path=path).load(path)

    def config_of(self, kind: str, name: str, *, path: str = "") -> Any:
        """A plugin's `Config`, or None; the plugin is imported only where none is registered beside it."""
        return self.find(kind, name, path=path).attribute("Config", path)

    def policy_of(self, kind: str, name: str, *, path: str = "") -> Any:
        """The `Policy` of a trainer or an engine: what it reads of a policy's table. None: nothing more."""
        return self.find(kind, name, path=path).attribute("Policy", path)


def import_object(target: str, what: str, path: str = "", distribution: str = "") -> Any:
    """Import `package.module:Object`; `what`, `path` and `distribution` name it in errors.

    Raises:
        PluginError: no such module or attribute, or the module fails.
        MissingExtra: an optional dependency of Coterie is missing.
    """
    module_name, _, attribute = target.partition(":")
    failed = f"{what} can't be imported from '{target}'"
    if not attribute:
        raise PluginError(failed, path=path, why="it names a module alone", fix="write 'module:attribute'")
    try:
        target_object = importlib.import_module(module_name)
        for part in attribute.split("."):
            target_object = getattr(target_object, part)
    except ModuleNotFoundError as error:
        root = (error.name or "").split(".")[0]
        if root in EXTRA_OF:
            raise MissingExtra(root, EXTRA_OF[root], needed_by=what) from error
        fix = f"install its package, or put the module's folder on PYTHONPATH; {IN_A_FILE}"
        if root != module_name.partition(".")[0]:  # the plugin is there, and what it imports is not
            fix = install_fix(root, distribution)
        raise PluginError(failed, path=path, why=str(error), fix=fix) from error
    except AttributeError as error:
        raise PluginError(
            failed, path=path, why=f"{error}{raised_at(error)}", fix="check the spelling"
        ) from error
    except (KeyboardInterrupt, MissingExtra):
        raise
    except BaseException as error:  # a plugin's module may fail in any way, even by sys.exit
        raise PluginError(
            f"{what} fails when '{module_name}' is imported",
            path=path,
            why=raised(error),
            fix=import_fix(error, distribution or module_name),
        ) from error
    return target_object
