"""Checks of the parameters of a plugin's methods: the core passes arguments by position."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from coterie.compose.kinds import CAPABILITIES, PROTOCOL

Wrong = tuple[str, str, str]
"""The method, what is wrong with its parameters, and how to fix it."""


def wrong_arguments(plugin: Any, kind: str, *, every: bool = False) -> Iterator[Wrong]:
    """The methods of a plugin, or of its class, that can't be called as their Protocols say.

    An optional method takes the Protocol's arguments. No method has the name of one parameter at another's
    place: both would then get the wrong value, without an error. Other names, and more parameters with
    defaults, are sound.

    Args:
        every: whether a method that every plugin of the kind has must take the arguments too.
    """
    cls = plugin if inspect.isclass(plugin) else type(plugin)
    for protocol in (PROTOCOL[kind], *CAPABILITIES.get(kind, ())):
        for name, expected in _methods(protocol):
            method = getattr(cls, name, None)
            if not callable(method):
                continue
            signature = inspect.signature(expected)
            if isinstance(inspect.getattr_static(cls, name), (staticmethod, classmethod)):
                signature = signature.replace(parameters=list(signature.parameters.values())[1:])
            try:
                taken = inspect.signature(method)
            except ValueError:  # a builtin without a signature
                continue
            text = str(signature).replace("'", "")
            if swapped := _swapped(taken, signature):
                yield name, swapped, f"its arguments are passed by position: {text}"
            if every or protocol is not PROTOCOL[kind]:
                for error in _refused(taken, signature):
                    yield name, f"can't be called as {text}: {error}", "accept these arguments"


def _methods(protocol: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(protocol).items():
        if inspect.isfunction(value) and (name == "__call__" or not name.startswith("_")):
            yield name, value


def _refused(taken: inspect.Signature, signature: inspect.Signature) -> Iterator[TypeError]:
    """Why a method doesn't take a Protocol's arguments, by position or by name."""
    required = [
        parameter
        for parameter in signature.parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is parameter.empty
    ]
    keywords = {parameter.name: None for parameter in required if parameter.kind is parameter.KEYWORD_ONLY}
    positional = [None] * (len(required) - len(keywords))
    try:
        taken.bind(*positional, **keywords)
    except TypeError as error:
        yield error


def _swapped(taken: inspect.Signature, signature: inspect.Signature) -> str:
    """What a parameter is that has the name of another one of the Protocol's; empty: none has."""
    names = _positional(signature)
    for given, name in zip(_positional(taken), names, strict=False):
        if given != name and given in names:
            return f"has the parameter `{given}` where `{name}` is passed"
    return ""


def _positional(signature: inspect.Signature) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in signature.parameters.values() if parameter.kind in kinds]
