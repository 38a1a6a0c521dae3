"""The benchmarks of framework time at a tiny size; the committed tables are what their JSON says."""

from __future__ import annotations

import asyncio
import json

import engines
import measuring
import per_role
import pytest
import scale_memory

from benchmarks.orchestration import measure
from benchmarks.tables import RESULTS, rendered, stored_tables


def test_the_clocks_of_the_parts_add_up_to_the_whole():
    result = asyncio.run(measure(live=2, branches=2, turns=1))
    parts = ("", "environment_", "template_", "tokenizer_", "engine_")
    assert result["actions"] == 8 and result["environment_microseconds"] > 0 and result["microseconds"] > 0
    assert abs(sum(result[f"{part}microseconds"] for part in parts) - result["whole_microseconds"]) < 1e-6


def test_the_bookkeeping_of_a_step_is_what_is_neither_computed_nor_the_environments():
    step = asyncio.run(scale_memory.bookkeeping_step("whole conversation", turns=3))
    assert step["generated_tokens"] > 0 and step["prompt_tokens"] > 0
    assert 0 < step["bookkeeping_seconds"] < step["step_seconds"]
    assert step["share"] == step["bookkeeping_seconds"] / step["step_seconds"]


def test_a_section_replaces_its_own_result_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "results" / "scale.json"
    sections = {
        "good": lambda options: {"bar": "at most 1", "met": True, "ratio": options.pairs},
        "bad": lambda options: {"bar": "at most 1", "met": False, "ratio": options.pairs},
    }

    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["scale.py", "--json", str(path), *words])
        return measuring.run_sections(sections, "", path)

    assert run("--pairs", "1") == 1
    assert run("--only", "good", "--pairs", "2") == 0
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert {name: result["ratio"] for name, result in stored.items()} == {"good": 2, "bad": 1}
    assert stored["good"]["machine"]["threads"] >= 1


@pytest.mark.parametrize("name", stored_tables())
def test_a_committed_table_is_rendered_from_its_json(name):
    stored = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    for suffix, content in rendered(stored)[0].items():
        assert (RESULTS / f"{name}{suffix}").read_text(encoding="utf-8") == content, (
            f"run `python benchmarks/tables.py {name}`"
        )


@pytest.mark.parametrize(("module", "key"), [(engines, "jobs"), (per_role, "runs")])
def test_the_page_has_the_committed_table(module, key):
    rows = json.loads(module.RESULTS.read_text(encoding="utf-8"))[key]
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    assert len(rows) > 10 and module.table(rows) in page
