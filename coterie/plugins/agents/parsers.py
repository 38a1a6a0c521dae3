"""Parsers of a template role's answers: `(text) -> plain data`; each raises PolicyFault where it can't read
one."""

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
    numbers = _NUMBER.findall(text)
    if not numbers:
        raise PolicyFault("no number in the answer")
    digits = numbers[-1].replace(",", "")
    if len(digits) > 400:
        raise PolicyFault("the number has more than 400 digits")
    number = float(digits) if any(mark in digits for mark in ".eE") else int(digits)
    if not math.isfinite(number):
        raise PolicyFault(f"{digits} is no finite number")
    return number


def last_choice(text: str, choices: Sequence[str]) -> str:
    """The choice mentioned last, as a whole word in any case; of choices that end at one place the
    longest."""

    def ends(choice: str) -> int:
        mentions = list(re.finditer(rf"(?<!\w){re.escape(choice)}(?!\w)", text, re.IGNORECASE))
        return mentions[-1].end() if mentions else -1

    end, _, choice = max((ends(choice), len(choice), choice) for choice in choices)
    if end < 0:
        raise PolicyFault(f"the answer names none of: {', '.join(choices)}")
    return choice


def last_json(text: str) -> Any:
    """The last complete JSON object or array that isn't inside another."""
    decoder, values, end = json.JSONDecoder(), [], 0
    for opening in itertools.islice(_OPENING.finditer(text), 2000):  # bounds the time
        if opening.start() >= end:
            try:
                value, end = decoder.raw_decode(text, opening.start())
                values.append(value)
            except ValueError:
                continue
            except RecursionError:  # nested deeper than any answer: skip it instead of trying every bracket
                end = opening.start() + 1000
    if not values:
        raise PolicyFault("no JSON object or array in the answer")
    return values[-1]


def last_match(text: str, pattern: re.Pattern[str]) -> Any:
    """The last match: its named groups as a table, else its first group, else its whole text."""
    matches = list(pattern.finditer(text))
    if not matches:
        raise PolicyFault(f"the answer doesn't match {pattern.pattern!r}")
    match = matches[-1]
    return match.groupdict() or (match[1] if pattern.groups else match[0])


def last_code(text: str) -> str:
    """The last fenced block."""
    blocks = _FENCE.findall(text)
    if not blocks:
        raise PolicyFault("no fenced code block in the answer")
    return str(blocks[-1])


def last_boxed(text: str) -> str:
    r"""The content of the last \boxed{...}, braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        raise PolicyFault("no \\boxed{} in the answer")
    depth, content = 1, start + len("\\boxed{")
    for end in range(content, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[content:end].strip()
    raise PolicyFault("the last \\boxed{ is never closed")
