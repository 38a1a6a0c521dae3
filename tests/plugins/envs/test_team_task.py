"""The user's own records: read, split, checked, played."""

from __future__ import annotations

import json
import pickle
import sys
import types
from itertools import chain

import pytest

from coterie.core.errors import ConfigError, DataError, PolicyFault
from coterie.core.types import TEAM, Action
from coterie.plugins.envs.team_task.env import TeamTask, matches
from tests.plugins.support import Build, context, make, wait

TEAM_OF_TWO = ["writer", "checker"]


def write(path, records):
    path.write_text(
        "\n".join(record if isinstance(record, str) else json.dumps(record) for record in records) + "\n"
    )
    return str(path)


def sums(count):
    return [
        {"id": f"q{i}", "question": f"{i}+{i}?", "answer": 2 * i, "level": "easy" if i % 4 else "hard"}
        for i in range(count)
    ]


@pytest.fixture
def own_module():
    """A module of the user's, as `own_functions:name`."""
    module = types.ModuleType("own_functions")
    sys.modules["own_functions"] = module
    yield module
    del sys.modules["own_functions"]


def env_of(tmp_path, records=None, order=TEAM_OF_TWO, roles=None, **settings):
    if "path" not in settings and "train" not in settings and "data" not in settings:
        settings["path"] = write(tmp_path / "data.jsonl", records if records is not None else sums(60))
    return make(TeamTask, Build(order=order, roles=roles or {}), **settings)


def say(env, state, turn=0, **parsed):
    actions = {role: Action(calls=(), text=str(value), parsed=value) for role, value in parsed.items()}
    return wait(env.step(state, actions, context(turn=turn)))


# ---- splits


def test_one_file_is_split_by_content_and_order_changes_nothing(tmp_path):
    records = sums(400)
    env = env_of(tmp_path, records, id_field="id", stratum_field="level")
    ids = {
        split: [task.id.split("-")[1] for task in env.tasks(split, 0)] for split in ("train", "val", "test")
    }
    assert sorted(chain.from_iterable(ids.values())) == sorted(record["id"] for record in records)
    assert len(ids["val"]) == pytest.approx(40, abs=18) and len(ids["test"]) == pytest.approx(40, abs=18)
    again = env_of(
        tmp_path,
        [*records[::-1], {"id": "new", "question": "?", "answer": 1, "level": "x"}],
        id_field="id",
        stratum_field="level",
    )
    for split, before in ids.items():
        after = [task.id.split("-")[1] for task in again.tasks(split, 7)]
        assert [record for record in after if record != "new"] == before[::-1]


def test_the_same_question_under_two_ids_stays_in_one_split(tmp_path):
    records = [{**record, "id": f"{record['id']}-{copy}"} for record in sums(100) for copy in "ab"]
    env = env_of(tmp_path, records, id_field="id", stratum_field="level")
    questions = [
        {task.payload["question"] for task in env.tasks(split, 0)} for split in ("train", "val", "test")
    ]
    assert sum(map(len, questions)) == 100


def test_tasks_carry_what_they_should(tmp_path):
    env = env_of(tmp_path, id_field="id", stratum_field="level")
    task = env.tasks("train", 0)[0]
    assert task.answer == task.payload["answer"] and task.stratum == task.payload["level"]
    assert task.id == f"train-{task.payload['id']}" and pickle.loads(pickle.dumps(task)) == task


def test_a_record_in_two_splits_is_refused_with_both_places(tmp_path):
    train = write(tmp_path / "train.jsonl", sums(5))
    test = write(tmp_path / "test.jsonl", ["", {"question": "x", "answer": 1}, sums(5)[3]])
    env = env_of(tmp_path, train=train, test=test, id_field=None)
    with pytest.raises(DataError) as caught:
        env.tasks("train", 0)
    assert (caught.value.file, caught.value.line) == (test, 3)
    assert f"{train}, line 4" in str(caught.value)


def test_a_split_without_records_says_so(tmp_path):
    env = env_of(tmp_path, train=write(tmp_path / "a.jsonl", sums(3)))
    assert len(env.tasks("train", 0)) == 3
    with pytest.raises(ConfigError, match="no file for split 'val'"):
        env.tasks("val", 0)
    tiny = env_of(tmp_path, sums(1), val_share=0.0)
    with pytest.raises(ConfigError, match="has no record"):
        tiny.tasks("val", 0)
    with pytest.raises(ConfigError, match="no such file"):
        env_of(tmp_path, path="nowhere.jsonl").tasks("train", 0)
    with pytest.raises(ConfigError, match="no such file"):
        env_of(tmp_path, train=write(tmp_path / "b.jsonl", sums(3)), val="nowhere.jsonl").tasks("train", 0)


# ---- wrong lines


@pytest.mark.parametrize(
    ("line", "settings", "field", "problem"),
    [
        ('{"question": "x", ', {}, "-", "not JSON"),
        ("[1, 2]", {}, "-", "not an object"),
        ('{"question": "x"}', {}, "answer", "is missing"),
        ('{"question": "x", "answer": null}', {}, "answer", "is null"),
        ('{"answer": 1}', {"fields": ["question"]}, "question", "is missing"),
        ('{"question": 3, "answer": 1}', {"fields": {"question": "text"}}, "question", "is number, not text"),
        (
            '{"question": "x", "answer": true}',
            {"fields": {"answer": "number"}},
            "answer",
            "is bool, not number",
        ),
        ('{"question": "x", "answer": 1}', {"id_field": "id"}, "id", "is missing"),
        ('{"question": "x", "answer": 1, "id": [1]}', {"id_field": "id"}, "id", "is list, not text"),
        ('{"question": "x", "answer": 1, "id": "q0"}', {"id_field": "id"}, "id", "also in line 1"),
        ('{"question": "x", "answer": "no"}', {"success": {"match": "number"}}, "answer", "has no number"),
        ('{"question": "x", "answer": 1, "turn": 2}', {}, "turn", "templates use"),
    ],
)
def test_a_wrong_line_is_named_with_its_file_line_and_field(tmp_path, line, settings, field, problem):
    path = write(tmp_path / "own.jsonl", [sums(1)[0], "", line])
    with pytest.raises(DataError, match=problem) as caught:
        env_of(tmp_path, train=path, **settings).tasks("train", 0)
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, 3, field)


@pytest.mark.parametrize(
    ("answer", "match", "role"),
    [
        (["3"], "exact", {}),
        ({"a": 1}, "exact", {"parser": "boxed"}),
        (True, "exact", {}),
        (float("nan"), "exact", {}),
        ("seven", "exact", {"parser": "number"}),
        ("seven", "text", {"parser": "number"}),
        (["3"], "exact", {"parser": "number"}),
        ("3", "exact", {"parser": "json"}),
        (3, "number", {"parser": "json"}),
        ("maybe", "exact", {"parser": "choice", "choices": ["yes", "no"]}),
        ("Yes", "exact", {"parser": "choice", "choices": ["yes", "no"]}),
        ("", "text", {"parser": "choice", "choices": ["yes", "no"]}),
        ("3", "exact", {"parser": "regex", "pattern": r"(?P<x>\d)"}),
        ({"y": "3"}, "exact", {"parser": "regex", "pattern": r"(?P<x>\d)"}),
        (["3"], "number", None),
        (float("inf"), "exact", None),
    ],
)
def test_an_answer_that_no_reply_can_match_is_refused_with_its_place(tmp_path, answer, match, role):
    path = write(tmp_path / "own.jsonl", ["", {"question": "x", "answer": answer}])
    roles = {} if role is None else {"checker": {"type": "template", "prompt": "p", **role}}
    with pytest.raises(DataError, match=r"can never be matched|has no number") as caught:
        env_of(tmp_path, train=path, success={"match": match}, roles=roles).tasks("train", 0)
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, 2, "answer")
    # Another role's answer, or a function's, may be of any type.
    if match == "exact" and answer == ["3"]:
        success = {"role": "writer", "match": "exact"}
        assert env_of(tmp_path, train=path, success=success, roles=roles).tasks("train", 0)


@pytest.mark.parametrize(
    ("answer", "match", "role"),
    [
        ("Paris", "exact", {}),
        (42, "exact", {"parser": "strip"}),
        ("1,234", "exact", {"parser": "number"}),
        ("#### 1,234", "number", {"parser": "text"}),
        ([1, {"a": None}], "exact", {"parser": "json"}),
        ("YES", "text", {"parser": "choice", "choices": ["yes", "no"]}),
        (2, "exact", {"parser": "choice", "choices": ["1", "2"]}),
        ({"x": "3"}, "exact", {"parser": "regex", "pattern": r"(?P<x>\d)"}),
        ("3", "exact", {"parser": "regex", "pattern": r"(\d)"}),
        ("x", "exact", None),
        (7, "number", None),
    ],
)
def test_an_answer_that_a_reply_may_match_is_taken_in_silence(tmp_path, caplog, answer, match, role):
    path = write(tmp_path / "own.jsonl", [{"question": "x", "answer": answer}])
    roles = {} if role is None else {"checker": {"type": "template", "prompt": "p", **role}}
    assert env_of(tmp_path, train=path, success={"match": match}, roles=roles).tasks("train", 0)
    assert caplog.messages == []


def test_records_that_may_be_intended_are_counted_and_placed_in_one_warning_of_a_kind(tmp_path, caplog):
    records = [{"id": f"q{i}", "question": f"{i}?", "answer": "" if i < 7 else "a"} for i in range(9)]
    twice = [{**records[8], "id": "again"}, {**records[8], "id": "other", "answer": "b"}]
    path = write(tmp_path / "own.jsonl", records + twice)
    env = env_of(tmp_path, train=path, id_field="id")
    assert len(env.tasks("train", 0)) == 11
    empty, repeated, contradicting = sorted(caplog.messages, key=lambda text: "content" in text)
    assert "7 records have an empty answer" in empty and empty.endswith(f"{path}:5 and 2 more")
    assert f"1 record has the content of an earlier one: {path}:10 (as {path}:9)" in repeated
    assert f"another answer: {path}:11 (as {path}:9)" in contradicting
    env.tasks("train", 0)
    assert len(caplog.messages) == 3


def test_a_list_that_only_some_role_of_a_plugin_gives_is_a_warning(tmp_path, caplog):
    path = write(tmp_path / "own.jsonl", [{"question": "x", "answer": ["3"]}])
    assert env_of(tmp_path, train=path).tasks("train", 0)
    assert "1 record has a list, a table or a truth value as answer" in caplog.text
    caplog.clear()
    env_of(tmp_path, train=path, success={"match": "text"}).tasks("train", 0)
    assert "as Python writes it" in caplog.text and f"{path}:1" in caplog.text


def test_a_question_under_another_id_in_another_split_is_told(tmp_path, caplog):
    train = write(tmp_path / "train.jsonl", [{"id": 1, "question": "x", "answer": "a"}])
    val = write(tmp_path / "val.jsonl", [{"id": 2, "question": "x", "answer": "a"}])
    assert env_of(tmp_path, train=train, val=val).tasks("val", 0)
    assert f"of one in another split, but for its `id`: {val}:1 (as {train}:1)" in caplog.text


# ---- play


def test_roles_see_the_record_but_never_the_answer(tmp_path):
    env = env_of(tmp_path, id_field="id")
    state = env.reset(env.tasks("train", 0)[0], 0)
    seen = env.observe(say(env, state, writer="7").state, "checker")
    assert set(seen) == {"question", "level", "actions", "parsed", "transcript"}
    assert seen["actions"] == {"writer": "7"} and seen["transcript"] == [
        {"turn": 0, "role": "writer", "text": "7", "parsed": "7"}
    ]
    assert env.fields is None
    only = env_of(tmp_path, fields=["question"])
    assert only.fields == ("question", "parsed", "transcript")
    assert "level" not in only.observe(only.reset(only.tasks("train", 0)[0], 0), "writer")


def test_the_last_roles_answer_is_paid_by_default_as_a_potential(tmp_path):
    env = env_of(tmp_path)
    task = env.tasks("train", 0)[0]
    root = env.reset(task, 0)
    first = say(env, root, writer=task.answer)
    assert first.scores == {(TEAM, "correct"): 0.0}  # the checker's answer counts
    second = say(env, first.state, checker=str(task.answer))
    assert second.scores == {(TEAM, "correct"): 1.0} and env.components == {"correct": "potential"}
    third = say(env, second.state, 1, writer="hm")
    assert third.scores == {(TEAM, "correct"): 1.0}  # it still stands
    assert say(env, third.state, 1, checker=None).scores == {(TEAM, "correct"): 0.0}
    assert env.outcome(third.state) == {"success": 1.0, "turns": 2.0}
    assert root == env.reset(task, 0) and pickle.loads(pickle.dumps(third.state)) == third.state


def test_success_of_a_named_role_or_a_function(tmp_path, own_module):
    env = env_of(tmp_path, success={"role": "writer", "match": "number"})
    task = env.tasks("train", 0)[0]
    assert say(env, env.reset(task, 0), writer=f"it is {task.answer}.0").state.correct == 1.0

    async def score(record, transcript):
        if transcript[-1]["text"] == "hang":
            raise PolicyFault("hung")
        return len(transcript) / record["answer"]

    own_module.score = score
    env = env_of(
        tmp_path, [{"question": f"{i}", "answer": 4} for i in range(40)], success="own_functions:score"
    )
    assert env.concurrent
    state = say(env, env.reset(env.tasks("train", 0)[0], 0), writer="x").state
    assert state.correct == 0.25 and say(env, state, checker="hang").state.correct == 0.0
    # A function needs no answer in the records.
    assert env_of(tmp_path, [{"question": str(i)} for i in range(40)], success="own_functions:score").tasks(
        "train", 0
    )


def test_a_function_that_returns_no_number_is_said(tmp_path, own_module):
    own_module.score = lambda record, transcript: "good"
    env = env_of(tmp_path, success="own_functions:score")
    with pytest.raises(TypeError, match="'good'"):
        say(env, env.reset(env.tasks("train", 0)[0], 0), writer="x")


def test_it_stops_when_all_agree_in_one_turn(tmp_path):
    env = env_of(tmp_path, stop_when="agree")
    state = env.reset(env.tasks("train", 0)[0], 0)
    apart = say(env, say(env, state, writer="1").state, checker="2").state
    assert env.acting_roles(apart) is None
    late = say(env, apart, 1, writer="2").state
    assert env.acting_roles(late) is None  # the checker has not spoken in this turn
    assert env.acting_roles(say(env, late, 1, checker=2.0).state) == ()
    unread = say(env, say(env, state, writer=None).state, checker=None).state
    assert env.acting_roles(unread) is None


def test_it_stops_when_a_function_says_so(tmp_path, own_module):
    own_module.stop = lambda record, transcript: transcript[-1]["text"] == "done"
    env = env_of(tmp_path, stop_when="own_functions:stop")
    state = env.reset(env.tasks("train", 0)[0], 0)
    assert env.acting_roles(say(env, state, writer="go").state) is None
    assert env.acting_roles(say(env, state, writer="done").state) == ()


@pytest.mark.parametrize(
    ("given", "answer", "how", "right"),
    [
        ("42", "42", "exact", True),
        (" 42 ", "42", "exact", True),
        ("42.0", "42", "exact", False),
        (42, "42", "exact", True),
        ("42", 42.0, "exact", True),
        ("x", 42, "exact", False),
        (True, 1, "exact", False),
        ([1, 2], [1, 2], "exact", True),
        (None, None, "exact", False),
        ("Yes", "yes", "exact", False),
        ("Two  Words", "two words", "text", True),
        ("it is 1,234.50", 1234.5, "number", True),
        ("1/2", 0.5, "number", False),
        ("no", 1, "number", False),
        (0.1 + 0.2, "0.3", "exact", True),
    ],
)
def test_matching(given, answer, how, right):
    assert matches(given, answer, how) is right


# ---- configurations that make no sense


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "a", "train": "b"}, "give one of"),
        ({"train": "b", "val_share": 0.2}, "single path"),
        ({"success": {"role": "cheker"}}, "did you mean 'checker'"),
        ({"success": "own_functions"}, "module:function"),
        ({"success": "own_functions:scre"}, "did you mean 'score'"),
        ({"success": "no_such_module_of_mine:f"}, "No module named"),
        ({"answer_field": None}, "no field holds the right answer"),
        ({"order": ["writer"], "stop_when": "agree"}, "agree needs two roles"),
        ({"fields": {"question": "string"}}, "fields"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path, own_module, settings, message):
    own_module.score = lambda record, transcript: 1.0
    with pytest.raises(ConfigError, match=message):
        env_of(tmp_path, **settings)


def test_any_data_source_will_do(tmp_path):
    class Memory:
        def records(self, split):
            return [{"question": f"{split} {i}", "answer": i} for i in range(3)]

    env = env_of(tmp_path, data=Memory())
    assert [task.id for task in env.tasks("val", 0)] == ["val-0", "val-1", "val-2"]

    class Wrong(Memory):
        def records(self, split):
            return [{"question": "the same", "answer": 1}]

    with pytest.raises(DataError, match="also in 'train'") as caught:
        env_of(tmp_path, data=Wrong()).tasks("train", 0)
    assert caught.value.file == "Wrong/val"


# ---- votes


def finally_said(env, *turns):
    """The final answer of an episode of these turns."""
    task = env.tasks("train", 0)[0]
    played = []
    for parsed in turns:
        actions = {role: Action(calls=(), text=str(value), parsed=value) for role, value in parsed.items()}
        played.append((actions, {}))
    return env.final_answer(task, played)


def test_the_final_answer_is_the_last_of_the_role_that_success_compares(tmp_path):
    env = env_of(tmp_path)
    assert finally_said(env, {"writer": 3, "checker": 4}, {"writer": 5}) == "4"
    assert finally_said(env, {"writer": 3}) is None and finally_said(env, {"checker": None}) is None
    assert finally_said(env_of(tmp_path, success={"role": "writer"}), {"writer": 3, "checker": 4}) == "3"


def test_answers_that_match_are_one_vote(tmp_path):
    env = env_of(tmp_path)
    assert finally_said(env, {"checker": "4.0"}) == finally_said(env, {"checker": 4}) == "4", "it is a number"
    assert finally_said(env, {"checker": "four"}) is None
    texts = env_of(tmp_path, [{"question": f"{n}", "answer": f"A{n}"} for n in range(40)])
    assert finally_said(texts, {"checker": " Ab "}) == "Ab" != finally_said(texts, {"checker": "ab"})
    loose = env_of(
        tmp_path, [{"question": f"{n}", "answer": f"A{n}"} for n in range(40)], success={"match": "text"}
    )
    assert finally_said(loose, {"checker": "A  b"}) == finally_said(loose, {"checker": "a B"})
    number = env_of(tmp_path, success={"match": "number"})
    assert finally_said(number, {"checker": "so 1,000"}) == finally_said(number, {"checker": 1000})
    assert finally_said(texts, {"checker": {"b": 1, "a": 2}}) == finally_said(
        texts, {"checker": {"a": 2, "b": 1}}
    )


def test_what_a_function_judges_has_no_answer_to_vote_on(tmp_path, own_module):
    own_module.right = lambda record, transcript: 1.0
    env = env_of(tmp_path, success="own_functions:right")
    assert finally_said(env, {"checker": 4}) is None
