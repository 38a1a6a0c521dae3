"""What the conformance kit catches: good plugins of every kind, each broken in one promise.

    python benchmarks/kit_teeth.py [--kinds environment role]

The originals are the one-file examples that `coterie new` writes (coterie/scaffold/templates/kinds); the
mutants are in tests/testing/teeth. One is caught where the check of its kind says something that names the
promise or the member. Print a table by kind, and write results/kit_teeth.json. Exit with 1 where fewer than
60 are caught, or an original is told.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.testing.teeth.mutants import OPERATORS, Mutant, mutants  # noqa: E402
from tests.testing.teeth.originals import complaint, load  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "kit_teeth.json"
LEAST = 60
"""Mutants that must be caught."""


def tried(mutant: Mutant, folder: Path) -> str:
    """What the kit says of a mutant; empty: nothing."""
    module = load(mutant.kind, folder, mutant.edits, mutant.file, mutant.without)
    return complaint(module, mutant.kind, folder, seconds=0.3 if mutant.operator == "hang" else 60.0)


def row(mutant: Mutant) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        said = tried(mutant, Path(folder))
    return {
        "kind": mutant.kind,
        "operator": mutant.operator,
        "promise": mutant.promise,
        "caught": mutant.told in said,
    }


def original_told(kind: str) -> str:
    """What the kit says of a kind's original; empty: nothing."""
    with tempfile.TemporaryDirectory() as folder:
        return complaint(load(kind, Path(folder)), kind, Path(folder))


def summary(rows: Sequence[dict[str, Any]], originals_told: Sequence[str]) -> dict[str, Any]:
    """Counts of the mutants, by kind and by operator."""
    of_kind, of_operator = (Counter(each[at] for each in rows) for at in ("kind", "operator"))
    return {
        "mutants": len(rows),
        "caught": sum(each["caught"] for each in rows),
        "kinds": dict(sorted(of_kind.items())),
        "operators": [
            {"operator": operator, "what": what, "mutants": of_operator[operator]}
            for operator, what in OPERATORS.items()
        ],
        "originals_told": len(originals_told),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kinds", nargs="*", help="only these kinds; then no results are written")
    options = parser.parse_args()
    chosen = [mutant for mutant in mutants() if not options.kinds or mutant.kind in options.kinds]
    rows = [row(mutant) for mutant in chosen]
    told = [kind for kind in dict.fromkeys(mutant.kind for mutant in chosen) if original_told(kind)]
    counts = summary(rows, told)
    print(f"{'kind':14} mutants caught")
    for kind, count in counts["kinds"].items():
        print(f"{kind:14} {count:7} {sum(each['caught'] for each in rows if each['kind'] == kind):6}")
    print(f"{'all':14} {counts['mutants']:7} {counts['caught']:6}; originals told: {len(told)}")
    for each in rows:
        if not each["caught"]:
            print(f"not caught: {each['kind']}, {each['operator']}: {each['promise']}")
    if not options.kinds:
        stored = {"summary": counts, "originals_told": told, "mutants": rows}
        RESULTS.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    return 0 if counts["caught"] >= (0 if options.kinds else LEAST) and not told else 1


if __name__ == "__main__":
    sys.exit(main())
