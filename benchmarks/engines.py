"""The quickstart with every engine and trainer, compared with engine `hf` and trainer `torch`.

    make scale-venv
    python benchmarks/engines.py [--only vllm] [--seeds 0 1 2]      # with the Python of that venv

A job is a run of the recipe `quickstart` in one form (one shared policy with all weights, adapters, a policy
for each role) and one combination of engine and trainer, and two evaluations on 1,000 unseen tasks. With one
shared policy, training must raise success by the quickstart's bar, sampled and greedy. In the other forms the
sampled success must be inside the 95 % interval of the same form and seed with `hf` and `torch`. Results go
to results/engines.json, job by job: a second call runs the jobs that are not there yet.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "engines.json"
TASKS = 1000
"""Unseen tasks of an evaluation."""

FORMS: dict[str, tuple[str, ...]] = {
    "shared, full": (),
    "shared, LoRA": ("--with", "l1"),
    "per role, full": ("--with", "per_role"),
    "per role, LoRA": ("--with", "per_role,l1"),
}
"""Words after `coterie run quickstart`, by form."""

SYSTEMS: dict[str, tuple[str, ...]] = {
    "hf + torch": (),
    "vllm + torch": ("engine.type=vllm",),
    "vllm + deepspeed": ("engine.type=vllm", "trainer.type=deepspeed"),
    "hf + deepspeed": ("trainer.type=deepspeed",),
    "hf + deepspeed, 2 ranks": ("trainer.type=deepspeed", "trainer.ranks=2"),
    "hf + torch, 2 ranks": ("trainer.ranks=2",),
}
"""Settings, by engine and trainer."""
REFERENCE = "hf + torch"
BAR = 0.35
"""Rise of success that the quickstart must reach (tests/learning/test_quickstart.py)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training run and its evaluation."""

    form: str
    system: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.form} | {self.system} | seed {self.seed}"


def jobs(seeds: list[int]) -> list[Job]:
    """Every job; the references come first."""
    full, lora, roles, adapters = FORMS
    chosen = [Job(form, REFERENCE, 0) for form in (lora, roles, adapters)]
    chosen += [Job(full, REFERENCE, seed) for seed in seeds]
    chosen += [Job(full, system, seed) for system in ("vllm + torch", "vllm + deepspeed") for seed in seeds]
    chosen += [Job(full, system, 0) for system in list(SYSTEMS)[3:]]
    for form in (lora, roles, adapters):
        chosen += [Job(form, system, 0) for system in ("vllm + torch", "vllm + deepspeed")]
    # This form is unsteady with every engine (per_role.py): several seeds of it are compared.
    chosen += [Job(roles, system, seed) for system in (REFERENCE, "vllm + torch") for seed in seeds if seed]
    return chosen


def run(job: Job) -> dict[str, Any]:
    """Train and evaluate; success with its interval, the largest mismatch of log-probs, and seconds.

    Raises:
        RuntimeError: a command failed; its last lines are the message.
    """
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        words = ["quickstart", f"seed={job.seed}", *SYSTEMS[job.system], *FORMS[job.form]]
        started = time.perf_counter()
        _coterie("run", *words, "--out", str(folder))
        seconds = time.perf_counter() - started
        recipe = ["quickstart", f"seed={job.seed}", *FORMS[job.form]]
        success = {
            f"{when}{greedy.replace('--', '_')}": _success(source, *([greedy] if greedy else []))
            for when, source in (("before", recipe), ("after", [str(folder)]))
            for greedy in ("", "--greedy")
        }
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    mismatches = [value for row in rows for key, value in row.items() if key.endswith("/mismatch_max")]
    return {
        "form": job.form,
        "system": job.system,
        "seed": job.seed,
        "success": success,
        "mismatch_max": max(mismatches, default=None),
        "seconds": round(seconds, 1),
    }


def _success(source: list[str], *options: str) -> dict[str, Any]:
    """Mean success on unseen tasks, with its interval."""
    done = json.loads(_coterie("eval", *source, "--tasks", str(TASKS), "--json", *options))
    success: dict[str, Any] = done["success"]
    return success


def _coterie(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "coterie", *words], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"coterie {' '.join(words)}: {done.stderr[-2000:]}")
    return done.stdout


def passed(row: dict[str, Any], rows: dict[str, dict[str, Any]]) -> bool | None:
    """Whether a job is as good as it must be (None: there is no reference to compare with)."""
    success = row["success"]
    if row["form"] == next(iter(FORMS)):
        rises = (success[f"after{how}"]["mean"] - success[f"before{how}"]["mean"] for how in ("", "_greedy"))
        return min(rises) >= BAR
    reference = rows.get(Job(row["form"], REFERENCE, row["seed"]).name)
    if reference is None:
        return None
    low, high = reference["success"]["after"]["ci95"]
    return bool(low <= success["after"]["mean"] <= high)


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [
        "| form | engine + trainer | seed | success before | after, 95 % interval | greedy before | after "
        "| as required | largest mismatch | seconds |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows.values():
        success, mismatch = row["success"], row["mismatch_max"]
        means = {when: f"{interval['mean']:.3f}" for when, interval in success.items()}
        low, high = success["after"]["ci95"]
        verdict = {True: "yes", False: "no", None: "-"}[passed(row, rows)]
        lines.append(
            f"| {row['form']} | {row['system']} | {row['seed']} | {means['before']} | {means['after']} "
            f"[{low:.3f}, {high:.3f}] | {means['before_greedy']} | {means['after_greedy']} | {verdict} | "
            f"{'-' if mismatch is None else f'{mismatch:.1e}'} | {row['seconds']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="run the jobs whose name contains this text")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parallel", type=int, default=2, help="jobs at once, each on one thread")
    parser.add_argument("--json", type=Path, default=RESULTS)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    stored = json.loads(options.json.read_text()) if options.json.exists() else {}
    rows: dict[str, dict[str, Any]] = stored.get("jobs", {})
    left = [job for job in jobs(options.seeds) if job.name not in rows and options.only in job.name]

    def finish(job: Job) -> None:
        rows[job.name] = run(job)
        order = [each.name for each in jobs(options.seeds)]
        ordered = dict(
            sorted(rows.items(), key=lambda item: order.index(item[0]) if item[0] in order else 99)
        )
        about = {"tasks": TASKS, "cpus": os.cpu_count(), "threads": 1, "python": platform.python_version()}
        options.json.write_text(json.dumps({**about, "jobs": ordered}, indent=1) + "\n")
        print(f"{job.name}: {rows[job.name]['success']['after']['mean']:.3f}", flush=True)

    failed = []
    with ThreadPoolExecutor(options.parallel) as pool:
        for job, future in [(job, pool.submit(finish, job)) for job in left]:
            try:
                future.result()
            except RuntimeError as error:
                failed.append(job.name)
                print(f"{job.name}: {error}", file=sys.stderr, flush=True)
    print(table(rows))
    short = [name for name, row in rows.items() if passed(row, rows) is False]
    sys.exit(1 if failed or short else 0)


if __name__ == "__main__":
    main()
