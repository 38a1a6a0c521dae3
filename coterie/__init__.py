"""Coterie: reinforcement learning for teams of language models.

This package is the public door. What it lists is public and follows the deprecation rule
(docs/public_names.md); modules below it may move. Importing it is cheap: a name loads on first use (PEP 562).
The names are written in `public.py` alone. `docs/generate.py` makes of them the stub for type checkers
(`__init__.pyi`), the page and the list of names that tests hold.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import pluggy

from coterie import deprecations as _deprecations
from coterie.public import MODULE_OF

__version__ = "0.1.0"

hookimpl = pluggy.HookimplMarker("coterie")
"""Marks a function as an implementation of one of the hooks."""

__all__ = ["__version__", "hookimpl", *MODULE_OF]


def __getattr__(name: str) -> Any:
    if name in MODULE_OF:
        if _deprecations.DEPRECATIONS:
            _deprecations.warn_of_name(name)
        return getattr(import_module(MODULE_OF[name]), name)
    raise AttributeError(f"module 'coterie' has no attribute {name!r}", name=name, obj=sys.modules[__name__])


def __dir__() -> list[str]:
    return sorted(__all__)
