"""The data source `jsonl` on a `.json` file that holds one list."""

from __future__ import annotations

import gzip
import json

import pytest
from hypothesis import given, settings, strategies as st

from coterie.backends.data.jsonl import JsonlData
from coterie.core.errors import DataError
from tests.plugins.support import make


def records_of(path):
    return make(JsonlData, train=str(path)).records("train")


def test_a_list_is_read_with_the_lines_of_its_records(tmp_path):
    file = tmp_path / "data.json"
    file.write_text('[\n{\n"a": 1\n},\n\n{"a": 2}, {"a": "]},"}\n]\n')
    records = records_of(file)
    assert list(records) == [{"a": 1}, {"a": 2}, {"a": "]},"}]
    assert [records.where(index)[1] for index in range(3)] == [2, 6, 6]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.none())), min_size=1),
    st.sampled_from([None, 1]),
)
def test_any_list_of_objects_is_read(tmp_path_factory, items, indent):
    file = tmp_path_factory.mktemp("lists") / "data.json"
    file.write_text(json.dumps(items, indent=indent), encoding="utf-8")
    assert list(records_of(file)) == items


def test_a_gzipped_list_and_a_byte_order_mark(tmp_path):
    file = tmp_path / "data.json.gz"
    file.write_bytes(gzip.compress(b'\xef\xbb\xbf [{"a": 1}]'))
    assert list(records_of(file)) == [{"a": 1}]


def test_lines_of_objects_are_lines_whatever_the_ending(tmp_path):
    file = tmp_path / "data.json"
    file.write_text('{"a": 1}\n{"a": 2}\n')
    assert list(records_of(file)) == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('[\n{"a": 1},\n7]', 3, "a JSON int, not an object"),
        ('[\n{"a": 1},\nnull]', 3, "a JSON null, not an object"),
        ('[\n{"a": 1},\n{"a" 2}]', 3, "not JSON"),
        ('[{"a": 1}', 1, "not JSON"),
        ('[{"a": 1}] x', 1, "not JSON"),
        ("[" * 100_000, 1, "nested too deeply"),
    ],
)
def test_a_wrong_list_names_the_line(tmp_path, text, line, what):
    file = tmp_path / "data.json"
    file.write_text(text)
    with pytest.raises(DataError, match=f"line {line}") as caught:
        records_of(file)
    assert what in str(caught.value)


@pytest.mark.parametrize("text", ['[{"a": 1}]\n', '[\n  {"a": 1}\n]\n', '[{"a": 1},\n{"a": 2}]'])
def test_a_list_in_a_file_of_lines_is_still_no_record(tmp_path, text):
    file = tmp_path / "data.jsonl"
    file.write_text(text)
    with pytest.raises(DataError, match=r"line 1.*not JSON|a JSON list, not an object") as caught:
        records_of(file)
    assert "a name that ends in .json" in caught.value.fix


def test_a_number_of_too_many_digits_is_no_traceback(tmp_path):
    file = tmp_path / "data.json"
    file.write_text(f'[{{"a": {"9" * 5000}}}]')
    with pytest.raises(DataError, match="not JSON"):
        records_of(file)
