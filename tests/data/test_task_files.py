"""Records by content: splits that depend on nothing else, files that say what they are, and leaks."""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import defaultdict
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from coterie.backends.data.records import LocatedRecords
from coterie.core.errors import ConfigError, DataError, UserError
from coterie.core.types.splits import RecordLine, content, split_of
from coterie.data import task_files
from coterie.data.leaks import leaks
from coterie.data.task_files import SplitRule, line_of, rename_fields, split_records


def rows(*records: dict[str, Any]) -> list[RecordLine]:
    return [RecordLine(record, "a.jsonl", line) for line, record in enumerate(records, 1)]


def numbered(count: int, **more: Any) -> list[RecordLine]:
    return rows(*({"q": f"question {number}", **more} for number in range(count)))


def texts(prepared: task_files.PreparedSplits) -> dict[str, list[str]]:
    return {
        split: [line_of(RecordLine(record, "", 0)) for record in records]
        for split, records in prepared.splits.items()
    }


# ------------------------------------------------------------------------------------------------- contents


def test_the_content_is_the_key_fields_and_a_missing_one_is_told_with_its_place():
    [row] = rows({"b": 1, "a": "é", "id": 7})
    assert content(row) == '{"a": "é", "b": 1, "id": 7}'
    assert content(row, ignore=("id",)) == '{"a": "é", "b": 1}'
    assert content(row, ("b",)) == '{"b": 1}'
    with pytest.raises(DataError, match=r"a\.jsonl, line 1, field 'c'") as caught:
        content(row, ("a", "c"))
    assert caught.value.fix == "its fields: b, a, id"


def test_the_split_of_a_content_is_its_hash_by_hand():
    place = int.from_bytes(hashlib.blake2b(b'{"a": 1}', digest_size=6).digest(), "little") / 2**48
    assert split_of('{"a": 1}', place, 0.0) == "train", "a share ends before its bound"
    assert split_of('{"a": 1}', place + 1e-9, 0.0) == "val"
    assert split_of('{"a": 1}', place / 2, place / 2 + 1e-9) == "test"


def test_half_a_surrogate_pair_has_a_split_too():
    record = json.loads('{"q": "\\ud800"}')  # what a file of JSON may well hold
    parts = [LocatedRecords(rows(record)).in_split(split, 0.3, 0.3, ()) for split in ("train", "val", "test")]
    assert sorted(map(len, parts)) == [0, 0, 1]


def test_records_are_split_as_the_data_sources_split_one_body_of_them():
    body = numbered(300)
    source = LocatedRecords(body)
    prepared = split_records(body, SplitRule(val_share=0.2, test_share=0.3))
    for split in ("train", "val", "test"):
        assert {record["q"] for record in prepared.splits[split]} == {
            record["q"] for record in source.in_split(split, 0.2, 0.3, ())
        }
    assert [len(part) for part in prepared.splits.values()] == pytest.approx([150, 60, 90], abs=30)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_written_does_not_depend_on_the_order_of_the_records(data: st.DataObject):
    field = st.sampled_from(["x", "y", 1, 1.5, None])
    base = [{"q": number % 35, "more": "z"} for number in range(40)]
    extra = data.draw(st.lists(st.fixed_dictionaries({"q": st.integers(0, 40), "more": field}), max_size=12))
    records = base + extra
    mixed = data.draw(st.permutations(records))
    rule = SplitRule(keys=("q",), val_share=0.3, test_share=0.3, limit=data.draw(st.sampled_from([None, 30])))
    first, second = split_records(rows(*records), rule), split_records(rows(*mixed), rule)
    assert texts(first) == texts(second)
    assert (first.read, first.duplicates, first.conflicts) == (
        second.read,
        second.duplicates,
        second.conflicts,
    )
    kept = [record["q"] for part in first.splits.values() for record in part]
    assert len(kept) == len(set(kept)) == first.read - first.duplicates - first.over_limit
    assert set(kept) <= {record["q"] for record in records}


def test_duplicates_are_dropped_and_those_that_differ_elsewhere_are_counted():
    twice = rows(*({"q": n, "note": "a"} for n in range(60)), {"q": 0, "note": "a"}, {"q": 1, "note": "b"})
    prepared = split_records(twice, SplitRule(keys=("q",)))
    assert (prepared.read, prepared.duplicates, prepared.conflicts) == (62, 2, 1)
    [kept] = [record for part in prepared.splits.values() for record in part if record["q"] == 1]
    assert kept["note"] == "a"


def test_a_limit_keeps_the_shares():
    prepared = split_records(numbered(3000), SplitRule(limit=1000))
    assert prepared.over_limit == 2000
    assert [len(part) for part in prepared.splits.values()] == pytest.approx([800, 100, 100], abs=40)


def test_a_test_split_is_kept_and_what_is_in_it_is_dropped_from_the_others():
    test, val = numbered(100)[:20], numbered(100)[15:30]
    rule = SplitRule(val_share=0.0, test_share=0.0)
    prepared = split_records(numbered(100), rule, {"val": val, "test": test})
    assert prepared.shared == {("val", "test"): 5, ("train", "test"): 20, ("train", "val"): 10}
    assert {split: len(part) for split, part in prepared.splits.items()} == {
        "train": 70,
        "val": 10,
        "test": 20,
    }
    assert list(prepared.splits) == ["train", "val", "test"]
    without_val = split_records(numbered(100), SplitRule(val_share=0.2, test_share=0.0), {"test": test})
    assert len(without_val.splits["test"]) == 20 and sum(map(len, without_val.splits.values())) == 100


def test_a_limit_on_the_test_split_lets_nothing_of_it_into_train():
    kept_splits = {"test": numbered(100)[:50]}
    prepared = split_records(numbered(100), SplitRule(val_share=0.0, test_share=0.0, limit=10), kept_splits)
    assert len(prepared.splits["test"]) == 10 and prepared.shared["train", "test"] == 50


def test_an_empty_source_or_split_is_refused():
    with pytest.raises(ConfigError, match="the source is empty"):
        split_records([], SplitRule())
    with pytest.raises(ConfigError, match=r"no record is left for the split '(val|test)'"):
        split_records(numbered(1), SplitRule(val_share=0.01, test_share=0.01))
    assert list(split_records(numbered(1), SplitRule(val_share=0.0, test_share=0.0)).splits) == ["train"]


def test_fields_are_renamed_all_at_once():
    [row] = rename_fields(rows({"a": 1, "b": 2, "c": 3}), {"a": "b", "b": "a"})
    assert row.record == {"b": 1, "a": 2, "c": 3}
    with pytest.raises(DataError, match="field 'x': there is no such field"):
        rename_fields(rows({"a": 1}), {"x": "y"})
    with pytest.raises(DataError, match="field 'b': it is there"):
        rename_fields(rows({"a": 1, "b": 2}), {"a": "b"})


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("value", [b"bytes", float("nan"), {"deep": [float("inf")]}, "\ud800"])
def test_what_has_no_form_in_json_is_told_with_its_field(value: Any):
    with pytest.raises(DataError, match=r"line 2, field 'x': no value for JSON"):
        line_of(RecordLine({"a": 1, "x": value}, "a.jsonl", 2))


def test_dates_are_written_as_iso():
    assert line_of(RecordLine({"d": datetime.date(2024, 2, 29)}, "", 1)) == '{"d": "2024-02-29"}'


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    assert task_files.write_jsonl(path, [{"a": "é"}, {"a": 2}]) == 2
    assert path.read_bytes() == '{"a": "é"}\n{"a": 2}\n'.encode()
    with pytest.raises(DataError):
        task_files.write_jsonl(path, [{"a": 1}, {"a": b""}])
    assert [file.name for file in tmp_path.iterdir()] == ["train.jsonl"]
    assert path.read_bytes().count(b"\n") == 2


def test_a_manifest_tells_whether_a_file_was_changed(tmp_path: Path):
    path = tmp_path / "test.jsonl"
    count = task_files.write_jsonl(path, [{"a": 1}])
    task_files.write_manifest(tmp_path, {"made_by": "us"}, {"test": (path, count)})
    manifest = task_files.read_manifest(tmp_path)
    digest = hashlib.sha256(b'{"a": 1}\n').hexdigest()
    assert manifest["splits"] == {"test": {"file": "test.jsonl", "records": 1, "sha256": digest}}
    assert task_files.changed(tmp_path, manifest) == []
    path.write_text('{"a": 2}\n')
    assert task_files.changed(tmp_path, manifest) == ["test.jsonl"]
    path.unlink()
    with pytest.raises(UserError, match="the file of split 'test' is gone"):
        task_files.read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"splits": {"test": {}}}', '{"splits": [1]}'])
def test_a_damaged_manifest_is_told(tmp_path: Path, text: str):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="can't be read"):
        task_files.read_manifest(tmp_path)


def test_an_older_data_set_is_replaced_only_by_force(tmp_path: Path):
    (tmp_path / "val.parquet").write_text("")
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(UserError, match="already") as caught:
        task_files.claim(tmp_path, force=False)
    assert "val.parquet" in caught.value.why
    task_files.claim(tmp_path, force=True)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


# ---------------------------------------------------------------------------------------------------- leaks

FINGERPRINTS = st.fixed_dictionaries(
    {"content": st.sampled_from("abcdefg")}, optional={"solution": st.just("s")}
)


@given(st.fixed_dictionaries({name: st.lists(FINGERPRINTS, max_size=8) for name in ("train", "val", "test")}))
@settings(max_examples=80, deadline=None)
def test_leaks_are_those_that_comparing_every_pair_finds(splits: dict[str, list[dict[str, str]]]):
    result = leaks({
        name: [(f"{name}-{index}", fingerprints) for index, fingerprints in enumerate(tasks)]
        for name, tasks in splits.items()
    })  # fmt: skip
    assert result.sizes == {name: len(tasks) for name, tasks in splits.items()}
    shared, repeated = {}, {}
    for kind in ("content", "solution"):
        of_kind = {name: [task[kind] for task in tasks if kind in task] for name, tasks in splits.items()}
        for first, second in combinations(splits, 2):
            common = {*of_kind[first]} & {*of_kind[second]}
            if common:
                sizes = tuple(sum(value in common for value in of_kind[name]) for name in (first, second))
                shared[kind, first, second] = len(common), sizes
        for name, values in of_kind.items():
            if len(values) > len(set(values)):
                repeated[kind, name, name] = len(values) - len(set(values))
    assert {(leak.kind, *leak.splits): (leak.count, leak.tasks) for leak in result.shared} == shared
    assert {(leak.kind, *leak.splits): leak.tasks[0] for leak in result.repeats} == repeated
    for leak in chain(result.shared, result.repeats):
        assert 1 <= len(leak.examples) <= 3
        for first, second in leak.examples:
            (split, index), (other, other_index) = first.split("-"), second.split("-")
            assert (split, other) == leak.splits and first != second
            assert splits[split][int(index)][leak.kind] == splits[other][int(other_index)][leak.kind]


def test_kinds_are_not_mixed_up():
    same = {"train": [("a", {"content": "x", "solution": "y"})], "test": [("b", {"content": "y"})]}
    assert leaks(same).shared == ()


def test_text_that_is_no_utf8_is_compared_too():
    fingerprints = defaultdict(list)
    for name in ("train", "test"):
        [row] = rows(json.loads('{"q": "\\ud800"}'))
        fingerprints[name].append((name, {"content": content(row)}))
    assert [leak.count for leak in leaks(fingerprints).shared] == [1]
