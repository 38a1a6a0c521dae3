"""How a template role reads an answer. Each parser is `(text) -> plain data`, or a `PolicyFault`."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

from coterie.core.errors import PolicyFault

ParserName = Literal["text", "strip", "number", "choice", "json", "regex", "code", "boxed"]
Parser = Callable[[str], Any]

_NUMBER = re.compile(r"-?(?:\d[\d,]*)?\.?\d+(?:[eE][+-]?\d+)?")
_OPENING = re.compile(r"[{\[]")
_FENCE = re.compile(r"```[^\n`]*\n(.*?)```", re.DOTALL)


def make(name: ParserName, pattern: str | None = None, choices: Sequence[str] = ()) -> Parser:
    """The parser with its settings bound."""
    if name == "regex":
        compiled = re.compile(pattern or "", re.DOTALL)
        return lambda text: last_match(text, compiled)
    if name == "choice":
        return lambda text: last_choice(text, choices)
    plain: dict[str, Parser] = {
        "text": str,
        "strip": str.strip,
        "number": last_number,
        "json": last_json,
        "code": last_code,
        "boxed": last_boxed,
    }
    return plain[name]


def last_number(text: str) -> int | float:
    """The last number of the text: `1,234`, `-0.5`, `2e3`."""
    found = _NUMBER.findall(text)
    if not found:
        raise PolicyFault("no number in the answer")
    digits = found[-1].replace(",", "")
    if len(digits) > 400:
        raise PolicyFault("the number has more than 400 digits")
    number = float(digits) if any(mark in digits for mark in ".eE") else int(digits)
    if not math.isfinite(number):
        raise PolicyFault(f"{digits} is no finite number")
    return number


def last_choice(text: str, choices: Sequence[str]) -> str:
    """The choice that is mentioned last, as a word of its own and in any case; of equals the longest."""

    def ends(choice: str) -> int:
        found = list(re.finditer(rf"(?<!\w){re.escape(choice)}(?!\w)", text, re.IGNORECASE))
        return found[-1].end() if found else -1

    place, _, choice = max((ends(choice), len(choice), choice) for choice in choices)
    if place < 0:
        raise PolicyFault(f"the answer names none of: {', '.join(choices)}")
    return choice


def last_json(text: str) -> Any:
    """The last JSON object or array that is whole and lies in no other."""
    decoder, found, end = json.JSONDecoder(), [], 0
    for opening in itertools.islice(_OPENING.finditer(text), 2000):  # an answer of brackets costs no minute
        if opening.start() >= end:
            try:
                value, end = decoder.raw_decode(text, opening.start())
                found.append(value)
            except ValueError:
                continue
            except RecursionError:  # nested deeper than any answer: go past it, not through every bracket
                end = opening.start() + 1000
    if not found:
        raise PolicyFault("no JSON object or array in the answer")
    return found[-1]


def last_match(text: str, pattern: re.Pattern[str]) -> Any:
    """Named groups as a table, else the first group, else the whole match; of the last match."""
    matches = list(pattern.finditer(text))
    if not matches:
        raise PolicyFault(f"the answer doesn't match {pattern.pattern!r}")
    match = matches[-1]
    return match.groupdict() or (match[1] if pattern.groups else match[0])


def last_code(text: str) -> str:
    """The last fenced block."""
    found = _FENCE.findall(text)
    if not found:
        raise PolicyFault("no fenced code block in the answer")
    return str(found[-1])


def last_boxed(text: str) -> str:
    r"""What the last \boxed{...} holds, braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        raise PolicyFault("no \\boxed{} in the answer")
    depth, inside = 1, start + len("\\boxed{")
    for end in range(inside, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[inside:end].strip()
    raise PolicyFault("the last \\boxed{ is never closed")
