"""The split of a completion into thought and answer."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.core.rollout.thoughts import opens_thought, split


@pytest.mark.parametrize(("text", "thought", "answer"), [
    ("", "", ""),
    ("  up\n", "", "  up\n"),
    ("<think>\nhm\n</think>\n\nup\n", "hm", "up\n"),
    ("<think></think>up", "", "up"),
    ("\n<think>a b</think>up", "a b", "up"),
    ("hm, well\n</think>\n\nup", "hm, well", "up"),  # the template opened the thought
    ("<think>\nhm", "hm", ""),
    ("up <think>or down", "or down", "up "),
    ("<think>a</think>b<think>c</think>d", "a</think>b<think>c", "d"),
    ("<think>a</think>b<think>c", "a\nc", "b"),
    ("<think>a</think>", "a", ""),
    ("<think", "", "<think"),
])  # fmt: skip
def test_a_completion_is_split_in_two(text, thought, answer):
    assert split(text) == (thought, answer)


@pytest.mark.parametrize(("text", "thought", "answer"), [
    ("\nhm\n</think>\n\nup", "hm", "up"),
    ("hm", "hm", ""),
    ("", "", ""),
    ("<think>\nhm", "hm", ""),
    ("<think>\nhm</think>up", "hm", "up"),
])  # fmt: skip
def test_a_completion_that_begins_inside_a_thought(text, thought, answer):
    assert split(text, thinking=True) == (thought, answer)


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "b ", "<", ">"]), max_size=12).map(
    "".join
)


@given(PIECES, st.booleans())
def test_an_answer_has_no_mark_and_no_letter_is_lost(text, thinking):
    thought, answer = split(text, thinking)
    assert "</think>" not in answer and "<think>" not in answer
    letters = text.replace("<think>", "").replace("</think>", "").replace("\n", "")
    parts = (thought + answer).replace("<think>", "").replace("</think>", "").replace("\n", "")
    assert sorted(parts) == sorted(letters)


def test_a_prompt_may_end_inside_a_thought():
    assert opens_thought("assistant\n<think>\n") and opens_thought("<think>")
    assert not opens_thought("<think>\n\n</think>\n\n") and not opens_thought("assistant\n")
