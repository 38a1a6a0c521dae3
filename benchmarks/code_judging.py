"""How much of a step waits for the sandbox that judges code: 64 candidates with 10 tests each, on 2 cores.

    python benchmarks/code_judging.py [--steps 6] [--pairs 3]

Train `code_collab` with a single agent and `deterministic: false` on 16 problems, 4 answers each, which the
engine generates in two batches. The model's tokens take their time, and a script's answer, each another
program, is judged. The same run is done with a sandbox that answers at once; the share of a step that waits
is what the real one adds to the median step. Print a table, and write results/code_judging.json. Exit with 1
where the median share of the pairs is above 10 %.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import coterie
from coterie.backends.engines.hf import HFEngine
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Verdict
from coterie.core.types import Call, Request
from coterie.testing.support.oracles import OracleEngine

HERE = Path(__file__).resolve().parent
sys.modules.setdefault("code_judging", sys.modules[__name__])
PROBLEMS, ANSWERS, TESTS, TOKENS = 16, 4, 10, 160
MOST = 0.1
"""Of a step."""


class TimedEngine(OracleEngine):
    """Generates every answer, so that it takes its time, and gives the script's in its place."""

    async def generate(self, request: Request) -> Call:
        await HFEngine.generate(self, request)
        return await super().generate(request)


class AtOnce(LocalSandbox):
    """Judges nothing: every program passes."""

    async def judge(self, judged: Judged) -> Verdict:
        return Verdict(passed=TESTS, total=TESTS)


def play(request: Request, prompt: str, draws: random.Random) -> str:
    """A right answer; no two have the same program."""
    return f"```python\ndef f(x):\n    return x + 1 + 0 * {draws.getrandbits(60)}\n```"


def problems(folder: Path) -> Path:
    """A file of problems with ten tests each."""
    rows = [
        {
            "id": str(number),
            "prompt": f'def f(x):\n    """x plus one; task {number}."""\n',
            "entry_point": "f",
            "tests": "".join(f"assert f({x + number}) == {x + number + 1}\n" for x in range(TESTS)),
        }
        for number in range(3 * PROBLEMS)
    ]
    path = folder / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def settings(file: Path, steps: int, sandbox: str) -> list[str]:
    model = (
        "{init: qwen3, hidden_size: 192, layers: 4, heads: 4, head_dim: 48, mlp_size: 512, context: 1024, "
        "tokenizer: bytes}"
    )
    return [
        f"data={{type: jsonl, path: '{file}'}}",
        f"policies.*.model={model}",
        "policies.*.train=full",
        "policies.*.lora=null",
        "policies.*.dtype=float32",
        "deterministic=false",
        f"sampler.sampling.max_new_tokens={TOKENS}",
        f"sampler.branches={ANSWERS}",
        "engine={type: 'code_judging:TimedEngine', play: 'code_judging:play', share: 1.0, max_batch: 32}",
        f"sandbox={sandbox}",
        f"schedule={{steps: {steps}, tasks_per_step: {PROBLEMS}}}",
        "schedule.evaluate_every=0",
    ]


def step_seconds(folder: Path, file: Path, steps: int, sandbox: str) -> tuple[float, float]:
    """(median seconds of a step, median share of it in which a program was being judged); not the first
    step."""
    coterie.train("grpo_humaneval", overrides=settings(file, steps, sandbox), out=folder)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][1:]
    assert all(row["judging/programs"] == PROBLEMS * ANSWERS for row in rows), "every program is another one"
    return (
        statistics.median(row["time/step"] for row in rows),
        statistics.median(row["judging/share"] for row in rows),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "code_judging.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for pair in range(options.pairs):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            file = problems(folder)
            real, judged = step_seconds(folder / "real", file, options.steps, "{type: local, workers: 2}")
            instant, _ = step_seconds(
                folder / "instant", file, options.steps, "{type: 'code_judging:AtOnce'}"
            )
        rows.append({"seconds": real, "seconds_with_instant_judge": instant, "share": judged})
        print(f"pair {pair}: {rows[-1]['share']:.1%}", file=sys.stderr, flush=True)
    share = statistics.median(row["share"] for row in rows)
    print("| step, s | with an instant judge, s | share in which a program is judged |\n|---|---|---|")
    for row in rows:
        print(f"| {row['seconds']:.2f} | {row['seconds_with_instant_judge']:.2f} | {row['share']:.1%} |")
    facts = {
        "command": " ".join(["python", "benchmarks/code_judging.py", *sys.argv[1:]]),
        "candidates": PROBLEMS * ANSWERS,
        "tests": TESTS,
        "median_share": share,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "pairs": rows,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(0 if share <= MOST else 1)


if __name__ == "__main__":
    main()
