"""Honest programs in the sandbox `local`, compared with plain CPython.

    COTERIE_TEST_DATA=FOLDER python benchmarks/honest_programs.py

The folder holds HumanEval.jsonl.gz. Whole programs are compared by exit code, stdout, the files that they
write and the last line of stderr; functions by whether all their tests hold.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from tests.backends.sandboxes.honest import Compared, compare, judged, programs  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=480, help="generated whole programs")
    parser.add_argument("--functions", type=int, default=230, help="generated functions with tests")
    parser.add_argument("--problems", type=int, default=164, help="HumanEval problems")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    results = compare(programs(args.programs), judged(args.functions, args.problems))
    families: dict[str, dict[str, int]] = {}
    for result in results:
        row = families.setdefault(result.family, {"programs": 0, "agree": 0, "pass_plainly": 0})
        row["programs"] += 1
        row["agree"] += result.agrees
        row["pass_plainly"] += result.passed
    differ = [result._asdict() for result in results if not result.agrees and result.part != "limit"]
    show(results)
    for result in differ:
        print(result)
    table = {
        "python": sys.version.split()[0],
        "programs": len(results),
        "agree": sum(result.agrees for result in results),
        "differ": differ,
        "limits": [result.family for result in results if result.part == "limit"],
        "families": families,
    }
    (args.results / "honest.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n")


def show(results: list[Compared]) -> None:
    table = Table("part", "families", "programs", "pass plainly", "as plain CPython")
    for part in dict.fromkeys(result.part for result in results):
        of_part = [result for result in results if result.part == part]
        passed, agree = (sum(values) for values in zip(*((r.passed, r.agrees) for r in of_part), strict=True))
        families = len({result.family for result in of_part})
        table.add_row(part, *map(str, (families, len(of_part), passed, agree)))
    Console().print(table)


if __name__ == "__main__":
    main()
