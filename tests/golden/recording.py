"""What the two recorders share: the numbers that go in, and the form in which the record comes out.

Log-probs are multiples of 1/64 and rewards of 1/8: float32, which both libraries use in places, holds them
exactly, so that a difference in the sixth digit is one of meaning.
"""

from __future__ import annotations

import importlib.metadata
import json
import random
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

DIGITS = 9
"""Of what comes out."""


def reward(draw: random.Random) -> float:
    """A multiple of 1/8 in [0, 2]."""
    return draw.randint(0, 16) / 8


def logprob(draw: random.Random) -> float:
    """A multiple of 1/64 in [-3, -1/4]."""
    return draw.randint(-192, -16) / 64


def beside(value: float, scale: float, draw: random.Random) -> float:
    """A log-prob of the same token under another policy: normal noise, on the grid and below 0."""
    return min(round((value + draw.gauss(0.0, scale)) * 64), -1) / 64


def rounded(value: Any) -> Any:
    """Nested lists of numbers, cut to DIGITS."""
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [rounded(item) for item in value]
    return round(value, DIGITS) + 0.0 if isinstance(value, float) else value  # + 0.0: no -0.0


def write(library: str, record: Mapping[str, Any]) -> None:
    """The record to stdout, with the versions that it is of; a list of numbers is one line."""
    versions = {name: importlib.metadata.version(name) for name in (library, "torch", "transformers")}
    text = json.dumps({"versions": versions, **rounded(record)}, indent=1)
    text = re.sub(r"\[[^\[\]{}]*\]", lambda match: " ".join(match.group().split()), text)
    print(text, file=sys.stdout)
