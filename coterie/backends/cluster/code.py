"""The code of a run in its other processes: the same plugins, of the same versions, on every node."""

from __future__ import annotations

import hashlib
import importlib.metadata
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.core.errors import ConfigError
from coterie.discovery import plugins
from coterie.discovery.files import contents, load_plugin_file

SAME = "install the same versions on every node, and start the cluster anew"


@dataclass(frozen=True, slots=True)
class Code:
    """What a process imports. Picklable."""

    places: tuple[str, ...]
    """`sys.path`, absolute."""
    versions: Mapping[str, str]
    """By distribution: of Coterie, of plugins, and of the libraries whose versions change results."""
    files: Mapping[str, bytes]
    """Plugin files, by absolute path."""


def own_code() -> Code:
    """The code of this process."""
    files = {str(path): content for path, content in contents(plugins()).items()}
    return Code(tuple(str(Path(place).resolve()) for place in sys.path), _versions(), files)


def _versions() -> dict[str, str]:
    versions = {}
    plugged = {r.distribution for r in plugins().reports if not r.distribution.endswith(".py")}
    for name in sorted({*plugged, "torch", "transformers", "peft", "numpy", "ray"}):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def use_code(code: Code) -> None:
    """Import from where the run's process does, and load its plugin files.

    Raises:
        ConfigError: this node has other versions, or another content of a plugin file.
        PluginError: a plugin file doesn't import here.
    """
    sys.path.extend(place for place in code.places if place not in sys.path)
    _check_versions(code.versions, _versions())
    for file, content in code.files.items():
        load_plugin_file(plugins(), _here(Path(file), content))


def _check_versions(wanted: Mapping[str, str], here: Mapping[str, str]) -> None:
    differing = [
        f"{name} {here.get(name, 'is missing')} instead of {wanted.get(name, 'none')}"
        for name in sorted({*wanted, *here})
        if wanted.get(name) != here.get(name)
    ]
    if differing:
        what = f"node {socket.gethostname()} has other packages than the run's process"
        raise ConfigError(what, path="cluster", why="; ".join(differing), fix=SAME)


def _here(file: Path, content: bytes) -> Path:
    """The plugin file on this node; where it has none, a copy."""
    if file.is_file():
        if file.read_bytes() == content:
            return file
        what = f"node {socket.gethostname()} has another content of the plugin file {file}"
        raise ConfigError(what, path="cluster", fix="copy the file there, or remove the one that is there")
    folder = Path(tempfile.gettempdir()) / f"coterie-plugins-{hashlib.sha256(content).hexdigest()[:16]}"
    folder.mkdir(exist_ok=True)
    copy = folder / file.name
    copy.write_bytes(content)
    return copy
