"""How much of a step waits for the sandbox that judges code: 64 candidates with 10 tests each, on 2 cores.

    python benchmarks/code_judging.py [--steps 6] [--runs 3]

Train `code_collab` with a single agent and `deterministic: false` on 16 problems, 4 answers each, which the
engine generates in two batches. The model's tokens take their time, and a script's answer, each another
program, is judged; an answer has 256 tokens, as in the paper. A step waits while a program is being judged
and nothing is generated; the metric `judging/share`, the time in which a program is judged at all, is an
upper bound. Print a table, and write results/code_judging.json. Exit with 1 where the median share of the
runs is above 10 %.
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
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported

import coterie
from coterie.backends.engines.hf import HFEngine
from coterie.backends.sandboxes.local import LocalSandbox
from coterie.core.protocols import Judged, Verdict
from coterie.core.types import Call, Request
from coterie.testing.support.oracles import OracleEngine

HERE = Path(__file__).resolve().parent
sys.modules.setdefault("code_judging", sys.modules[__name__])
PROBLEMS, ANSWERS, TESTS, TOKENS = 16, 4, 10, 256
MOST = 0.1
"""Of a step."""


class Clock:
    """Seconds in which programs are judged and nothing is generated."""

    def __init__(self) -> None:
        self.generating = self.judging = 0
        self.waited, self._last = 0.0, time.monotonic()

    def change(self, *, generating: int = 0, judging: int = 0) -> None:
        now = time.monotonic()
        if self.judging and not self.generating:
            self.waited += now - self._last
        self._last = now
        self.generating += generating
        self.judging += judging


CLOCK = Clock()


class TimedEngine(OracleEngine):
    """Generates every answer, so that it takes its time, and gives the script's in its place."""

    async def generate(self, request: Request) -> Call:
        CLOCK.change(generating=1)
        try:
            await HFEngine.generate(self, request)
            return await super().generate(request)
        finally:
            CLOCK.change(generating=-1)


class TimedSandbox(LocalSandbox):
    async def judge(self, judged: Judged) -> Verdict:
        CLOCK.change(judging=1)
        try:
            return await super().judge(judged)
        finally:
            CLOCK.change(judging=-1)


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


def settings(file: Path, steps: int) -> list[str]:
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
        "sandbox={type: 'code_judging:TimedSandbox', workers: 2}",
        f"schedule={{steps: {steps}, tasks_per_step: {PROBLEMS}}}",
        "schedule.evaluate_every=0",
    ]


def run(folder: Path, steps: int) -> dict[str, float]:
    """Median seconds of a step, and of all steps the shares that wait, and in which a program is judged."""
    CLOCK.__init__()  # type: ignore[misc]
    coterie.train("grpo_humaneval", overrides=settings(problems(folder), steps), out=folder / "run")
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(row["judging/programs"] == PROBLEMS * ANSWERS for row in rows), "every program is another one"
    seconds = sum(row["time/step"] for row in rows)
    return {
        "step": statistics.median(row["time/step"] for row in rows),
        "waits": CLOCK.waited / seconds,
        "judged": sum(row["judging/seconds"] for row in rows) / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path, default=HERE / "results" / "code_judging.json")
    options = parser.parse_args()
    rows = []
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as name:
            rows.append(run(Path(name), options.steps))
        print(f"run {number}: waits {rows[-1]['waits']:.1%}", file=sys.stderr, flush=True)
    waits = statistics.median(row["waits"] for row in rows)
    print("| step, s | waits | a program is judged in |\n|---|---|---|")
    for row in rows:
        print(f"| {row['step']:.2f} | {row['waits']:.1%} | {row['judged']:.1%} |")
    facts = {
        "command": " ".join(["python", "benchmarks/code_judging.py", *sys.argv[1:]]),
        "candidates": PROBLEMS * ANSWERS,
        "tests": TESTS,
        "median_waits": waits,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "runs": rows,
    }
    options.json.write_text(json.dumps(facts, indent=1) + "\n")
    sys.exit(0 if waits <= MOST else 1)


if __name__ == "__main__":
    main()
