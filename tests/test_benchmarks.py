"""The benchmark of framework time at a tiny size; the committed tables are what their JSON says."""

from __future__ import annotations

import asyncio
import json

import pytest

from benchmarks.orchestration import measure
from benchmarks.tables import RESULTS, rendered, stored_tables


def test_the_clocks_of_the_parts_add_up_to_the_whole():
    result = asyncio.run(measure(live=2, branches=2, turns=1))
    parts = ("", "environment_", "template_", "tokenizer_", "engine_")
    assert result["actions"] == 8 and result["environment_microseconds"] > 0 and result["microseconds"] > 0
    assert abs(sum(result[f"{part}microseconds"] for part in parts) - result["whole_microseconds"]) < 1e-6


@pytest.mark.parametrize("name", stored_tables())
def test_a_committed_table_is_rendered_from_its_json(name):
    stored = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for suffix, content in rendered(stored)[0].items():
        assert (RESULTS / f"{name}{suffix}").read_text(encoding="utf-8") == content, (
            f"run `python benchmarks/tables.py {name}`"
        )
