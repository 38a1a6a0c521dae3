r"""How the answer is found in a message, and how numbers are compared without a library.

The last `\boxed{...}` or `\fbox{...}` counts, and nothing before or after it; `\boxed 42` holds the rest of
its formula or line. Without a box, what follows the last "answer is" or "answer:" counts, unless another
answer follows it; without that, a message that is nothing but one short expression. Thoughts are no part of
a message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from coterie.core.errors import PolicyFault
from coterie.plugins.envs.math.notation import plain

MOST = 1000
"""Longest answer, in characters. A longer one is wrong, and is never read."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?:\{|(?=[-+]?\.?\d))", re.ASCII)
_END_OF_BOX = re.compile(r"[\n$]|\\[)\]]")
_PHRASE = re.compile(r"answer\s*(?:is|:)[\s:*]*", re.IGNORECASE)
_ENDING = re.compile(r"(?:\.(?=\s|$)|;|,\s).*", re.DOTALL)
_MARKS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_SPACES = re.compile(r"\s+")
_LETTERS = re.compile(r"(?<![A-Za-z0-9\\])[A-Za-z]{2,}(?![A-Za-z0-9])")
_COMMANDS = re.compile(r"\\[A-Za-z]+\{[A-Za-z ]*\}")
_DIGITS = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_HEDGE = re.compile(r"[\s.,;:*$]*(?:or|no|not)\b", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?P<sign>[+-]?) ?(?:(?P<above>\d{1,100}) ?/ ?(?P<below>0*[1-9]\d{0,99})"
    r"|(?P<value>(?:\d{1,100}(?:\.\d{1,100})?|\.\d{1,100})(?:[eE][+-]?\d{1,2})?))",
    re.ASCII,
)
_OR = re.compile(r"\s+or\s+")
_REMARK = re.compile(r"\s*\([^()]*[a-z]{3}[^()]*\)\s*$")
_SIMPLE_FRACTION = re.compile(r"(-?)\\frac\{(\d+)\}\{(\d+)\}", re.ASCII)
_ALONE = 64
"""Longest message that can be an answer as a whole, in characters."""


def find(text: str) -> str:
    """The answer in a message, without its box and without `$`.

    Raises:
        PolicyFault: there is none, its box is empty or never closed, or it is too long.
    """
    openings = list(_BOX.finditer(text))
    if openings:
        answer = _content(text, openings[-1])
    else:
        answer = _unboxed(text)
    answer = bare(answer)
    if not answer:
        raise PolicyFault("the answer is empty")
    if len(answer) > MOST:
        raise PolicyFault(f"the answer has {len(answer)} characters; at most {MOST} are read")
    return answer


def boxed(text: str) -> str:
    r"""The content of the last box of a text, such as a worked solution.

    Raises:
        PolicyFault: it has none, or the last one is never closed.
    """
    openings = list(_BOX.finditer(text))
    if not openings:
        raise PolicyFault(r"there is no \boxed{}")
    return bare(_content(text, openings[-1]))


def bare(answer: str) -> str:
    """The answer without white space and the marks of mathematics or bold print around it."""
    answer, before = answer.strip(), ""
    while answer != before and len(answer) <= MOST:  # else each mark costs a look at all of it
        before = answer
        for opening, closing in _MARKS:
            inside = answer[len(opening) : len(answer) - len(closing)]
            if len(answer) > len(opening + closing) and answer == opening + inside + closing:
                answer = inside.strip()
    return answer


def accepted(reference: str) -> tuple[str, ...]:
    """The answers that a reference accepts: `080 or 081 (both were accepted)` accepts two numbers.

    Any other reference is one answer, also where it holds "or": all solutions of an equation are asked for.
    """
    parts = tuple(_OR.split(_REMARK.sub("", reference)))
    return parts if len(parts) > 1 and all(number(part) is not None for part in parts) else (bare(reference),)


def number(text: str) -> Fraction | None:
    r"""The value of a number that needs no library: `42`, `-0.5`, `1e3`, `1\,000`, `31/2`, `3 1/2`."""
    match = _NUMBER.fullmatch(plain(text))
    if match is None:
        return None
    value = Fraction(match["value"]) if match["value"] else Fraction(int(match["above"]), int(match["below"]))
    return -value if match["sign"] == "-" else value


def same_number(answer: str, reference: str) -> bool:
    """Whether both are numbers of one value."""
    value = number(answer)
    return value is not None and value == number(reference)


def voted(given: Sequence[str | None]) -> str | None:
    """The last answer as a vote counts it: a number by its value, anything else without its look; None: there
    is none."""
    if not given or given[-1] is None:
        return None
    text = plain(given[-1])
    value = number(_SIMPLE_FRACTION.sub(r"\1\2/\3", text))
    return text if value is None else str(value)


def _content(text: str, opening: re.Match[str]) -> str:
    """What a box holds; without braces (`\boxed 42`) the rest of its formula or its line."""
    start = opening.end()
    if not opening[0].endswith("{"):
        ending = _END_OF_BOX.search(text, start)
        return text[start : ending.start() if ending else None]
    depth = 1
    for end in range(start, len(text)):
        if text[end] in "{}" and text[end - 1] != "\\":
            depth += 1 if text[end] == "{" else -1
        if depth == 0:
            return text[start:end]
    raise PolicyFault(r"the last \boxed{ is never closed")


def _unboxed(text: str) -> str:
    phrases = list(_PHRASE.finditer(text))
    if phrases:
        answer, rest = _first(text[phrases[-1].end() :])
        numbers, later = _DIGITS.findall(answer), _DIGITS.findall(rest)
        if _HEDGE.match(rest) or (later and later[-len(numbers) :] != numbers):
            raise PolicyFault("another answer follows the answer")
        return answer
    text = text.strip()
    if not text or "\n" in text or len(text) > _ALONE or _LETTERS.search(_COMMANDS.sub("", text)):
        raise PolicyFault("there is no \\boxed{} and no other answer")
    return text.removesuffix(".")


def _first(text: str) -> tuple[str, str]:
    """The first statement of a line, and all that follows it."""
    line = text.partition("\n")[0]
    ending = _ENDING.search(line)
    end = ending.start() if ending else len(line)
    return line[:end].strip(" *"), text[end:]
