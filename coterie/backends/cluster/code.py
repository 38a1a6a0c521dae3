"""The code of a run in its other processes, and their variables: the same plugins, of the same versions."""

from __future__ import annotations

import importlib.metadata
import linecache
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def replace_variables(values: Mapping[str, str | None]) -> dict[str, str | None]:
    """Set environment variables, or unset them (None); returns their values before."""
    before = {name: os.environ.get(name) for name in values}
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    return before


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """A context with environment variables set, or unset (None), for what starts in it."""
    before = replace_variables(values)
    try:
        yield
    finally:
        replace_variables(before)


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
        with _here(Path(file), content) as path:
            load_plugin_file(path)


def _node() -> str:
    """This node's host, its address and its id: containers and virtual machines may share a host's name."""
    ray: Any = sys.modules.get("ray")  # a rank may be no process of Ray's
    if ray is None or not ray.is_initialized():
        return f"node {socket.gethostname()}"
    node = ray.get_runtime_context().get_node_id()
    return f"node {socket.gethostname()} ({ray.util.get_node_ip_address()}, Ray's node {node[:12]})"


def _check_versions(wanted: Mapping[str, str], here: Mapping[str, str]) -> None:
    differing = [
        f"{name} {here.get(name, 'is missing')} instead of {wanted.get(name, 'none')}"
        for name in sorted({*wanted, *here})
        if wanted.get(name) != here.get(name)
    ]
    if differing:
        what = f"{_node()} has other packages than the run's process"
        raise ConfigError(what, path="cluster", why="; ".join(differing), fix=SAME)


@contextmanager
def _here(file: Path, content: bytes) -> Iterator[Path]:
    """The plugin file on this node, to be imported; where it has none, a copy that is removed afterwards."""
    if file.is_file():
        if file.read_bytes() != content:
            what = f"{_node()} has another content of the plugin file {file}"
            raise ConfigError(
                what, path="cluster", fix="copy the file there, or remove the one that is there"
            )
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="coterie-plugins-") as folder:
        copy = Path(folder) / file.name
        copy.write_bytes(content)
        yield copy
    lines = content.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[str(copy)] = len(content), None, lines, str(copy)  # tracebacks show its lines
