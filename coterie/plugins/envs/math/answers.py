r"""How the answer is found in a message, and how numbers are compared without a library.

The last `\boxed{...}` counts, and nothing before or after it. Without a box, what follows the last "answer
is" or "answer:" counts; without that, a message that is nothing but one short expression. Thoughts are no
part of a message.
"""

from __future__ import annotations

import re
from fractions import Fraction

from coterie.core.errors import PolicyFault

MOST = 1000
"""Longest answer, in characters. A longer one is wrong, and is never read."""

_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_PHRASE = re.compile(r"answer\s*(?:is|:)[\s:*]*", re.IGNORECASE)
_ENDING = re.compile(r"(?:\.(?=\s|$)|;|,\s).*", re.DOTALL)
_MARKS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))
_SPACES = re.compile(r"\s+")
_NUMBER = re.compile(r"[+-]?\d{1,100}(?:\.\d{1,100}|/0*[1-9]\d{0,99})?", re.ASCII)
_OR = re.compile(r"\s+or\s+")
_REMARK = re.compile(r"\s*\([^()]*[a-z]{3}[^()]*\)\s*$")
_ALONE = 64
"""Longest message that can be an answer as a whole, in characters."""


def find(text: str) -> str:
    """The answer in a message, without its box and without `$`.

    Raises:
        PolicyFault: there is none, its box is empty or never closed, or it is too long.
    """
    openings = list(_BOX.finditer(text))
    if openings:
        answer = _closed(text, openings[-1].end())
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
    return bare(_closed(text, openings[-1].end()))


def bare(answer: str) -> str:
    """The answer without white space and the marks of mathematics or bold print around it."""
    answer, before = answer.strip(), ""
    while answer != before:
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
    """The value of a whole or decimal number or a quotient of whole numbers; None for anything else."""
    text = _SPACES.sub("", text)
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def same_number(answer: str, reference: str) -> bool:
    """Whether both are numbers of one value."""
    value = number(answer)
    return value is not None and value == number(reference)


def _closed(text: str, start: int) -> str:
    depth = 1
    for end in range(start, len(text)):
        if text[end] in "{}" and (end == 0 or text[end - 1] != "\\"):
            depth += 1 if text[end] == "{" else -1
        if depth == 0:
            return text[start:end]
    raise PolicyFault(r"the last \boxed{ is never closed")


def _unboxed(text: str) -> str:
    phrases = list(_PHRASE.finditer(text))
    if phrases:
        line = text[phrases[-1].end() :].partition("\n")[0]
        return _ENDING.sub("", line).strip(" *")
    text = text.strip()
    words = _SPACES.split(bare(text))
    prose = [word for word in words if len(word) > 1 and word.isalpha()]
    if not text or prose or "\n" in text or len(text) > _ALONE:
        raise PolicyFault("there is no \\boxed{} and no other answer")
    return text.removesuffix(".")
