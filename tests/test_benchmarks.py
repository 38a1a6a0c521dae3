"""The benchmarks of framework time at a tiny size; the committed tables are what their JSON says."""

from __future__ import annotations

import asyncio
import json
import statistics
from pathlib import Path
from typing import Any

import engines
import gpu
import mathchat
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


# ------------------------------------------------------------------------------- process rewards of a coach

PAGE = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
COACH = (RESULTS.parents[1] / "docs" / "coach.md").read_text(encoding="utf-8")
TITLES = {
    "process": "process rewards",
    "outcome": "outcome, REINFORCE++",
    "outcome_grpo": "outcome, GRPO",
}


def stored(name: str) -> dict[str, Any]:
    """A committed result."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def table(head: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(
        "| " + " | ".join(row) + " |" if row else "|---" * len(head) + "|" for row in [head, [], *rows]
    )


def credit_table(result: dict[str, Any]) -> str:
    """The methods of coach_credit.py in the order that fell, each at its best rate."""
    rows = []
    for name in result["order"]:
        method = result["methods"][name]
        numbers = [method["mean_success"], method["final_success"]]
        spread = [f"{x['mean']:.3f} [{x['ci95'][0]:.3f}, {x['ci95'][1]:.3f}]" for x in numbers]
        [tokens] = set(method["tokens"])
        rows.append([TITLES[name], f"{method['learning_rate']:g}", f"{tokens:,}", *spread])
    return table(["reward", "learning rate", "tokens a seed", "mean over training", "at the end"], rows)


def modes_table(result: dict[str, Any]) -> str:
    """What the modes of a coach cost."""
    rows = [
        [name, str(mode["actions"]), str(mode["calls"]), f"{mode['prompt_tokens_estimated']:,}"]
        for name, mode in result["modes"].items()
    ]
    return table(["mode", "actions", "calls", "prompt tokens, estimated"], rows)


def overlap_line(result: dict[str, Any]) -> str:
    """The three times of coach_overlap.py, and their ratio."""
    times = {name: statistics.median(values) for name, values in result["seconds"].items()}
    return (
        f"generation alone {times['generation alone']:.2f} s, "
        f"coaching alone {times['coaching alone']:.2f} s, "
        f"both {times['both']:.2f} s, {result['ratio']:.2f} times the larger; at most {result['target']:.2f}."
    )


def test_the_page_has_what_the_coach_s_benchmarks_found():
    overlap = stored("coach_overlap")
    assert credit_table(stored("coach_credit")) in PAGE
    assert modes_table(stored("coach_modes")) in PAGE and stored("coach_modes")["equal_scores"]
    assert overlap_line(overlap) in " ".join(PAGE.split()) and overlap["ratio"] <= overlap["target"]


def test_methods_are_compared_at_equal_tokens_and_the_order_is_that_of_the_numbers():
    result = stored("coach_credit")
    methods = result["methods"]
    assert len({token for method in methods.values() for token in method["tokens"]}) == 1
    assert result["order"] == sorted(methods, key=lambda name: -methods[name]["mean_success"]["mean"])


def test_the_coach_s_page_has_the_committed_success_by_rate():
    methods = stored("coach_credit")["methods"]
    rates = list(methods["process"]["by_rate"])
    rows = [
        [
            f"{float(rate):g}",
            *(short(methods[name]["by_rate"][rate]["final_success"]["mean"]) for name in TITLES),
        ]
        for rate in rates
    ]
    assert table(["rate", *TITLES.values()], rows) in COACH


def short(number: float) -> str:
    """.95 and 1.00."""
    return f"{number:.2f}".removeprefix("0")


def test_mathchat_learns_on_each_seed_and_the_pages_say_it():
    rows = stored("mathchat")["seeds"]
    assert [row["seed"] for row in rows] == [0, 1, 2] and all(map(mathchat.passed, rows))
    assert mathchat.table(rows) in PAGE
    page = (RESULTS.parents[1] / "docs" / "math.md").read_text(encoding="utf-8")
    for row in rows:
        before, after = (row[when]["sampled"]["mean"] for when in ("before", "after"))
        assert f"| {row['seed']} | {before:.3f} | {after:.3f} |" in page


def test_the_page_has_what_packages_cost_a_program():
    page = (RESULTS.parents[1] / "docs" / "sandbox.md").read_text(encoding="utf-8")
    for row in stored("sandbox_packages")["rows"]:
        names = ("print(1)", "a judged run", "import pandas", "import pandas, sklearn.ensemble", "pipeline")
        cells = [f"{row['ms'][name]:,.0f}" if name in row["ms"] else "–" for name in names]
        cells += [f"{row['open_ms']:,.0f}", f"{row['idle_worker_mb']:.0f} MB"]
        assert f"| {' | '.join(cells)} |" in page, row["setting"]


def test_the_page_has_what_ran_on_a_gpu():
    results = json.loads(gpu.RESULTS.read_text())
    page = (Path(__file__).parents[1] / "docs" / "gpu.md").read_text()
    for case in ("plan: full", "plan: LoRA"):
        row = results[case]
        assert row["met"] and f"{row['generated_tokens_a_second']:,}" in page
        assert f"{row['updated_tokens_a_second']:,}" in page
        for phase in row["gigabytes"].values():
            assert phase["measured"] <= phase["planned"] and f"{phase['measured']:.1f} GB" in page
            assert f"{phase['planned']:.1f} GB" in page
    assert results["repeat"]["twice"] and results["repeat"]["resumed"]
    assert set(gpu.CASES) == {*results, *results["not_measured"]} - {"machine", "size", "not_measured"}
