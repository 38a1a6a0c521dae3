"""Record the base of mutants, or compare the tree with it.

python -m tests.long.mutants --record tests/long/mutants_base.json
python -m tests.long.mutants --compare tests/long/mutants_base.json
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from pathlib import Path

from tests.long.mutants.comparing import compare, record
from tests.long.tree import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.long.mutants", description=__doc__.split("\n")[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--record", type=Path, metavar="FILE", help="judge the core's mutants and write FILE")
    action.add_argument("--compare", type=Path, metavar="FILE", help="judge the same mutants again")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    parser.add_argument("--commit", default="", help="what FILE calls the tree; HEAD's name without it")
    options = parser.parse_args()
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begin:6.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        if options.record:
            commit = options.commit or head()
            say(record(options.record, Path(folder), ROOT, commit, options.seed, say))
        else:
            say(str(compare(options.compare, Path(folder), ROOT, say)))


def head() -> str:
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
