"""(kind, name) -> plugin, loaded when it is chosen.

Names are unique within a kind; a taken name is refused and both distributions are named. Where two
distributions want the same name, `distribution:name` selects one; `package.module:Object` names an object
that is not registered.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from coterie.core.errors import MissingExtra, PluginError, did_you_mean

KINDS: tuple[str, ...] = (
    "environment",
    "role",
    "reward",
    "estimator",
    "loss",
    "transition",
    "sampler",
    "engine",
    "trainer",
    "executor",
    "sandbox",
    "tool",
    "chat_format",
    "data_source",
    "tracker",
    "recipe",
    "overlay",
    "column",
    "study",
    "command",
)
"""Every kind of plugin; each has a hook `register_<kind>s`."""

FILES = ("recipe", "overlay", "column")
"""Kinds whose target names a file, not an object."""

EXTRA_OF: dict[str, str] = {
    "torch": "torch",
    "transformers": "torch",
    "peft": "torch",
    "safetensors": "torch",
    "tokenizers": "torch",
    "matplotlib": "torch",
    "vllm": "vllm",
    "deepspeed": "deepspeed",
    "ray": "ray",
    "google": "coach",
    "math_verify": "math",
    "datasets": "data",
    "pyarrow": "data",
    "jinja2": "data",
    "mcp": "mcp",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
}
"""Which extra brings an optional package."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One registered plugin."""

    kind: str
    name: str
    target: Any
    """The object, or `"module:attribute"`."""
    distribution: str

    def load(self, path: str = "") -> Any:
        """The object itself; `path` is where the configuration names it, for errors."""
        if not isinstance(self.target, str) or self.kind in FILES:
            return self.target
        return import_object(self.target, f"{self.kind} '{self.name}' of {self.distribution}", path)


class Registry:
    """What is registered, by kind and name."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
        self._qualified: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}

    def add(self, kind: str, name: str, target: Any, distribution: str) -> None:
        """Register one plugin.

        Raises:
            PluginError: the name is taken (it can still be had as `distribution:name`).
        """
        if not isinstance(name, str) or not name or ":" in name:
            raise PluginError(
                f"{kind} name {name!r} is not a plain word", fix="use letters, digits, '-' and '_'"
            )
        entry = Entry(kind, name, target, distribution)
        self._qualified[kind][f"{distribution}:{name}"] = entry
        taken = self._entries[kind].get(name)
        if taken is not None:
            raise PluginError(
                f"{kind} '{name}' of {distribution} is already registered by {taken.distribution}",
                fix=f"choose another name, or select it as '{distribution}:{name}'",
            )
        self._entries[kind][name] = entry

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
        if ":" in name:
            return Entry(kind, name, name, name.split(":")[0].split(".")[0])
        raise PluginError(f"unknown {kind} '{name}'", path=path, fix=did_you_mean(name, self._entries[kind]))

    def load(self, kind: str, name: str, *, path: str = "") -> Any:
        """The plugin object itself.

        Raises:
            PluginError: unknown, or its module doesn't import.
            MissingExtra: its module needs an optional package that isn't there.
        """
        return self.find(kind, name, path=path).load(path)


def renamed(error: BaseException) -> str:
    """A hint where an import failed since a name of Coterie's own is gone; else empty."""
    ours = isinstance(error, ImportError) and (error.name or "").split(".")[0] == "coterie"
    return " (CHANGELOG.md lists old and new names)" if ours else ""


def import_object(target: str, what: str, path: str = "") -> Any:
    """Import `package.module:Object`; `what` and `path` name it in errors.

    Raises:
        PluginError: no such module or attribute, or the module fails.
        MissingExtra: an optional dependency of Coterie is missing.
    """
    module_name, _, attribute = target.partition(":")
    try:
        target_object = importlib.import_module(module_name)
        for part in attribute.split("."):
            target_object = getattr(target_object, part)
    except ModuleNotFoundError as error:
        root = (error.name or "").split(".")[0]
        if root in EXTRA_OF:
            raise MissingExtra(root, EXTRA_OF[root], needed_by=what) from error
        raise PluginError(
            f"{what} can't be imported from '{target}'", path=path, why=f"{error}{renamed(error)}"
        ) from error
    except AttributeError as error:
        raise PluginError(f"{what} can't be imported from '{target}'", path=path, why=str(error)) from error
    except MissingExtra:
        raise
    except Exception as error:  # a plugin's module may fail in any way
        raise PluginError(
            f"{what} fails when '{module_name}' is imported",
            path=path,
            why=f"{type(error).__name__}: {error}{renamed(error)}",
        ) from error
    return target_object
