"""Answers of records: how a role's is compared with one, and which ones no answer can equal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Match = Literal["exact", "text", "number"]

_NUMBER = re.compile(r"-?(?:\d[\d,]*)?\.?\d+(?:[eE][+-]?\d+)?")
_TEXTS = ("text", "strip", "regex", "code", "boxed")
"""Parsers of the role `template` that give texts; `regex` where its groups have no names."""


def matches(given: Any, answer: Any, how: Match) -> bool:
    """Whether an answer is the record's.

    exact: equal; text ignores surrounding spaces, and where either side is a number values are compared.
    text: equal as text, ignoring case and spacing. number: the last numbers are equal to 1e-9 relative.
    """
    if given is None:
        return False
    if how == "text":
        return " ".join(str(given).split()).casefold() == " ".join(str(answer).split()).casefold()
    if how == "number" or any(
        isinstance(value, (int, float)) and not isinstance(value, bool) for value in (given, answer)
    ):
        left, right = (number(value, anywhere=how == "number") for value in (given, answer))
        return (
            left is not None and right is not None and math.isclose(left, right, rel_tol=1e-9, abs_tol=1e-12)
        )
    if isinstance(given, str) and isinstance(answer, str):
        return given.strip() == answer.strip()
    return bool(given == answer)


def voted(given: Any, answer: Any, how: Match) -> str | None:
    """An answer as a vote counts it: what `matches` takes for equal is one text; None: there is none.

    Args:
        answer: the record's. Where it is a number, `exact` compares values.
    """
    if given is None:
        return None
    numeric = isinstance(answer, (int, float)) and not isinstance(answer, bool)
    if how == "text":
        return " ".join(str(given).split()).casefold()
    if how == "number" or numeric:
        value = number(given, anywhere=how == "number")
        return None if value is None else f"{value:.9g}"
    return given.strip() if isinstance(given, str) else json.dumps(given, sort_keys=True, default=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the role that answers is read and compared, as far as a record's answer can be checked by it."""

    role: str
    match: Match
    parser: str = ""
    """Of a role `template`; empty: any other role, which may give values of any type."""
    choices: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    """Names of the groups of the parser `regex`."""

    @classmethod
    def of(cls, role: str, table: Any, match: Match) -> Reading:
        """From the role's table in the configuration."""
        if not isinstance(table, Mapping) or table.get("type") != "template":
            return cls(role=role, match=match)
        try:
            groups = tuple(re.compile(table.get("pattern") or "").groupindex)
        except re.error:  # the role refuses it
            groups = ()
        parser, choices = str(table.get("parser", "text")), tuple(map(str, table.get("choices") or ()))
        return cls(role=role, match=match, parser=parser, choices=choices, groups=groups)

    def problem(self, answer: Any) -> str:
        """Why no answer of the role can equal a record's; empty: one may."""
        if self._may_equal(answer):
            return ""
        if self.match == "number":
            return f"has no number: {answer!r:.60}"
        given = f"the parser '{self.parser}' of role '{self.role}' gives {self._given()}"
        return f"can never be matched: it is {_kind(answer)} {answer!r:.60}, and {given}"

    def doubt(self, answer: Any) -> str:
        """What is odd about an answer that may be matched; empty: nothing."""
        if isinstance(answer, str):
            return "" if answer.strip() else "an empty answer, which an empty reply matches"
        if isinstance(answer, (list, dict)) and self.match == "text":
            return "a list or a table as answer, which `match: text` compares as Python writes it"
        if isinstance(answer, (list, dict, bool)) and not self.parser:
            return "a list, a table or a truth value as answer, which no text equals"
        return ""

    def _may_equal(self, answer: Any) -> bool:
        if self.match == "number" and number(answer, anywhere=True) is None:
            return False
        if isinstance(answer, float) and not math.isfinite(answer):
            return False
        if self.parser == "choice":
            return any(matches(choice, answer, self.match) for choice in self.choices)
        if self.parser == "number":
            return number(answer, anywhere=self.match == "number") is not None
        if self.parser == "json":
            return self.match != "number" and (self.match == "text" or isinstance(answer, (list, dict)))
        if self.parser == "regex" and self.groups:
            exact = isinstance(answer, dict) and set(answer) == set(self.groups)
            return self.match != "number" and (self.match == "text" or exact)
        return self.parser not in _TEXTS or matches(str(answer), answer, self.match)

    def _given(self) -> str:
        if self.parser == "choice":
            return f"one of: {', '.join(self.choices)}"
        if self.groups:
            return f"tables with the keys {', '.join(self.groups)}"
        return {"number": "numbers", "json": "JSON objects and lists"}.get(self.parser, "texts")


def number(value: Any, *, anywhere: bool) -> float | None:
    """The value as a number: a number, text that is one, or (`anywhere`) the last one in a text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        text = repr(value)
    elif isinstance(value, str):
        texts = _NUMBER.findall(value) if anywhere else [value]
        text = texts[-1].strip().replace(",", "") if texts else ""
    else:
        return None
    try:
        result = float(text)
    except ValueError:
        return None
    return result if math.isfinite(result) else None


def _kind(value: Any) -> str:
    kinds = {str: "the text", bool: "the truth value", list: "the list", dict: "the table"}
    return kinds.get(type(value), "the number")
