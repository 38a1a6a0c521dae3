"""The transition mode expert_edits: what the expert is asked, what roles are told, and what goes wrong."""

from __future__ import annotations

import asyncio
import json
import logging
from types import SimpleNamespace

import pytest

from coterie.core.errors import PluginError
from coterie.plugins.transitions.expert_edits import NO_EDIT, ExpertEdits, MalformedEdits, read_edits
from coterie.plugins.transitions.revision import REVISE
from tests.plugins.support import wait
from tests.plugins.transitions.support import (
    AUX,
    EDITS,
    MAIN,
    SOLVER,
    TOYS,
    expert,
    mode,
    telling,
    told,
)
from tests.plugins.transitions.toys import Work

EARLIER, EDIT = "Your previous answer:", "The expert's edit of your answer:"


def prompts(model):
    return [request.messages[-1]["content"] for request in model.asked]


# ------------------------------------------------------------------------------------------------ snapshots


def test_what_the_roles_of_a_team_are_told():
    made, model = expert()
    assert told(made, "aux") == [EARLIER, AUX, EDIT, "return x", REVISE]
    assert told(made, "main") == [EARLIER, MAIN, EDIT, "call aux", REVISE]
    assert len(model.asked) == 1, "both roles share one call"
    assert made.counted() == {"expert/edits": 2, "expert/none": 0, "expert/malformed": 0, "expert/failed": 0}
    assert made.counted()["expert/edits"] == 0, "counted once"


def test_what_a_solver_is_told():
    made, model = expert('{"solver": "def add(x, y):\\n  return x"}', team="solver")
    edit = "def add(x, y):\n  return x"
    assert told(made, "solver", team="solver") == [EARLIER, SOLVER, EDIT, edit, REVISE]
    assert model.asked[0].schema["required"] == ["solver"]


def test_what_the_expert_is_asked():
    made, model = expert()
    told(made, "aux")
    assert prompts(model) == [
        f"""You are an expert. You review what language models wrote for a task, one answer a role, and \
propose an edit of each answer. Each role reads its edit and writes its answer once more.

The task, as role 'aux' was given it:

<task>
You are aux.

Write add(x, y).
</task>

The latest answers:

<answer role="aux">
{AUX}
</answer>

<answer role="main">
{MAIN}
</answer>

Write an edit for each role: the lines to change, or a whole answer in place of a wrong or missing one, in \
the form that the task asks for. Where nothing has to change, say so in a line.

Answer with one JSON object and nothing else, with a text in each field: {{"aux": "...", "main": "..."}}"""
    ]
    (request,) = model.asked
    assert (request.max_tokens, request.temperature) == (2048, 0.0)
    assert request.schema == {
        "type": "object",
        "properties": {"aux": {"type": "string"}, "main": {"type": "string"}},
        "required": ["aux", "main"],
        "additionalProperties": False,
    }


def test_a_model_without_structure_is_asked_in_words_alone():
    made, model = expert(structured=False, settings={"max_tokens": 99, "temperature": 0.3})
    assert told(made, "main")[-2] == "call aux"
    (request,) = model.asked
    assert (request.schema, request.max_tokens, request.temperature) == (None, 99, 0.3)


def test_an_environment_without_the_latest_answers_has_each_role_ask_about_its_own():
    made, model = expert('{"aux": "1"}', '{"main": "2"}', env="Talker")
    assert told(made, "aux")[-2] == "1"
    assert told(made, "main")[-2] == "2"
    assert ('aux">' in prompts(model)[0], 'main">' in prompts(model)[0]) == (True, False)
    assert ('aux">' in prompts(model)[1], 'main">' in prompts(model)[1]) == (False, True)


def test_a_long_edit_is_told_in_parts_that_the_core_does_not_cut():
    edit = "\n".join(f"line {number}" for number in range(1500))
    made, _ = expert(json.dumps({"aux": edit}))
    sentences = told(made, "aux")
    assert "\n".join(sentences[3:-1]) == edit
    assert max(map(len, sentences)) <= 4000


# ---------------------------------------------------------------------------------------- what it answers

READ = {
    "whole": (EDITS, {"aux": "return x", "main": "call aux"}),
    "fence": (f"Here it is:\n```json\n{EDITS}\n```\nGood luck.", {"aux": "return x", "main": "call aux"}),
    "words around": (f"Sure! {EDITS} Done.", {"aux": "return x", "main": "call aux"}),
    "thought": ('<think>{"aux": "no"}</think>{"aux": "yes"}', {"aux": "yes"}),
    "line ends": ('{"aux": "def aux():\n    return 1"}', {"aux": "def aux():\n    return 1"}),
    "a fence with JSON inside": ('So: {"aux": "```\n[1, 2]\n```"}', {"aux": "```\n[1, 2]\n```"}),
    "marks of a thought inside": (
        '<think>{"aux": "</think>"}</think>{"aux": "x = \'</think>\'", "main": "<think>"}',
        {"aux": "x = '</think>'", "main": "<think>"},
    ),
    "a fence inside": ('{"aux": "```python\\nx\\n```"}', {"aux": "```python\nx\n```"}),
    "missing": ('{"main": "x"}', {"main": "x"}),
    "blank": ('{"aux": " \\n", "main": "x"}', {"main": "x"}),
    "no text": ('{"aux": 5, "main": ["x"]}', {}),
    "null": ('{"aux": null, "main": "x"}', {"main": "x"}),
    "another field": ('{"aux": "a", "score": 3}', {"aux": "a"}),
}


@pytest.mark.parametrize("name", READ)
def test_edits_are_read(name):
    text, edits = READ[name]
    assert read_edits(text, ("aux", "main")) == edits


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no JSON"),
        ("I would rename x.", "no JSON"),
        ('{"aux": "x"', "no JSON"),
        ("5", "no object"),
        ('["aux"]', "no object"),
        ("{}", "none of the fields aux, main"),
        ('{"Aux": "x"}', "none of the fields"),
        ('{"aux": "x", "aux": "y"}', "stands twice"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_holds_no_edits_is_malformed(text, what):
    with pytest.raises(MalformedEdits, match=what):
        read_edits(text, ("aux", "main"))


def test_a_malformed_answer_is_asked_for_once_more(caplog):
    made, model = expert("rename x", EDITS)
    with caplog.at_level(logging.WARNING, "coterie"):
        assert told(made, "aux")[-2] == "return x"
        assert told(made, "main")[-2] == "call aux"
    first, second = model.asked
    assert second.messages[:2] == (*first.messages, {"role": "assistant", "content": "rename x"})
    wish = "Your answer can't be read: it is no JSON. Answer again, with the JSON object alone."
    assert second.messages[2]["content"] == wish
    assert made.counted() == {"expert/edits": 2, "expert/none": 0, "expert/malformed": 1, "expert/failed": 0}
    assert len(caplog.records) == 1
    assert "an answer can't be read: it is no JSON" in caplog.text


def test_two_malformed_answers_are_no_edit_for_both_roles_and_warned_of_once(caplog):
    made, model = expert("rename x", finish="length")
    with caplog.at_level(logging.WARNING, "coterie"):
        for role in ("aux", "main"):
            assert told(made, role)[2:] == [NO_EDIT, REVISE]
        assert len(model.asked) == 2
        for role in ("aux", "main"):
            assert told(made, role)[2:] == [NO_EDIT, REVISE]
    assert len(model.asked) == 4, "a later episode asks anew"
    assert made.counted() == {"expert/edits": 0, "expert/none": 4, "expert/malformed": 4, "expert/failed": 0}
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "max_tokens=2048 cut it" in caplog.text


@pytest.mark.parametrize("text", ['{"main": "x"}', '{"aux": "", "main": "x"}', '{"aux": 1, "main": "x"}'])
def test_a_field_without_text_is_no_edit_for_its_role_alone(text):
    made, model = expert(text)
    assert told(made, "aux")[2:] == [NO_EDIT, REVISE]
    assert told(made, "main")[2:] == [EDIT, "x", REVISE]
    assert len(model.asked) == 1
    counts = made.counted()
    assert (counts["expert/edits"], counts["expert/none"], counts["expert/malformed"]) == (1, 1, 0)


@pytest.mark.parametrize("texts", [("FAULT",), ("rename x", "FAULT")])
def test_a_failed_call_is_no_edit_counted_and_warned_of(caplog, texts):
    made, model = expert(*texts)
    with caplog.at_level(logging.WARNING, "coterie"):
        for role in ("aux", "main"):
            assert told(made, role)[2:] == [NO_EDIT, REVISE]
    assert len(model.asked) == len(texts)
    counts = made.counted()
    assert (counts["expert/none"], counts["expert/failed"]) == (2, 1)
    assert "a call failed: the server is gone" in caplog.text


def test_an_environment_with_a_wrong_latest_is_named():
    made, _ = expert(env={"type": f"{TOYS}:CodeTeam", "wrong": True})
    with pytest.raises(PluginError, match=r"latest returned \{'aux': 5, 'main': 5\}"):
        told(made, "aux")


# ------------------------------------------------------------------------------------- shared calls


def telling_at_once(made, model, roles, states, cancel=()):
    """What is told to (role, state), all at once, while the expert's answers wait; some callers cancelled."""

    async def go():
        model.gate = asyncio.Event()
        tasks = [asyncio.create_task(telling(made, role, state=state)) for state in states for role in roles]
        asked = len(model.asked) + len(set(states))
        while len(model.asked) < asked:
            await asyncio.sleep(0)
        for number in cancel:
            tasks[number].cancel()
        await asyncio.sleep(0)
        model.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return wait(go())


def test_sixty_four_episodes_at_once_ask_once_a_state():
    made, model = expert()
    states = [Work(latest=(("aux", f"{number % 16}"), ("main", "x"))) for number in range(64)]
    sentences = telling_at_once(made, model, ("aux", "main"), states)
    assert len(model.asked) == 16
    assert [texts[-2] for texts in sentences] == ["return x", "call aux"] * 64
    assert made.counted()["expert/edits"] == 128
    telling_at_once(made, model, ("aux", "main"), states)
    assert len(model.asked) == 32, "nothing of the first round is left"


def test_a_cancelled_episode_does_not_cancel_those_that_joined_it():
    made, model = expert()
    state = Work(latest=(("aux", AUX), ("main", MAIN)))
    first, *others = telling_at_once(made, model, ("aux",), [state] * 4, cancel=[0])
    assert isinstance(first, asyncio.CancelledError)
    assert [texts[-2] for texts in others] == ["return x"] * 3
    assert len(model.asked) == 1
    assert made.counted()["expert/edits"] == 3


def test_a_call_that_nobody_waits_for_any_more_is_cancelled():
    made, model = expert()
    state = Work(latest=(("aux", AUX), ("main", MAIN)))
    results = telling_at_once(made, model, ("aux",), [state] * 3, cancel=[0, 1, 2])
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    model.gate = None
    assert told(made, "aux", state=state)[-2] == "return x", "asked anew"
    assert made.counted()["expert/edits"] == 1


def test_an_answer_that_no_teammate_reads_is_forgotten_in_the_end(monkeypatch):
    monkeypatch.setattr("coterie.plugins.transitions.expert_edits.MOST", 8)
    made, model = expert()
    for number in range(20):
        told(made, "aux", state=Work(latest=(("aux", str(number)), ("main", "x"))))
    for number in range(12, 20):
        told(made, "main", state=Work(latest=(("aux", str(number)), ("main", "x"))))
    assert len(model.asked) == 20, "the last eight were kept"
    for number in range(12):
        told(made, "main", state=Work(latest=(("aux", str(number)), ("main", "x"))))
    assert len(model.asked) == 32


def test_a_failure_that_no_teammate_has_read_is_replaced_by_a_later_answer():
    made, model = expert("FAULT", EDITS)
    assert told(made, "aux")[-2] == NO_EDIT
    assert told(made, "aux")[-2] == "return x", "a later episode asks anew"
    assert [told(made, "main")[-2] for _ in range(2)] == ["call aux"] * 2
    assert len(model.asked) == 2
    told(made, "aux")
    assert len(model.asked) == 3, "nothing is kept once every role has read it"


def test_behind_the_runs_engine_no_episode_waits_for_anothers_call():
    """A batch of the engine begins when all episodes wait for it: one that joined a call never would."""
    asked = []

    async def answer(request):
        asked.append(request)
        await asyncio.sleep(0)
        return SimpleNamespace(text=EDITS, finish="stop")

    policy = SimpleNamespace(structured=True, answer=answer, use_engine=lambda engine: None)
    build = mode("plain").build
    made = ExpertEdits(ExpertEdits.Config(model=policy), build)

    async def go():
        return await asyncio.gather(*(telling(made, "aux") for _ in range(4)))

    assert [texts[-2] for texts in wait(go())] == ["return x"] * 4
    assert len(asked) == 4
