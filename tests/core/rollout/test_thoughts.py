"""The split of a completion into thought and answer."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given, strategies as st

from coterie.core.rollout.thoughts import split


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
QUOTED = '{"score": 0.0, "reason": "the answer ends in </think>, and <think> is missing"}'
PROGRAM = "```python\nend = text.rfind('</think>')\nbegin = '<think>'\n```\n"


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        QUOTED,
        json.dumps({"a": {"b": ["<think>", "</think>"]}}, indent=1),
        '["</think>"]',
        '[1, {"a": "line\n</think>"}]',
        f"So:\n```json\n{QUOTED}\n```\nThat is all.",
        '<tool_call>{"name": "python", "arguments": {"code": "print(\'</think>\')"}}</tool_call>',
        PROGRAM,
        f"First\n{PROGRAM}and then\n{PROGRAM}",
    ],
)
def test_json_and_code_may_name_the_marks_of_a_thought(answer, thinking):
    if not thinking:
        assert split(answer) == ("", answer)
    for thought in (
        "hm",
        'maybe {"score": 1, "reason": "</think>"}',
        'maybe {"a": [1, {"b": ["</think>"]}]}',
        "if {x, [y",
        "one ``` two",
        PROGRAM.strip(),
    ):
        assert split(f"<think>{thought}</think>{answer}", thinking) == (thought, answer)
        assert split(f"{thought}\n</think>\n\n{answer}", thinking) == (thought, answer)


@pytest.mark.parametrize(
    ("thought", "answer"),
    [
        ("so:\n```\nx", "```\ny\n```"),
        ("so:\n```python\nx", "```\ny\n```"),
        ("```python\nx", "```python\ny\n```"),
        ("``` and\n```", PROGRAM),
        ('{"score": 1, "reason": "it', QUOTED),
        ('["', QUOTED),
        ("{ { [[", QUOTED),
        (r"\\frac{1}{2} " * 2000, QUOTED),
    ],
    ids=range(8),
)
def test_what_a_thought_leaves_open_takes_nothing_of_the_answer(thought, answer):
    assert split(f"<think>{thought}\n</think>\n{answer}") == (thought, answer)


@given(st.text(max_size=20), PIECES, st.booleans())
@example("</think>", "<think>", False)
def test_any_json_answer_comes_back_whole(key, value, indented):
    answer = json.dumps({"a": [1, {key: value}]}, indent=1 if indented else None)
    assert split(answer) == ("", answer)
    assert split(f"<think>hm</think>{answer}") == ("hm", answer)


def test_json_nested_too_deeply_is_no_json():
    assert split("[" * 20_000 + "</think>a") == ("[" * 20_000, "a")


@pytest.mark.parametrize("piece", ["```a\n", "```\n", '{"'])
def test_no_completion_takes_long(piece):
    def seconds(count: int) -> float:
        begin = time.process_time()
        split("<think>" + piece * count)
        return time.process_time() - begin

    # Ten times the text takes about ten times as long; a quadratic reader takes a hundred times.
    short = min(seconds(3_000) for _ in range(3))
    assert seconds(30_000) < 40 * max(short, 0.002)


@given(PIECES, st.booleans())
def test_an_answer_has_no_mark_and_no_letter_is_lost(text, thinking):
    thought, answer = split(text, thinking)
    assert "</think>" not in answer and "<think>" not in answer  # these pieces make no JSON
    letters = text.replace("<think>", "").replace("</think>", "").replace("\n", "")
    parts = (thought + answer).replace("<think>", "").replace("</think>", "").replace("\n", "")
    assert sorted(parts) == sorted(letters)
