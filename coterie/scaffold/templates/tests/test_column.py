"""The column: its file, and the recipes that it names."""

from pathlib import Path

import example_module

from coterie.testing import check_column


def test_it_keeps_the_promises_of_a_column():
    check_column(str(Path(example_module.__file__).with_name("example_name_column.yaml")))
