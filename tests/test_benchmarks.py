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
import real_exactness
import real_size_report
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


# ------------------------------------------------------------------------------------- models of real sizes

REAL_SIZES = RESULTS.parents[1] / "docs" / "real_sizes.md"
CONFIG = {
    "hidden_size": 4, "intermediate_size": 6, "head_dim": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "num_hidden_layers": 3, "vocab_size": 10,
}  # fmt: skip
STEP = {"prompts": 2, "siblings": 3, "prompt_tokens": 5, "new_tokens": 4}


def limit_run(**changes: Any) -> dict[str, Any]:
    """A run of the limits: every product of the blocks takes a second, every one of the head two."""
    products = {
        "blocks": {"forward": 1.0, "dx": 1.0, "dw": 1.0}, "head": {"forward": 2.0, "dx": 2.0, "dw": 2.0},
    }  # fmt: skip
    both = {"float32": products, "bfloat16": products}
    decoded = {"float32": 0.5, "bfloat16": 0.25}
    return {
        "shape": "smollm2-135m", "threads": 1, "group": "bars", "peer": "limits", "update": both,
        "decode": decoded, "prefill": {"float32": 1.0, "bfloat16": 1.0},
        "bandwidth": {"read": 1e-9, "copy": 2e-9},
        "square_gflops": {"float32": 1.0, "bfloat16": 2.0}, **changes,
    }  # fmt: skip


def peer_run(peer: str, step: float, generation: float, update: float | None = None, **changes: Any) -> Any:
    seconds = {"step": step, "generation": generation} | ({} if update is None else {"update": update})
    return {
        "shape": "smollm2-135m", "threads": 1, "group": "bars", "peer": peer, "dtype": "float32",
        "train": "full", "agents": 1, "peak_rss_mib": 100, "parts": [{"wall": seconds}], **changes,
    }  # fmt: skip


def test_an_update_s_limit_is_its_products_and_attention_at_their_speed():
    # 2 prompts of 5 tokens and 6 completions of which 3 tokens are read: 28 rows. A block has 120 weights:
    # queries 16, keys and values 8 each, output 16, MLP 72.
    assert real_size_report.block_weights(CONFIG) == 3 * (16 + 8 + 8 + 16 + 72)
    seen = 2 * 15 + 6 * ((5 + 1) + (5 + 2) + (5 + 3))
    attention = 3 * 3 * 2 * 2 * (2 * 2) * seen
    speed = 3 * 2 * 360 * 28 / 3.0
    limits = [limit_run()]
    full = real_size_report.update_limit(CONFIG, STEP, limits, peer_run("a", 1, 1))
    assert full == pytest.approx(3.0 + 6.0 + attention / speed)
    lora = real_size_report.update_limit(CONFIG, STEP, limits, peer_run("a", 1, 1, train="lora"))
    adapter = 3 * 16 * ((4 + 4) + (4 + 2) * 2 + (4 + 4) + (4 + 6) * 3)
    assert lora == pytest.approx(2.0 + 4.0 + (attention + 6 * adapter * 28) / (2 * 2 * 360 * 28 / 2.0))
    twice = real_size_report.update_limit(CONFIG, STEP, limits, peer_run("a", 1, 1, agents=2))
    assert twice == pytest.approx(2 * full)


def test_generation_s_bound_is_of_bytes_where_memory_is_slow_and_of_flops_where_it_is_not():
    run = peer_run("a", 1, 1)
    slow = real_size_report.generation_limit(CONFIG, STEP, [limit_run()], run)
    fast = limit_run(bandwidth={"read": 1e9, "copy": 1.0})
    quick = real_size_report.generation_limit(CONFIG, STEP, [fast], run)
    speed = 2 * 360 * 28 / 1.0  # an update's forward pass is faster than the prefill's
    prefill = 2 * 360 * 2 * 5 + 2 * 40 * 2
    flops = sum(6 * (2 * 400 + 4 * 4 * 3 * (5 + token)) for token in (1, 2, 3))
    assert quick == pytest.approx((prefill + flops) / speed)
    read = sum(400 * 4 + 2 * 3 * 1 * 2 * 4 * (2 * 5 + 6 * token) for token in (1, 2, 3))
    assert slow == pytest.approx(prefill / speed + read / 2.0)
    half = real_size_report.generation_limit(CONFIG, STEP, [limit_run()], {**run, "dtype": "bfloat16"})
    assert half == pytest.approx(prefill / speed + read / 4.0)


def test_roles_with_adapters_read_one_base_and_whole_models_are_read_each():
    def bound(agents: int, train: str) -> float:
        run = peer_run("a", 1, 1, agents=agents, train=train)
        return real_size_report.generation_limit(CONFIG, STEP, [limit_run()], run)

    weights = 3 * 400 * 4 / 2.0
    assert bound(2, "full") == pytest.approx(2 * bound(1, "full"))
    assert bound(2, "lora") == pytest.approx(2 * bound(1, "lora") - weights)


def test_a_bar_compares_the_best_dtypes_and_float32_and_says_what_is_not_met():
    runs = [
        limit_run(),
        peer_run("coterie float32", 20.0, 4.0, 14.0),
        peer_run("coterie bfloat16", 10.0, 2.0, 8.0, dtype="bfloat16"),
        peer_run("trl float32", 40.0, 10.0, 30.0),
        peer_run("trl bfloat16 weights", 18.0, 6.0, 12.0, dtype="weights"),
        peer_run("trl float32 lora", 5.0, 1.0, 4.0, train="lora"),
        peer_run("generate float32", 3.0, 3.0),
        {**peer_run("trl bfloat16", 1.0, 1.0), "error": "it failed"},
    ]
    summary = real_size_report.summarise(runs, {"smollm2-135m": STEP}, {"smollm2-135m": CONFIG}, "wall")
    bars = {bar["bar"]: bar for bar in real_size_report.bars(summary)}
    steps = [bar for name, bar in bars.items() if name.startswith("a step")]
    assert [(bar["value"], bar["met"], bar["target_met"]) for bar in steps] == [
        (1.8, True, False),
        (2.0, True, True),
    ]
    assert "coterie bfloat16 against trl bfloat16 weights" in next(iter(bars))
    made = [bar for name, bar in bars.items() if name.startswith("generation")]
    assert [(bar["value"], bar["met"]) for bar in made] == [(1.5, True), (0.75, False)]
    shares = [bar for name, bar in bars.items() if name.startswith("update")]
    assert len(shares) == 2 and shares[0]["value"] == pytest.approx(9.0 / 14, abs=0.1)
    assert shares[1]["value"] > shares[0]["value"]


def test_the_page_has_the_committed_results_of_real_sizes():
    made = real_size_report.page(stored("real_size"))
    assert real_size_report.written(REAL_SIZES, "real_size") == made, "run real_size.py --page"
    exact = stored("real_exactness")
    assert real_size_report.written(REAL_SIZES, "real_exactness") == real_exactness.page(exact)
    assert all(map(real_exactness.met, exact["engines"])) and all(
        row["met"] for row in exact.get("export", {}).values()
    )


def test_the_page_has_the_figures_of_the_head_on_a_gpu():
    page = (RESULTS.parents[1] / "docs" / "gpu.md").read_text(encoding="utf-8")
    for row in json.loads((RESULTS / "gpu_head.json").read_text(encoding="utf-8"))["rows"]:
        figures = f"{row['milliseconds']:.1f} | {row['peak_gb']:.2f} | {row['logprob_difference']:.2g}"
        assert f"| {row['width']:,} | {row['head']} | {row['way']} | {figures} |" in page
