"""What a coach answers: a score and a reason, in JSON or in lines; anything else is malformed."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from coterie.core.rollout.thoughts import CLOSE, split

T = TypeVar("T")

LINES = """Answer in these two lines and write nothing else:
PROCESS_SCORE: a number from 0 to 10
REASONING: why, in one or two sentences"""
JSON = """Answer in JSON: {"score": a number from 0 to 10, "reason": why, in one or two sentences}"""
LINES_EACH = """Answer in these three lines for each of the {count} actions, in their order, and write
nothing else:
ACTION: the number of the action
PROCESS_SCORE: a number from 0 to 10
REASONING: why, in one or two sentences"""
JSON_EACH = """Answer in JSON with one entry for each of the {count} actions, in their order:
{{"scores": [{{"action": the number of the action, "score": a number from 0 to 10, "reason": why}}]}}"""

_SCORE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 10}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"score": _SCORE, "reason": {"type": "string"}},
    "required": ["score", "reason"],
    "additionalProperties": False,
}
SCHEMA_EACH: dict[str, Any] = {
    "type": "object",
    "properties": {
        "scores": {
            "type": "array",
            "items": {
                **SCHEMA,
                "properties": {"action": {"type": "integer"}, **SCHEMA["properties"]},
                "required": ["action", "score", "reason"],
            },
        }
    },
    "required": ["scores"],
    "additionalProperties": False,
}

# A line that begins with `>` quotes something, such as the text that is judged.
_LINE = re.compile(r"^[ \t*#-]*(PROCESS_SCORE|REASONING|ACTION)[ \t*]*:[ \t*]*", re.M)
_FENCE = re.compile(r"```(?:json)?\n(.*)\n```", re.S)
_CLOSE = re.compile(re.escape(CLOSE))
_MOST_READINGS = 20
"""Marks behind which an answer is looked for."""
_NUMBER = re.compile(r"[0-9]{1,2}(?:\.[0-9]+)?")


class MalformedAnswer(ValueError):
    """An answer that is no score; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """The score of one action, from 0 to 10, and its reason."""

    score: float
    reason: str


def read_action(text: str, structured: bool) -> Judgement:
    """The judgement of one action.

    Raises:
        MalformedAnswer: not exactly one score from 0 to 10.
    """
    if structured:
        return _judgement(_json(text), ("score", "reason"))
    return _first_well_formed(text, lambda answer: _lines_judgement(_fields(answer), answer))


def read_trajectory(text: str, structured: bool, count: int) -> list[Judgement]:
    """The judgements of `count` actions, in their order.

    Raises:
        MalformedAnswer: not exactly one score from 0 to 10 for every action.
    """
    if not structured:
        return _first_well_formed(text, lambda answer: _in_order(_lines_judgements(answer), count))
    judged: list[tuple[Any, Judgement]] = []
    table = _json(text)
    entries = table.get("scores")
    if set(table) != {"scores"} or not isinstance(entries, list):
        raise MalformedAnswer('the JSON is not {"scores": [...]}')
    for entry in entries:
        if not isinstance(entry, dict):
            raise MalformedAnswer("an entry of `scores` is no object")
        judged.append((entry.get("action"), _judgement(entry, ("action", "score", "reason"))))
    return _in_order(judged, count)


def _in_order(judged: Sequence[tuple[Any, Judgement]], count: int) -> list[Judgement]:
    """The judgements of (number of the action, judgement)."""
    numbers = [number for number, _ in judged]
    if any(isinstance(number, bool) for number in numbers) or numbers != list(range(1, count + 1)):
        raise MalformedAnswer(f"it scores the actions {numbers!r:.200} instead of 1 to {count}, each once")
    return [judgement for _, judgement in judged]


def ends_in_score(text: str) -> bool:
    """Whether the last line of a text is a score: where a limit ended the text, digits of it may lack."""
    ends = [fields[-1] for answer in _readings(text) if (fields := _fields(answer))]
    return any(name == "PROCESS_SCORE" and "\n" not in value for name, value in ends)


def _readings(text: str) -> list[str]:
    """What may be the answer in a text of lines, the likeliest first.

    A thinking coach may try scores in its thought, so the answer is what is outside of it. But a reason may
    name the marks of a thought. So what begins with a line of the form may be an answer too, at the start of
    the text and behind each mark that ends a thought.
    """
    starts = [0, *(match.end() for match in itertools.islice(_CLOSE.finditer(text), _MOST_READINGS))]
    answers = [rest for start in starts if _LINE.match(rest := text[start:].lstrip())]
    outside = split(text).text
    return [*answers, outside] if _LINE.match(text.lstrip()) else [outside, *answers]


def _first_well_formed(text: str, read: Callable[[str], T]) -> T:
    """The first reading that is no malformed answer; the error is that of the likeliest."""
    first: MalformedAnswer | None = None
    for answer in _readings(text):
        try:
            return read(answer)
        except MalformedAnswer as error:
            first = first or error
    assert first is not None
    raise first


def _lines_judgements(text: str) -> list[tuple[Any, Judgement]]:
    """(number of the action, judgement) of each ACTION line."""
    judged: list[tuple[Any, Judgement]] = []
    fields = _fields(text)
    starts = [index for index, (name, _) in enumerate(fields) if name == "ACTION"]
    if fields and starts[:1] != [0]:
        raise MalformedAnswer("a score stands before the first ACTION line")
    for start, end in zip(starts, [*starts[1:], len(fields)], strict=False):
        number = fields[start][1].strip(" \t*\n")
        at = int(number) if re.fullmatch(r"[0-9]{1,4}", number) else number
        judged.append((at, _lines_judgement(fields[start + 1 : end], "")))
    return judged


def _fields(text: str) -> list[tuple[str, str]]:
    """(name, text up to the next name) of every line that begins with a name."""
    matches = list(_LINE.finditer(text))
    ends = [*(match.start() for match in matches[1:]), len(text)]
    return [(match[1], text[match.end() : end].strip()) for match, end in zip(matches, ends, strict=False)]


def _lines_judgement(fields: Sequence[tuple[str, str]], text: str) -> Judgement:
    scores = [value for name, value in fields if name == "PROCESS_SCORE"]
    reasons = [value for name, value in fields if name == "REASONING"]
    if len(scores) != 1:
        raise MalformedAnswer(f"it has {len(scores)} PROCESS_SCORE lines instead of one")
    if len(reasons) > 1:
        raise MalformedAnswer(f"it has {len(reasons)} REASONING lines instead of one")
    line, _, rest = scores[0].partition("\n")
    number = line.strip(" \t*")
    if not _NUMBER.fullmatch(number):
        raise MalformedAnswer(f"the score is {number[:40]!r}, which is no number from 0 to 10")
    reason = reasons[0] if reasons else rest or text.partition("PROCESS_SCORE")[0]
    return Judgement(_checked(float(number)), reason.strip())


def _judgement(table: Mapping[str, Any], keys: Sequence[str]) -> Judgement:
    if set(table) != set(keys):
        raise MalformedAnswer(f"the JSON has the keys {sorted(table)!r:.200} instead of {sorted(keys)}")
    score, reason = table["score"], table["reason"]
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise MalformedAnswer(f"the score is {score!r:.40}, which is no number")
    if not isinstance(reason, str):
        raise MalformedAnswer("the reason is no text")
    return Judgement(_checked(score), reason.strip())


def _checked(score: float) -> float:
    if not 0 <= score <= 10:  # NaN too
        raise MalformedAnswer(f"the score {score!r:.40} is outside 0 to 10")
    return float(score)


def _json(text: str) -> dict[str, Any]:
    """The object that a text is, also in a fence of its own; a key that stands twice is refused."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(items)
        if len(table) < len(items):
            raise MalformedAnswer("a key of the JSON stands twice")
        return table

    text = split(text).text.strip()
    fenced = _FENCE.fullmatch(text)
    try:
        table = json.loads(fenced[1] if fenced else text, object_pairs_hook=pairs)
    except (ValueError, RecursionError) as error:
        if isinstance(error, MalformedAnswer):
            raise
        raise MalformedAnswer("it is no JSON") from None
    if not isinstance(table, dict):
        raise MalformedAnswer("the JSON is no object")
    return table
