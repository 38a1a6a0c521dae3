"""The user's own functions, named as `module:function` in a configuration."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from coterie.core.errors import ConfigError, did_you_mean

FunctionReference = Annotated[
    str | Callable[..., Any],
    WithJsonSchema(
        {"type": "string", "description": "`module:function`, importable from the working folder."}
    ),
]
"""A Config field that names a function; the Python interface may give the function itself."""


def load_function(reference: str | Callable[..., Any], path: str) -> Callable[..., Any]:
    """The function behind `module:function`; modules of the working folder are found too.

    Args:
        path: dotted path of the setting, for error messages.

    Raises:
        ConfigError: the module fails to import, or has no such function.
    """
    if not isinstance(reference, str):
        return reference
    module_name, _, names = reference.partition(":")
    if not module_name or not names:
        raise ConfigError(f"'{reference}' names no function", path=path, fix="write it as module:function")
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # the console script doesn't look in the working folder by itself
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # whatever the user's module does when it is imported
        raise ConfigError(
            f"the module of '{reference}' can't be imported",
            path=path,
            why=f"{type(error).__name__}: {error}",
            fix=f"it is looked for in {here} and on the Python path",
        ) from error
    for name in names.split("."):
        if not hasattr(found, name):
            known = [known for known in dir(found) if not known.startswith("_")]
            raise ConfigError(f"'{module_name}' has no '{name}'", path=path, fix=did_you_mean(name, known))
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError(f"'{reference}' is a {type(found).__name__}, not a function", path=path)
    function: Callable[..., Any] = found
    return function


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function that may be a coroutine function."""
    answer = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer
