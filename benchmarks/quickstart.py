"""Success of the quickstart before and after training, on 1,000 unseen tasks, for several seeds.

    python benchmarks/quickstart.py [--seeds 0 1 2]

Run `coterie quickstart` once per seed, one after the other, and print the table of docs/results.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLUMNS = [(key, when) for key in ("success", "success_greedy") for when in ("before", "after")]


def run(seed: int, folder: Path) -> dict[str, object]:
    """One quickstart: metrics before and after, and seconds."""
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "quickstart", "--seed", str(seed), "--out", str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return {"seed": seed, **{key: result[key] for key in ("before", "after", "seconds")}}


def line(row: dict[str, object]) -> str:
    """A line of the Markdown table."""
    cells = [str(row["seed"])]
    for key, when in COLUMNS:
        interval = row[when][key]  # type: ignore[index]
        cells.append(f"{interval['mean']:.3f} [{interval['ci95'][0]:.3f}, {interval['ci95'][1]:.3f}]")
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path, default=HERE / "results" / "quickstart.json")
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(run(seed, Path(folder) / "run"))
        print(line(rows[-1]), f" {rows[-1]['seconds']:.0f} s", flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(
        json.dumps(
            {
                "seeds": rows,
                "threads": os.environ.get("OMP_NUM_THREADS"),
                "cpus": os.cpu_count(),
                "python": platform.python_version(),
            },
            indent=1,
        )
        + "\n"
    )


if __name__ == "__main__":
    main()
