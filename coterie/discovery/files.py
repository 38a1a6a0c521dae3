"""Plugins in single files: `coterie run -p my_plugin.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from weakref import WeakKeyDictionary

from coterie.core.errors import PluginError
from coterie.discovery import api_version
from coterie.discovery.imports import raised, timed
from coterie.discovery.manager import Plugins, Report, plugins

_LOADED: WeakKeyDictionary[Plugins, dict[Path, tuple[bytes, Report]]] = WeakKeyDictionary()
"""By manager and file: the content that was loaded, and what became of it."""


def load_plugin_file(path: Path | str, manager: Plugins | None = None) -> None:
    """Load one file as a plugin of this process, as `coterie run -p FILE` does.

    Its errors are the user's, so they are raised and not only reported. A file that is loaded already, with
    the same content, is left as it is.

    Args:
        manager: None: the one of this process.

    Raises:
        PluginError: the file doesn't import, was loaded with another content, or its hooks are wrong.
    """
    path, manager = Path(path), plugins() if manager is None else manager
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
    report = Report(name, str(path), "", module=name)
    try:
        with timed(report, f"leave out `-p {path}`"):
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:  # it would end the command without a word
        fix = "call it under `if __name__ == '__main__':` alone"
        raise PluginError(f"{path} calls sys.exit({error.code!r}) when it is imported", fix=fix) from error
    except BaseException as error:  # a stranger's module may raise anything
        what, fix = api_version.refusal(api_version.stated_in_source(error, name), path.name)
        if what:
            raise PluginError(f"{path}: {what}", fix=fix) from error
        why, fix = raised(error), f"correct {path.name}"
        if isinstance(error, ImportError) and (error.name or "").partition(".")[0] == "coterie":
            fix = "docs/public_names.md lists the names of coterie"
        elif isinstance(error, ModuleNotFoundError):
            fix = f"install it; what lies beside the file is found with PYTHONPATH={path.resolve().parent}"
        raise PluginError(f"{path} fails when it is imported", why=why, fix=fix) from error
    loaded[path.resolve()] = content, report
    manager.add(module, report)
    _check_report(path, report)


def _check_report(path: Path, report: Report) -> None:
    if not report.ok:
        raise PluginError(f"{path} is not a working plugin", why="; ".join(report.errors))


def loaded_files(manager: Plugins) -> list[Path]:
    """The files that were loaded, as absolute paths."""
    return list(_LOADED.get(manager, {}))


def contents(manager: Plugins) -> dict[Path, bytes]:
    """The content of each file that was loaded."""
    return {path: content for path, (content, _) in _LOADED.get(manager, {}).items()}
