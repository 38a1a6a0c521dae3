"""What an action and a token cost each process of a run: the primitive costs of `cluster_model.py`.

    pip install -e ".[ray,torch]"
    python benchmarks/cluster_costs.py [--tasks 200] [--many 3000] [--workers 2] [--repeats 4]

An engine answers at once with words and log-probs drawn before, two roles act with four branches for two
turns, and nobody waits. What counts is the processor time of each process, and what the run's process takes
for a step afterwards (`credit`, `record`): the least of several turns, since other work on the machine only
adds. Three kinds of steps differ in the length of prompts and of answers; three costs of each process solve
them (`solved`): of an action, with its part of a tree of 16, of a prompt's token and of an answer's. A fourth
kind has other lengths, and is only predicted.

How much dearer an action is with many live episodes is measured apart: `short` steps of `--tasks` and of
`--many` tasks.

Weights are sent as executor `ray` sends them, to an actor that copies them into its module: two sizes give
the cost of a sync and of a byte, a third is only predicted.

Write results/cluster_costs.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import measuring
import numpy as np
from cluster import table
from measuring import machine

from coterie import Plugin, Step, Task
from coterie.api.open_run import open_run
from coterie.api.rollouts import rollout_rows, write_rollouts
from coterie.backends.engines.scripted import ScriptedEngine
from coterie.backends.models.wordcodec import EOS_ID, WordCodec
from coterie.compose import compose
from coterie.core.protocols import Batch, EngineContext
from coterie.core.training.metrics import step_metrics
from coterie.core.training.samples import samples_of
from coterie.core.types import Call, Request
from coterie.recipes import load

RESULTS = Path(__file__).parent / "results" / "cluster_costs.json"
BRANCHES, ROLES = 4, 2
SHORT, LONG, WORDS, POOL = 2, 256, 1000, 64
UNITS = ("action", "prompt_token", "answer_token")
KINDS = {"short": (SHORT, SHORT), "prompts": (LONG, SHORT), "answers": (SHORT, LONG), "other": (96, 160)}
"""Words of a prompt and of an answer; a task's id begins with its kind. The last is predicted."""
TURNS = 6
"""Syncs of each size, in turns; the first two are not counted."""
MEGABYTES = (128, 512, 256)
"""Of the weights; costs are solved from the first two."""


class Numbered(WordCodec):
    """A codec whose ids are as large as those of a vocabulary of 150,000 tokens."""

    def _learn(self, word: str) -> int:
        number = word.strip()[1:]
        if word not in self._id_of and number.isdigit():
            index = self._id_of[word] = 100_000 + WORDS * word.startswith(" ") + int(number)
            self._word_of[index] = word
        return super()._learn(word)


class Talker(ScriptedEngine):
    """An engine whose answers are ready, so that its process works for messages alone."""

    async def open(self, ctx: EngineContext) -> None:
        draw, self._codec = random.Random(0), Numbered()
        ids = self._codec.ids(" ".join(f"w{n}" for n in range(WORDS)))
        self._branches = [self._codec.ids(str(branch)) for branch in range(BRANCHES)]
        self._pool = [[draw.choice(ids) for _ in range(LONG)] for _ in range(POOL)]
        self._logprobs = [[float(np.float32(-draw.random())) for _ in range(LONG)] for _ in range(POOL)]

    async def generate(self, request: Request) -> Call:
        n, (_, words) = request.seed % POOL, KINDS[request.key.task.partition("-")[0]]
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=(*self._branches[request.key.branch], *self._pool[n][: words - 2], EOS_ID),
            logprobs=tuple(self._logprobs[n][:words]),
            version=request.version or 0,
            finish="stop",
            continues=request.continues,
        )


class Asking(measuring.Count):
    """The counting environment, with observations of the length that a task's id says; no two share one."""

    def reset(self, task: Any, seed: int) -> Any:
        return task.id.partition("-")[0], seed % 1_000_000

    def observe(self, state: Any, role: str) -> str:
        kind, number = state
        return " ".join(f"w{(number * 7919 + place) % WORDS}" for place in range(KINDS[kind][0]))

    async def step(self, state: Any, actions: Mapping[str, Any], ctx: Any) -> Step:
        scores = {(role, "value"): self.score(action.parsed) for role, action in actions.items()}
        return Step(state=(state[0], state[1] + 1), scores=scores)


class Reader(Plugin):
    """A role that is scored by the first word."""

    def render(self, role_input: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": str(role_input.observation)}]

    def parse(self, text: str, observation: Any) -> int:
        return int(text.partition(" ")[0])


def processor_seconds(pid: int) -> float:
    """What a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processes(run: Any, workers: int) -> dict[str, list[int]]:
    """The ids of a run's processes, by what they are."""
    if not workers:
        return {"driver": [os.getpid()]}
    executor: Any = run.executor
    hosts, engine = [host.pid for host in executor.hosts], executor.engine.pid
    return {"driver": [os.getpid()], "host": hosts, "engine": [engine]}


def made(tasks: int, workers: int) -> Any:
    """A run that plays such tasks."""
    config = table(tasks, 2, 0.0, workers)
    config["env"] = "cluster_costs:Asking"
    config["engine"] = {"type": "cluster_costs:Talker", "play": "cluster:answer"}
    for role in config["team"]["roles"].values():
        role["type"] = "cluster_costs:Reader"
    return compose(load(config))


def counted(trees: Any) -> dict[str, int]:
    """Trees, actions and tokens of a step."""
    decisions = [each for tree in trees for node in tree.nodes() for each in node.decisions.values()]
    actions = [action for decision in decisions for action in decision.branches]
    calls = [call for action in actions for call in action.calls]
    return {
        "tree": len(trees),
        "action": len(actions),
        "prompt_token": sum(len(call.prompt_ids) for call in calls),
        "answer_token": sum(len(call.token_ids) for call in calls),
    }


def afterwards(run: Any, rollouts: Any, scores: Any) -> dict[str, float]:
    """Processor seconds of the run's process: for advantages, samples and metrics; for the rollout file."""
    batch = Batch(trees=rollouts.trees, scores=scores, annotations={}, reward_weights=run.reward_weights)
    began = time.process_time()
    credit, _ = run.estimator(batch, None)
    samples_of(rollouts.trees, credit)
    step_metrics(rollouts.trees, scores, credit, run.reward_weights)
    known = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        rows = rollout_rows(batch.trees, scores, credit, run.reward_weights)
        write_rollouts(Path(folder) / "rollouts.jsonl.gz", rows)
    return {"credit": known - began, "record": time.process_time() - known}


async def played(run: Any, kind: str, tasks: int, workers: int) -> dict[str, Any]:
    """Processor seconds of a step of a kind, and what it held."""
    jobs = [replace(job, task=Task(id=f"{kind}-{n}")) for n, job in enumerate(run.jobs(1, tasks))]
    pids = processes(run, workers)
    before = {pid: processor_seconds(pid) for group in pids.values() for pid in group}
    rollouts = await run.play(jobs)
    scores = await run.score(rollouts)
    spent = {n: sum(processor_seconds(pid) - before[pid] for pid in each) for n, each in pids.items()}
    if not workers:  # the same code of the run's process with either executor
        spent |= afterwards(run, rollouts, scores)
    return {"counts": counted(rollouts.trees), "processor": spent}


async def steps(kinds: Iterable[str], tasks: int, repeats: int, workers: int) -> dict[str, dict[str, Any]]:
    """By kind: the least processor seconds of several steps, in turns."""
    run, played_by_kind = made(tasks, workers), dict[str, list[Any]]()
    await open_run(run)
    try:
        for _ in range(repeats + 1):
            for kind in kinds:
                played_by_kind.setdefault(kind, []).append(await played(run, kind, tasks, workers))
    finally:
        await run.close()
    return {
        kind: {
            "counts": of[1]["counts"],
            "processor": {
                part: min(each["processor"][part] for each in of[1:]) for part in of[1]["processor"]
            },
        }
        for kind, of in played_by_kind.items()
    }


def solved(cases: dict[str, Any], process: str) -> dict[str, float]:
    """Seconds of a process a unit, none of them negative, that explain its seconds in the cases."""
    counts = np.array([[case["counts"][unit] for unit in UNITS] for case in cases.values()], float)
    seconds = np.array([case["processor"][process] for case in cases.values()])
    kept = list(range(len(UNITS)))
    while True:
        costs = np.linalg.lstsq(counts[:, kept], seconds, rcond=None)[0]
        if (costs >= 0).all():
            return {unit: 0.0 for unit in UNITS} | {
                UNITS[n]: float(cost) for n, cost in zip(kept, costs, strict=True)
            }
        kept.pop(int(costs.argmin()))


def costs(options: argparse.Namespace, workers: int) -> dict[str, Any]:
    """The costs of each process, the steps behind them, and a step that they predict."""
    kinds = asyncio.run(steps(KINDS, options.tasks, options.repeats, workers))
    other = kinds.pop("other")
    units = {process: solved(kinds, process) for process in other["processor"]}
    predicted = {
        process: sum(other["counts"][unit] * cost for unit, cost in each.items())
        for process, each in units.items()
    }
    return {"seconds": units, "steps": kinds, "other": {**other, "predicted": predicted}}


def growth(options: argparse.Namespace, workers: int) -> dict[str, float]:
    """By process: seconds of an action of `short` steps with many tasks, over those with few."""
    few, many = (
        asyncio.run(steps(["short"], tasks, repeats, workers))["short"]
        for tasks, repeats in ((options.tasks, 3 * options.repeats), (options.many, 1))
    )
    return {
        process: (many["processor"][process] / many["counts"]["action"])
        / (few["processor"][process] / few["counts"]["action"])
        for process in few["processor"]
    }


# ------------------------------------------------------------------------------------------------ weights


class Taker:
    """An actor that takes weights as the engine host does."""

    def __init__(self) -> None:
        from coterie.backends.executors.ray.shipping import Receiver

        self._receiver = Receiver()

    def load(self, sent: Any) -> float:
        """Processor seconds that it took."""
        began = time.process_time()
        self._receiver.receive(sent)
        return time.process_time() - began


def synced(taker: Any, turns: int) -> list[tuple[int, float]]:
    """By size: bytes of some weights, and the least processor seconds of a sync, of sender and receiver."""
    import ray
    import torch

    from coterie.backends.executors.ray.shipping import Sender
    from coterie.core.types import Weights

    sender, seconds = Sender(), list[list[float]]()
    modules = [
        torch.nn.Sequential(
            *(torch.nn.Linear(2048, 2048, bias=False, dtype=torch.bfloat16) for _ in range(size // 8))
        )
        for size in MEGABYTES
    ]
    for version in range(turns):
        seconds.append([])
        for module in modules:
            began = time.process_time()
            sent = sender.send(Weights(policy="p", version=version, module=module))
            received = ray.get(taker.load.remote(sent))
            seconds[-1].append(time.process_time() - began + received)
    bytes_ = [sum(each.numel() * each.element_size() for each in module.parameters()) for module in modules]
    least = [min(of) for of in zip(*seconds[2:], strict=True)]  # the first send modules, into new pages
    return list(zip(bytes_, least, strict=True))


def weights() -> dict[str, Any]:
    """The costs of a sync and of a byte, and a sync that they predict."""
    import ray

    from coterie.backends.cluster.connection import QUIET

    os.environ.update(QUIET)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        syncs = synced(ray.remote(num_cpus=0)(Taker).remote(), TURNS)
    finally:
        ray.shutdown()
    (few, fast), (many, slow), (other, its) = syncs
    second = (many - few) / (slow - fast)
    fixed = fast - few / second
    if fixed < 0:
        fixed, second = 0.0, (few + many) / (fast + slow)
    return {
        "fixed_seconds": fixed,
        "bytes_per_second": second,
        "seconds_by_bytes": dict(syncs),
        "other": {"bytes": other, "seconds": its, "predicted": fixed + other / second},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--many", type=int, default=3000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument(
        "--only", nargs="+", choices=["local", "ray", "weights", "growth"], help="keep what else was measured"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    result = {
        "command": " ".join(["python", "benchmarks/cluster_costs.py", *sys.argv[1:]]),
        "machine": {**machine(), "load_before": round(os.getloadavg()[0], 2)},
        "settings": {n: getattr(options, n) for n in ("tasks", "many", "workers", "repeats")},
    }
    sections = {
        "local": lambda: costs(options, 0),
        "ray": lambda: costs(options, options.workers),
        "weights": weights,
        "growth": lambda: {"local": growth(options, 0), "ray": growth(options, options.workers)},
    }
    before = json.loads(options.out.read_text(encoding="utf-8")) if options.only else {}
    result = {**before, **result} | {
        name: make() for name, make in sections.items() if name in (options.only or sections)
    }
    for place in ("local", "ray"):
        print(place, f"{options.many} live tasks over {options.tasks}:", result["growth"][place])
        for process, each in result[place]["seconds"].items():
            print(place, process, {unit: f"{1e6 * cost:.2f} us" for unit, cost in each.items()})
        print(place, "other case", result[place]["other"]["processor"], result[place]["other"]["predicted"])
    print("weights", result["weights"])
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
