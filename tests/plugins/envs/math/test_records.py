"""Records of known sets: their fields, MAPPA's files, drawing, and problems that two splits share."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from coterie.core.errors import ConfigError, DataError
from coterie.core.types import Task
from coterie.plugins.envs.math.env import Math
from coterie.plugins.envs.math.records import FORMS, MathSetConfig, content
from coterie.plugins.envs.math.state import Problem
from tests.plugins.support import Build, make

RECORDS = {
    "auto": ({"prompt": "What is 1 + 1?", "answer": "2", "id": "2000-I-1"}, "2", "2000-I-1", ""),
    "aime": ({"prompt": "What is 1 + 1?", "answer": "002", "id": "a"}, "002", "a", ""),
    "aime_1983_2024": (
        {"ID": "1983-1", "Year": 1983, "Problem Number": 1, "Question": "What is 1 + 1?", "Answer": 2},
        *("2", "1983-1", "1983"),
    ),
    "aime24": (
        {"id": 60, "problem": "What is 1 + 1?", "solution": "...", "answer": "2", "url": "...", "year": "24"},
        *("2", "60", ""),
    ),
    "aime25": ({"id": "0", "problem": "What is 1 + 1?", "answer": "2"}, "2", "0", ""),
    "amc": ({"id": 4, "problem": "What is 1 + 1?", "answer": 2.0, "url": "..."}, "2", "4", ""),
    "olympiadbench": (
        {"id": 1606, "question": "What is 1 + 1?", "solution": ["..."], "final_answer": ["2", "-2"],
         "context": None, "is_multiple_answer": True, "answer_type": "Numerical", "subfield": "Algebra"},
        *("2, -2", "1606", "Algebra"),
    ),
    "math": (
        {"problem": "What is 1 + 1?", "solution": r"Well, $\boxed{\frac{4}{2}}$.", "level": "Level 5",
         "type": "Algebra"},
        *(r"\frac{4}{2}", "0", "Level 5"),
    ),
    "math500": (
        {"problem": "What is 1 + 1?", "solution": r"$\boxed{3}$", "answer": "2", "subject": "Algebra",
         "level": 1, "unique_id": "test/algebra/1.json"},
        *("2", "test/algebra/1.json", "1"),
    ),
    "polaris": ({"problem": "What is 1 + 1?", "answer": "2", "difficulty": "4/8"}, "2", "0", "4/8"),
}  # fmt: skip


def write(path: Path, records) -> str:
    if path.suffix == ".json":
        path.write_text("[\n" + ",\n".join(json.dumps(record, indent=0) for record in records) + "\n]")
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def problems(count: int, first: int = 0):
    return [
        {"prompt": f"What is ${n} + 1$?", "answer": str(n + 1), "id": f"p{n}"}
        for n in range(first, first + count)
    ]


def env_of(**settings):
    return make(Math, Build(order=["reasoner"]), verify="numbers", **settings)


def table(path: Path, records, **settings):
    return {"file": write(path, records), **settings}


def test_every_set_has_records_here():
    assert set(RECORDS) == set(FORMS)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("ending", [".json", ".jsonl"])
def test_a_record_of_every_set_is_a_task(tmp_path, name, ending):
    record, answer, id, stratum = RECORDS[name]
    env = env_of(val=table(tmp_path / f"data{ending}", [record], set=name))
    [task] = env.tasks("val", 0)
    payload = Problem(text="What is 1 + 1?")
    assert task == Task(id=f"val-{id}", payload=payload, answer=answer, stratum=stratum)
    assert env.task_of(env.record(task), task.id) == task


def test_a_parquet_file_is_read(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(problems(3)), file)
    settings = MathSetConfig(file=str(file))
    assert settings.table("train", "env.train") == {"type": "parquet", "train": str(file)}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"set": "aime24"}, {"name": "HuggingFaceH4/aime_2024", "splits": {"val": "train"}}),
        (
            {"set": "aime25", "revision": "abc"},
            {"name": "math-ai/aime25", "splits": {"val": "test"}, "revision": "abc"},
        ),
        (
            {"set": "olympiadbench"},
            {"name": "Hothan/OlympiadBench", "splits": {"val": "train"}, "subset": "OE_TO_maths_en_COMP"},
        ),
        ({"hub": "me/mine", "hub_split": "dev"}, {"name": "me/mine", "splits": {"val": "dev"}}),
    ],
)
def test_a_set_without_a_file_is_that_of_the_hub(settings, expected):
    assert MathSetConfig(**settings).table("val", "env.val") == {"type": "hub", **expected}


@pytest.mark.parametrize(
    ("settings", "path"),
    [({}, "env.val"), ({"set": "aime"}, "env.val"), ({"file": "x.json", "hub": "me/mine"}, "env.val.hub")],
)
def test_a_set_without_a_place_or_with_two_is_refused(settings, path):
    with pytest.raises(ConfigError) as caught:
        MathSetConfig(**settings).table("val", "env.val")
    assert caught.value.path == path


def test_the_name_of_a_set_stands_for_its_table():
    config = Math.Config.model_validate({"train": "polaris", "val": {"set": "aime24", "draw": 30}})
    assert config.train == MathSetConfig(set="polaris") and config.val.draw == 30


@pytest.mark.parametrize(
    ("record", "set", "field", "what"),
    [
        ({"text": "?", "answer": 1}, "auto", "problem", "is missing"),
        ({"problem": " ", "answer": 1}, "auto", "problem", "is no text"),
        ({"problem": "?", "answer": ""}, "auto", "answer", "is no answer"),
        ({"problem": "?", "answer": True}, "auto", "answer", "is no answer"),
        ({"problem": "?"}, "auto", "answer", "is missing"),
        ({"problem": "?", "solution": "no box"}, "math", "solution", "no \\boxed"),
        ({"problem": "?", "answer": "1000"}, "aime", "answer", "0 to 999"),
        ({"problem": "?", "answer": "1/2"}, "aime24", "answer", "0 to 999"),
    ],
)
def test_a_wrong_record_names_its_file_line_and_field(tmp_path, record, set, field, what):
    right = {"problem": "1 + 1?", "answer": 2}
    env = env_of(val=table(tmp_path / "data.jsonl", [right, record], set=set))
    with pytest.raises(DataError, match=r"data\.jsonl, line 2") as caught:
        env.tasks("val", 0)
    assert caught.value.field == field and what in str(caught.value)


def test_fields_of_one_s_own_and_values_to_keep(tmp_path):
    records = [{"q": f"{n}?", "a": n, "hardness": n % 3, "name": f"n{n}"} for n in range(9)]
    names = {"problem_field": "q", "answer_field": "a", "id_field": "name", "stratum_field": "hardness"}
    env = env_of(val=table(tmp_path / "data.json", records, keep={"hardness": ["0", "2"]}, **names))
    tasks = env.tasks("val", 0)
    assert [task.id for task in tasks] == ["val-n0", "val-n2", "val-n3", "val-n5", "val-n6", "val-n8"]
    assert {task.stratum for task in tasks} == {"0", "2"}


def test_equal_ids_are_told_apart_by_the_line(tmp_path):
    records = [{**record, "id": "same"} for record in problems(3)]
    assert [task.id for task in env_of(val=table(tmp_path / "data.jsonl", records)).tasks("val", 0)] == [
        *("val-same", "val-same-line-2", "val-same-line-3"),
    ]


def test_one_source_of_all_splits(tmp_path):
    from coterie.backends.data.jsonl import JsonlData

    source = make(
        JsonlData,
        train=write(tmp_path / "t.json", problems(5)),
        val=write(tmp_path / "v.json", problems(2, 9)),
    )
    env = env_of(data=source)
    assert len(env.tasks("train", 0)) == 5 and len(env.tasks("val", 0)) == 2
    with pytest.raises(ConfigError):
        env.tasks("test", 0)


# ---- leaks and draws


def test_problems_that_are_also_evaluated_are_named_and_left_out_of_train(tmp_path, caplog):
    train = problems(20)
    evaluated = [
        {**train[n], "id": f"e{n}", "prompt": train[n]["prompt"].replace("$", " ") + "  "} for n in (3, 7, 8)
    ]
    env = env_of(
        train=table(tmp_path / "train.json", train, draw=10),
        val=table(tmp_path / "val.json", [*evaluated[:2], *problems(2, 50)]),
        test=table(tmp_path / "test.json", evaluated[2:]),
    )
    with caplog.at_level(logging.WARNING):
        tasks = env.tasks("train", 0)
    assert "3 of 20 train problems" in caplog.text
    assert "train-p3 (= val-e3), train-p7 (= val-e7), train-p8 (= test-e8)" in caplog.text
    prints = {
        split: {env.fingerprints(task)["content"] for task in env.tasks(split, 0)}
        for split in ("train", "val", "test")
    }
    assert len(tasks) == 10 and len(prints["val"]) == 4
    assert not prints["train"] & (prints["val"] | prints["test"])
    caplog.clear()
    env.tasks("train", 1)
    assert not caplog.text, "once is enough"


def test_more_sets_are_kept_apart_from_train_and_may_be_the_test(tmp_path, caplog):
    """A study trains once and tests on several sets: train has none of their problems."""
    train = table(tmp_path / "train.json", problems(20), draw=10)
    later = [table(tmp_path / f"{n}.json", problems(2, first)) for n, first in enumerate((4, 9))]
    env = env_of(train=train, apart=later)
    with caplog.at_level(logging.WARNING):
        tasks = env.tasks("train", 0)
    assert "4 of 20 train problems" in caplog.text and len(tasks) == 10
    assert not {task.id for task in tasks} & {"train-p4", "train-p5", "train-p9", "train-p10"}
    tested = env_of(train=train, apart=later, test=later[1])
    assert [task.id for task in tested.tasks("test", 0)] == ["test-p9", "test-p10"]
    assert tested.tasks("train", 0) == tasks, "the test changes nothing of train"
    with pytest.raises(ConfigError, match="no such file") as caught:
        env_of(train=train, apart=[{"file": str(tmp_path / "typo.json")}]).tasks("train", 0)
    assert caught.value.path.startswith("env.apart.0")
    with pytest.raises(ConfigError, match="nothing reads this"):
        env_of(apart=later)


def test_a_problem_of_test_that_is_also_in_val_is_an_error(tmp_path):
    env = env_of(
        val=table(tmp_path / "val.json", problems(3)), test=table(tmp_path / "test.json", problems(1, 2))
    )
    with pytest.raises(ConfigError, match="test-p2") as caught:
        env.tasks("test", 0)
    assert caught.value.path == "env.test"


def test_train_is_refused_while_a_split_that_it_must_not_share_with_cannot_be_read(tmp_path, caplog):
    train = table(tmp_path / "train.json", problems(20))
    overlapping = {
        "val": table(tmp_path / "val.json", problems(3)),
        "test": table(tmp_path / "test.json", problems(20)),
    }
    with pytest.raises(ConfigError, match="is also in val") as caught:
        env_of(train=train, **overlapping).tasks("train", 0)
    assert caught.value.path == "env.test"
    with pytest.raises(ConfigError, match="no such file"):
        env_of(train=train, test={"file": str(tmp_path / "typo.json")}).tasks("train", 0)


def test_one_source_without_a_split_says_that_train_is_not_compared_with_it(tmp_path, caplog):
    from coterie.backends.data.jsonl import JsonlData

    source = make(JsonlData, train=write(tmp_path / "t.json", problems(5)))
    with caplog.at_level(logging.WARNING):
        assert len(env_of(data=source).tasks("train", 0)) == 5
    assert "no problem is compared with those of 'test'" in caplog.text


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Find $x$.", "find  x", True),
        (r"\dfrac{1}{2}", r"\frac{1}{2}", True),
        (r"\left( a, b \right)", "(a,b)", True),
        ("$a + b$", "$a - b$", False),
        (r"\frac{1}{23}", r"\frac{12}{3}", False),
        (r"\leftarrow x", "arrow x", False),
    ],
)
def test_problems_that_only_look_different_are_the_same(one, other, same):
    assert (content(one) == content(other)) is same


def test_a_draw_is_the_seed_s_and_keeps_the_order(tmp_path):
    settings = table(tmp_path / "train.json", problems(50), draw=20)
    drawn = [[task.id for task in env_of(train=settings).tasks("train", seed)] for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len(set(drawn[0])) == 20
    assert drawn[0] == sorted(drawn[0], key=lambda id: int(id.removeprefix("train-p")))


def test_too_few_problems_are_an_error(tmp_path):
    env = env_of(train=table(tmp_path / "train.json", problems(5), draw=6))
    with pytest.raises(ConfigError, match="5 problems"):
        env.tasks("train", 0)
    with pytest.raises(ConfigError, match="no problems for 'val'"):
        env.tasks("val", 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"set": "aime"},
        {"train": "aime24", "level": 2},
        {"train": "aime24", "rendering": "compact"},
        {"rendering": "compact", "level": 5},
        {"val": "aime23"},
        {"val": {"set": "aime24", "draw": 0}},
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings):
    with pytest.raises(ConfigError):
        env_of(**settings)


# ---- MAPPA's files


def mappa(records, tmp_path):
    """MAPPA's files by name, made of these records: 32 of the evaluation are also in the train file."""
    evaluated = [records[index] for index in range(0, 18 * 7, 7)] + problems(14, 5000)
    return env_of(
        train=table(tmp_path / "AIME_1983_2024.json", records, draw=512),
        val=table(tmp_path / "aime_eval_32.json", evaluated),
        test=table(tmp_path / "amc_eval_32.json", problems(32, 9000)),
    )


def check_mappa(records, tmp_path, caplog):
    env = mappa(records, tmp_path)
    with caplog.at_level(logging.WARNING):
        train = env.tasks("train", 0)
    assert f"of {len(records)} train problems are also evaluated" in caplog.text
    val, test = env.tasks("val", 0), env.tasks("test", 0)
    assert (len(train), len(val), len(test)) == (512, 32, 32)
    assert not {content(task.payload.text) for task in train} & {
        content(task.payload.text) for task in (*val, *test)
    }


def test_mappa_s_files_load_unchanged(tmp_path, caplog):
    check_mappa(problems(933), tmp_path, caplog)


@pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")
def test_the_problems_of_aime_do_too(tmp_path, caplog):
    file = Path(os.environ["COTERIE_TEST_DATA"]) / "aime_2000_2024.json"
    check_mappa(json.loads(file.read_text()), tmp_path, caplog)
    env = env_of(val={"file": str(file), "set": "aime"})
    tasks = env.tasks("val", 0)
    assert len(tasks) == 709 and tasks[0].id == "val-2000-I-1" and tasks[0].answer == "8"
