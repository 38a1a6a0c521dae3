"""The group estimator, under its old path: see `plugins.algos.blocks.estimator`.

The names resolve until version 0.3. Core imports no plugin, so a name is looked up when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    module = import_module("coterie.plugins.algos.blocks.estimator")
    if name == "__all__":  # `from ... import *`
        return [public for public in vars(module) if not public.startswith("_")]
    return getattr(module, name)
