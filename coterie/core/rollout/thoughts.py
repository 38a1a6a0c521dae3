"""Thoughts of reasoning models: a completion, cut into its thought and its text.

Reasoning models write `<think>...</think>` before their answer. Where the chat template opens the thought
itself (Qwen3's thinking models, DeepSeek-R1), the completion has the closing mark alone. Both parts are
trained on as they were sampled; only text is cut here.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"
_BLOCK = r"(?:^|(?<=</think>)) {0,3}```[^\n`]*\n(?:(?! {0,3}```|</?think>)[^\n]*\n)*+ {0,3}```[ \t\r]*$"
_QUOTING = re.compile(
    _BLOCK + r'|\{(?=\s*["}])|\[(?=\s*["{\[\]\dtfnNI-])', re.M
)  # or a bracket that opens JSON
_JSON = json.JSONDecoder(strict=False)  # models write line ends into strings as they are


class SplitCompletion(NamedTuple):
    """One completion."""

    thought: str
    text: str
    """What is outside the thought: other roles see it, and it is parsed and searched for tool calls."""


def split(text: str, thinking: bool = False) -> SplitCompletion:
    """Cut a completion into its thought and its text.

    All up to the last `</think>` is thought, as Qwen3's chat template reads an answer. A thought that never
    ends (the token limit cut it) has no text after it. A completion without marks is all text. JSON and
    closed blocks of code may name the marks: these are none.

    Args:
        thinking: the prompt opened the thought (`Prompt.thinking`).
    """
    marks = _without_quotes(text) if OPEN in text or CLOSE in text else text
    end = marks.rfind(CLOSE)
    if end < 0 and thinking:
        return SplitCompletion(_bare(text), "")
    start = 0 if end < 0 else end + len(CLOSE)
    shown, opened, _ = marks[start:].partition(OPEN)
    stop = start + len(shown)
    thoughts = (_bare(text[: max(end, 0)]), text[stop + len(opened) :].strip("\n"))
    answer = text[start:stop]
    return SplitCompletion("\n".join(filter(None, thoughts)), answer if end < 0 else answer.lstrip("\n"))


def _without_quotes(text: str) -> str:
    """A text of the same length, with spaces in place of its JSON values and closed blocks of code."""
    kept, end = "", 0
    for match in itertools.islice(_QUOTING.finditer(text), 2000):  # bounds the time
        start, stop = match.span()
        if start >= end:
            with contextlib.suppress(ValueError, RecursionError):
                stop = stop if stop > start + 1 else _JSON.raw_decode(text, start)[1]
                kept, end = kept + text[end:start] + " " * (stop - start), stop
    return kept + text[end:]


def _bare(thought: str) -> str:
    """Without the mark that opens it and the empty lines around it."""
    return thought.lstrip().removeprefix(OPEN).strip("\n")
