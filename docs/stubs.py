"""Stubs of the packages whose names load on first use: type checkers read them, and Python doesn't."""

from __future__ import annotations

from collections.abc import Mapping

HEAD = "# Made by docs/generate.py from {source}: change it there.\n"
LINE = 110


def stub(modules: Mapping[str, str], source: str, begin: str = "", end: str = "") -> str:
    """The stub of a package.

    Args:
        modules: name -> the module that it is defined in.
        source: the file beside it in which these names are written.
        begin, end: what it has before and after these names, as Python.
    """
    by_module: dict[str, list[str]] = {}
    for name, module in modules.items():
        by_module.setdefault(module, []).append(name)
    imports = [_import(module, names) for module, names in sorted(by_module.items())]
    return "".join([HEAD.format(source=source), "\n", begin, *imports, end, "\n__all__: list[str]\n"])


def _import(module: str, names: list[str]) -> str:
    """An import as the formatter writes it; `X as X` says that the package gives X away."""
    ordered = [f"{name} as {name}" for name in sorted(names, key=_order)]
    line = f"from {module} import {', '.join(ordered)}\n"
    if len(ordered) == 1 and len(line) <= LINE + 1:
        return line
    return f"from {module} import (\n" + "".join(f"    {name},\n" for name in ordered) + ")\n"


def _order(name: str) -> tuple[int, str]:
    """Constants, classes, functions; each in alphabetical order."""
    constant = name.isupper() and len(name) > 1
    return (0 if constant else 1 if name[0].isupper() else 2, name.lower())
