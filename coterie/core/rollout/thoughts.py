"""Thoughts of reasoning models: a completion, cut into its thought and its text.

Reasoning models write `<think>...</think>` before their answer. Where the chat template opens the thought
itself (Qwen3's thinking models, DeepSeek-R1), the completion has the closing mark alone. Both parts are
trained on as they were sampled; only text is cut here.
"""

from __future__ import annotations

from typing import NamedTuple

OPEN, CLOSE = "<think>", "</think>"


class SplitCompletion(NamedTuple):
    """One completion."""

    thought: str
    text: str
    """What is outside the thought: other roles see it, and it is parsed and searched for tool calls."""


def opens_thought(prompt: str) -> bool:
    """Whether a prompt ends inside a thought, so that the completion goes on thinking."""
    return prompt.rstrip().endswith(OPEN)


def split(text: str, thinking: bool = False) -> SplitCompletion:
    """Cut a completion into its thought and its text.

    All up to the last `</think>` is thought, as Qwen3's chat template reads an answer. A thought that never
    ends (the token limit cut it) has no text after it. A completion without marks is all text.

    Args:
        thinking: the prompt opened the thought (`Prompt.thinking`).
    """
    before, closed, after = text.rpartition(CLOSE)
    if not closed and thinking:
        return SplitCompletion(_bare(text), "")
    text_after, opened, unfinished = after.partition(OPEN)
    thoughts = [_bare(before)] if closed else []
    if opened:
        thoughts.append(unfinished.strip("\n"))
    return SplitCompletion(
        "\n".join(filter(None, thoughts)), text_after.lstrip("\n") if closed else text_after
    )


def _bare(thought: str) -> str:
    """Without the mark that opens it and the empty lines around it."""
    return thought.lstrip().removeprefix(OPEN).strip("\n")
