"""Scores are read strictly; a malformed answer is asked for once more, and is missing after that."""

from __future__ import annotations

import asyncio
import contextlib
import json

import pytest
from hypothesis import example, given, settings, strategies

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.types import Fault
from coterie.plugins.rewards.coach.answers import (
    SCHEMA,
    Judgement,
    MalformedAnswer,
    read_action,
    read_trajectory,
)
from tests.plugins.rewards.coach.support import coach, episode_of, scored, view_of

GOOD = [
    ("PROCESS_SCORE: 8\nREASONING: it loads the file", Judgement(8.0, "it loads the file")),
    ("PROCESS_SCORE: 0\nREASONING: nothing", Judgement(0.0, "nothing")),
    ("PROCESS_SCORE: 10\nREASONING: a\nb", Judgement(10.0, "a\nb")),
    ("REASONING: first\nPROCESS_SCORE: 7.5", Judgement(7.5, "first")),
    ("**PROCESS_SCORE:** 6\n**REASONING:** bold", Judgement(6.0, "bold")),
    ("Let me see.\nPROCESS_SCORE: 4", Judgement(4.0, "Let me see.")),
    ("PROCESS_SCORE: 4\nIt is late.", Judgement(4.0, "It is late.")),
    ("<think>PROCESS_SCORE: 2?</think>PROCESS_SCORE: 3\nREASONING: r", Judgement(3.0, "r")),
    ("PROCESS_SCORE: 2\n</think>\nPROCESS_SCORE: 3\nREASONING: r", Judgement(3.0, "r")),
    ("PROCESS_SCORE: 3\nREASONING: no <think> is there", Judgement(3.0, "no <think> is there")),
    ("PROCESS_SCORE: 3\nREASONING: it lacks </think>.", Judgement(3.0, "it lacks </think>.")),
    ("REASONING: <think> lacks its </think>\nPROCESS_SCORE: 3", Judgement(3.0, "<think> lacks its </think>")),
    ("<think>2?</think>\nPROCESS_SCORE: 3\nREASONING: a </think> b", Judgement(3.0, "a </think> b")),
]
BAD = [
    "", "8", "PROCESS_SCORE:", "PROCESS_SCORE: 8/10", "PROCESS_SCORE: NaN", "PROCESS_SCORE: 11",
    "PROCESS_SCORE: -1", "PROCESS_SCORE: 1e1", "PROCESS_SCORE: 8 or 9", "PROCESS_SCORE: eight",
    "PROCESS_SCORE: 10.01", "PROCESS_SCORE: 8\nPROCESS_SCORE: 8", "PROCESS_SCORE: \u0668",
    "PROCESS_SCORE: 8\nREASONING: a\nPROCESS_SCORE: 9", "I give PROCESS_SCORE: 8", "PROCESS_SCORE 8",
    "PROCESS_SCORE: 8\nREASONING: a\nREASONING: b", "<think>PROCESS_SCORE: 8",
    "<think>\nPROCESS_SCORE: 8\n</think>", "<think>\nPROCESS_SCORE: 8\nREASONING: r",
    "so </think> PROCESS_SCORE: 8 </think>",
]  # fmt: skip
BAD_JSON = [
    "", "8", "[]", "{}", '{"score": 8}', '{"score": "8", "reason": "r"}', '{"score": NaN, "reason": "r"}',
    '{"score": 11, "reason": "r"}', '{"score": true, "reason": "r"}', '{"score": 8, "reason": null}',
    '{"score": 1, "score": 10, "reason": "r"}', '{"score": 8, "reason": "r", "more": 1}',
    'Here it is: {"score": 8, "reason": "r"}',
    '```json\n{"score": 8, "reason": "r"}\n```\n```', '{"score": -0.5, "reason": "r"}',
    '{"score": Infinity, "reason": "r"}', f'{{"score": 1{"0" * 400}, "reason": "r"}}', "[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), GOOD)
def test_a_score_and_a_reason(text, expected):
    assert read_action(text, structured=False) == expected


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_malformed(text):
    with pytest.raises(MalformedAnswer):
        read_action(text, structured=False)


@pytest.mark.parametrize("text", BAD_JSON)
def test_malformed_json(text):
    with pytest.raises(MalformedAnswer):
        read_action(text, structured=True)


@given(strategies.text(max_size=80), strategies.booleans())
@settings(max_examples=50, deadline=None)
def test_a_text_is_a_score_or_malformed_and_nothing_else(text, structured):
    for read in (read_action, lambda text, structured: read_trajectory(text, structured, 2)):
        with contextlib.suppress(MalformedAnswer):
            read(text, structured)


REASONS = strategies.lists(
    strategies.sampled_from(["<think>", "</think>", "```", "```json\n", "\n", '"', "\\", "{", "}", "]", ", "])
    | strategies.text(max_size=5),
    max_size=8,
).map("".join)


@settings(max_examples=50, deadline=None)
@given(strategies.floats(0, 10), REASONS, strategies.booleans())
@example(0.0, "<think>", False)
@example(0.0, "</think>", False)
@example(1.0, "<think>a</think>", True)
@example(1.0, "</think>\n```\n", True)
@example(1.0, '</think>{"score": 10, "reason": "r"}', True)
@example(1.0, "\ud800<think>", False)
def test_json_round_trip(score, reason, indented):
    text = json.dumps({"score": score, "reason": reason}, indent=2 if indented else None)
    judged = Judgement(score, reason.strip())
    assert read_action(text, structured=True) == judged
    for before, after in (
        ("<think>hm</think>", ""),
        ("```json\n", "\n```"),
        ("<think>\n</think>\n```\n", "\n```"),
    ):
        assert read_action(f"{before}{text}{after}", structured=True) == judged


def test_json_in_a_thought_is_no_answer():
    thought = '{"score": 1, "reason": "</think>"}'
    for opening in ("<think>", ""):
        text = f'{opening}So: {thought} or {thought}</think>{{"score": 0, "reason": "<think>"}}'
        assert read_action(text, structured=True) == Judgement(0.0, "<think>")
    with pytest.raises(MalformedAnswer):
        read_action(f"<think>{thought}", structured=True)


def test_json_in_a_fence_of_its_own_is_read():
    for text in (
        '```json\n{"score": 8, "reason": "r"}\n```',
        '<think>3?</think>\n{"score": 8, "reason": "r"}',
    ):
        assert read_action(text, structured=True) == Judgement(8.0, "r")


def each(*rows, structured=False):
    if structured:
        return json.dumps({"scores": [{"action": n, "score": s, "reason": "r"} for n, s in rows]})
    return "\n".join(f"ACTION: {n}\nPROCESS_SCORE: {s}\nREASONING: r" for n, s in rows)


@pytest.mark.parametrize("structured", [False, True])
def test_a_trajectory_has_every_action_once(structured):
    text = each((1, 8), (2, 3), structured=structured)
    assert [judged.score for judged in read_trajectory(text, structured, 2)] == [8.0, 3.0]
    for rows in (
        [(1, 8)],
        [(1, 8), (1, 3)],
        [(2, 3), (1, 8)],
        [(1, 8), (2, 3), (3, 1)],
        [],
        [(1, 8), (2, 11)],
    ):
        with pytest.raises(MalformedAnswer):
            read_trajectory(each(*rows, structured=structured), structured, 2)


@pytest.mark.parametrize("structured", [False, True])
@pytest.mark.parametrize("mark", ["<think>", "</think>", "a </think> b <think>"])
def test_the_reasons_of_a_trajectory_may_name_the_marks_of_a_thought(mark, structured):
    rows = [{"action": n, "score": n, "reason": mark} for n in (1, 2)]
    text = json.dumps({"scores": rows})
    if not structured:
        text = "\n".join(f"ACTION: {n}\nPROCESS_SCORE: {n}\nREASONING: {mark}" for n in (1, 2))
    for before in ("", "<think>hm</think>\n"):
        assert read_trajectory(before + text, structured, 2) == [Judgement(1.0, mark), Judgement(2.0, mark)]


def test_a_score_before_the_first_action_is_malformed():
    with pytest.raises(MalformedAnswer, match="before the first"):
        read_trajectory("PROCESS_SCORE: 9\n" + each((1, 8)), False, 1)


# ------------------------------------------------------------------------------------------------ the source


def test_the_score_and_its_reason():
    table = scored(coach(scale=2.0), view_of())
    score = table["engineer", "process"]
    assert score.value == 1.6 and score.comment == "sound\n(scripted-1; answers: 1)"


def test_a_malformed_answer_is_asked_for_once_more_in_the_same_conversation():
    source = coach({"texts": ["PROCESS_SCORE: 8/10", "PROCESS_SCORE: 8\nREASONING: r"]})
    score = scored(source, view_of())["engineer", "process"]
    assert score.value == 0.8 and score.comment.endswith("answers: 2)")
    first, second = source.config.model.asked
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    assert second.messages[0] == first.messages[0]
    assert second.messages[1]["content"] == "PROCESS_SCORE: 8/10"
    assert "'8/10', which is no number" in second.messages[2]["content"]


def test_an_empty_answer_is_asked_again_about_with_a_message_that_servers_accept():
    source = coach({"texts": ["", "PROCESS_SCORE: 8"]})
    scored(source, view_of())
    assert source.config.model.asked[1].messages[1]["content"] == "(empty)"


def test_after_two_malformed_answers_the_score_is_missing():
    source = coach({"texts": ["nothing", "PROCESS_SCORE: 12"]})
    with pytest.raises(
        SystemFault, match=r"malformed twice: .* lines instead of one; then .* outside 0 to 10"
    ):
        scored(source, view_of())
    assert len(source.config.model.asked) == 2


def test_a_coach_without_an_answer_is_missing():
    with pytest.raises(SystemFault, match="the server is gone"):
        scored(coach({"texts": ["FAULT"]}), view_of())


def test_a_structured_model_gets_the_schema():
    source = coach({"structured": True, "texts": ['{"score": 4, "reason": "r"}']})
    assert scored(source, view_of())["engineer", "process"].value == 0.4
    (asked,) = source.config.model.asked
    assert asked.schema == SCHEMA and "Answer in JSON" in asked.messages[0]["content"]
    plain = coach()
    scored(plain, view_of())
    assert plain.config.model.asked[0].schema is None


@pytest.mark.parametrize("structured", [False, True])
def test_a_trajectory_scores_every_action_and_leaves_lost_ones_out(structured):
    lost = Fault(kind="system", reason="aborted")
    text = each((1, 8), (2, 3), structured=structured)
    source = coach({"structured": structured, "texts": [text]}, per="trajectory")
    rows = scored(source, episode_of("a", "b", "c", faults=(None, lost)))
    assert [{key: score.value for key, score in row.items()} for row in rows] == [
        {("engineer", "process"): 0.8},
        {},
        {("engineer", "process"): 0.3},
    ]


@pytest.mark.parametrize("structured", [False, True])
def test_an_answer_that_its_limit_cut_names_the_limit(structured):
    text = '{"score": 8, "reason": "it lo' if structured else "<think>The action loads the"
    source = coach({"texts": [text], "structured": structured, "finish": "length"}, max_tokens=64)
    with pytest.raises(SystemFault) as caught:
        scored(source, view_of())
    for words in ("by max_tokens=64", "raise rewards.coach.max_tokens", "cut"):
        assert words in str(caught.value)
    assert "be shorter" in source.config.model.asked[1].messages[2]["content"]


def test_the_limit_of_a_trajectory_is_named_with_that_of_an_action():
    source = coach({"texts": ["I see"], "finish": "length"}, max_tokens=64, per="trajectory")
    with pytest.raises(SystemFault, match="max_tokens=128, 64 for each action"):
        scored(source, episode_of("a", "b"))


def test_an_answer_that_ended_by_itself_is_not_called_cut():
    for model in (
        {"texts": ['{"score": 8, "reason": "it lo'], "structured": True},
        {"texts": ['{"score": 8 "reason": "it loads"}'], "structured": True},
        {"texts": ["nothing"]},
    ):
        with pytest.raises(SystemFault) as caught:
            scored(coach(model), view_of())
        assert "max_tokens" not in str(caught.value)


def test_digits_of_a_score_that_a_limit_may_have_cut_are_not_believed():
    source = coach({"texts": ["REASONING: good\nPROCESS_SCORE: 1"], "finish": "length"})
    with pytest.raises(SystemFault, match="max_tokens"):
        scored(source, view_of())
    named = coach({"texts": ["REASONING: no <think>\nPROCESS_SCORE: 1"], "finish": "length"})
    with pytest.raises(SystemFault, match="max_tokens"):
        scored(named, view_of())
    whole = coach({"texts": ["PROCESS_SCORE: 1\nREASONING: it lo"], "finish": "length"})
    assert scored(whole, view_of())["engineer", "process"].value == 0.1


@pytest.mark.parametrize("structured", [False, True])
def test_a_reason_is_bounded_and_says_what_is_left_out(structured):
    long = "x" * 100_000
    text = json.dumps({"score": 8, "reason": long}) if structured else f"PROCESS_SCORE: 8\nREASONING: {long}"
    source = coach({"texts": [text], "structured": structured, "versions": ["v" * 1000]})
    comment = scored(source, view_of())["engineer", "process"].comment
    assert len(comment) < 2_300 and "[98000 characters left out]" in comment
    assert comment.endswith("v; answers: 1)")
    short = coach({"texts": [text], "structured": structured}, characters={"reason": 10})
    assert scored(short, view_of())["engineer", "process"].comment.startswith(
        "xxxxx\n[99990 characters left out]"
    )


@pytest.mark.parametrize(
    ("per", "structured", "text"),
    [
        ("action", True, json.dumps({"score": 8, "x" * 50_000: 1})),
        ("trajectory", True, json.dumps({"scores": [{"action": "x" * 50_000, "score": 8, "reason": "r"}]})),
        ("trajectory", False, f"ACTION: {'x' * 50_000}\nPROCESS_SCORE: 8"),
        ("action", False, "FAULT"),
    ],
)
def test_the_reason_of_a_missing_score_is_bounded_too(per, structured, text):
    model = {"texts": [text], "structured": structured, "fault": "gone " * 10_000}
    with pytest.raises(SystemFault) as caught:
        scored(coach(model, per=per), view_of() if per == "action" else episode_of("a"))
    assert len(str(caught.value)) < 2_300


@pytest.mark.parametrize(
    ("texts", "end"),
    [
        (["FAULT"], "gave no answer: the server is gone (asked: 1, answered: 0)"),
        (["?", "FAULT"], "asked again, gave no answer: the server is gone (asked: 2, answered: 1)"),
        (["?", "!"], "(asked: 2, answered: 2)"),
    ],
)
def test_a_missing_score_says_how_often_the_coach_was_asked_and_answered(texts, end):
    with pytest.raises(SystemFault) as caught:
        scored(coach({"texts": texts}), view_of())
    assert str(caught.value).endswith(end)


def test_another_version_of_the_model_is_told_once(caplog):
    source = coach({"versions": ["flash-1", "flash-2", "flash-2"]})
    for _ in range(3):
        scored(source, view_of())
    (warning,) = caplog.records
    assert "changed from flash-1 to flash-2" in warning.getMessage()


def test_several_coaches_have_components_of_their_own():
    assert coach(component="style").components == {"style": "increment"}
    assert coach(component="code-style_2").components == {"code-style_2": "increment"}


@pytest.mark.parametrize("component", ["", 3, "team.x/y", "process.style", "2nd", "a b", None])
def test_a_component_has_a_name(component):
    with pytest.raises(ConfigError) as caught:
        coach(component=component)
    assert caught.value.path == "rewards.coach.component"


def test_scoring_overlaps():
    async def go():
        source = coach({"delay": 0.05})
        await asyncio.gather(*(source.score(view_of(str(number))) for number in range(20)))
        return source

    begin = asyncio.run(timed(go))
    assert begin < 0.5


async def timed(work):
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await work()
    return loop.time() - begin
