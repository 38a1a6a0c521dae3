"""The kinds of plugins."""

from __future__ import annotations

KINDS: tuple[str, ...] = (
    "environment",
    "role",
    "reward",
    "estimator",
    "loss",
    "transition",
    "sampler",
    "engine",
    "trainer",
    "executor",
    "sandbox",
    "tool",
    "chat_format",
    "chat_model",
    "data_source",
    "tracker",
    "recipe",
    "overlay",
    "column",
    "study",
    "command",
)
"""Every kind of plugin; each has a hook `register_<kind>s`."""

FILES = ("recipe", "overlay", "column")
"""Kinds whose target names a file, not an object."""

DECLARING = ("engine", "trainer")
"""Kinds whose class may have a `Policy`: the fields of a policy's table that it reads."""

UNCONFIGURED = (*FILES, "study", "command")
"""Kinds without a table in a configuration."""
