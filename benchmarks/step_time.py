"""Times of a training step of Coterie, a bare loop, TRL and CoMLRL: same model, same prompts, same tokens.

Every measurement runs in its own process and in the peer's own environment. The peers take turns (A B C D,
A B C D, ...), so that a machine that becomes slower slows all of them. See README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent

# The same torch and transformers for all peers: the benchmark compares loops, not libraries.
SHARED = ["torch==2.13.0", "transformers==5.19.0"]
REQUIREMENTS = {"trl": [*SHARED, "trl==1.16.0"], "comlrl": [*SHARED, "comlrl==1.4.3"]}

SCRIPTS = {
    "coterie": "coterie_step.py",
    "bare": "bare_loop.py",
    "trl": "trl_step.py",
    "comlrl": "comlrl_step.py",
    "comlrl_own": "comlrl_step.py",
}

COMLRL_DEFAULTS = {"siblings": 4, "agents": 2, "rollout-buffer": 2}
"""CoMLRL's defaults, for peer `comlrl_own`: 4 generations of 2 agents per prompt, one optimiser step per 2
prompts. 32 prompts make 256 sequences, as for the other peers. `comlrl` has the others' siblings."""

NEW_TOKENS = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """`prompts` x `siblings` sequences per step; `targets` are the least multiples of the peers' speeds."""

    prompts: int
    siblings: int
    prompt_tokens: int
    targets: dict[str, float]


CASES = {
    "short": Case(prompts=8, siblings=8, prompt_tokens=32, targets={"bare": 1.0, "trl": 1.2}),
    "long": Case(prompts=8, siblings=8, prompt_tokens=512, targets={"bare": 2.0, "trl": 2.0}),
    "wide": Case(prompts=32, siblings=8, prompt_tokens=32, targets={"comlrl_own": 5.0}),
}

console = Console()
if not console.is_terminal:
    console = Console(width=110)  # a pipe has no width; the default of 80 columns cuts the table


def main() -> int:
    args = arguments().parse_args()
    pythons = interpreters(args)
    runs: list[dict[str, Any]] = []
    out = args.results / f"step_time-{os.cpu_count()}cpu.json"
    with tempfile.TemporaryDirectory() as scratch:
        for case_name in args.cases:
            for threads, policy in thread_settings(args):
                for repeat in range(args.repeats):
                    for peer, python in pythons.items():
                        if peer == "comlrl_own" and case_name != "wide":
                            continue  # its batch doesn't depend on the case
                        setting = {"case": case_name, "threads": threads, "wait_policy": policy}
                        runs.append(measure(peer, python, setting, repeat, args, Path(scratch)))
                # Written after each setting, so that an interrupt keeps the measurements.
                write(out, runs, args)
    summary = write(out, runs, args)
    console.print(summary_table(summary))
    console.print(f"written to {out}")
    return 1 if any("seconds" not in run for run in runs) else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "coterie-bench")
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="runs Coterie and the bare loop"
    )
    parser.add_argument("--trl-python", type=Path, default=None, help="instead of the environment in --venvs")
    parser.add_argument(
        "--comlrl-python", type=Path, default=None, help="instead of the environment in --venvs"
    )
    parser.add_argument("--peers", nargs="+", choices=list(SCRIPTS), default=list(SCRIPTS))
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--wait-policy", nargs="+", choices=["passive", "default"], default=["passive"])
    parser.add_argument("--repeats", type=int, default=3, help="turns of every peer")
    parser.add_argument("--steps", type=int, default=5, help="measured steps a turn")
    parser.add_argument("--warmup", type=int, default=2, help="unmeasured steps a turn")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a turn may take")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of the JSON")
    return parser


def thread_settings(args: argparse.Namespace) -> list[tuple[int, str]]:
    """(threads, wait policy) to measure; one thread never waits, so the policy makes no difference to it."""
    return [
        (threads, policy)
        for threads in args.threads
        for policy in (args.wait_policy if threads > 1 else args.wait_policy[:1])
    ]


# ----------------------------------------------------------------------------------------------- environments


def interpreters(args: argparse.Namespace) -> dict[str, Path]:
    """The Python interpreter of each available peer, in the order of the turns."""
    pythons: dict[str, Path] = {}
    options = {"trl": args.trl_python, "comlrl": args.comlrl_python}
    for peer in args.peers:
        if not (HERE / "peers" / SCRIPTS[peer]).exists():
            console.print(f"[yellow]skipped {peer}: benchmarks/peers/{SCRIPTS[peer]} does not exist[/yellow]")
        elif peer not in REQUIREMENTS:
            pythons[peer] = args.python
        else:
            pythons[peer] = options[peer] or environment(args.venvs / peer, REQUIREMENTS[peer])
    if "comlrl_own" in pythons:
        pythons["comlrl_own"] = options["comlrl"] or environment(
            args.venvs / "comlrl", REQUIREMENTS["comlrl"]
        )
    return pythons


def environment(folder: Path, requirements: list[str]) -> Path:
    """The Python of a virtual environment with these requirements; made or completed if necessary."""
    python = folder / "bin" / "python"
    if not python.exists():
        console.print(f"making {folder}")
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    # A local version such as 2.13.0+cpu satisfies the pin 2.13.0.
    code = (
        "import sys, importlib.metadata as m\n"
        "for r in sys.argv[1:]:\n"
        "    name, want = r.split('==')\n"
        "    assert m.version(name).split('+')[0] == want, r\n"
    )
    if subprocess.run([str(python), "-c", code, *requirements], capture_output=True).returncode:
        console.print(f"installing {' '.join(requirements)}")
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *requirements], check=True)
    return python


# ------------------------------------------------------------------------------------------------ measurement


def measure(
    peer: str, python: Path, setting: dict[str, Any], repeat: int, args: argparse.Namespace, scratch: Path
) -> dict[str, Any]:
    """Run one turn of one peer; return its report, which has no `seconds` if the turn failed."""
    case, report = CASES[setting["case"]], scratch / "report.json"
    report.unlink(missing_ok=True)
    options = {
        "model": scratch / "model",
        "prompts": case.prompts,
        "siblings": case.siblings,
        "prompt-tokens": case.prompt_tokens,
        "new-tokens": NEW_TOKENS,
        "threads": setting["threads"],
        "wait-policy": setting["wait_policy"],
        "steps": args.steps,
        "warmup": args.warmup,
        "json": report,
    }
    if peer == "comlrl_own":
        options |= COMLRL_DEFAULTS
    command = [str(python), str(HERE / "peers" / SCRIPTS[peer])]
    command += [argument for name, value in options.items() for argument in (f"--{name}", str(value))]
    run: dict[str, Any] = {"peer": peer, **setting, "repeat": repeat}
    # Other work on the machine is the usual reason for an outlier.
    run["load_before"] = round(os.getloadavg()[0], 2)
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.timeout, env=child_environment()
        )
        failure = done.stderr[-1500:] if done.returncode or not report.exists() else ""
    except subprocess.TimeoutExpired:
        failure = f"not done after {args.timeout:.0f} s"
    run["wall_seconds"] = round(time.perf_counter() - begun, 1)
    label = f"{setting['case']}, threads {thread_label(setting)}, turn {repeat + 1}: {peer}"
    if failure:
        console.print(f"[red]{label} failed[/red]\n{failure}", markup=not failure)
        return run
    run |= json.loads(report.read_text(encoding="utf-8"))
    if peer == "comlrl_own":
        run["name"] += ", its defaults"
    console.print(f"{label} {run['median_tokens_per_second']:,.0f} tokens/s")
    return run


def thread_label(row: dict[str, Any]) -> str:
    return f"{row['threads']} {row['wait_policy']}" if row["threads"] > 1 else "1"


def child_environment() -> dict[str, str]:
    """The environment without thread settings, which each script takes from --threads."""
    prefixes = ("OMP_", "GOMP_", "KMP_", "MKL_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}


# ---------------------------------------------------------------------------------------------------- results


def summarise(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each setting and peer: medians over all steps of all turns, and Coterie's speed-up."""
    groups: dict[tuple[str, int, str, str], list[dict[str, Any]]] = {}
    for run in runs:
        if "seconds" in run:
            key = (run["case"], run["threads"], run["wait_policy"], run["peer"])
            groups.setdefault(key, []).append(run)
    rows = []
    for (case_name, threads, policy, peer), group in groups.items():
        speed = pooled(group)
        turns = [run["median_tokens_per_second"] for run in group]
        coterie = groups.get((case_name, threads, policy, "coterie"))
        rows.append(
            {
                "case": case_name,
                "threads": threads,
                "wait_policy": policy,
                "peer": peer,
                "name": group[0]["name"],
                "sequences": group[0]["sequences"],
                "prompt_tokens": group[0]["prompt_tokens"],
                "generation_batch": group[0]["generation_batch"],
                "batch": group[0]["batch"],
                "tokens_per_second": speed,
                "slowest_turn": min(turns),
                "fastest_turn": max(turns),
                "seconds": statistics.median(seconds for run in group for seconds in run["seconds"]),
                "peak_rss_mib": max(run["peak_rss_mib"] for run in group),
                "coterie_is": pooled(coterie) / speed if coterie else None,
                "target": CASES[case_name].targets.get(peer),
            }
        )
    return rows


def pooled(group: list[dict[str, Any]]) -> float:
    return statistics.median(speed for run in group for speed in run["tokens_per_second"])


def write(out: Path, runs: list[dict[str, Any]], args: argparse.Namespace) -> list[dict[str, Any]]:
    summary = summarise(runs)
    result = {
        "benchmark": "step_time",
        "machine": {"cpus": os.cpu_count(), "cpu": cpu_model(), "system": platform.system()},
        "settings": {name: getattr(args, name) for name in ("steps", "warmup", "repeats")}
        | {"new_tokens": NEW_TOKENS},
        "versions": {run["peer"]: run["versions"] for run in runs if "versions" in run},
        "summary": summary,
        "runs": [{key: value for key, value in run.items() if key != "versions"} for run in runs],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return summary


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def summary_table(summary: list[dict[str, Any]]) -> Table:
    table = Table(title="Medians over all measured steps; batch: sequences decoded / learnt from at once")
    for heading in ("case", "threads", "peer"):
        table.add_column(heading, no_wrap=True)
    for heading in ("batch", "s/step", "tokens/s", "by turn", "Coterie is", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    previous = None
    for row in summary:
        if previous not in (None, (row["case"], thread_label(row))):
            table.add_section()
        previous = (row["case"], thread_label(row))
        multiple, target = row["coterie_is"], row["target"]
        colour = "" if multiple is None or target is None else "[green]" if multiple >= target else "[red]"
        table.add_row(
            f"{row['case']}: {row['sequences']} x {row['prompt_tokens']}",
            thread_label(row),
            row["name"],
            f"{row['generation_batch']} / {row['batch']}",
            f"{row['seconds']:.2f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['slowest_turn']:,.0f}–{row['fastest_turn']:,.0f}",
            "–" if multiple is None else f"{colour}{multiple:.2f} x",
            "" if target is None else f"≥ {target:.1f} x",
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
