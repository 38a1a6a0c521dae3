"""The rules: equalities, tools, answers; and the forms in which they answer."""

from __future__ import annotations

import asyncio
import json
import re
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from coterie import ChatRequest, ConfigError
from coterie.backends.chat_models.heuristic import Check, equalities, last_sum
from coterie.core.types import Action
from coterie.plugins.rewards.coach import prompts
from coterie.plugins.rewards.coach.prompts import ShownAction
from coterie.testing import build, check_chat_model
from coterie.testing.checks.chat_model import SCHEMA

TRAJECTORY = {
    "type": "object",
    "properties": {
        "scores": {
            "type": "array",
            "items": {**SCHEMA, "properties": {"action": {"type": "integer"}, **SCHEMA["properties"]}},
        }
    },
    "required": ["scores"],
}


def ask(prompt, schema=SCHEMA, before=(), **settings):
    """The heuristic's answer to a prompt, or to one that a re-ask follows."""
    messages = (*before, {"role": "user", "content": prompt})
    made = build("chat_model", {"type": "heuristic", **settings})
    text = asyncio.run(made.answer(ChatRequest(messages=messages, schema=schema))).text
    return text if schema is None else json.loads(text)


def wrote(text, tool="", answer=""):
    shown = {"role": "solver, turn 1", "instruction": "Add <1> & 2.", "seen": "1 + 2 = ?", "wrote": text}
    shown |= {name: part for name, part in (("tool_output", tool), ("answer", answer)) if part}
    return f"You are a coach. <wrote>: what the role wrote.\n{tagged(**shown)}\nScore it."


def tagged(**parts):
    return "\n".join(f"<{name}>\n{text}\n</{name}>" for name, text in parts.items())


@pytest.mark.parametrize(
    ("text", "right", "wrong"),
    [
        ("12 + 7 = 19", 1, 0), ("12 + 7 = 20", 0, 1), ("So 12+7=19, and 3*4 = 13.", 1, 1),
        ("2 + 3 = 5 = 10 / 2", 2, 0), ("2 + 3 = 6 - 1 = 4", 1, 1), ("x + 3 = 5", 0, 0),
        ("2x - 1 = 7", 0, 0), ("x = 5", 0, 0), ("5 = 5", 0, 0), ("f(3) + 1 = 7", 0, 0),
        ("3 + 4 = 7x", 0, 0), ("3 + 4 = x + 1", 0, 0),
        ("1,000 + 1 = 1,001", 1, 0), ("$12 \\times 3 = 36$", 1, 0), ("7 × 8 = 54", 0, 1), ("9 ÷ 3 = 3", 1, 0),
        ("1/3 = 0.333", 1, 0), ("1/3 = 0.34", 0, 1), ("2 + 2 != 5", 0, 0), ("2 + 2 <= 5", 0, 0),
        ("if 2 + 2 == 5:", 0, 0), ("(1 + 2) * 3 = 9", 1, 0), ("3 - -4 = 7", 1, 0), ("-3 + 4 = 1", 1, 0),
        ("1 / 0 = 1", 0, 0), ("x^2 + 1 = 5", 0, 0), ("12 + 7 = 19.", 1, 0), ("12 + 7 =", 0, 0),
        ("= 4 + 4", 0, 0),
        ("y - 3 + 4 = 9", 0, 0), ("y -3 + 4 = 9", 0, 0), ("so -3 + 4 = 1", 1, 0), ("3 ** 2 = 9", 0, 0),
        ("", 0, 0),
    ],
)  # fmt: skip
def test_equalities_of_numbers(text, right, wrong):
    written = equalities(text)
    assert (sum(part.true for part in written), sum(not part.true for part in written)) == (right, wrong), (
        written
    )


@settings(deadline=None)
@given(st.integers(-999, 999), st.integers(0, 999), st.sampled_from("+-*/"), st.integers(1, 50))
def test_true_sums_are_right_and_others_are_not(a, b, sign, off):
    b += sign == "/"
    value = Fraction(a, b) if sign == "/" else {"+": a + b, "-": a - b, "*": a * b}[sign]
    shown = f"{value.numerator}/{value.denominator}" if isinstance(value, Fraction) else str(value)
    assert [part.true for part in equalities(f"Thus {a} {sign} {b} = {shown}, so we go on")] == [True]
    wrong = value + off
    shown = f"{wrong.numerator}/{wrong.denominator}" if isinstance(wrong, Fraction) else str(wrong)
    assert [part.true for part in equalities(f"Thus {a} {sign} {b} = {shown}.")] == [False]


@settings(deadline=None)
@given(st.text(st.sampled_from("0123456789+-*/=()., \nx^{}$\\<>e_"), max_size=300))
def test_no_text_breaks_them(text):
    equalities(text)
    assert 0 <= ask(wrote(text))["score"] <= 10


@pytest.mark.parametrize(
    ("prompt", "score", "reason"),
    [
        (wrote(""), 0, "Nothing was written."),
        (wrote("12 + 7 = 19"), 8, "Every equality is right."),
        (wrote("12 + 7 = 19 and 19 + 1 = 21"), 2, "An equality is wrong: 19 + 1 = 21."),
        (wrote("I pass."), 5, "No rule applies."),
        (wrote("The result is 19.", answer="19"), 9, "The reference answer appears in what was written."),
        (wrote("The result is 119 or 19.5.", answer="19"), 3, "does not appear"),
        (wrote("12 + 7 = 20, hence 19", answer="19"), 2, "An equality is wrong: 12 + 7 = 20."),
        (wrote("print(1/0)", tool="Traceback (most recent call last):\n  x\nZeroDivisionError: x"), 2,
        "failed"),
        (wrote("run", tool="exit code 1"), 2, "The program failed."),
        (wrote("1 + 1 = 2", tool="exit code 0\n2"), 8, "Every equality is right."),
        (wrote("1 + 1 = 2", tool="Error: no\n" + "x" * 3000 + "\nexit code 0"), 8, "its end counts"),
        ("No parts at all: 2 + 2 = 5", 5, "No rule applies."),
    ],
)  # fmt: skip
def test_the_first_rule_that_applies_scores(prompt, score, reason):
    answer = ask(prompt)
    assert answer["score"] == score and (reason in answer["reason"] or reason == "its end counts")


def test_the_closing_tag_of_what_was_written_is_no_end():
    assert ask(wrote("</wrote> 2 + 2 = 5"))["score"] == 2


def test_a_re_ask_is_scored_by_the_prompt_before_it():
    before = ({"role": "user", "content": wrote("2 + 2 = 5")}, {"role": "assistant", "content": "bad"})
    assert ask("Answer in JSON, please.", before=before)["score"] == 2


def test_a_trajectory_has_a_score_for_each_action():
    actions = [wrote("2 + 2 = 5"), wrote("2 + 2 = 4"), wrote("")]
    prompt = "".join(f'<action n="{n}">\n{text}\n</action>\n' for n, text in enumerate(actions, 1))
    rows = ask(prompt, TRAJECTORY)["scores"]
    assert [(row["action"], row["score"]) for row in rows] == [(1, 2), (2, 8), (3, 0)]
    numbers = {"type": "object", "properties": {"scores": {"type": "array", "items": {"type": "integer"}}}}
    assert ask(prompt, numbers) == {"scores": [2, 8, 0]}
    text = ask(prompt + tagged(answer="4"), None)
    assert text.splitlines()[:3] == [
        "ACTION 1",
        "PROCESS_SCORE: 2",
        "REASONING: An equality is wrong: 2 + 2 = 5.",
    ]
    assert "ACTION 2\nPROCESS_SCORE: 9\n" in text, "the answer of all actions is shown once"


def test_without_a_schema_it_writes_the_two_lines():
    assert ask(wrote("2 + 2 = 4"), None) == "PROCESS_SCORE: 8\nREASONING: Every equality is right."


def test_rules_of_a_configuration():
    rules = [
        {"part": "seen", "pattern": "wall", "score": 1, "reason": "hit"},
        {"part": "", "pattern": "^Help", "score": 10, "reason": "whole"},
    ]
    assert ask(tagged(seen="a wall", wrote="x"), rules=rules) == {"score": 1.0, "reason": "hit"}
    assert ask("Help me", rules=rules)["score"] == 10
    assert ask(tagged(wrote="x"), rules=rules, otherwise=4)["score"] == 4


@pytest.mark.parametrize(
    ("text", "written", "value"),
    [
        ("code_executor then 7 + 5 - 3 :", "7+5-3", 9), ("1 2 - 3", "12-3", 9), ("0 7 + 1", "7+1", 8),
        ("has 7 gets 5", "5", 5), ("so (3+4)/2.", "(3+4)/2", Fraction(7, 2)), ("3 × 4", "3*4", 12),
        ("0.50", "0.50", Fraction(1, 2)), ("5 / 0", None, None), ("nothing", None, None), ("", None, None),
        ("(", None, None), ("4 then (", "4", 4),
    ],
)  # fmt: skip
def test_the_last_sum_of_a_text(text, written, value):
    assert last_sum(text) == (None if written is None else (written, value))


@pytest.mark.parametrize(
    ("role", "seen", "text", "score"),
    [
        ("a", "has 7 gets 5 :", "7 + 5", 9), ("a", "has 7 gets 5 :", "7 + 4", 1),
        ("b", "then 7 + 5 :", "1 2", 8),
        ("b", "then 7 + 4 :", "1 1", 8), ("b", "then 7 + 5 :", "1 3", 1), ("b", "then 7 + 5 :", "7 + 5", 2),
        ("b", "nothing", "1 2", 1), ("c", "then 1 2 :", "1 2", 1),
    ],
)  # fmt: skip
def test_rules_by_the_value_of_the_last_sum_and_by_role(role, seen, text, score):
    """An action that goes on from a wrong one is right: 7 + 4 isn't the answer 12, and 11 follows from it."""
    rules = [
        {"check": "answer_value", "roles": ["a"], "score": 9},
        {"check": "repeats", "roles": ["b"], "score": 2},
        {"check": "keeps_value", "roles": ["b"], "score": 8},
    ]
    prompt = tagged(role=f"{role}, turn 1", seen=seen, wrote=text, answer="12")
    assert ask(prompt, rules=rules, otherwise=1)["score"] == score


def test_it_reads_the_parts_of_the_coachs_own_prompt():
    """The prompt explains its marks before it uses them."""
    shown = ShownAction(
        "solver", 0, ({"role": "user", "content": "seen"},), Action(calls=(), text="2 + 2 = 5")
    )
    parts = prompts.action_text(shown, prompts.ShownTask("order: solver", "4"), prompts.Characters())
    prompt = prompts.load_template("action", None, "").substitute(format="Answer.", parts=parts)
    assert ask(prompt) == {"score": 2.0, "reason": "An equality is wrong: 2 + 2 = 5."}


@pytest.mark.parametrize(
    ("rule", "path", "words"),
    [
        ({"pattern": "(", "score": 1}, ".pattern", "is no regular expression"),
        ({"score": 1}, "", "has a pattern if"),
        ({"check": "empty", "pattern": "x", "score": 1}, "", "has a pattern if"),
        ({"check": "empty", "score": 11}, ".score", "less than or equal to 10"),
        ({"check": "empty", "part": "writ", "score": 1}, ".part", "did you mean 'wrote'?"),
        ({"check": "empty", "part": "x", "score": 1}, ".part", "instruction, seen, wrote, tool_output"),
    ],
)
def test_rules_that_mean_nothing_are_refused_by_their_number(rule, path, words):
    with pytest.raises(ConfigError) as caught:
        rules = [{"check": "empty", "score": 0}, rule]
        build("chat_model", {"type": "heuristic", "rules": rules}, name="judge")
    assert caught.value.path == f"chat_models.judge.rules.1{path}" and words in str(caught.value)


def test_the_docs_have_every_check():
    text = (Path(__file__).parents[3] / "docs" / "chat_models.md").read_text(encoding="utf-8")
    table = text[text.index("| `check` | ") :].split("\n\n")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == ["check", *get_args(Check)]


def test_it_conforms():
    check_chat_model(build("chat_model", "heuristic"))
