"""Plugin files that a run folder remembers. `coterie.discovery.files` loads them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from pathlib import Path

from coterie.compose.contents import module_file
from coterie.discovery import Plugins
from coterie.discovery.files import load_plugin_file, loaded_files as loaded_files

log = logging.getLogger("coterie")


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
            load_plugin_file(file, manager)
            log.info("%s: the plugin file %s is loaded again", folder, file)
        else:
            log.warning("%s: the plugin file %s is gone; name its new place: -p FILE", folder, file)
