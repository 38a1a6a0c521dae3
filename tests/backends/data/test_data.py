"""Data sources: formats, splits by content, and errors that name file and line."""

from __future__ import annotations

import gzip
import json
import sys
import types
from contextlib import nullcontext
from itertools import chain

import pytest

from coterie.backends.data.hub import HubData
from coterie.backends.data.jsonl import JsonlData
from coterie.backends.data.parquet import ParquetData
from coterie.core.errors import ConfigError, DataError, MissingExtra, UserError
from tests.plugins.support import Build, make

ROWS = [{"id": i, "text": f"row {i}"} for i in range(200)]
SPLITS = ("train", "val", "test")


def jsonl(path, rows=ROWS):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def source(plugin, **settings):
    return make(plugin, Build(path="data"), **settings)


def test_one_file_becomes_three_disjoint_splits(tmp_path):
    data = source(JsonlData, path=jsonl(tmp_path / "a.jsonl"), val_share=0.2, test_share=0.3)
    ids = [[row["id"] for row in data.records(split)] for split in SPLITS]
    assert sorted(chain.from_iterable(ids)) == list(range(200))
    assert [len(part) for part in ids] == pytest.approx([100, 40, 60], abs=20)
    # Fixed numbers: a run's test set must never change.
    assert ids[1][:5] == [3, 7, 12, 17, 21]
    assert data.records("val").where(0) == (str(tmp_path / "a.jsonl"), ids[1][0] + 1)


def test_what_is_no_content_does_not_decide_the_split(tmp_path):
    rows = [{"id": i, "text": f"row {i % 50}"} for i in range(200)]
    data = source(JsonlData, path=jsonl(tmp_path / "a.jsonl", rows), split_ignore=["id"])
    texts = [{row["text"] for row in data.records(split)} for split in SPLITS]
    assert sum(map(len, texts)) == 50


def test_a_file_a_split(tmp_path):
    data = source(
        JsonlData, train=jsonl(tmp_path / "a.jsonl", ROWS[:3]), test=jsonl(tmp_path / "b.jsonl", ROWS[3:4])
    )
    assert list(data.records("train")) == ROWS[:3] and list(data.records("test")) == ROWS[3:4]
    with pytest.raises(ConfigError, match="split 'val'") as caught:
        data.records("val")
    assert caught.value.path == "data.val"


def test_gzipped_and_with_a_byte_order_mark(tmp_path):
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as file:
        file.write('{"id": 1}\n\n{"id": 2}\n')
    assert list(source(JsonlData, train=str(tmp_path / "a.jsonl.gz")).records("train")) == [
        {"id": 1},
        {"id": 2},
    ]
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 1}\r\n')
    assert list(source(JsonlData, train=str(tmp_path / "b.jsonl")).records("train")) == [{"id": 1}]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b'{"id": ', "not JSON"),
        (b'"text"', "a JSON str"),
        (b'{"id": "\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b'{"id": ["\\ud800"]}', "half a surrogate pair"),
        (b'{"id": {"\\udfff": 1}}', "half a surrogate pair"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, what):
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1}\n\n' + line + b"\n")
    with pytest.raises(DataError, match=what) as caught:
        source(JsonlData, train=str(tmp_path / "a.jsonl")).records("train")
    assert caught.value.line == 3 and caught.value.field == ("id" if "pair" in what else "-")
    assert str(caught.value).startswith(f"{tmp_path}/a.jsonl, line 3{', field' * ('pair' in what)}")
    assert "'-'" not in str(caught.value)
    str(caught.value).encode()


def test_a_pair_of_surrogates_is_a_character(tmp_path):
    path = jsonl(tmp_path / "a.jsonl", [{"\U0001f600": "\U0001f600"}])
    assert "ud83d" in (tmp_path / "a.jsonl").read_text()
    assert list(source(JsonlData, train=path).records("train")) == [{"\U0001f600": "\U0001f600"}]


def test_a_folder_is_no_file(tmp_path):
    for number in range(7):
        jsonl(tmp_path / f"{number}.jsonl")
    with pytest.raises(ConfigError, match="is a folder, not a file") as caught:
        source(JsonlData, path=str(tmp_path)).records("train")
    assert caught.value.path == "data.path"
    assert caught.value.why == "its files: 0.jsonl, 1.jsonl, 2.jsonl, 3.jsonl, 4.jsonl, and 2 more"


@pytest.mark.parametrize(
    ("name", "data", "named"),
    [
        ("a.jsonl", b"", "a.jsonl is empty"),
        ("a.jsonl", b"\n \r\n", "a.jsonl holds no record"),
        ("a.jsonl", b"\xef\xbb\xbf\n", "a.jsonl holds no record"),
        ("a.json", b" []\n", "a.json holds no record"),
        ("a.csv", b"id,text\n1,x\n", "a.csv is a CSV file"),
        ("a.csv.gz", gzip.compress(b"id,text\n1,x\n", mtime=0), "a.csv.gz is a CSV file"),
        ("a.TSV", b"1\n", "a.TSV is a TSV file"),
        ("a.jsonl", b'"id";"text"\n1;x\n', "a.jsonl, line 1.* looks like the header of a CSV file"),
        ("a.jsonl", b"PAR1....PAR1", "a.jsonl is a Parquet file"),
        ("a.jsonl", gzip.compress(b'{"id": 1}\n', mtime=0), "a.jsonl is gzipped"),
        ("a.json", b"PK\x03\x04...", "a.json is a ZIP archive or an Excel workbook"),
        ("a.jsonl", '{"id": 1}\n'.encode("utf-16"), r"a.jsonl is written in UTF-16, .*byte order mark"),
        ("a.jsonl", '{"id": 1}\n'.encode("utf-32"), r"a.jsonl is written in UTF-32, .*byte order mark"),
        ("a.jsonl", b'{"id": 1}\n\xef\xbb\xbf{"id": 2}\n', r"a.jsonl, line 2.*byte order mark \(BOM\)"),
    ],
)
def test_what_is_no_file_of_records_is_named(tmp_path, name, data, named):
    (tmp_path / name).write_bytes(data)
    for split in ({"path": str(tmp_path / name)}, {"train": str(tmp_path / name)}):
        with pytest.raises(UserError, match=named) as caught:
            source(JsonlData, **split).records("train")
        assert caught.value.fix and caught.value.path in ("", f"data.{next(iter(split))}")


def test_a_first_line_of_one_field_is_not_taken_for_csv(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"id\n1\n")
    with pytest.raises(DataError, match="not JSON: Expecting value"):
        source(JsonlData, path=str(tmp_path / "a.jsonl")).records("train")


@pytest.mark.parametrize(
    "data",
    [
        b"no gzip",
        gzip.compress(b'{"id": 1}\n', mtime=0)[:-9],
        gzip.compress(b'{"id": 1}\n', mtime=0)[:10] + b"!",
    ],
)
def test_a_damaged_gzip_file_is_no_traceback(tmp_path, data):
    (tmp_path / "a.jsonl.gz").write_bytes(data)
    with pytest.raises(UserError, match=r"a\.jsonl\.gz can't be read") as caught:
        source(JsonlData, path=str(tmp_path / "a.jsonl.gz")).records("train")
    assert caught.value.path == "data.path"


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"path": "a", "train": "b"},
        {"train": "a", "val_share": 0.5},
        {"path": "a", "val_share": 0.5, "test_share": 0.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError):
        source(JsonlData, **settings)


def test_parquet(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").Table.from_pylist(ROWS)
    parquet.write_table(table, tmp_path / "a.parquet")
    data = source(ParquetData, path=str(tmp_path / "a.parquet"))
    same = source(JsonlData, path=jsonl(tmp_path / "a.jsonl"))
    for split in SPLITS:
        assert list(data.records(split)) == list(same.records(split))


def test_what_is_no_parquet_file_or_a_damaged_one_names_its_setting(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(ROWS), file)
    whole = file.read_bytes()
    for data in (b"no", whole[:50], whole[:200] + b"?" * 200 + whole[400:], b""):
        file.write_bytes(data)
        with pytest.raises(UserError, match=r"a\.parquet can't be read as Parquet") as caught:
            source(ParquetData, train=str(file)).records("train")
        assert caught.value.path == "data.train" and "line" not in str(caught.value)


@pytest.fixture
def fake_datasets(monkeypatch):
    """The part of `datasets` that is used, without a network."""
    module = types.ModuleType("datasets")
    requests = []

    def load_dataset(name, subset, *, split, revision):
        requests.append((name, subset, split, revision))
        if name == "gone":
            raise FileNotFoundError("no such dataset")
        return iter(ROWS if split == "train" else ROWS[:2])

    module.load_dataset = load_dataset
    monkeypatch.setattr("coterie.backends.data.hub.hub", lambda part, name: nullcontext(""))
    monkeypatch.setitem(sys.modules, "datasets", module)
    return requests


def test_hub(fake_datasets):
    data = source(
        HubData, name="own/set", subset="main", revision="abc", splits={"train": "train", "val": "validation"}
    )
    assert list(data.records("val")) == ROWS[:2] and data.records("val").where(1) == ("own/set/validation", 2)
    assert fake_datasets[0] == ("own/set", "main", "validation", "abc")
    with pytest.raises(ConfigError, match="'test'"):
        data.records("test")
    whole = source(HubData, name="own/set")
    assert sorted(row["id"] for split in SPLITS for row in whole.records(split)) == list(range(200))
    with pytest.raises(ConfigError, match="can't be loaded"):
        source(HubData, name="gone").records("train")


@pytest.mark.parametrize(
    ("plugin", "package", "settings"),
    [(HubData, "datasets", {"name": "own/set"}), (ParquetData, "pyarrow", {"path": "a.parquet"})],
)
def test_a_missing_package_names_its_extra(monkeypatch, plugin, package, settings):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra) as caught:
        source(plugin, **settings).records("train")
    assert "coterie[data]" in str(caught.value) and caught.value.package == package
