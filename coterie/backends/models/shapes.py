"""Shapes of well-known models, so that a plan needs no hub: fields of their config.json that decide sizes.

`shapes.json` holds them by hub id, with the number of parameters that the hub states, against which a test
checks each. Source: config.json and the safetensors index of each id on huggingface.co, November 2026.
"""

from __future__ import annotations

import difflib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

FAMILY = re.compile(r".*?\d(?=-)")
"""The start of an id, through its version: `Qwen/Qwen2.5` of `Qwen/Qwen2.5-7B-Instruct`."""


@cache
def shapes() -> dict[str, dict[str, Any]]:
    """By hub id: `config`, fields of config.json; `parameters`, tied ones counted once."""
    entries = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
    return {name: entry for entry in entries for name in entry["ids"]}


def known_config(source: str, revision: str | None) -> Any | None:
    """The configuration of a hub id from the table; None: it isn't there, or a revision is named."""
    entry = shapes().get(source)
    if entry is None or revision is not None:
        return None
    from transformers import AutoConfig

    config = AutoConfig.for_model(**entry["config"])
    config.shape_of_coterie = True
    return config


def advice(source: str, fix: str) -> str:
    """The fix for an id that can't be read, behind the id of the table that is spelt nearly so, in any case
    of letters, and before the families that the table has."""
    by_lower = {name.lower(): name for name in shapes()}
    near = difflib.get_close_matches(source.lower(), by_lower, n=1, cutoff=0.8)
    question = f"did you mean '{by_lower[near[0]]}'? " if near and by_lower[near[0]] != source else ""
    families = sorted({family.group() for name in shapes() if (family := FAMILY.match(name))})
    known = f"`coterie plan` knows the shapes of {len(shapes())} ids by itself: {', '.join(families)}"
    return f"{question}{fix}; {known}"


def stands_for(config: Any) -> bool:
    """Whether a configuration is one of the table."""
    return bool(getattr(config, "shape_of_coterie", False))
