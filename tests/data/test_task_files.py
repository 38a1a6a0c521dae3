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

from coterie.backends.data.records import Records
from coterie.core.errors import ConfigError, DataError, UserError
from coterie.core.types.splits import Row, content, split_of
from coterie.data import task_files as datasets
from coterie.data.leaks import leaks
from coterie.data.task_files import Cut, line_of, prepare, renamed


def rows(*records: dict[str, Any]) -> list[Row]:
    return [Row(record, "a.jsonl", line) for line, record in enumerate(records, 1)]


def numbered(count: int, **more: Any) -> list[Row]:
    return rows(*({"q": f"question {number}", **more} for number in range(count)))


def texts(found: datasets.Prepared) -> dict[str, list[str]]:
    return {split: [line_of(Row(one, "", 0)) for one in records] for split, records in found.splits.items()}


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
    parts = [Records(rows(record)).in_split(split, 0.3, 0.3, ()) for split in ("train", "val", "test")]
    assert sorted(map(len, parts)) == [0, 0, 1]


def test_records_are_split_as_the_data_sources_split_one_body_of_them():
    body = numbered(300)
    source = Records(body)
    found = prepare(body, Cut(val_share=0.2, test_share=0.3))
    for split in ("train", "val", "test"):
        assert {one["q"] for one in found.splits[split]} == {
            one["q"] for one in source.in_split(split, 0.2, 0.3, ())
        }
    assert [len(part) for part in found.splits.values()] == pytest.approx([150, 60, 90], abs=30)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_is_written_does_not_depend_on_the_order_of_the_records(data: st.DataObject):
    field = st.sampled_from(["x", "y", 1, 1.5, None])
    base = [{"q": number % 35, "more": "z"} for number in range(40)]
    extra = data.draw(st.lists(st.fixed_dictionaries({"q": st.integers(0, 40), "more": field}), max_size=12))
    records = base + extra
    mixed = data.draw(st.permutations(records))
    cut = Cut(keys=("q",), val_share=0.3, test_share=0.3, limit=data.draw(st.sampled_from([None, 30])))
    one, other = prepare(rows(*records), cut), prepare(rows(*mixed), cut)
    assert texts(one) == texts(other)
    assert (one.read, one.duplicates, one.conflicts) == (other.read, other.duplicates, other.conflicts)
    kept = [record["q"] for part in one.splits.values() for record in part]
    assert len(kept) == len(set(kept)) == one.read - one.duplicates - one.over_limit
    assert set(kept) <= {record["q"] for record in records}


def test_duplicates_are_dropped_and_those_that_differ_elsewhere_are_counted():
    twice = rows(*({"q": n, "note": "a"} for n in range(60)), {"q": 0, "note": "a"}, {"q": 1, "note": "b"})
    found = prepare(twice, Cut(keys=("q",)))
    assert (found.read, found.duplicates, found.conflicts) == (62, 2, 1)
    [one] = [record for part in found.splits.values() for record in part if record["q"] == 1]
    assert one["note"] == "a"


def test_a_limit_keeps_the_shares():
    found = prepare(numbered(3000), Cut(limit=1000))
    assert found.over_limit == 2000
    assert [len(part) for part in found.splits.values()] == pytest.approx([800, 100, 100], abs=40)


def test_a_test_split_is_kept_and_what_is_in_it_is_dropped_from_the_others():
    test, val = numbered(100)[:20], numbered(100)[15:30]
    cut = Cut(val_share=0.0, test_share=0.0)
    found = prepare(numbered(100), cut, {"val": val, "test": test})
    assert found.shared == {("val", "test"): 5, ("train", "test"): 20, ("train", "val"): 10}
    assert {split: len(part) for split, part in found.splits.items()} == {"train": 70, "val": 10, "test": 20}
    assert list(found.splits) == ["train", "val", "test"]
    without_val = prepare(numbered(100), Cut(val_share=0.2, test_share=0.0), {"test": test})
    assert len(without_val.splits["test"]) == 20 and sum(map(len, without_val.splits.values())) == 100


def test_a_limit_on_the_test_split_lets_nothing_of_it_into_train():
    own = {"test": numbered(100)[:50]}
    found = prepare(numbered(100), Cut(val_share=0.0, test_share=0.0, limit=10), own)
    assert len(found.splits["test"]) == 10 and found.shared["train", "test"] == 50


def test_an_empty_source_or_split_is_refused():
    with pytest.raises(ConfigError, match="the source is empty"):
        prepare([], Cut())
    with pytest.raises(ConfigError, match=r"no record is left for the split '(val|test)'"):
        prepare(numbered(1), Cut(val_share=0.01, test_share=0.01))
    assert list(prepare(numbered(1), Cut(val_share=0.0, test_share=0.0)).splits) == ["train"]


def test_fields_are_renamed_all_at_once():
    [row] = renamed(rows({"a": 1, "b": 2, "c": 3}), {"a": "b", "b": "a"})
    assert row.record == {"b": 1, "a": 2, "c": 3}
    with pytest.raises(DataError, match="field 'x': there is no such field"):
        renamed(rows({"a": 1}), {"x": "y"})
    with pytest.raises(DataError, match="field 'b': it is there"):
        renamed(rows({"a": 1, "b": 2}), {"a": "b"})


# ---------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("value", [b"bytes", float("nan"), {"deep": [float("inf")]}, "\ud800"])
def test_what_has_no_form_in_json_is_told_with_its_field(value: Any):
    with pytest.raises(DataError, match=r"line 2, field 'x': no value for JSON"):
        line_of(Row({"a": 1, "x": value}, "a.jsonl", 2))


def test_dates_are_written_as_iso():
    assert line_of(Row({"d": datetime.date(2024, 2, 29)}, "", 1)) == '{"d": "2024-02-29"}'


def test_a_file_is_there_whole_or_not_at_all(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    assert datasets.write_jsonl(path, [{"a": "é"}, {"a": 2}]) == 2
    assert path.read_bytes() == '{"a": "é"}\n{"a": 2}\n'.encode()
    with pytest.raises(DataError):
        datasets.write_jsonl(path, [{"a": 1}, {"a": b""}])
    assert [one.name for one in tmp_path.iterdir()] == ["train.jsonl"]
    assert path.read_bytes().count(b"\n") == 2


def test_a_manifest_tells_whether_a_file_was_changed(tmp_path: Path):
    path = tmp_path / "test.jsonl"
    count = datasets.write_jsonl(path, [{"a": 1}])
    datasets.write_manifest(tmp_path, {"made_by": "us"}, {"test": (path, count)})
    manifest = datasets.read_manifest(tmp_path)
    digest = hashlib.sha256(b'{"a": 1}\n').hexdigest()
    assert manifest["splits"] == {"test": {"file": "test.jsonl", "records": 1, "sha256": digest}}
    assert datasets.changed(tmp_path, manifest) == []
    path.write_text('{"a": 2}\n')
    assert datasets.changed(tmp_path, manifest) == ["test.jsonl"]
    path.unlink()
    with pytest.raises(UserError, match="the file of split 'test' is gone"):
        datasets.read_manifest(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"splits": {"test": {}}}', '{"splits": [1]}'])
def test_a_damaged_manifest_is_told(tmp_path: Path, text: str):
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(UserError, match="can't be read"):
        datasets.read_manifest(tmp_path)


def test_an_older_data_set_is_replaced_only_by_force(tmp_path: Path):
    (tmp_path / "val.parquet").write_text("")
    (tmp_path / "mine.txt").write_text("")
    with pytest.raises(UserError, match="already") as caught:
        datasets.claim(tmp_path, force=False)
    assert "val.parquet" in caught.value.why
    datasets.claim(tmp_path, force=True)
    assert [one.name for one in tmp_path.iterdir()] == ["mine.txt"]


# ---------------------------------------------------------------------------------------------------- leaks

MARKS = st.fixed_dictionaries({"content": st.sampled_from("abcdefg")}, optional={"solution": st.just("s")})


@given(st.fixed_dictionaries({name: st.lists(MARKS, max_size=8) for name in ("train", "val", "test")}))
@settings(max_examples=80, deadline=None)
def test_leaks_are_those_that_comparing_every_pair_finds(splits: dict[str, list[dict[str, str]]]):
    found = leaks({
        name: [(f"{name}-{at}", one) for at, one in enumerate(tasks)] for name, tasks in splits.items()
    })  # fmt: skip
    assert found.sizes == {name: len(tasks) for name, tasks in splits.items()}
    wanted, again = {}, {}
    for kind in ("content", "solution"):
        marks = {name: [one[kind] for one in tasks if kind in one] for name, tasks in splits.items()}
        for one, other in combinations(splits, 2):
            both = {*marks[one]} & {*marks[other]}
            if both:
                in_both = tuple(sum(mark in both for mark in marks[name]) for name in (one, other))
                wanted[kind, one, other] = len(both), in_both
        for name, said in marks.items():
            if len(said) > len(set(said)):
                again[kind, name, name] = len(said) - len(set(said))
    assert {(one.kind, *one.splits): (one.count, one.tasks) for one in found.shared} == wanted
    assert {(one.kind, *one.splits): one.tasks[0] for one in found.repeats} == again
    for one in chain(found.shared, found.repeats):
        assert 1 <= len(one.examples) <= 3
        for first, second in one.examples:
            split, at = first.split("-")
            other, there = second.split("-")
            assert (split, other) == one.splits and first != second
            assert splits[split][int(at)][one.kind] == splits[other][int(there)][one.kind]


def test_kinds_are_not_mixed_up():
    same = {"train": [("a", {"content": "x", "solution": "y"})], "test": [("b", {"content": "y"})]}
    assert leaks(same).shared == ()


def test_text_that_is_no_utf8_is_compared_too():
    marks = defaultdict(list)
    for name in ("train", "test"):
        [row] = rows(json.loads('{"q": "\\ud800"}'))
        marks[name].append((name, {"content": content(row)}))
    assert [one.count for one in leaks(marks).shared] == [1]
