"""Where a thought ends and what is said begins."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from coterie.core.rollout.thoughts import opens_thought, split


@pytest.mark.parametrize(("text", "thought", "said"), [
    ("", "", ""),
    ("  up\n", "", "  up\n"),
    ("<think>\nhm\n</think>\n\nup\n", "hm", "up\n"),
    ("<think></think>up", "", "up"),
    ("\n<think>a b</think>up", "a b", "up"),
    ("hm, well\n</think>\n\nup", "hm, well", "up"),  # the template opened it, and nobody said so
    ("<think>\nhm", "hm", ""),
    ("up <think>or down", "or down", "up "),
    ("<think>a</think>b<think>c</think>d", "a</think>b<think>c", "d"),
    ("<think>a</think>b<think>c", "a\nc", "b"),
    ("<think>a</think>", "a", ""),
    ("<think", "", "<think"),
])  # fmt: skip
def test_a_completion_is_cut_in_two(text, thought, said):
    assert split(text) == (thought, said)


@pytest.mark.parametrize(("text", "thought", "said"), [
    ("\nhm\n</think>\n\nup", "hm", "up"),
    ("hm", "hm", ""),
    ("", "", ""),
    ("<think>\nhm", "hm", ""),
    ("<think>\nhm</think>up", "hm", "up"),
])  # fmt: skip
def test_a_completion_that_begins_inside_a_thought(text, thought, said):
    assert split(text, thinking=True) == (thought, said)


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "\n", "a", "b ", "<", ">"]), max_size=12).map(
    "".join
)


@given(PIECES, st.booleans())
def test_no_mark_is_said_and_no_letter_is_lost(text, thinking):
    thought, said = split(text, thinking)
    assert "</think>" not in said and "<think>" not in said
    letters = text.replace("<think>", "").replace("</think>", "").replace("\n", "")
    whole = (thought + said).replace("<think>", "").replace("</think>", "").replace("\n", "")
    assert sorted(whole) == sorted(letters)


def test_a_prompt_may_end_inside_a_thought():
    assert opens_thought("assistant\n<think>\n") and opens_thought("<think>")
    assert not opens_thought("<think>\n\n</think>\n\n") and not opens_thought("assistant\n")
