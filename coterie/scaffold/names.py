"""The names of a package, derived from the one that was given."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import keyword
import re
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coterie.scaffold.files import ScaffoldError
from coterie.scaffold.kinds import KINDS, Kind

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._ -]*[A-Za-z0-9])?")
_OURS = ("tests",)
"""Folders that stand beside the package's own."""


@dataclass(frozen=True, slots=True)
class Names:
    """`coterie-word-games` gives all of these."""

    distribution: str
    """`coterie-word-games`; its recipe is `coterie-word-games-smoke`."""
    module: str
    """`coterie_word_games`."""
    component: str
    """`word_games`: by this every component is registered."""
    prefix: str
    """`WordGames`: with this its classes begin."""

    @property
    def command(self) -> str:
        """`word-games`, which `coterie` runs."""
        return self.component.replace("_", "-")

    @property
    def recipe(self) -> str:
        return f"{self.distribution}-smoke"

    def filled(self, text: str) -> str:
        """A template's text with these names."""
        for placeholder, name in (
            ("example_module", self.module),
            ("example_script", f"{self.module}.script"),
            ("example-command", self.command),
            ("example-name", self.distribution),
            ("example_name", self.component),
            ("ExampleName", self.prefix),
        ):
            text = text.replace(placeholder, name)
        return text


def package_names(given: str, kinds: Collection[Kind], taken: Mapping[str, Collection[str]]) -> Names:
    """The names of a package.

    Args:
        given: `word-games`, `coterie-word-games` or `Word_Games`.
        taken: by kind, the names that installed plugins have.

    Raises:
        ScaffoldError: no names can be derived, or one of them is taken.
    """
    if not _NAME.fullmatch(given) or len(given) > 60:
        what, why = f"{given!r} is no name of a package", "letters, digits and - _ . in between, at most 60"
        raise ScaffoldError(what, why=why, fix="coterie new word-games --kind environment")
    distribution = re.sub(r"[-_. ]+", "-", given).lower()
    module = distribution.replace("-", "_")
    names = derived(distribution, module)
    fix = f"choose another NAME, such as my-{distribution.removeprefix('coterie-')}"
    _check_module(module, fix)
    check_free(names, kinds, taken, fix)
    return names


def file_names(file: str, kinds: Collection[Kind], taken: Mapping[str, Collection[str]]) -> Names:
    """The names of the one-file form, from the file's: `word_games.py`.

    Raises:
        ScaffoldError: it is no name of a Python module, or a component's name is taken.
    """
    module = file.removesuffix(".py")
    near = re.sub(r"\W+", "_", module, flags=re.ASCII).strip("_").lower() or "word_games"
    if not near.isidentifier() or keyword.iskeyword(near) or near in sys.stdlib_module_names:
        near = f"my_{near}"
    if module == file or not module.isascii() or not module.isidentifier() or module != module.lower():
        what, why = f"'{file}' is no name of a plugin file", "lower-case letters, digits and _, then .py"
        raise ScaffoldError(what, why=why, fix=f"--file {near}.py")
    names = derived(module.replace("_", "-"), module)
    fix = f"choose another name, such as --file my_{module.strip('_') or 'plugin'}.py"
    _check_module(module, fix)
    check_free(names, kinds, taken, fix)
    return names


def derived(distribution: str, module: str) -> Names:
    """All names of a distribution and its module, unchecked."""
    component = module.removeprefix("coterie_")
    prefix = "".join(part.capitalize() for part in component.split("_"))
    return Names(distribution, module, component, prefix)


def _check_module(module: str, fix: str) -> None:
    if not module.isidentifier():
        raise ScaffoldError(
            f"'{module}' is no name of a Python module", why="it begins with a digit", fix=fix
        )
    if keyword.iskeyword(module):
        raise ScaffoldError(f"'{module}' is a word of Python's grammar", fix=fix)
    if module in sys.stdlib_module_names or module in _OURS:
        why = "of the standard library" if module not in _OURS else "that the package has beside its own"
        raise ScaffoldError(f"'{module}' is the name of a module {why}", fix=fix)
    if importable(module):
        raise ScaffoldError(f"a module '{module}' is installed already", fix=fix)
    if module in _required():
        raise ScaffoldError(f"'{module}' is a package that Coterie or one of its extras needs", fix=fix)


def _required() -> set[str]:
    """The packages that Coterie and its extras need, installed or not, as names of modules."""
    try:
        lines = importlib.metadata.requires("coterie") or []
    except importlib.metadata.PackageNotFoundError:  # a source tree that isn't installed
        return set()
    return {re.split(r"[^\w.-]", line, maxsplit=1)[0].replace("-", "_").lower() for line in lines}


def importable(module: str) -> bool:
    """Whether a module of this name is found; it is not imported."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # a module that is imported and has no spec
        return module in sys.modules
    # A folder of that name in the working directory is a namespace package to Python: it hides nothing.
    return spec is not None and spec.origin is not None


def check_free(names: Names, kinds: Collection[Kind], taken: Mapping[str, Collection[str]], fix: str) -> None:
    """Check that no component has a name that another plugin, or an import of its own module, has.

    Raises:
        ScaffoldError: one has.
    """
    if not names.prefix.isidentifier() or keyword.iskeyword(names.prefix):
        what, why = f"no class can be called '{names.prefix}'", f"the components are called {names.component}"
        raise ScaffoldError(what, why=why, fix=fix)
    others = {"command": names.command, "recipe": names.recipe}
    registered = [(kind.name, others.get(kind.name, names.component)) for kind in kinds]
    registered.append(("recipe", names.recipe))
    for kind, name in registered:
        if name in taken.get(kind, ()):
            what = f"{KINDS[kind].phrase} '{name}' is installed already"
            raise ScaffoldError(what, fix=fix)
    for chosen in kinds:
        source = chosen.source
        for defined in source.defined:
            filled = names.filled(defined)
            if filled != defined and filled in source.imported:
                what, why = (
                    f"the class {filled} would be called like the one that it imports",
                    f"of the {chosen.words}",
                )
                raise ScaffoldError(what, why=why, fix=fix)
