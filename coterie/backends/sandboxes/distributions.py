"""Distributions that programs may import, such as pandas, and all that these require, by their metadata.

Programs see the files of these distributions, read-only, and nothing else of the environment of the run.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from coterie.core.errors import ConfigError, did_you_mean, nearest

EXTRA = {"pandas", "scikit-learn", "scipy"}
"""Distributions that the extra `data-science` brings."""
AHEAD: Mapping[str, tuple[str, ...]] = {
    "scikit-learn": tuple(
        f"sklearn.{name}"
        for name in (
            "compose", "ensemble", "feature_selection", "impute", "linear_model", "metrics",
            "model_selection", "neighbors", "pipeline", "preprocessing", "svm", "tree",
        )
    ),
    "scipy": ("scipy.optimize", "scipy.sparse", "scipy.special", "scipy.stats"),
}  # fmt: skip
"""Modules that workers import ahead, for distributions whose top-level module imports little."""
ENVIRONMENT = {
    "JOBLIB_MULTIPROCESSING": "0",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables of programs with packages: one thread each, since there is a program for each CPU. And joblib
(`n_jobs` of scikit-learn) starts no processes, whose locks would need /dev/shm."""
_SYSTEM = {"/"} | {
    f"/{name}"
    for name in (
        "bin", "boot", "dev", "etc", "home", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "sys",
        "tmp", "usr", "var",
    )
}  # fmt: skip
"""Folders that are no place for packages: programs would see what is none of theirs."""
FOLDERS_OF_PYTHON = (sys.base_prefix, sys.base_exec_prefix, "/usr", "/usr/local")
"""Folders with a Python and what is installed for it, which programs see in part."""
_WHOLE = (".dist-info", ".egg-info", ".libs", ".data")
"""Folders of one distribution alone, that aren't packages."""


class Packages(NamedTuple):
    """What programs see besides the interpreter and the system's libraries."""

    shown: tuple[str, ...] = ()
    """Files and folders that they can read."""
    folders: tuple[str, ...] = ()
    """Folders on their `sys.path`."""
    modules: tuple[str, ...] = ()
    """Modules that workers import ahead."""
    versions: Mapping[str, str] = {}
    """Versions of the distributions, by name."""


def split(packages: Iterable[str | Path]) -> tuple[list[str], list[str]]:
    """The names of distributions, and the folders, of the setting `packages`: a folder has a `/`, or is a
    Path."""
    names: list[str] = []
    folders: list[str] = []
    for entry in packages:
        if isinstance(entry, str) and os.sep not in entry:
            names.append(entry)
        else:
            folders.append(os.path.realpath(os.path.expanduser(entry)))
    return names, folders


def find(packages: Sequence[str | Path], path: str = "sandbox.packages") -> Packages:
    """The folders and distributions that the setting names, and all that these distributions require.

    Args:
        path: of the setting, for messages.

    Raises:
        ConfigError: a folder or distribution is not there, has another version, or is Coterie's own.
    """
    names, folders = split(packages)
    for folder in folders:
        _check_folder(folder, path)
    named = [requirement_of(name, path) for name in names]
    distributions = _with_dependencies(named, path)
    shown: dict[str, None] = {}
    places: dict[str, None] = {}
    for distribution in distributions.values():
        place = os.path.realpath(str(distribution.locate_file("")))
        places[place] = None
        shown.update(dict.fromkeys(_entries(distribution, place, path)))
    modules = [
        module
        for requirement in named
        for module in _modules(distributions[canonicalize_name(requirement.name)])
    ]
    return Packages(
        shown=(*folders, *shown),
        folders=(*folders, *places),
        modules=tuple(dict.fromkeys(modules)),
        versions={name: distribution.version for name, distribution in sorted(distributions.items())},
    )


def _check_folder(folder: str, path: str) -> None:
    """Raise ConfigError for a folder that is not there, or that has more than packages."""
    if not os.path.isdir(folder):
        fix = "name the folder that it is in" if os.path.isfile(folder) else "name one that exists"
        raise ConfigError(f"there is no folder {folder}", fix=fix, path=path)
    fix = "name a folder that holds packages for programs alone"
    if folder in _SYSTEM or folder.startswith(("/dev/", "/proc/", "/sys/")):
        raise ConfigError(f"{folder} is a folder of the system", path=path, fix=fix)
    ours = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
    if f"{ours}/".startswith(f"{folder}/"):
        why = f"{folder} has it, and programs never see it"
        raise ConfigError("programs can't import Coterie", path=path, why=why, fix=fix)


def requirement_of(text: str, path: str) -> Requirement:
    """A named distribution. Raises ConfigError for what is no name."""
    try:
        requirement = Requirement(text)
        if requirement.marker is not None or requirement.url is not None:
            what = "a condition" if requirement.marker is not None else "an address"
            raise ConfigError(
                f"'{text}' has {what}, and programs see what is installed",
                path=path,
                fix=f"write {requirement.name}{requirement.specifier}",
            )
        return requirement
    except InvalidRequirement as error:
        raise ConfigError(
            f"'{text}' names no distribution",
            path=path,
            why=str(error).split("\n", 1)[0],
            fix="a name as for pip, such as scikit-learn; for a folder, a path with a `/`",
        ) from None


def _with_dependencies(named: Iterable[Requirement], path: str) -> dict[str, metadata.Distribution]:
    """The distributions by normalised name, in the order in which they are required."""
    required: dict[str, metadata.Distribution] = {}
    extras: dict[str, set[str]] = {}
    waiting: list[tuple[Requirement, str]] = [(requirement, "") for requirement in named]
    for requirement, needed_by in waiting:  # grows meanwhile
        name = canonicalize_name(requirement.name)
        if name == "coterie":
            by = f"{needed_by} requires it, and programs" if needed_by else "programs"
            fix = f"leave {needed_by or 'it'} out"
            raise ConfigError("programs can't import Coterie", path=path, why=f"{by} never see it", fix=fix)
        if name not in required:
            required[name] = _installed(requirement.name, needed_by, path)
        check_version(requirement, required[name].version, path)
        known = extras.setdefault(name, set())
        fresh = {"", *requirement.extras} - known
        known |= fresh
        for text in required[name].requires or () if fresh else ():
            inner = Requirement(text)
            marker = inner.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in fresh):
                waiting.append((inner, requirement.name))
    return required


def _installed(name: str, needed_by: str, path: str) -> metadata.Distribution:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        pass
    else:
        _check_not_editable(distribution, name, path)
        return distribution
    if needed_by:
        fix = f"pip install {name}"
        raise ConfigError(f"{needed_by} requires {name}, which is not installed", path=path, fix=fix)
    if os.path.isdir(name):
        raise ConfigError(f"no distribution {name} is installed", path=path, fix=f"./{name} names the folder")
    raise ConfigError(
        f"no distribution '{name}' is installed",
        path=path,
        why="`packages` takes names of distributions, as for pip, that the environment of the run has",
        fix=_how_to_get(name),
    )


def _how_to_get(name: str) -> str:
    if canonicalize_name(name) in EXTRA:
        return "pip install 'coterie[data-science]'"
    if name == "sklearn":
        return "the distribution of the module sklearn is called scikit-learn"
    of_module = metadata.packages_distributions().get(name, [])
    if of_module:
        return f"the module {name} is of {of_module[0]}: name that"
    known = {*EXTRA, *(distribution.name for distribution in metadata.distributions() if distribution.name)}
    near = did_you_mean(name, known) if nearest(name, known) else ""
    return f"{near} Or install it: pip install {name}".strip()


def check_version(requirement: Requirement, version: str, path: str, where: str = "") -> None:
    """Raise ConfigError if the requirement doesn't allow the version. `where`: ` on the server`."""
    if not requirement.specifier.contains(version, prereleases=True):
        raise ConfigError(
            f"{requirement.name} {version} is installed{where}, not {requirement.specifier}",
            path=path,
            fix=f"pip install '{requirement.name}{requirement.specifier}'{where}",
        )


def _check_not_editable(distribution: metadata.Distribution, name: str, path: str) -> None:
    try:
        origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return
    if isinstance(origin, dict) and origin.get("dir_info", {}).get("editable"):
        raise ConfigError(
            f"{name} is installed in editable mode",
            path=path,
            why="its files are in no folder that belongs to it alone",
            fix=f"install it without -e, or name the folder that has its code in place of {name}",
        )


# --------------------------------------------------------------------------------------------------- files


def _entries(distribution: metadata.Distribution, place: str, path: str) -> Iterator[str]:
    """The files and folders of a distribution, with as few entries as show nothing of others."""
    listed = distribution.files
    parts = [file.parts for file in listed or () if file.parts[0] not in ("..", "__pycache__", "/")]
    if not parts:
        raise ConfigError(
            f"{distribution.name} doesn't say which files are its own",
            path=path,
            why=f"its metadata in {place} has no list of files",
            fix=f"install it with pip: pip install --force-reinstall {distribution.name}",
        )
    entries = list(dict.fromkeys(_highest(place, parts)))
    for entry in entries:
        if os.path.islink(entry):
            raise ConfigError(
                f"{entry} is a link",
                path=path,
                why="programs see folders, and no links out of them",
                fix=f"install {distribution.name} with copies of its files",
            )
    return (entry for entry in entries if os.path.exists(entry))


def _highest(folder: str, parts: Iterable[Sequence[str]]) -> Iterator[str]:
    """The highest places below a folder that belong to one distribution: of a folder that several share, a
    package without `__init__`, each what is inside."""
    below: dict[str, list[Sequence[str]]] = {}
    for names in parts:
        below.setdefault(names[0], []).append(names[1:])
    for name, rest in below.items():
        place = os.path.join(folder, name)
        if not os.path.isdir(place) or name.endswith(_WHOLE) or _is_package(place):
            yield place
        else:
            yield from _highest(place, [names for names in rest if names and names[0] != "__pycache__"])


def _is_package(place: str) -> bool:
    return any(name.startswith("__init__.") for name in os.listdir(place))


def _modules(distribution: metadata.Distribution) -> Iterator[str]:
    """The modules of a distribution that workers import ahead."""
    place = str(distribution.locate_file(""))
    stated = (distribution.read_text("top_level.txt") or "").split()
    tops = stated or sorted({file.parts[0] for file in distribution.files or ()})
    for top in tops:
        name, _, suffix = top.partition(".")
        folder = os.path.join(place, name)
        package = not suffix and os.path.isdir(folder) and _is_package(folder)
        module = suffix in ("py", "so", "abi3.so") or (suffix.startswith("cpython-") and top.endswith(".so"))
        module = module or (not suffix and os.path.exists(f"{folder}.py"))
        if (package or module) and name.isidentifier() and name[0] != "_" and name not in ("test", "tests"):
            yield name
    yield from AHEAD.get(canonicalize_name(distribution.name), ())


# ---------------------------------------------------------------------------------------- what stays hidden


def environments(folders: Iterable[str], shown: Sequence[str]) -> list[str]:
    """The folders of installed distributions below these folders, such as the interpreter's: programs see
    none of them, unless they, or a folder around them, are `shown`."""
    hidden = set()
    for folder in folders:
        for name in (
            "lib/python3*/site-packages",
            "lib/python3*/dist-packages",
            "lib64/python3*/site-packages",
        ):
            hidden |= {os.path.realpath(place) for place in Path(folder).glob(name)}
    return sorted(
        place
        for place in hidden
        if os.path.isdir(place) and not any(f"{place}/".startswith(f"{path}/") for path in shown)
    )
