"""A submission is joined on its ids, and an invalid one fails with a reason that its role can act on."""

from __future__ import annotations

import gzip
import os
import pickle
import re
import resource
from pathlib import Path

import pytest

pytest.importorskip("sklearn")

from coterie.core.errors import DataError, MissingExtra
from coterie.plugins.envs.data_science.metrics import answers, scoring, submission as submissions
from coterie.plugins.envs.data_science.metrics.answers import AnswerTable, read_answers
from coterie.plugins.envs.data_science.metrics.column import pandas, scipy_stats, sklearn_metrics
from coterie.plugins.envs.data_science.metrics.records import competition_of
from coterie.plugins.envs.data_science.metrics.scoring import SubmissionResult, score, summarise
from tests.plugins.envs.data_science.tables import answers_of, competition, csv_of, value_of, why_of

TRUTH = {"id": [7, 8, 9], "price": [1.0, 2.0, 3.0]}


@pytest.fixture
def prices(tmp_path: Path) -> AnswerTable:
    return answers_of(tmp_path, TRUTH, "rmse")


VALID = [
    ("any order", b"id,price\n9,3\n7,1\n8,2\n"),
    ("columns in another order", b"price,id\n1,7\n3,9\n2,8\n"),
    ("spaces", b" id , price \n 7 , 1 \n 8, 2\n9,3\n"),
    ("ids as floats", b"id,price\n7.0,1\n8.0,2\n9.00,3\n"),
    ("ids in quotes", b'"id","price"\n"7",1\n"8",2\n"9",3\n'),
    ("a byte order mark", "\ufeffid,price\n7,1\n8,2\n9,3\n".encode()),
    ("lines of another system", b"id,price\r\n7,1\r\n8,2\r\n9,3\r\n"),
    ("no last line break", b"id,price\n7,1\n8,2\n9,3"),
    ("exponents", b"id,price\n7,1e0\n8,+2.0\n9,.3e1\n"),
    ("a blank last line", b"id,price\n7,1\n8,2\n9,3\n\n"),
]


@pytest.mark.parametrize("content", [content for _, content in VALID], ids=[name for name, _ in VALID])
def test_what_means_the_same_scores_the_same(content, prices):
    result = score(content, prices)
    assert (result.value, result.why, result.valid) == (0.0, "", True)


INVALID = [
    ("nothing", b"", ["is empty", "header"]),
    ("a header alone", b"id,price\n", ["no row below the header", "3 ids"]),
    ("a missing id", b"id,price\n7,1\n9,3\n", ["the id 8 is missing", "3 ids"]),
    ("several missing ids", b"id,price\n9,3\n", ["2 ids are missing", "7, 8"]),
    ("a repeated id", b"id,price\n7,1\n8,2\n8,2\n", ["the id 8 is there more than once"]),
    ("a row too many", b"id,price\n7,1\n8,2\n9,3\n9,3\n", ["the id 9 is there more than once"]),
    (
        "unknown ids",
        b"id,price\n0,1\n1,2\n2,3\n",
        ["3 ids are not in the test set", "0, 1, 2", "is 7"],
    ),
    ("an id that is no number", b"id,price\n7,1\nx8,2\n9,3\n", ["the id x8 is not in the test set"]),
    ("an empty id", b"id,price\n7,1\n,2\n9,3\n", ["the id '' is not in the test set"]),
    ("an empty value", b"id,price\n7,1\n8,\n9,3\n", ["'price', id 8", "missing value"]),
    ("a short row", b"id,price\n7,1\n8\n9,3\n", ["'price', id 8", "missing value"]),
    ("NaN", b"id,price\n7,1\n8,NaN\n9,nan\n", ["id 8 (and 1 more)", "'NaN' is a missing value"]),
    ("an infinite value", b"id,price\n7,1\n8,-inf\n9,3\n", ["id 8", "is infinite", "finite number"]),
    ("a word", b"id,price\n7,1\n8,cheap\n9,3\n", ["id 8", "'cheap' is no number"]),
    ("digits with an underscore", b"id,price\n7,1\n8,1_0\n9,3\n", ["'1_0' is no number"]),
    ("another column", b"id,cost\n7,1\n8,2\n9,3\n", ["no column 'price'", "columns are id, price", "'cost'"]),
    ("another case", b"ID,price\n7,1\n8,2\n9,3\n", ["no column 'id'", "'ID'"]),
    ("a further column", b"id,price,x\n7,1,0\n8,2,0\n9,3,0\n", ["further column 'x'", "id, price"]),
    ("the index of a frame", b",id,price\n0,7,1\n1,8,2\n2,9,3\n", ["a column has no name", "index=False"]),
    ("a column twice", b"id,price,price\n7,1,1\n", ["'price' is there more than once"]),
    ("no header", b"7,1\n8,2\n9,3\n", ["no column 'id'", "'7', '1'"]),
    ("semicolons", b"id;price\n7;1\n", ["no column 'id'", "'id;price'"]),
    ("a longer row", b"id,price\n7,1\n8,2,5\n9,3\n", ["no table in CSV", "line 3"]),
    ("longer rows", b"id,price\n7,1,5\n8,2,5\n9,3,5\n", ["header has 2 columns", "first row 3"]),
    ("an open quote", b'id,price\n7,"1\n8,2\n9,3\n', ["no table in CSV"]),
    ("an open quote in the header", b'id,"price\n7,1\n', ["no CSV text"]),
    ("a long first line", b"id," * 30_000, ["first line has more than 65,536 bytes"]),
    ("another encoding", b"id,price\n7,1\n8,\xff\xfe\n9,3\n", ["no table in CSV"]),
    ("a pickle", pickle.dumps({"id": [7, 8, 9]}), ["no CSV text"]),
    ("numbers that overflow", b"id,price\n7,1e308\n8,-1e308\n9,1e308\n", ["too large", "rmse is inf"]),
]


@pytest.mark.parametrize(
    ("content", "words"), [case[1:] for case in INVALID], ids=[name for name, *_ in INVALID]
)
def test_an_invalid_submission_says_why(content, words, prices):
    result = score(content, prices)
    assert not result.valid and result.value is None
    for word in words:
        assert word in result.why, result.why


def test_the_page_quotes_a_reason_and_its_example_runs(prices, tmp_path, monkeypatch):
    page = (Path(__file__).parents[4] / "docs" / "data_science.md").read_text(encoding="utf-8")
    why = "column 'price', id 8 (and 1 more): 'NaN' is a missing value; every row needs one"
    assert score(b"id,price\n7,1\n8,NaN\n9,nan\n", prices).why == why and f"`{why}`" in page
    [example] = re.findall(r"^```py\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    Path("answers/titanic").mkdir(parents=True)
    columns = {"PassengerId": [1, 2], "Survived": [0, 1]}
    for file in ("submission.csv", "answers/titanic/test_answer.csv"):
        Path(file).write_bytes(csv_of(columns))
    names = {
        "record": {"metadata": {"task_id": "titanic"}},
        "Path": Path,
        "competition_of": competition_of,
        "read_answers": read_answers,
        "score": score,
        "summarise": summarise,
    }
    exec(example, names)
    assert names["result"].value == names["summary"].success_rate == 1.0


@pytest.mark.parametrize(
    ("metric", "truth", "predicted", "words"),
    [
        ("rmsle", [1, 2], [-0.5, 2], "'-0.5' is below 0"),
        ("log_loss", [0, 1], [0.5, 1.5], "'1.5' is no probability"),
        ("log_loss", [0, 1], [-0.1, 1], "'-0.1' is no probability"),
        ("auc", [0, 1], ["no", "yes"], "'no' is no number"),
        ("qwk", [1, 2], [1, 1.5], "'1.5' is no whole number; round it"),
        ("accuracy", ["cat", "dog"], ["Cat", "Dog"], "'Cat' (and 1 more)|is no label"),
        ("accuracy", ["cat", "dog"], [0, 1], "is a number; the labels are words"),
        ("accuracy", [0, 1], [0.2, 1.0], "'0.2' is no whole number"),
        ("accuracy", ["cat", "dog"], ["cat", ""], "is a missing value"),
        ("f1", [0, 1], [1, 2], "'2' is no label; the labels are 0, 1"),
        ("map@3", ["cat", "dog"], ["cow hen", "hen"], "has no known label"),
        ("map@3", ["cat", "dog"], ["cat", ""], "is a missing value"),
    ],
)
def test_values_that_a_metric_can_t_take_say_why(metric, truth, predicted, words, tmp_path):
    why = why_of(tmp_path, metric, truth, predicted)
    assert any(word in why for word in words.split("|")) and "column 'y'" in why, why


def test_a_label_outside_the_named_ones_is_refused(tmp_path):
    known = ["cat", "dog", "hen"]
    assert value_of(tmp_path, "accuracy", ["cat", "dog"], ["cat", "hen"], labels=known) == 0.5
    why = why_of(tmp_path, "accuracy", ["cat", "dog"], ["cat", "cow"], labels=known)
    assert "'cow' is no label; the labels are cat, dog, hen" in why
    assert "'7' is no grade; the grades are 1, 2, 3" in why_of(
        tmp_path, "qwk", [1, 2], [1, 7], labels=[1, 2, 3]
    )
    assert "has no known label" in why_of(tmp_path, "map@1", ["cat"], ["cow"], labels=known)
    many = [f"c{n}" for n in range(15)]
    assert "c11 and 3 more" in why_of(tmp_path, "accuracy", ["c1"], ["x"], labels=many)


def test_a_single_unknown_label_counts_as_wrong_where_the_labels_aren_t_named(tmp_path):
    """A label of the train set may be missing from the answers."""
    assert value_of(tmp_path, "accuracy", ["cat", "dog"], ["cat", "cow"]) == 0.5
    assert value_of(tmp_path, "accuracy", [1, 2, 3], [1, 2, 7]) == pytest.approx(2 / 3)
    assert value_of(tmp_path, "map@2", ["cat", "dog"], ["cow cat", "cow"]) == 0.25


def test_labels_are_compared_by_what_they_mean(tmp_path):
    assert value_of(tmp_path, "accuracy", [1, 2], ["1.0", " 02"]) == 1.0
    long = ["12345678901234567", "12345678901234568"]
    assert value_of(tmp_path, "accuracy", long, long[::-1]) == 0.0
    assert value_of(tmp_path, "accuracy", ["1_0", "7", "x"], ["10", "7", "x"]) == pytest.approx(2 / 3)
    assert value_of(tmp_path, "accuracy", ["True", "False"], ["1", "false"]) == 1.0
    assert value_of(tmp_path, "auc", ["True", "False", "True"], [0.9, 0.1, 0.8]) == 1.0
    assert value_of(
        tmp_path, "accuracy", ["None", "None", "some"], ["None", "some", "some"]
    ) == pytest.approx(2 / 3)


def test_the_positive_label_has_a_name(tmp_path):
    assert value_of(tmp_path, "auc", ["yes", "no"], [0.9, 0.1], positive="yes") == 1.0
    both = {"positive": "yes", "labels": ["yes", "no"]}
    assert value_of(tmp_path, "f1", ["yes", "no"], ["yes", "yes"], **both) == pytest.approx(2 / 3)
    assert "'maybe' is no label" in why_of(tmp_path, "f1", ["yes", "no"], ["yes", "maybe"], **both)
    with pytest.raises(DataError, match="needs to know both"):
        value_of(tmp_path, "f1", ["yes", "no"], ["yes", "yes"], positive="yes")
    with pytest.raises(DataError, match="no answer is 'Yes'"):
        value_of(tmp_path, "log_loss", ["yes", "no"], [0.9, 0.1], positive="Yes")


def test_texts_may_be_empty_and_hold_commas(tmp_path):
    truth = ['so "good", really', "", "no"]
    assert value_of(tmp_path, "jaccard", truth, truth) == 1.0
    assert value_of(tmp_path, "jaccard", truth, ['so "good",', "", ""]) == pytest.approx((2 / 3 + 1 + 0) / 3)


@pytest.mark.parametrize(
    ("ids", "given", "valid"),
    [
        (["a1", "b2"], ["a1", "b2"], True),
        (["007", "7"], ["007", "7"], True),  # two ids, so they are no numbers
        (["007", "7"], ["7.0", "7"], False),
        (["12345678901234567", "12345678901234568"], ["12345678901234568", "12345678901234567"], True),
        (["12345678901234567"], ["12345678901234568"], False),  # the same as floats
        (["500.0001", "500.0002"], ["500.00010", "5.000002e2"], True),
        (
            ["2011-01-20 00:00:00", "2011-01-20 01:00:00"],
            ["2011-01-20 01:00:00", "2011-01-20 00:00:00"],
            True,
        ),
        (["a1", "b2"], ["a1", "B2"], False),
    ],
)
def test_ids_join_as_numbers_only_where_all_are_distinct_numbers(ids, given, valid, tmp_path):
    values = range(len(ids))
    answers = answers_of(tmp_path, {"id": ids, "y": values}, "mae")
    assert score(csv_of({"id": given, "y": values}), answers).valid == valid


def test_ids_may_hold_anything_that_csv_does(tmp_path):
    answers = answers_of(tmp_path, {"id": ["a,b", 'c"d', "NA"], "y": [1, 2, 3]}, "mae")
    assert score(csv_of({"id": ["NA", "a,b", 'c"d'], "y": [3, 1, 2]}), answers).value == 0.0


@pytest.fixture
def breaths(tmp_path: Path) -> tuple[Path, Path]:
    """Answers of the ventilator task, and its test set with the valve, in another order."""
    answers, features = tmp_path / "answers.csv", tmp_path / "test.csv"
    answers.write_bytes(csv_of({"id": [1, 2, 3], "pressure": [5, 6, 9]}))
    features.write_bytes(csv_of({"u_out": [1, 0, 0], "u_in": [0, 0, 0], "id": [3, 2, 1]}))
    return answers, features


def test_only_the_rows_of_the_filter_count(breaths):
    task = competition_of({"task_id": "ventilator-pressure-prediction"}, file="tasks.json", line=1)
    answers = read_answers(task, breaths[0], features=breaths[1])
    assert score(csv_of({"id": [1, 2, 3], "pressure": [6, 8, 1000]}), answers).value == 1.5
    assert "the id 3 is missing" in score(csv_of({"id": [1, 2], "pressure": [5, 6]}), answers).why
    assert "id 3: 'nan'" in score(csv_of({"id": [1, 2, 3], "pressure": [5, 6, "nan"]}), answers).why


def test_a_row_filter_may_stand_in_the_answers(tmp_path):
    columns = {"id": [1, 2, 3], "y": ["a", "b", ""], "use": ["yes", "yes", "no"]}
    answers = answers_of(tmp_path, columns, "accuracy", rows={"use": "yes"})
    assert answers.competition.targets == ("y",)
    assert score(csv_of({"id": [1, 2, 3], "y": ["a", "a", "a"]}), answers).value == 0.5
    flags = {"id": [1, 2, 3], "use": [0, 1.0, "True"], "y": ["a", 5, "b"]}
    with pytest.raises(DataError, match=r"line 4, field 'y'.*'b' is no number"):
        answers_of(tmp_path, flags, "mae", rows={"use": True})
    answers = answers_of(tmp_path, flags | {"y": ["a", 5, 7]}, "mae", rows={"use": 1})
    assert score(csv_of({"id": [1, 2, 3], "y": [0, 5, 5]}), answers).value == 1.0


def test_a_row_filter_counts_for_probabilities_of_several_labels(tmp_path):
    columns = {"id": [1, 2], "a": [1, 1], "b": [0, 0], "use": [1, 0]}
    answers = answers_of(tmp_path, columns, "multi_log_loss", rows={"use": 1}, targets=["a", "b"])
    assert score(csv_of({"id": [1, 2], "a": [1, 0.5], "b": [0, 0.5]}), answers).value == pytest.approx(0)
    result = score(csv_of({"id": [1, 2], "a": [1, 0.5], "b": [0, 0.9]}), answers)
    assert "sum to 1.4" in result.why, "rows that don't count are checked too"


def test_a_row_filter_without_its_column_is_the_task_s_fault(breaths):
    task = competition("mae", rows={"u_out": 0})
    with pytest.raises(DataError, match=r"(?s)only some rows are scored.*name the test set too"):
        read_answers(task, breaths[0])
    with pytest.raises(DataError, match="has no column 'u_out'"):
        read_answers(task, breaths[0], features=breaths[0])
    with pytest.raises(DataError, match="no row has the value 7"):
        read_answers(competition("mae", rows={"u_out": 7}), breaths[0], features=breaths[1])
    breaths[1].write_bytes(csv_of({"id": [1, 1, 2, 3], "u_out": [0, 0, 0, 0]}))
    with pytest.raises(DataError, match="has an id twice"):
        read_answers(task, breaths[0], features=breaths[1])
    breaths[1].write_bytes(csv_of({"id": [1], "u_out": [0]}))
    with pytest.raises(DataError, match="lacks 2 of the ids"):
        read_answers(task, breaths[0], features=breaths[1])
    with pytest.raises(DataError, match=r"there is no file gone\.csv"):
        read_answers(task, breaths[0], features=breaths[0].with_name("gone.csv"))


@pytest.mark.parametrize(
    ("columns", "metadata", "words"),
    [
        ({"id": [1, 1], "y": [1, 2]}, {}, "line 3, field 'id'.*is there twice"),
        ({"id": [1, ""], "y": [1, 2]}, {}, "line 3, field 'id'.*is a missing id"),
        ({"id": [1, 2], "y": [1, "x"]}, {}, "line 3, field 'y'.*'x' is no number"),
        ({"id": [1, 2], "y": [1, 2]}, {"targets": "z"}, "field 'z'.*there is no such column"),
        ({"id": [], "y": []}, {}, "there are no rows"),
        ({"id": [1]}, {}, "there is no column but 'id'"),
    ],
)
def test_answers_that_are_wrong_are_the_task_s_fault(columns, metadata, words, tmp_path):
    with pytest.raises(DataError, match=f"(?s){words}"):
        answers_of(tmp_path, columns, "mae", **metadata)


def test_one_of_several_labels_is_right(tmp_path):
    for a in ([1, 1], [0, 0]):
        with pytest.raises(DataError, match="none or several labels"):
            answers_of(tmp_path, {"id": [1, 2], "a": a, "b": [0, 1]}, "multi_log_loss")
    with pytest.raises(DataError, match="'c' is no target; the targets are a, b"):
        columns = {"id": [1, 2], "won": ["a", "c"]}
        answers_of(tmp_path, columns, "multi_log_loss", answer_column="won", targets=["a", "b"])


def test_the_files_decide_how_the_id_column_is_called(tmp_path):
    """The prompt of playground-series-s3e3 joins on EmployeeNumber; files may have `id`."""
    columns = {"id": [1, 2], "Attrition": [0, 1]}
    answers = answers_of(tmp_path, columns, "auc", task_id="playground-series-s3e3")
    for name in ("id", "EmployeeNumber"):
        assert score(csv_of({name: [1, 2], "Attrition": [0.1, 0.2]}), answers).value == 1.0
    both = csv_of({"id": [1, 2], "EmployeeNumber": [1, 2], "Attrition": [0.1, 0.2]})
    assert "is there twice" in score(both, answers).why


def test_an_id_column_that_the_record_names_is_there(tmp_path):
    with pytest.raises(DataError, match="field 'PassengerID': there is no such column; did you mean"):
        answers_of(
            tmp_path, {"row": [1, 2], "PassengerId": [1, 2], "y": [3, 4]}, "mae", id_column="PassengerID"
        )


@pytest.mark.parametrize(
    ("metric", "values", "more", "why"),
    [
        ("accuracy", ["a", "b", "c"], {"labels": ["a", "b"]}, "'c' is no label"),
        ("qwk", [1, 2, 3], {"labels": ["low", "high"]}, "'low' is no grade"),
        ("mae", [1, 2, 3], {"targets": ["y", "y"]}, "names one twice"),
        ("accuracy", ["a", "b", "c"], {"labels": ["a", "a"]}, "names one twice"),
    ],
)
def test_what_a_record_says_fits_its_answers(tmp_path, metric, values, more, why):
    with pytest.raises(DataError, match=why):
        answers_of(tmp_path, {"id": [1, 2, 3], "y": values}, metric, **more)


def test_a_path_that_no_file_can_have_is_no_file(prices):
    assert "is no plain file" in score(Path("a\0b.csv"), prices).why


def test_a_target_may_have_the_name_of_the_prompt_s_example(tmp_path):
    answers = answers_of(tmp_path, {"id": [1, 2], "Age": [3, 4]}, "mae", task_id="playground-series-s3e16")
    for name in ("Age", "yield"):
        assert score(csv_of({"id": [1, 2], name: [3, 4]}), answers).value == 0.0


def test_a_file_is_read_by_its_path(prices, tmp_path):
    file = tmp_path / "submission.csv"
    assert "there is no file submission.csv" in score(file, prices).why
    file.write_bytes(csv_of(TRUTH))
    assert score(file, prices).value == 0.0


def test_nothing_is_unpacked(prices, tmp_path):
    file = tmp_path / "submission.csv.gz"
    file.write_bytes(gzip.compress(csv_of(TRUTH)))
    assert "is no CSV text" in score(file, prices).why


def test_what_is_no_plain_file_is_not_read(prices, tmp_path):
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to(tmp_path / "answers.csv")
    assert "is no plain file" in score(tmp_path / "folder.csv", prices).why
    assert "is no plain file" in score(tmp_path / "pipe.csv", prices).why
    assert "is no plain file" in score(tmp_path / "link.csv", prices).why


def tables_read(monkeypatch):
    """The tables that answers and submissions are read into from now on."""
    read, read_table = [], submissions.read_table

    def kept(*arguments, **options):
        read.append(read_table(*arguments, **options))
        return read[-1]

    for module in (answers, scoring):
        monkeypatch.setattr(module, "read_table", kept)
    return read


def test_answers_may_be_a_link_and_have_columns_that_nobody_reads(tmp_path, monkeypatch):
    columns = {"x": [0, "a"], "id": [1, 2], "y": [3, 4], **{f"c{n}": ["", ""] for n in range(9)}}
    (tmp_path / "data.csv").write_bytes(csv_of(columns))
    (tmp_path / "link.csv").symlink_to(tmp_path / "data.csv")
    read = tables_read(monkeypatch)
    task = competition("mae", id_column="id", targets="y")
    answers = read_answers(task, tmp_path / "link.csv")
    assert [{name: [*cells] for name, cells in table.items()} for table in read if len(table["id"])] == [
        {"id": ["1", "2"], "y": ["3", "4"]}
    ]
    assert score(csv_of({"id": [2, 1], "y": [4, 3]}), answers).value == 0.0


def test_a_gigabyte_is_not_read(prices, tmp_path):
    file = tmp_path / "submission.csv"
    with file.open("wb") as out:
        out.truncate(1_000_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = score(file, prices)
    assert "has 1,000,000,000 bytes, and at most 1," in result.why
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_the_bound_grows_with_the_test_set_and_has_an_end():
    assert submissions.size_limit(10) == 2**20 + 10 * 2**10
    assert submissions.size_limit(10**9) == submissions.MOST_BYTES == 2**28


def test_rows_are_read_only_as_far_as_the_test_set_goes(prices, monkeypatch):
    content = csv_of(TRUTH) + b"10,1\n" * 100_000
    read = tables_read(monkeypatch)
    assert "the id 10 is not in the test set" in score(content, prices).why
    assert [len(cells) for table in read for cells in table.values()] == [4, 4]


def test_quality_is_the_way_from_the_baseline_to_the_reference(tmp_path):
    def quality(predicted: list[float], **metadata: float) -> float | None:
        answers = answers_of(tmp_path, {"id": [1, 2], "y": [0, 0]}, "mae", **metadata)
        return score(csv_of({"id": [1, 2], "y": predicted}), answers).quality

    both = {"baseline": 5.0, "reference": 1.0}
    assert quality([2, 2], **both) == 0.75
    assert quality([1, 1], **both) == 1.0
    assert quality([0, 0], **both) == 1.25, "better than the reference"
    assert quality([9, 9], **both) == 0.0, "never below 0"
    assert quality([2, 2]) is quality([2, 2], baseline=5) is quality([2, 2], reference=1) is None


def test_an_invalid_submission_has_quality_0_where_quality_is_known(tmp_path):
    known = answers_of(tmp_path, TRUTH, "mae", baseline=5, reference=1)
    assert (score(b"", known).quality, score(b"", known).value) == (0.0, None)
    assert score(b"", answers_of(tmp_path, TRUTH, "mae")).quality is None


def result(quality: float | None, why: str = "") -> SubmissionResult:
    value = None if why else 1.0
    return SubmissionResult(metric="mae", direction="lower", value=value, quality=quality, why=why)


def test_failures_count_in_the_rate_and_in_the_mean():
    summary = summarise(
        [result(0.5), result(1.0), result(0.0, "is empty"), result(None), result(None, "is empty")]
    )
    assert (summary.submissions, summary.valid, summary.success_rate) == (5, 3, 0.6)
    assert (summary.with_quality, summary.quality) == (3, 0.5)


def test_what_is_not_known_is_missing_and_not_0():
    assert (summarise([]).success_rate, summarise([]).quality) == (None, None)
    assert (summarise([result(None)]).success_rate, summarise([result(None)]).quality) == (1.0, None)


@pytest.mark.parametrize(
    ("module", "get"),
    [("pandas", pandas), ("sklearn.metrics", sklearn_metrics), ("scipy.stats", scipy_stats)],
)
def test_without_the_extra_the_error_names_it(module, get, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtra, match=r"coterie\[data-science\]"):
        get()
