"""The data source: what every one promises, and what it refuses."""

import pytest

from coterie import DataError
from coterie.testing import build


def test_it_keeps_the_promises_of_a_data_source(coterie_check):
    coterie_check("example_name", kind="data_source")


def test_a_line_without_a_split_is_named(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"split": "train", "grid": ["SG"]}\n{"grid": ["GS"]}\n')
    with pytest.raises(DataError, match=r"mine.jsonl, line 2"):
        build("data_source", {"type": "example_name", "path": str(path)}).records("train")
