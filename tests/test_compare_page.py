"""docs/compare.md: its example is what the command prints, its table what the benchmark measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
from interval_coverage import CASES, RESULTS

from tests.analysis.comparison.records import write
from tests.cli.support import coterie

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "compare.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| (eval: .+?|compare: .+?) \| .+? \| (\S+) % \| (\S+) % \((.+?)\) to (\S+) % \((.+?)\) \|$", re.M
)


def test_the_example_is_what_the_command_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(35)
    chances = rng.beta(0.8, 0.8, 256)
    for name, gain in (("grpo", 0.0), ("at_grpo", 0.05)):
        samples = rng.random((256, 4)) < (chances + gain * (1 - chances))[:, None]
        write(tmp_path / f"{name}.json", samples)
    done = coterie("compare", "grpo.json", "at_grpo.json")
    block = PAGE.split("```text\n")[1].split("```")[0]
    assert done.exit_code == 0 and done.stdout == block, done.stdout


def test_the_table_is_what_the_benchmark_measured():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = {name: rest for name, *rest in ROW.findall(PAGE)}
    assert set(rows) == set(results) == set(CASES)
    for name, (all_of_them, low, lowest, high, highest) in rows.items():
        cells = results[name]
        total = cells.pop("all")
        assert total["n"] == 2000 and 0.93 <= total["covered"] <= 0.97
        assert abs(float(all_of_them) - 100 * total["covered"]) <= 0.051
        shares = {cell: of["covered"] for cell, of in cells.items()}
        for share, cell, best in ((low, lowest, min(shares.values())), (high, highest, max(shares.values()))):
            assert shares[cell] == best and abs(float(share) - 100 * best) <= 0.051, (name, cell)
