"""Steps ahead with vLLM in processes of its own: the share of the possible gain of `schedule.max_staleness`.

    make scale-venv
    python benchmarks/asynchronous_vllm.py [--steps 6] [--repeats 2]      # with the Python of that venv

A Llama of 135 M weights and 49,152 tokens, random at first, all of them trained. vLLM's processes have core
1, the run's process core 0, in every run. All weights are played `in_flight`: vLLM has one set of them.

Lengths are constant but for chance: one turn of `--new-tokens` tokens (a random model draws the end of a
text once in 49,152 tokens), and prompts of equally many words. A prompt costs the trainer more than vLLM,
and few sequences at a time cost vLLM more than the trainer. So a first run measures play and update with
prompts of two lengths, and the prompts get the length at which both take equally long.

Then runs with N = 0, 1, 2 steps ahead take turns, each in a process of its own. The share of the gain is

    (T_sync - T_async) / (T_sync - max(g, u))

of the seconds T of a step, where g and u are the seconds of play and of update (with its sync) in a step of
the synchronous run. T is the mean over the measured steps of a run, a multiple of every 1 + N; the run is
interrupted after them, with later steps in play, so that the last ones have no core for themselves. A
share may pass 1, since vLLM draws for several steps at once in larger batches.

Print a table, and write results/asynchronous_vllm.json. Exit with 1 where a share is below its target, a sync
takes more than 5 % of a step, or g and u differ by more than 20 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # this checkout, whatever is installed

from asynchronous import AHEAD, Writer, gain
from measuring import Count, machine
from random_llama import WORDS, make_model
from rich.console import Console
from rich.table import Table

from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.loop import train
from coterie.core.plugins import PluginConfig
from coterie.core.training.run import Run
from coterie.recipes import load

RESULTS = Path(__file__).resolve().parent / "results" / "asynchronous_vllm.json"
TRAINER, ENGINE = 0, 1
"""The cores."""
WARM = 2
"""Steps at the beginning of a run that are not measured, and N more: those that are handed out at once."""
TARGETS = {1: 0.7, 2: 0.85}
SYNC = 0.05
APART = 0.2
"""Most that g and u may differ, as a share of the larger."""
LENGTHS = (16, 144)
"""Of the prompts of the first run."""
MOST = 1024
"""Words of a prompt: a half of the context."""


class Words(Count):
    """An environment of one question, of so many words."""

    class Config(PluginConfig):
        words: int = 16

    length: int | None = None
    """For the first run, which changes it between steps."""

    def reset(self, task: Any, seed: int) -> int:
        return seed

    def observe(self, state: int, role: str) -> str:
        words = self.length or self.config.words
        return " ".join(f"w{(state + 7919 * place) % (WORDS - 8)}" for place in range(words))


class Reader(Writer):
    """A role whose answer is worth what a number made of it says: siblings differ, and nothing is learned."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": str(role_input.observation)}]

    def parse(self, text: str, observation: Any) -> float:
        return sum(map(ord, text)) % 97 / 97


def make(options: argparse.Namespace, ahead: int, words: int, steps: int) -> Run:
    """A run with so many steps ahead, on prompts of so many words."""
    module = __name__ if __name__ == "__main__" else "benchmarks.asynchronous_vllm"
    return compose(
        load(
            {
                "env": {"type": f"{module}:Words", "words": words},
                "team": {
                    "order": ["reader"],
                    "max_turns": 1,
                    "roles": {"reader": {"type": f"{module}:Reader", "policy": "shared"}},
                },
                "policies": {
                    "shared": {
                        "model": str(options.model),
                        "train": "full",
                        "dtype": options.dtype,
                        "optimizer": {"learning_rate": 1e-6},
                    }
                },
                "sampler": {
                    "branches": options.branches,
                    "sampling": {"max_new_tokens": options.new_tokens},
                },
                "algorithm": {"type": "at_grpo", "zero_variance": "keep"},
                "loss": "ppo_clip",
                "engine": {"type": "vllm", "process": "own", "kv_gib": 2, **json.loads(options.engine)},
                "trainer": {"type": "torch", "device": "cpu"},
                "deterministic": False,
                "schedule": {
                    "steps": steps,
                    "tasks_per_step": options.tasks,
                    "evaluate_every": 0,
                    "checkpoint_every": 0,
                    "record_every": 0,
                    "max_staleness": ahead,
                    **({"play": "in_flight"} if ahead else {}),
                },
                "trackers": {},
            }
        )
    )


def place(run: Run) -> list[int]:
    """Give vLLM's processes their core, and this process its own; returns the ids of vLLM's."""
    engine: Any = run.engine
    pids = [
        pid for base in engine.loaded_bases.values() for each in base.replicas.servers for pid in each.pids
    ]
    for pid, core in ((os.getpid(), TRAINER), *((pid, ENGINE) for pid in pids)):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(ProcessLookupError):  # it ended
                os.sched_setaffinity(int(thread.name), {core})
    return pids


def busy(pids: Iterable[int]) -> list[float]:
    """Seconds that each process has computed."""
    stats = [Path(f"/proc/{pid}/stat").read_text(encoding="utf-8") for pid in pids]
    fields = [text.rpartition(")")[2].split() for text in stats]
    return [(int(each[11]) + int(each[12])) / os.sysconf("SC_CLK_TCK") for each in fields]


class Clock:
    """The progress display of a run: keeps rows, and interrupts the run after the last that is measured."""

    def __init__(self, last: int, lengths: Sequence[int] = ()) -> None:
        self.rows, self.ends, self.busy = list[Mapping[str, Any]](), list[float](), list[list[float]]()
        self.pids, self.interrupt = [os.getpid()], threading.Event()
        self._last, self._lengths = last, lengths

    def __call__(self, step: int, expected: int, row: Mapping[str, Any]) -> None:
        self.rows.append(dict(row))
        self.ends.append(time.perf_counter())
        self.busy.append(busy(self.pids))
        if step < len(self._lengths):
            Words.length = self._lengths[step]
        if step == self._last:
            self.interrupt.set()


async def clocked(options: argparse.Namespace, ahead: int, words: int, clock: Clock, steps: int) -> None:
    """Train so many steps in the affinity of all runs."""
    # More steps than are measured: those in play at the end are handed out as at any other time.
    run = replace(
        make(options, ahead, words, steps + 2 * ahead + 1), progress=clock, interrupt=clock.interrupt
    )
    try:
        await open_run(run)
        clock.pids += place(run)
        await train(run)
    finally:
        await run.close()


def lengths(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of play and update by length of the prompts, and the length at which they are equal."""
    short, long = LENGTHS
    order = [short, short, long, short, long]  # the first is not counted
    Words.length = order[0]
    clock = Clock(len(order), order)
    asyncio.run(clocked(options, 0, short, clock, len(order)))
    seen = {words: [row for row, its in zip(clock.rows[1:], order[1:], strict=True) if its == words]
            for words in LENGTHS}  # fmt: skip
    seconds = {
        words: {part: min(row[f"time/{part}"] for row in rows) for part in ("rollouts", "update")}
        for words, rows in seen.items()
    }
    before, after = (each["rollouts"] - each["update"] for each in seconds.values())
    words = short - before * (long - short) / (after - before) if after < before else short
    return {"seconds_by_words": seconds, "words": round(min(max(words, 4), MOST))}


def measure(options: argparse.Namespace, ahead: int, words: int) -> dict[str, Any]:
    """One run: seconds of the measured steps, and medians of what they did."""
    warm = WARM + ahead
    clock = Clock(warm + options.steps)
    asyncio.run(clocked(options, ahead, words, clock, warm + options.steps))
    ends, rows = clock.ends[warm - 1 :], clock.rows[warm:]
    each = [after - before for before, after in pairwise(ends)]
    computed = [
        (after - before) / (ends[-1] - ends[0])
        for before, after in zip(clock.busy[warm - 1], clock.busy[-1], strict=True)
    ]

    def median(name: str) -> float | None:
        values = [row[name] for row in rows if name in row]
        return statistics.median(values) if values else None

    return {
        "ahead": ahead,
        "seconds": statistics.fmean(each),
        "waited": median("time/rollouts"),
        "play": median("time/play") if ahead else median("time/rollouts"),
        "update": median("time/update"),
        "sync": median("time/sync"),
        "engine_waited": median("time/engine_waited"),
        "rest": median("time/record"),
        "stale": statistics.fmean(row.get("policy/shared/staleness/mean", 0.0) for row in rows),
        "tokens": statistics.fmean(row["tokens/generated"] for row in rows),
        "busy": [round(share, 3) for share in computed],
        "steps": [round(seconds, 4) for seconds in each],
        "times": [{name: row[name] for name in row if name.startswith("time/")} for row in rows],
    }


def apart(*words: str) -> Any:
    """What this script prints as its last line of JSON when a process of its own runs it with these words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        subprocess.run([sys.executable, __file__, *sys.argv[1:], *words, "--part-out", str(path)], check=True)
        return json.loads(path.read_text(encoding="utf-8"))


def compared(turns: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """By number of steps ahead: medians over the turns, and the share of the possible gain."""
    names = ("seconds", "waited", "play", "update", "sync", "engine_waited", "rest", "stale", "tokens")
    rows = list[dict[str, Any]]()
    for number, ahead in enumerate(AHEAD):
        runs = [turn[number] for turn in turns]
        row: dict[str, Any] = {"ahead": ahead}
        row |= {
            name: statistics.median(run[name] for run in runs) for name in names if runs[0][name] is not None
        }
        row["busy"] = [
            statistics.median(shares) for shares in zip(*(run["busy"] for run in runs), strict=True)
        ]
        if ahead:
            row["share"] = gain(rows[0], row)
            row["shares"] = [gain(turn[0], turn[number]) for turn in turns]
            row["sync_share"] = row["sync"] / row["seconds"]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], words: int) -> Table:
    """What was found, a row for each number of steps ahead."""
    g, u = rows[0]["play"], rows[0]["update"]
    shown = Table(title=f"seconds of a step: g = {g:.2f}, u = {u:.2f}; prompts of {words} tokens")
    names = ("N", "T", "waited for play", "play", "update", "sync", "of T", "engine waited", "cores busy")
    for name in (*names, "share of the gain", "by turn"):
        shown.add_column(name, justify="right")
    for row in rows:
        numbers = [row.get(name) for name in ("seconds", "waited", "play", "update", "sync")]
        of_step, waited = row.get("sync_share"), row.get("engine_waited")
        shown.add_row(
            str(row["ahead"]),
            *("" if number is None else f"{number:.2f}" for number in numbers),
            "" if of_step is None else f"{of_step:.1%}",
            "" if waited is None else f"{waited:.2f}",
            " ".join(f"{share:.0%}" for share in (row["busy"][0], sum(row["busy"][1:]))),
            f"{row['share']:.2f}" if row["ahead"] else "",
            " ".join(f"{share:.2f}" for share in row.get("shares", ())),
        )
    return shown


def verdicts(rows: list[dict[str, Any]]) -> dict[str, bool]:
    """Which targets are met."""
    g, u = rows[0]["play"], rows[0]["update"]
    met = {
        f"share of the gain at N = {n}: at least {TARGETS[n]}": rows[n]["share"] >= TARGETS[n]
        for n in TARGETS
    }
    met[f"a sync: at most {SYNC:.0%} of a step"] = max(row.get("sync_share", 0.0) for row in rows) <= SYNC
    met[f"g and u within {APART:.0%}"] = abs(g - u) <= APART * max(g, u)
    return met


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=6, help=f"measured, after {WARM} + N; a multiple of 6")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--words", type=int, help="of a prompt; default: measured, so that g = u")
    parser.add_argument("--tasks", type=int, default=2)
    parser.add_argument("--branches", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=320)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--engine", default="{}", help="further settings of the engine, as JSON")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--part-out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 1 or any(options.steps % (1 + ahead) for ahead in AHEAD):
        parser.error("--steps is not a multiple of 6: the last burst of steps would be cut")
    return options


def whole(options: argparse.Namespace) -> dict[str, Any]:
    """All runs, one after the other."""
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        model = ("--model", folder)
        found = {"words": options.words} if options.words else apart(*model, "--part", "lengths")
        words = ("--words", str(found["words"]))
        turns = []
        for _ in range(options.repeats):
            turns.append([apart(*model, *words, "--part", str(ahead)) for ahead in AHEAD])
    rows = compared(turns)
    return {
        "command": " ".join(["python", "benchmarks/asynchronous_vllm.py", *sys.argv[1:]]),
        "machine": {**machine(), "load_before": round(before, 2)},
        "g": rows[0]["play"],
        "u": rows[0]["update"],
        "targets": verdicts(rows),
        "prompts": found,
        "settings": {name: getattr(options, name) for name in ("tasks", "branches", "new_tokens", "dtype")},
        "rows": rows,
        "turns": turns,
    }


def main() -> None:
    options = parsed()
    if options.part:
        alone = options.part == "lengths"
        part = lengths(options) if alone else measure(options, int(options.part), options.words)
        options.part_out.write_text(json.dumps(part), encoding="utf-8")
        return
    result = whole(options)
    Console(width=140).print(table(result["rows"], result["prompts"]["words"]))
    for target, met in result["targets"].items():
        print(f"{'met' if met else 'NOT met'}: {target}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(result["targets"].values()) else 1)


if __name__ == "__main__":
    main()
