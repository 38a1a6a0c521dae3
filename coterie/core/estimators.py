"""The group estimator, under its old path: see `plugins.algos.blocks.estimator`.

The names resolve until version 0.3. Core imports no plugin, so a name is looked up when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("coterie.plugins.algos.blocks.estimator"), name)
