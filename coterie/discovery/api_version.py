"""The version of the interface that plugins are written for, and what a plugin says of it.

A plugin states the versions that it works with at the top of the module that its entry point names, or of
its file: `coterie_api = ">=1.0,<2"`. Without a statement it is taken as it is.
"""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from packaging.specifiers import Specifier, SpecifierSet
from packaging.version import Version

API_VERSION = "1.0"
"""The version of the plugin API: the names of `coterie`, the hooks, and the members of the kinds' Protocols.

A minor version adds to it, a major one removes or changes.
"""
STATEMENT = "coterie_api"
_LOWER = (">=", ">", "==", "===", "~=")


def stated(plugin: Any) -> Any:
    """What a plugin's module states, or None; of an object that an entry point names, its module's."""
    value = vars(plugin).get(STATEMENT) if hasattr(plugin, "__dict__") else None
    if value is None and not isinstance(plugin, ModuleType):
        value = getattr(sys.modules.get(getattr(plugin, "__module__", "") or ""), STATEMENT, None)
    return value


def stated_in_source(error: BaseException, module: str) -> Any:
    """What a module states whose import raised: an import may fail since the version is another one."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == module:
            with suppress(OSError, ValueError, SyntaxError):
                for line in ast.parse(Path(frame.f_code.co_filename).read_text(encoding="utf-8")).body:
                    names = line.targets if isinstance(line, ast.Assign) else ()
                    if any(isinstance(name, ast.Name) and name.id == STATEMENT for name in names):
                        return ast.literal_eval(cast(ast.Assign, line).value)
            return None
    return None


def refusal(statement: Any, distribution: str) -> tuple[str, str]:
    """(what, fix) where a plugin states a range that lacks this version, or no range; else empty texts."""
    if statement is None:
        return "", ""
    try:
        if not isinstance(statement, str):
            raise ValueError
        allowed = SpecifierSet(statement)
        contained = allowed.contains(API_VERSION, prereleases=True)
    except ValueError:  # InvalidSpecifier is one; so is what a number of thousands of digits raises
        major = API_VERSION.partition(".")[0]
        shown = (
            f"{statement!r:.80}" if isinstance(statement, (str, float)) else f"a {type(statement).__name__}"
        )
        what = f"`{STATEMENT} = {shown}` is no range of versions"
        return what, f'write `{STATEMENT} = ">={API_VERSION},<{int(major) + 1}"`, or leave it out'
    if contained:
        return "", ""
    have = importlib.metadata.version("coterie")
    what = (
        f"it is written for version {statement} of Coterie's plugin API, and this Coterie "
        f"({have}) has {API_VERSION}: its hooks are not called"
    )
    if any(_is_later(part) for part in allowed if part.operator in _LOWER):
        return what, "update Coterie: pip install -U coterie"
    if distribution.endswith(".py"):
        return (
            what,
            f"adapt the file (CHANGELOG.md of Coterie says what changed), then widen its `{STATEMENT}`",
        )
    return what, f"update the plugin: pip install -U {distribution}"


def _is_later(part: Specifier) -> bool:
    """Whether a lower bound asks for a later version than this one."""
    asked, present = Version(part.version.removesuffix(".*")), Version(API_VERSION)
    return asked > present or (part.operator == ">" and asked == present)
