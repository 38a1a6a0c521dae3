"""A real run of seconds: it learns, saves, and is evaluated. `python -m ... FOLDER` makes it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from coterie.analysis.diagnosis.health import HealthCheck, fault, ok, warning

GAME = "coterie.analysis.diagnosis.self_test_game"
LIMIT = 10.0
"""Seconds until the run is ended."""
STEPS = 12
LEAST_GAIN = 0.2
"""By which success must rise; in the run it rises from about .1 to 1."""

RUN: dict[str, Any] = {
    "env": {"type": f"{GAME}:LetterGame"},
    "team": {
        "order": [["first", "second"]],
        "roles": {role: {"type": f"{GAME}:LetterRole", "policy": role} for role in ("first", "second")},
    },
    "policies": {role: {"model": {"init": "tabular"}} for role in ("first", "second")},
    "sampler": {"branches": 4, "pairing": "cross", "sampling": {"max_new_tokens": 1}},
    "algorithm": "at_grpo",
    "engine": "tabular",
    "trainer": {"type": "tabular", "learning_rate": 2.0},
    "schedule": {"steps": STEPS, "tasks_per_step": 8, "evaluate_every": 0, "checkpoint_every": 0},
}
"""Two tables of logits: no optional package takes part."""


def self_test(limit: float = LIMIT) -> HealthCheck:
    """Make the run in a process of its own and in a temporary folder, and end it after `limit` seconds."""
    name, begin = "self-test", time.perf_counter()
    report = "run it by hand for all it prints: python -m coterie.analysis.diagnosis.self_test FOLDER"
    with tempfile.TemporaryDirectory(prefix="coterie-doctor-") as folder:
        command = [sys.executable, "-m", __name__, folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            why = f"a run of {STEPS} tiny steps took more than {limit:g} seconds"
            return warning(name, why, "set OMP_NUM_THREADS=1, end what else uses the cores, and try again")
    seconds = time.perf_counter() - begin
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        return fault(name, f"a tiny run ended with code {done.returncode}: {last[:300]}", report)
    result = json.loads(done.stdout.strip().splitlines()[-1])
    before, after = result["before"], result["after"]
    if after - before < LEAST_GAIN:
        what = f"a tiny run learned nothing: success {before:.2f} before, {after:.2f} after"
        return fault(name, what, report, **result)
    says = f"a run of {STEPS} steps learned ({before:.2f} to {after:.2f}), saved, and was evaluated"
    return ok(name, f"{says}, in {seconds:.1f} s", **result, seconds=round(seconds, 1))


def make(folder: Path) -> dict[str, float]:
    """Train the run in `folder` and evaluate its first and its last checkpoint: mean success of each."""
    from coterie.api.evaluate import evaluate
    from coterie.api.train import train

    train(RUN, out=folder / "run")
    return {
        name: evaluate(folder / "run", split="val", tasks=8, samples=4, checkpoint=step).success.mean
        for name, step in (("before", 0), ("after", STEPS))
    }


if __name__ == "__main__":
    print(json.dumps(make(Path(sys.argv[1]))))
