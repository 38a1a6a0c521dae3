"""A training step of models of real sizes, by Coterie, TRL and CoMLRL, and the machine's limits.

    python benchmarks/real_size.py --quick              # about five minutes: one thread, one turn, the bars
    python benchmarks/real_size.py                      # everything, about 25 minutes on two idle cores
    python benchmarks/real_size.py --only bars --shapes smollm2-135m --threads 2

Weights are random and of the shapes of real_models.py. Every measurement is a process of its own in the
peer's environment (that of step_time.py), and peers take turns. The limits are the products that a step
needs, alone, with the same shapes, dtype and threads, measured in the same turns. Results go to
results/real_size.json, after each process; the exit code is 1 where a bar isn't met.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import real_models
import real_size_report
import step_time
from measuring import machine

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "real_sizes.md"
PEFT = "peft==0.21.2"
QUICK = ("bars",)


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that takes the step, in one of its settings."""

    script: str
    options: dict[str, str | int] = field(default_factory=dict)
    environment: str = "coterie"
    """Of `interpreters`."""


def _coterie(**options: str | int) -> Peer:
    environment = "vllm" if options.get("engine") == "vllm" else "coterie"
    return Peer("coterie_step.py", options, environment)


def _trl(**options: str | int) -> Peer:
    return Peer("trl_step.py", options, "trl")


def _generate(dtype: str) -> Peer:
    return Peer("bare_loop.py", {"dtype": dtype, "generate-only": ""})


LIMITS = Peer("limits.py")
GROUPS: dict[str, dict[str, Peer]] = {
    "bars": {
        "limits": LIMITS,
        "coterie float32": _coterie(dtype="float32"),
        "coterie bfloat16": _coterie(dtype="bfloat16"),
        "trl float32": _trl(dtype="float32"),
        "trl bfloat16": _trl(dtype="bfloat16"),
        "trl bfloat16 weights": _trl(dtype="weights"),
        "generate float32": _generate("float32"),
        "generate bfloat16 weights": _generate("weights"),
    },
    "comlrl": {"comlrl float32": Peer("comlrl_step.py", {"dtype": "float32"}, "comlrl")},
    "lora": {
        "coterie float32 lora": _coterie(dtype="float32", train="lora"),
        "coterie bfloat16 lora": _coterie(dtype="bfloat16", train="lora"),
        "trl float32 lora": _trl(dtype="float32", train="lora"),
    },
    "roles": {
        "coterie bfloat16 2 roles": _coterie(dtype="bfloat16", roles=2),
        "coterie bfloat16 lora 2 roles": _coterie(dtype="bfloat16", train="lora", roles=2),
    },
    "vllm": {
        "coterie float32 vllm": _coterie(dtype="float32", engine="vllm"),
        "coterie bfloat16 vllm": _coterie(dtype="bfloat16", engine="vllm"),
    },
    "profile": {
        "coterie bfloat16 profiled": _coterie(dtype="bfloat16", profile=""),
    },
}
"""Peers by group and name; those of a group take turns. Limits are those of the same shape and threads."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a step is: prompts x siblings completions; and how often it is measured."""

    prompts: int
    siblings: int
    prompt_tokens: int
    new_tokens: int
    groups: dict[str, dict[int, int]]
    """By group and number of threads: turns."""


SHAPES = {
    "smollm2-135m": Work(
        prompts=4,
        siblings=4,
        prompt_tokens=128,
        new_tokens=64,
        groups={
            "bars": {1: 1, 2: 2},
            "comlrl": {2: 1},
            "lora": {2: 1},
            "roles": {2: 1},
            "vllm": {2: 1},
            "profile": {1: 1, 2: 1},
        },
    ),
    "qwen3-0.6b": Work(
        prompts=2,
        siblings=2,
        prompt_tokens=128,
        new_tokens=32,
        groups={"bars": {2: 1}, "lora": {2: 1}, "vllm": {2: 1}, "profile": {2: 1}},
    ),
}
KEYS = ("shape", "group", "threads", "peer")
STEPS, WARMUP = 1, 1
"""Steps a turn. The first one makes the optimiser's moments and imports what it needs."""


def main() -> int:
    args = arguments().parse_args()
    if args.page:
        result = json.loads(args.json.read_text(encoding="utf-8"))
        real_size_report.write_page(PAGE, "real_size", real_size_report.page(result))
        return 0
    pythons = interpreters(args)
    if args.clock == "processor" and args.threads != [1]:
        raise SystemExit("--clock processor needs --threads 1: waiting threads use the processor too")
    runs = [] if args.fresh else earlier(args)
    for shape in args.shapes:
        model = real_models.make(shape, args.models / shape)
        for group in args.only:
            for threads, turns in settings(SHAPES[shape], group, args):
                peers = {
                    name: peer
                    for name, peer in GROUPS[group].items()
                    if not args.peers or any(word in name for word in args.peers)
                }
                again = {(shape, group, threads, name) for name in peers}
                runs = [run for run in runs if tuple(run[key] for key in KEYS) not in again]
                for turn in range(turns):
                    for name, peer in peers.items():
                        at = {"shape": shape, "group": group, "threads": threads, "turn": turn}
                        runs.append({**at, "peer": name, **measure(peer, pythons, model, at, args)})
                        show(runs[-1], args.clock)
                        write(args.json, runs, args)
    result = write(args.json, runs, args)
    print(real_size_report.text(result))
    print(f"written to {args.json}")
    return 1 if any(not bar["met"] for bar in result["bars"]) or any("error" in run for run in runs) else 0


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(GROUPS), default=None, help="groups of peers")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=None)
    parser.add_argument("--threads", nargs="+", type=int, default=None, help="default: those of each group")
    parser.add_argument(
        "--peers", nargs="+", default=None, help="only peers whose name has one of these words"
    )
    parser.add_argument("--turns", type=int, default=None, help="default: those of each group")
    parser.add_argument(
        "--work",
        nargs=4,
        type=int,
        default=None,
        metavar=("PROMPTS", "SIBLINGS", "PROMPT_TOKENS", "NEW_TOKENS"),
        help="instead of each shape's, to try it",
    )
    parser.add_argument(
        "--quick", action="store_true", help="the bars, the smaller model, one turn, one thread"
    )
    parser.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="`processor`: at one thread, on a machine with other work",
    )
    parser.add_argument(
        "--page", action="store_true", help="write docs/real_sizes.md's tables; measure nothing"
    )
    parser.add_argument("--fresh", action="store_true", help="forget the results of earlier calls")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a process may take")
    parser.add_argument("--models", type=Path, default=Path.home() / ".cache" / "coterie-bench" / "models")
    parser.add_argument("--venvs", type=Path, default=Path.home() / ".cache" / "coterie-bench")
    parser.add_argument("--vllm-python", type=Path, default=None, help="default: that of `make scale-venv`")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "real_size.json")
    return parser


def work_of(shape: str, args: argparse.Namespace) -> dict[str, int]:
    """The step of a shape, by the names of its numbers."""
    names = ("prompts", "siblings", "prompt_tokens", "new_tokens")
    return dict(zip(names, args.work or (getattr(SHAPES[shape], name) for name in names), strict=True))


def earlier(args: argparse.Namespace) -> list[dict[str, Any]]:
    """The runs of earlier calls, of the same steps by the same clock; others are dropped, and it says so."""
    if not args.json.exists():
        return []
    stored = json.loads(args.json.read_text(encoding="utf-8"))
    works = {shape: work_of(shape, args) for shape in SHAPES}
    if (stored["work"], stored["clock"]) != (works, args.clock):
        print(f"{args.json} has runs of other steps or of another clock: they are dropped")
        return []
    runs: list[dict[str, Any]] = stored["runs"]
    return runs


def settings(work: Work, group: str, args: argparse.Namespace) -> list[tuple[int, int]]:
    """(threads, turns) of a group's measurements."""
    planned = work.groups.get(group, {})
    threads = args.threads if args.threads is not None else list(planned)
    return [(count, args.turns or planned.get(count, 1)) for count in threads]


# ----------------------------------------------------------------------------------------------- environments


def interpreters(args: argparse.Namespace) -> dict[str, Path]:
    """The Python of each environment that the chosen peers need; made where it is missing."""
    args.only = args.only or (list(QUICK) if args.quick else list(GROUPS))
    args.shapes = args.shapes or (["smollm2-135m"] if args.quick else list(SHAPES))
    args.threads = args.threads or ([1] if args.quick else None)
    args.turns = args.turns or (1 if args.quick else None)
    wanted = {peer.environment for group in args.only for peer in GROUPS[group].values()}
    pythons = {"coterie": Path(sys.executable)}
    for name in ("trl", "comlrl"):
        if name in wanted:
            extra = [PEFT] if name == "trl" else []
            pythons[name] = step_time.environment(args.venvs / name, step_time.REQUIREMENTS[name] + extra)
    if "vllm" in wanted:
        pythons["vllm"] = args.vllm_python or scale_python()
    return pythons


def scale_python() -> Path:
    """The Python of `make scale-venv`, which is made first where it is missing."""
    command = ["make", "--no-print-directory", "-C", str(HERE.parent), "scale-venv", "build/scale/.installed"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    show_it = ["make", "--no-print-directory", "-C", str(HERE.parent), "-f", "-", "show"]
    makefile = "include Makefile\nshow:\n\t@echo $(SCALE_VENV)\n"
    shown = subprocess.run(show_it, input=makefile, text=True, capture_output=True, check=True)
    return Path(shown.stdout.split()[-1]) / "bin" / "python"


def environment_of(peer: Peer) -> dict[str, str]:
    """The variables of a peer's process: this checkout, and for vLLM the copy that has entry points."""
    paths = [str(HERE.parent)] + (
        [str(HERE.parent / "build" / "scale")] if peer.environment == "vllm" else []
    )
    return {**step_time.child_environment(), "PYTHONPATH": os.pathsep.join(paths)}


# ------------------------------------------------------------------------------------------------ measurement


def measure(
    peer: Peer, pythons: dict[str, Path], model: Path, at: dict[str, Any], args: argparse.Namespace
) -> dict[str, Any]:
    """One process: its report, or `error`."""
    work = work_of(at["shape"], args)
    report = args.models / f"report-{os.getpid()}.json"
    report.unlink(missing_ok=True)
    options: dict[str, Any] = {
        "model": model,
        **{name.replace("_", "-"): value for name, value in work.items()},
        "threads": at["threads"],
        # OpenMP's own policy, the fastest for every peer on an idle machine; see the page.
        "wait-policy": "default",
        "steps": STEPS,
        "warmup": WARMUP,
        "texts": "",
        "json": report,
        **peer.options,
    }
    if peer is LIMITS:
        options["clock"] = args.clock
    command = [str(pythons[peer.environment]), str(HERE / "peers" / peer.script)]
    for name, value in options.items():
        command += [f"--{name}"] + ([] if value == "" else [str(value)])
    load, begun = os.getloadavg()[0], time.perf_counter()
    run: dict[str, Any] = {"load_before": round(load, 2)}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=args.timeout, env=environment_of(peer)
        )
        error = done.stderr[-2000:] if done.returncode or not report.exists() else ""
    except subprocess.TimeoutExpired:
        error = f"not done after {args.timeout:.0f} s"
    run["process_seconds"] = round(time.perf_counter() - begun, 1)
    if error:
        return {**run, "error": error}
    run |= json.loads(report.read_text(encoding="utf-8"))
    report.unlink()
    return run


def show(run: dict[str, Any], clock: str) -> None:
    """One line of a measurement."""
    label = f"{run['shape']}, {run['threads']} threads, turn {run['turn'] + 1}: {run['peer']}"
    if "error" in run:
        print(f"{label} FAILED\n{run['error']}", flush=True)
        return
    for parts in run.get("parts", []):
        label += ", " + ", ".join(f"{name} {value:.2f} s" for name, value in parts[clock].items())
    print(f"{label} ({run['process_seconds']:.0f} s in all)", flush=True)


def write(out: Path, runs: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """Store all runs and what follows from them."""
    works = {shape: work_of(shape, args) for shape in SHAPES}
    configs = {shape: real_models.SHAPES[shape].config for shape in SHAPES}
    summary = real_size_report.summarise(runs, works, configs, args.clock)
    result = {
        "benchmark": "real_size",
        "clock": args.clock,
        "machine": machine(),
        "work": works,
        "steps": STEPS,
        "warmup": WARMUP,
        "bars": real_size_report.bars(summary),
        "summary": summary,
        "profiles": real_size_report.profiles(runs),
        "versions": {run["peer"]: run["versions"] for run in runs if "versions" in run},
        "runs": [{key: value for key, value in run.items() if key != "versions"} for run in runs],
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    sys.exit(main())
