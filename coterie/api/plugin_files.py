"""Plugins in single files: `coterie run -p my_plugin.py`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from coterie.core.errors import PluginError
from coterie.core.plugins import Plugins, Report
from coterie.core.plugins.registry import renamed


def load_plugin_file(manager: Plugins, path: Path) -> None:
    """Load one file as a plugin. Its errors are the user's, so they are raised and not only reported.

    Raises:
        PluginError: the file doesn't import, is loaded already, or its hooks are wrong.
    """
    if not path.is_file():
        raise PluginError(f"no such plugin file: {path}", path="-p")
    name = path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise PluginError(f"{path} is not a Python file", path="-p")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(name, module)  # so that `my_plugin:Object` and pickling find it
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise PluginError(
            f"{path} fails when it is imported",
            path="-p",
            why=f"{type(error).__name__}: {error}{renamed(error)}",
        ) from error
    if any(report.distribution == str(path) for report in manager.reports):
        raise PluginError(f"{path} is loaded already", path="-p", fix="name it once")
    report = Report(name, str(path), "")
    manager.add(module, report)
    if not report.ok:
        raise PluginError(f"{path} is not a working plugin", path="-p", why="; ".join(report.errors))
