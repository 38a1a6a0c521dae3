"""Known sets in their published forms, written here by hand."""

from __future__ import annotations

import base64
import gzip
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

from coterie.backends.data.sets.forms import private_tests
from coterie.core.errors import ConfigError, DataError, UserError
from coterie.plugins.envs.code.problem import problem_of
from coterie.testing import build, check_data_source

needs_data = pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")


def humaneval(name):
    return {
        "task_id": f"HumanEval/{name}",
        "prompt": f'def f{name}(x):\n    """Add {name}."""\n',
        "canonical_solution": f"    return x + {name}\n",
        "entry_point": f"f{name}",
        "test": f"def check(candidate):\n    assert candidate(1) == {name + 1}\n",
    }


MBPP = {
    "task_id": 7,
    "prompt": "Write a function to double a number.",
    "code": "import math\ndef helper(x):\n    return x\r\n\ndef double(x):\n    return 2 * helper(x)",
    "test_imports": ["import math"],
    "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
}
APPS_STDIN = {
    "problem_id": 1,
    "question": "Print the double.",
    "input_output": json.dumps({"inputs": ["2\n", ["3", "4"]], "outputs": ["4\n", ["6", "8"]]}),
    "solutions": json.dumps(["for line in open(0):\n    print(2 * int(line))\n"]),
    "difficulty": "interview",
    "starter_code": "",
}
APPS_CALL = {
    **APPS_STDIN,
    "problem_id": 2,
    "starter_code": "class Solution:\n    def double(self, x):\n",
    "input_output": json.dumps({"fn_name": "double", "inputs": [[2], [5]], "outputs": [[4], 10]}),
    "solutions": json.dumps(["class Solution:\n    def double(self, x):\n        return 2 * x\n"]),
}
CONTEST = {
    "name": "double",
    "description": "Print the double.",
    "public_tests": {"input": ["2\n"], "output": ["4\n"]},
    "private_tests": {"input": ["3\n"], "output": ["6\n"]},
    "generated_tests": {"input": [], "output": []},
    "solutions": {"language": [2, 3], "solution": ["int main() {}", "print(2 * int(input()))"]},
    "difficulty": 1,
}
LCB = {
    "question_id": "q1",
    "question_title": "Double",
    "question_content": "Print the double.",
    "starter_code": "",
    "public_test_cases": json.dumps([{"input": "2", "output": "4", "testtype": "stdin"}]),
    "private_test_cases": json.dumps([{"input": "3", "output": "6", "testtype": "stdin"}]),
    "difficulty": "easy",
    "metadata": "{}",
}
TESTS = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]


def packed(tests):
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


LCB_CALL = {
    **LCB,
    "question_id": "q2",
    "starter_code": "class Solution:\n    def total(self, xs, y):\n",
    "public_test_cases": json.dumps(TESTS),
    "private_test_cases": packed([{"input": "[]\n1", "output": "1", "testtype": "functional"}]),
    "metadata": json.dumps({"func_name": "Solution.total"}),
}


def written(folder, rows, name="rows.jsonl"):
    file = folder / name
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def source(folder, kind, rows, **splits):
    splits = splits or {"train": "all[:-2]", "val": "all[-2:-1]", "test": "all[-1:]"}
    return build("data_source", {"type": kind, "file": written(folder, rows), **splits})


def record(folder, kind, row):
    rows = [row, *({**row, key: f"{row[key]} {n}"} for key in ("prompt", "question", "description",
            "question_content", "abstract_text") if key in row for n in (1, 2))]  # fmt: skip
    return source(folder, kind, rows).records("train")[0]


def test_humaneval(tmp_path):
    rows = [humaneval(number) for number in range(6)]
    made = source(tmp_path, "humaneval", rows, train="test[2:]", val="test[:1]", test="test[1:2]")
    assert [row["id"] for row in made.records("train")] == [f"HumanEval/{n}" for n in range(2, 6)]
    problem = problem_of(made.records("val")[0])
    assert problem.entry_point == "f0" and problem.solution.endswith("return x + 0\n")
    check_data_source(made, splits=("train", "val", "test"))


@needs_data
def test_humaneval_as_published():
    file = str(Path(os.environ["COTERIE_TEST_DATA"]) / "HumanEval.jsonl.gz")
    made = build("data_source", {"type": "humaneval", "file": file, "val": "test[:20]", "test": "test[20:30]",
                                 "train": "test[30:]"})  # fmt: skip
    assert [len(made.records(split)) for split in ("train", "val", "test")] == [134, 20, 10]
    assert made.records("test")[0]["id"] == "HumanEval/20"


def test_mbpp(tmp_path):
    row = record(tmp_path, "mbpp", MBPP)
    assert row["entry_point"] == "double" and row["visible_tests"] == "import math\nassert double(2) == 4\n"
    assert row["prompt"] == 'import math\ndef double(x):\n    """Write a function to double a number."""\n'
    problem = problem_of(row)
    assert len(problem.tests) == 2 and problem.given == "import math\n"
    full = {**MBPP, "text": MBPP["prompt"], "challenge_test_list": ["assert double(9) == 18"]}
    del full["prompt"], full["test_imports"]
    full["test_setup_code"] = ""
    assert len(problem_of(source(tmp_path, "mbpp", [full] * 3).records("train")[0]).tests) == 3


def test_apps_with_streams_and_with_calls(tmp_path):
    streams = record(tmp_path, "apps", APPS_STDIN)
    assert streams["cases"] == [["2\n", "4\n"], ["3\n4\n", "6\n8\n"]] and streams["difficulty"] == "interview"
    calls = record(tmp_path, "apps", APPS_CALL)
    names = {"double": lambda x: 2 * x}
    exec(calls["tests"], names)  # an output in a list of its own, or as it is
    assert calls["entry_point"] == "double" and "class Solution" in calls["prompt"]


def test_code_contests(tmp_path):
    row = record(tmp_path, "code_contests", CONTEST)
    assert row["visible_cases"] == [["2\n", "4\n"]] and len(row["cases"]) == 2
    assert row["solution"] == "print(2 * int(input()))" and row["difficulty"] == "easy"


def test_live_code_bench_with_streams_and_with_calls(tmp_path):
    assert record(tmp_path, "live_code_bench", LCB)["cases"] == [["2", "4"], ["3", "6"]]
    row = record(tmp_path, "live_code_bench", LCB_CALL)
    assert row["entry_point"] == "total"
    exec(row["tests"], {"total": lambda xs, y: sum(xs) + y})
    assert len(problem_of(row).tests) == 2 and len(problem_of(row).visible) == 1


class Evil:
    def __reduce__(self):
        return (os.system, ("touch /tmp/coterie-was-here",))


def test_packed_tests_that_name_a_class_are_refused(tmp_path):
    evil = base64.b64encode(zlib.compress(pickle.dumps(Evil()))).decode()
    with pytest.raises(ValueError, match="can't be unpacked"):
        private_tests(evil)
    with pytest.raises(DataError, match="can't be unpacked"):
        source(tmp_path, "live_code_bench", [{**LCB, "private_test_cases": evil}] * 3).records("train")
    assert not Path("/tmp/coterie-was-here").exists()


def test_texts(tmp_path):
    post = {"prompt": "SUBREDDIT: r/x\nPOST: I slept.\nTL;DR:", "completion": " slept"}
    assert record(tmp_path, "tldr", post)["reference"] == " slept"
    paper = {"abstract_text": "We measure.", "title": "On measuring"}
    assert record(tmp_path, "arxiv", paper)["prompt"] == "We measure."


@pytest.mark.parametrize(
    ("kind", "row", "why"),
    [
        ("humaneval", {**humaneval(9), "test": " \n"}, "no tests"),
        ("tldr", {"prompt": " "}, "no text"),
        ("arxiv", {"abstract_text": ""}, "no text"),
        ("mbpp", {**MBPP, "test_list": []}, "no tests"),
        ("mbpp", {**MBPP, "test_list": ["assert True"]}, "call no function"),
        ("apps", {**APPS_STDIN, "input_output": ""}, "no tests"),
        ("code_contests", {**CONTEST, "description": "See <image>."}, "a picture"),
    ],
)
def test_rows_that_can_not_be_used_are_left_out_and_counted(tmp_path, caplog, kind, row, why):
    good = {"humaneval": humaneval(1), "tldr": {"prompt": "A post."}, "arxiv": {"abstract_text": "We show."}}
    good = {**good, "mbpp": MBPP, "apps": APPS_STDIN, "code_contests": CONTEST}[kind]
    made = source(tmp_path, kind, [row, good, good, good], train="all[:2]", val="all[2:3]", test="all[3:]")
    assert len(made.records("train")) == 1
    assert (
        "1 of 2 rows for 'train' can't be used" in caplog.text
        and why in caplog.text
        and "line 1" in caplog.text
    )


@pytest.mark.parametrize(
    ("kind", "row", "field"),
    [
        ("humaneval", {**humaneval(1), "prompt": 3}, "prompt"),
        ("humaneval", {key: value for key, value in humaneval(1).items() if key != "test"}, "test"),
        ("humaneval", {**humaneval(1), "test": "def check(candidate:\n"}, "test"),
        ("mbpp", {**MBPP, "test_list": "assert double(2) == 4"}, "test_list"),
        ("apps", {**APPS_STDIN, "input_output": "{"}, "input_output"),
        ("code_contests", {**CONTEST, "public_tests": {"input": ["1"], "output": []}}, "public_tests"),
        ("arxiv", {"title": "x"}, "abstract_text"),
    ],
)
def test_a_row_that_is_not_as_published_names_its_line_and_field(tmp_path, kind, row, field):
    with pytest.raises(DataError) as wrong:
        source(tmp_path, kind, [row] * 3).records("train")
    assert f"line 1, field '{field}'" in str(wrong.value) and "rows.jsonl" in str(wrong.value)


@pytest.mark.parametrize(
    ("splits", "what", "path"),
    [
        ({"train": "test[:4]", "val": "test[3:]"}, "share 1 rows", "data.train"),
        ({"train": "test[90:]", "val": "test[:1]"}, "chooses no row", "data.train"),
        ({"train": "test[:2]+test[1:3]", "val": "test[5:]"}, "chooses a row twice", "data.train"),
    ],
)
def test_slices_that_overlap_or_choose_nothing(tmp_path, splits, what, path):
    made = source(tmp_path, "humaneval", [humaneval(n) for n in range(6)], **splits, test="test[4:5]")
    with pytest.raises(ConfigError, match=what) as refused:
        made.records("train")
    assert refused.value.path == path


def test_two_names_of_one_file_are_the_same_rows(tmp_path):
    made = source(tmp_path, "humaneval", [humaneval(n) for n in range(4)], train="train[:2]", test="test[1:]")
    with pytest.raises(ConfigError, match="share 1 rows"):
        made.records("train")
    with pytest.raises(ConfigError, match="no rows are chosen for 'val'") as refused:
        made.records("val")
    assert refused.value.path == "data.val"


def test_one_file_with_default_splits_asks_for_slices(tmp_path):
    made = build("data_source", {"type": "mbpp", "file": written(tmp_path, [MBPP] * 3)})
    with pytest.raises(ConfigError, match="share 3 rows") as refused:
        made.records("train")
    assert refused.value.why == "one file stands for every published split"


def test_the_defaults_of_a_set_fit_each_other(tmp_path):
    made = build(
        "data_source", {"type": "humaneval", "file": written(tmp_path, [humaneval(n) for n in range(164)])}
    )
    sizes = {split: len(made.records(split)) for split in ("train", "val", "test")}
    assert sizes == {"train": 130, "val": 16, "test": 16}


def test_files_by_published_split(tmp_path):
    rows = [humaneval(n) for n in range(4)]
    files = {"train": written(tmp_path, rows[:2], "a.jsonl"), "test": written(tmp_path, rows[2:], "b.jsonl")}
    made = build("data_source", {"type": "mbpp", "file": files})
    with pytest.raises(ConfigError, match="published split 'validation'") as refused:
        made.records("val")
    assert refused.value.path == "data.file"


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"train": "test[1]"}, "is no split"),
        ({"file": "x.jsonl", "hub": "a/b"}, "a file has no hub"),
        ({"trian": "test"}, "unknown key 'trian'"),
    ],
)
def test_wrong_settings_are_told_at_once(table, what):
    with pytest.raises(UserError, match=what):
        build("data_source", {"type": "humaneval", **table})


def test_a_missing_file_names_the_setting():
    made = build("data_source", {"type": "humaneval", "file": "nowhere.jsonl"})
    with pytest.raises(ConfigError, match="no such file") as refused:
        made.records("train")
    assert refused.value.path == "data.file"


def test_parquet_gzip_and_a_folder_as_datasets_reads_it(tmp_path):
    pytest.importorskip("pyarrow")
    import pyarrow
    import pyarrow.parquet

    rows = [humaneval(n) for n in range(5)]
    splits = {"train": "test[:3]", "val": "test[3:4]", "test": "test[4:]"}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    folder = tmp_path / "hub"
    folder.mkdir()
    written(folder, rows, "test.jsonl")
    for table in (
        {"file": str(tmp_path / "rows.parquet")},
        {"file": str(tmp_path / "rows.jsonl.gz")},
        {"hub": str(folder)},
    ):
        made = build("data_source", {"type": "humaneval", **table, **splits})
        assert [row["entry_point"] for row in made.records("train")] == ["f0", "f1", "f2"]
