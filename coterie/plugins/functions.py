"""Functions of the user, named as `module:function` in a configuration."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import WithJsonSchema

from coterie.core.errors import ConfigError, did_you_mean, type_text

FunctionReference = Annotated[
    str | Callable[..., Any],
    WithJsonSchema(
        {
            "type": "string",
            "format": "function",
            "description": "`module:function`, importable from the working folder or the recipe's.",
        }
    ),
]
"""A Config field that names a function; from Python it may also be the function itself."""


def load_function(reference: str | Callable[..., Any], path: str) -> Callable[..., Any]:
    """The function that `module:function` names; the module may be in the working folder.

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
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # under the console script sys.path lacks the working folder
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:  # importing the user's module can raise anything
        raise ConfigError(
            f"the module of '{reference}' can't be imported",
            path=path,
            why=f"{type(error).__name__}: {error}",
            fix=f"put the module into {folder} or on the Python path",
        ) from error
    for name in names.split("."):
        if not hasattr(target, name):
            known = [attribute for attribute in dir(target) if not attribute.startswith("_")]
            raise ConfigError(f"'{module_name}' has no '{name}'", path=path, fix=did_you_mean(name, known))
        target = getattr(target, name)
    if not callable(target):
        raise ConfigError(f"'{reference}' is {type_text(target)}, not a function", path=path)
    function: Callable[..., Any] = target
    return function


async def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function or coroutine function."""
    result = function(*arguments)
    return await result if inspect.isawaitable(result) else result
