"""Plugins in single files: `coterie run -p my_plugin.py`. A run folder remembers them."""

from __future__ import annotations

import importlib.util
import logging
import sys
from collections.abc import Iterable
from pathlib import Path
from weakref import WeakKeyDictionary

from coterie.compose.contents import module_file
from coterie.core.errors import PluginError
from coterie.discovery import Plugins, Report
from coterie.discovery.registry import renamed

log = logging.getLogger("coterie")

_LOADED: WeakKeyDictionary[Plugins, dict[Path, tuple[bytes, Report]]] = WeakKeyDictionary()
"""By manager and file: the content that was loaded, and what became of it."""


def load_plugin_file(manager: Plugins, path: Path) -> None:
    """Load one file as a plugin. Its errors are the user's, so they are raised and not only reported.

    A file that is loaded already, with the same content, is left as it is.

    Raises:
        PluginError: the file doesn't import, was loaded with another content, or its hooks are wrong.
    """
    if not path.is_file():
        raise PluginError(f"no such plugin file: {path}", fix="name a Python file")
    content, loaded = path.read_bytes(), _LOADED.setdefault(manager, {})
    if path.resolve() in loaded:
        before, report = loaded[path.resolve()]
        if before != content:
            what, why = f"{path} is loaded already", "it has changed since"
            raise PluginError(what, why=why, fix="start a new process")
        _check_report(path, report)
        return
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file", fix="its name ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # so that `my_plugin:Object` and pickling find it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        why = f"{type(error).__name__}: {error}{renamed(error)}"
        raise PluginError(f"{path} fails when it is imported", why=why) from error
    report = Report(name, str(path), "")
    loaded[path.resolve()] = content, report
    manager.add(module, report)
    _check_report(path, report)


def _check_report(path: Path, report: Report) -> None:
    if not report.ok:
        raise PluginError(f"{path} is not a working plugin", why="; ".join(report.errors))


def loaded_files(manager: Plugins) -> list[Path]:
    """The files that were loaded, as absolute paths."""
    return list(_LOADED.get(manager, {}))


def make_importable(module: str, file: Path) -> None:
    """Let a module whose file a run folder remembers be imported, where no other place has it."""
    parents = file.parent if file.name == "__init__.py" else file
    folder = str(parents.parents[module.count(".")])
    if file.is_file() and module_file(module) is None and folder not in sys.path:
        sys.path.append(folder)


def load_remembered(manager: Plugins, files: Iterable[str], folder: Path) -> None:
    """Load the plugin files of the run in `folder` that aren't loaded yet.

    A loaded file of the same name replaces one that was moved.

    Raises:
        PluginError: a file is no working plugin any more.
    """
    for file in map(Path, files):
        loaded = loaded_files(manager)
        if file in loaded or file.name in {path.name for path in loaded}:
            continue
        if file.is_file():
            load_plugin_file(manager, file)
            log.info("%s: the plugin file %s is loaded again", folder, file)
        else:
            log.warning("%s: the plugin file %s is gone; name its new place: -p FILE", folder, file)
