"""Write the committed tables of studies again from their stored JSON, without any training.

    python benchmarks/tables.py                                  # every table in benchmarks/results/
    python benchmarks/tables.py at-grpo-table3 --plot            # its plot in docs/img/ too

Success, intervals, claims and costs stay as they were measured. The columns' figures of the paper, their
notes and the gains are those of the present code.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from coterie.core.storage.jsonl import to_json
from coterie.studies import table
from coterie.studies.graph import StudyPlan
from coterie.studies.reproduce import draw, prepare

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"


def rendered(stored: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any], StudyPlan]:
    """({suffix of a file: its content}, the table, its plan) of a stored table."""
    seeds = stored["seeds"]
    plan = prepare(
        stored["study"],
        scale=stored["scale"],
        seeds=len(seeds),
        first_seed=seeds[0],
        columns=list(stored["columns"]),
    )
    stored["gain_over"] = plan.study.gain_over
    for column in plan.columns:
        table.compare(stored["columns"][column.name], column, plan.name, plan.study.gain_over)
    pretty = json.dumps(json.loads(to_json(stored)), indent=1, ensure_ascii=False) + "\n"
    files = {".md": table.markdown(stored, plan), ".csv": table.as_csv(stored), ".json": pretty}
    return files, stored, plan


def stored_tables() -> list[str]:
    """The names of the committed tables of studies."""
    names = (path.stem for path in sorted(RESULTS.glob("*.json")) if path.with_suffix(".csv").exists())
    return list(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="names of tables [all]")
    parser.add_argument("--plot", action="store_true", help="draw docs/img/NAME.png as well")
    arguments = parser.parse_args()
    for name in arguments.names or stored_tables():
        stored = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        files, results, plan = rendered(stored)
        for suffix, content in files.items():
            (RESULTS / f"{name}{suffix}").write_text(content, encoding="utf-8")
        if arguments.plot:
            draw(ROOT / "docs" / "img" / f"{name}.png", results, plan)
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
