"""Which texts are tool calls and which are not."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, strategies as st

from coterie.backends.tools.calls import ToolUse, beginning, ending, fenced, native, numbered

PYTHON = ("python", "py")
PIECES = ["```", "````", "python", "py", "\n", " ", "x = 1", "<tool_call>", "</tool_call>", "{", "}",
          "[" * 50, '"name": "a"', '{"name": "a", "arguments": {"q": 1}}', "\r", "\ud800", "é"]  # fmt: skip


@pytest.mark.parametrize(("text", "program"), [
    ("so:\n```python\nprint(1)\n```", "print(1)\n"),
    ("```py\na\n\n  b\n```\nand so on", "a\n\n  b\n"),
    ("```Python  \na\n``` ", "a\n"),
    ("  ```python\na\n  ```", "a\n"),
    ("````python\n```\na\n````", "```\na\n"),
    ("```python\r\na\r\n```\r\n", "a\r\n"),
    ("```python\n```", ""),
])  # fmt: skip
def test_a_fenced_block_is_found(text, program):
    assert fenced(text, PYTHON) == program


@pytest.mark.parametrize("text", [
    "", "print(1)", "`python`", "```\nprint(1)\n```", "```text\n```python\n```", "```python print(1)```",
    "```python\nprint(1)", "```python\nprint(1)\n``", "    ```python\na\n    ```", "a ```python\nb\n```",
])  # fmt: skip
def test_what_is_no_closed_block_of_the_language_is_not_run(text):
    assert fenced(text, PYTHON) is None


def test_the_last_block_stands():
    assert fenced("```python\ndraft\n```\nno:\n```python\nfinal\n```\n```json\n{}\n```", PYTHON) == "final\n"
    assert fenced("```python\nfinal\n```\n```python\ncut", PYTHON) == "final\n"


def test_native_calls_are_found_in_their_order():
    text = (
        'First <tool_call>\n{"name": "a", "arguments": {"q": "</x>"}}\n</tool_call>\n'
        '<tool_call>{"name": "b"}</tool_call>'
        '<tool_call>{"arguments": "{\\"q\\": 2}", "name": "a"}</tool_call>'
    )
    assert native(text, ("a",)) == (ToolUse("a", {"q": "</x>"}), ToolUse("a", {"q": 2}))
    assert [use.name for use in native(text, ("a", "b"))] == ["a", "b", "a"]


@pytest.mark.parametrize("value", [
    "print('</tool_call>')", "<tool_call>", '<tool_call>{"name": "b"}</tool_call>', '"</tool_call>\\',
])  # fmt: skip
@pytest.mark.parametrize("indent", [None, 2])
def test_the_json_of_a_call_may_hold_the_marks_of_one(value, indent):
    call = json.dumps({"name": "a", "arguments": {"q": value}}, indent=indent)
    other = '<tool_call>{"name": "b"}</tool_call>'
    text = f"<tool_call>{{ {other} so <tool_call>\n{call}\n</tool_call> and {other}"
    assert native(text, ("a", "b")) == (ToolUse("b"), ToolUse("a", {"q": value}), ToolUse("b"))


def test_what_is_more_than_json_is_read_up_to_the_first_mark():
    (use,) = native('<tool_call>{"name": "a", "arguments": {"q": "</tool_call>"}} so</tool_call>', ("a",))
    assert "no JSON" in use.error


@pytest.mark.parametrize("text", [
    "", "a", '{"name": "a"}', '<tool_call>{"name": "a"}', '<tool_call>{"name": "z"}</tool_call>',
    '<tool_call>["a"]</tool_call>', '<tool_call>{"name": 1}</tool_call>', "<tool_call>a</tool_call>",
    '</tool_call>{"name": "a"}<tool_call>',
])  # fmt: skip
def test_what_names_no_tool_is_no_native_call(text):
    assert native(text, ("a",)) == ()


@pytest.mark.parametrize("inside", [
    '{"name": "a", "arguments": {"q": 1}', '{"name": "a", "arguments": [1]}',
    '{"name": "a", "arguments": "q"}',
    '{"name": "a", "arguments": ' + "[" * 100_000,
])  # fmt: skip
def test_a_call_that_cannot_be_read_is_its_tools_error(inside):
    (use,) = native(f"<tool_call>{inside}</tool_call>", ("a",))
    assert use.name == "a" and "JSON" in use.error


@given(st.lists(st.sampled_from(PIECES), max_size=30).map("".join))
def test_any_text_can_be_read(text):
    program = fenced(text, PYTHON)
    assert program is None or all(line in text for line in program.split("\n"))
    assert all(use.name == "a" for use in native(text, ("a",)))


@pytest.mark.parametrize(
    ("start", "piece", "end"),
    [
        ("", "```python\n", ""),
        ("", "<tool_call>", ""),
        ("", '<tool_call>{"name"   ', ""),
        ("", "`", ""),
        ("", "`", " x y"),
        ("", "```\n", ""),
        ("", '"name":', ""),
        ("", '<tool_call>[",",",', ""),
        ("```", " ", "x y"),
        ("```", "\t", "python ?"),
        ("```", "a", " ?"),
    ],
)
def test_no_text_takes_long(start, piece, end):
    def seconds(count: int) -> float:
        text = start + piece * count + end
        begin = time.process_time()
        fenced(text, PYTHON)
        native(text + "</tool_call>", ("a",))
        return time.process_time() - begin

    # Ten times the text takes about ten times as long; a quadratic reader takes a hundred times.
    short = min(seconds(10_000) for _ in range(3))
    assert seconds(100_000) < 40 * max(short, 0.002)


def test_results_are_cut_and_counted():
    assert ending("abcdef", 6) == "abcdef" and ending("abcdef", 2) == "[4 characters left out]\nef"
    assert beginning("abcdef", 6) == "abcdef" and beginning("abcdef", 2) == "ab\n[4 characters left out]"
    assert numbered(["a"]) == "a" and numbered(["a", "b"]) == "result 1 of 2:\na\n\nresult 2 of 2:\nb"
