"""A model of a run on a cluster: measured costs predict measured cases, and then 8, 64 and 512 GPUs.

    python benchmarks/cluster_model.py

It measures nothing. Costs come from results/*.json; each local case is predicted from costs of other
measurements (`cluster_cases.py` says which), and compared with what was measured. GPUs are assumed
(`ASSUMED`).

Print the cases, write results/cluster_model.json and the tables of docs/scaling.md. Exit with 1 where a case
is more than 25 % off.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cluster_cases import RESULTS, costs, local_cases, stored
from cluster_simulation import Case, Result, simulate

PAGE = Path(__file__).resolve().parents[1] / "docs" / "scaling.md"
BOUND = 0.25


class Assumption(NamedTuple):
    """A number that was not measured here."""

    value: float
    text: str
    source: str


CHOICE, SHEET = "our choice", "NVIDIA's data sheet of the DGX H100"
FITS = f"{SHEET}; the share gives what a public run of vLLM shows, within 10 % (below)"
ASSUMED: dict[str, Assumption] = {
    "node": Assumption(8, "GPUs of a node", SHEET),
    "share": Assumption(0.5, "share of the GPUs that serve; the others train", CHOICE),
    "tasks": Assumption(
        3, "tasks a step for each GPU", f"{CHOICE}: at 512 GPUs near the most of `coterie plan`"
    ),
    "stages": Assumption(3, "roles, one after the other, in one turn", "MathChat's team"),
    "branches": Assumption(4, "answers of a decision, K", CHOICE),
    "prompt": Assumption(1024, "tokens of a prompt", CHOICE),
    "answer": Assumption(
        2048, "mean tokens of an answer, at most 4,096", f"{CHOICE}; the limit of mathchat_coach"
    ),
    "spread": Assumption(0.5, "deviation of the logarithm of an answer's length", CHOICE),
    "wait": Assumption(2.0, "seconds that a decision waits for programs and verdicts", CHOICE),
    "hosts": Assumption(2, "rollout hosts a node, on cores like those of the measurement", CHOICE),
    "ahead": Assumption(1, "steps ahead, N, where nothing else is said", CHOICE),
    "memory": Assumption(0.8 * 3.35e12, "bytes a second that decoding reads: 80 % of 3.35 TB/s", FITS),
    "decode_flops": Assumption(0.6 * 989e12, "FLOP/s of decoding and prompts: 60 % of 989 TFLOP/s", FITS),
    "kv_memory": Assumption(0.9 * 80e9, "bytes for weights and KV cache on a serving GPU", "90 % of 80 GB"),
    "train_flops": Assumption(
        0.4 * 989e12,
        "FLOP/s of an update: 40 % of 989 TFLOP/s; with checkpointing 8 FLOP a weight and token",
        "Llama 3 had 38 to 43 % (arXiv 2407.21783, table 4)",
    ),
    "minibatches": Assumption(4, "optimiser steps of an update; each exchanges 6 bytes a weight", CHOICE),
    "network": Assumption(50e9, "bytes a second between nodes for each GPU, by NCCL", f"{SHEET}: 400 Gb/s"),
    "store": Assumption(
        50 * 2**30 / 16.94,
        "bytes a second that Ray's object store sends to other nodes, all together",
        "Ray's release test object_store: 1 GiB to 50 nodes in 16.94 s",
    ),
}
"""By name."""


class Model(NamedTuple):
    """What counts of a model."""

    parameters: int
    layers: int
    kv_heads: int = 8
    head_size: int = 128

    @property
    def bytes(self) -> int:
        """Of the weights in bfloat16."""
        return 2 * self.parameters

    @property
    def cache(self) -> int:
        """Bytes of a token in the KV cache."""
        return 2 * 2 * self.layers * self.kv_heads * self.head_size


MODELS = {"Qwen3-1.7B": Model(1_720_574_976, 28), "Qwen3-8B": Model(8_190_735_360, 36)}
SIZES = (8, 64, 512)
MOST_TREES = 384
"""Trees of a step that are simulated; each stands for several where there are more."""
TODAY, LEVERS = "as built", "weights by NCCL, no rollout files"


def assumed(name: str) -> float:
    return ASSUMED[name].value


def decoding(model: Model, prompt: float, answer: float, siblings: float = 1) -> tuple[float, float]:
    """Seconds of a decoding step of a replica: at least, and for each row, its share of the prompts in it."""
    context, flops = prompt + answer / 2, 2 * model.parameters / assumed("decode_flops")
    prompts = prompt / siblings / answer * flops
    return model.bytes / assumed("memory"), model.cache * context / assumed("memory") + flops + prompts


def update_seconds(model: Model, gpus: int, actions: float) -> float:
    """Seconds of an update of all weights: its computation, and the exchange of gradients and weights."""
    ranks, steps = gpus * (1 - assumed("share")), assumed("minibatches")
    tokens = actions * (assumed("answer") + assumed("prompt") / assumed("branches"))
    computed = 8 * model.parameters * tokens / (ranks * assumed("train_flops"))
    return computed + steps * 6 * model.parameters / assumed("network")  # fp32 gradients, bf16 weights


def sync_seconds(model: Model, gpus: int, way: str) -> float:
    """Seconds of a sync of one set of weights."""
    if way == LEVERS:
        return 2 * model.bytes / assumed("network")  # gathered, and sent round
    measured = stored("cluster_costs")["weights"]
    others = max(gpus * assumed("share") / assumed("node") - 1, 0)
    return (
        measured["fixed_seconds"]
        + model.bytes / measured["bytes_per_second"]
        + others * model.bytes / assumed("store")
    )


def cluster_case(model: Model, gpus: int, way: str, ahead: int) -> Case:
    """A run with one shared policy on so many GPUs."""
    trees, replicas = int(assumed("tasks") * gpus), int(gpus * assumed("share"))
    of = {**costs("ray"), **{name: costs("local")[name] for name in ("credit", "record")}}
    if way == LEVERS:
        of.pop("record")
    each = assumed("kv_memory") - model.bytes
    actions = trees * assumed("stages") * assumed("branches")
    return Case(
        trees=trees,
        stages=int(assumed("stages")),
        branches=int(assumed("branches")),
        prompt=int(assumed("prompt")),
        answer=int(assumed("answer")),
        spread=assumed("spread"),
        longest=4096,
        wait=assumed("wait"),
        costs=of,
        hosts=max(int(assumed("hosts") * gpus / assumed("node")), 1),
        replicas=replicas,
        rows=int(each / (model.cache * (assumed("prompt") + assumed("answer")))),
        decoding=decoding(model, assumed("prompt"), assumed("answer"), assumed("branches")),
        update=update_seconds(model, gpus, actions),
        sync=sync_seconds(model, gpus, way),
        ahead=ahead,
        bundle=max(trees // MOST_TREES, 1),
    )


def central(model: Model, gpus: int) -> dict[str, float]:
    """Seconds a step of what there is one of, whatever the number of GPUs."""
    case = cluster_case(model, gpus, TODAY, 0)
    actions = case.trees * case.stages * case.branches
    counts = (case.trees, actions, actions * case.prompt, actions * case.answer)
    seconds = {name: case.costs[name].of(*counts) for name in ("record", "engine", "driver", "credit")}
    return {
        "weights by the object store": case.sync,
        "rollout files": seconds["record"],
        "driver: trees, advantages, samples": seconds["driver"] + seconds["credit"],
        "engine host: requests and answers": seconds["engine"],
    }


def of_gpus(model: Model) -> float:
    """Seconds of a step that GPUs and environments alone take: the same at all sizes, as tasks grow."""
    alone = cluster_case(model, SIZES[0], TODAY, int(assumed("ahead")))
    return simulate(replace(alone, costs={}, sync=0.0)).seconds


def saturation(model: Model) -> dict[str, float]:
    """By what there is one of: the GPUs at which it takes as long as a step of the GPUs alone."""
    step, small, large = of_gpus(model), central(model, SIZES[0]), central(model, SIZES[-1])
    growths = {name: (large[name] - small[name]) / (SIZES[-1] - SIZES[0]) for name in small}
    return {name: SIZES[0] + (step - small[name]) / growth for name, growth in growths.items()}


def cluster_row(name: str, gpus: int, way: str) -> dict[str, Any]:
    """A step of a model on so many GPUs."""
    model, ahead = MODELS[name], int(assumed("ahead"))
    case = cluster_case(model, gpus, way, ahead)
    of: Result = simulate(case, 4)
    actions = case.trees * case.stages * case.branches
    shares = {part: seconds / of.seconds for part, seconds in of.busy.items()} | {
        "sync": case.sync / of.seconds
    }
    return {
        "model": name,
        "gpus": gpus,
        "way": way,
        "tasks": case.trees,
        "samples": actions,
        "drawn_tokens": actions * case.answer,
        "trained_tokens": actions * case.answer + actions // case.branches * case.prompt,
        "weights": model.bytes,
        "moved": model.bytes * case.replicas,
        "seconds": of.seconds,
        "seconds_without_steps_ahead": simulate(replace(case, ahead=0), 2).seconds,
        "update": case.update,
        "sync": case.sync,
        "shares": shares,
        "fullest": max(shares, key=lambda part: shares[part]),
    }


def result() -> dict[str, Any]:
    """All that the model says."""
    return {
        "bound": BOUND,
        "cases": [{**each._asdict(), "error": each.error} for each in local_cases()],
        "assumptions": {name: each._asdict() for name, each in ASSUMED.items()},
        "clusters": [
            cluster_row(name, gpus, way) for name in MODELS for gpus in SIZES for way in (TODAY, LEVERS)
        ],
        "saturation": {name: {"step": of_gpus(model), **saturation(model)} for name, model in MODELS.items()},
        "public_vllm": {
            f"{rows} rows": {"predicted": rows / (least + rows * row), "published": published}
            for rows, prompt, answer, published in PUBLIC
            for least, row in [decoding(MODELS["Qwen3-8B"], prompt, answer)]
        },
    }


PUBLIC = ((40, 2048, 2048, 2815), (396, 128, 1024, 13322))
"""Rows, tokens of prompt and answer, and tokens a second of vLLM 0.30 with Qwen3-8B in bf16 on an H100, by
github.com/tgarg01/silybench-data, derived/csv/capacity.csv."""

# ------------------------------------------------------------------------------------------------ tables


def markdown(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A table; all columns but the first ones are numbers."""
    marks = ["---" if n < left else "---:" for n in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, marks, *rows])


def number(value: float) -> str:
    """Three digits."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}"


def cases_table(of: Mapping[str, Any]) -> str:
    rows = list[list[str]]()
    for each in of["cases"]:
        numbers = [f"{number(each[name])} {each['unit']}" for name in ("measured", "predicted")]
        rows.append([each["case"], *numbers, f"{round(100 * each['error']) + 0:+d} %", each["costs"]])
    return markdown(["case", "measured", "predicted", "error", "costs from"], rows)


def work_table(of: Mapping[str, Any]) -> str:
    rows = list[list[str]]()
    for each in of["clusters"]:
        if each["way"] == TODAY:
            counts = [f"{each[name]:,}" for name in ("gpus", "tasks", "samples")]
            tokens = [number(each[name] / 1e6) for name in ("drawn_tokens", "trained_tokens")]
            rows.append(
                [each["model"], *counts, *tokens, *(number(each[n] / 1e9) for n in ("weights", "moved"))]
            )
    head = ["model", "GPUs", "tasks", "samples", "tokens drawn, M", "tokens trained, M", "weights, GB"]
    return markdown([*head, "moved a sync, GB"], rows)


def time_table(of: Mapping[str, Any]) -> str:
    parts = ("replicas", "trainer", "sync", "driver", "engine host", "rollout hosts")
    rows = [
        [each["model"], str(each["gpus"]), each["way"], number(each["seconds_without_steps_ahead"]),
         number(each["seconds"]), *(f"{each['shares'][part]:.0%}" for part in parts), each["fullest"]]
        for each in of["clusters"]
    ]  # fmt: skip
    head = ["model", "GPUs", "", "step, N = 0, s", "N = 1, s", *parts, "fullest"]
    return markdown(head, rows)


def gpu_count(number: float) -> str:
    """A number of GPUs, with two digits."""
    if number < SIZES[0]:
        return f"fewer than {SIZES[0]}"
    return f"{float(f'{number:.2g}'):,.0f}"


def saturation_table(of: Mapping[str, Any]) -> str:
    names = [name for name in next(iter(of["saturation"].values())) if name != "step"]
    rows = [
        [name, *(gpu_count(each[name]) for each in of["saturation"].values())]
        for name in sorted(names, key=lambda name: min(each[name] for each in of["saturation"].values()))
    ]
    steps = [number(each["step"]) for each in of["saturation"].values()]
    head = [
        "full at this many GPUs",
        *(f"{name}, step of {s} s" for name, s in zip(MODELS, steps, strict=True)),
    ]
    return markdown(head, rows)


def assumptions_table(of: Mapping[str, Any]) -> str:
    rows = [
        [
            each["text"],
            each["source"],
            f"{each['value']:,g}" if each["value"] < 1e6 else f"{each['value']:.3g}",
        ]
        for each in of["assumptions"].values()
    ]
    return markdown(["assumed, not measured", "source", "value"], rows, left=2)


def public_table(of: Mapping[str, Any]) -> str:
    rows = [
        [rows_, *(f"{each[name]:,.0f}" for name in ("published", "predicted"))]
        for rows_, each in of["public_vllm"].items()
    ]
    return markdown(["vLLM 0.30, Qwen3-8B in bf16, one H100: tokens a second", "published", "model"], rows)


TABLES = {
    "cases": cases_table,
    "work": work_table,
    "time": time_table,
    "saturation": saturation_table,
    "assumptions": assumptions_table,
    "public": public_table,
}


def page(of: Mapping[str, Any]) -> str:
    """The text of docs/scaling.md with these tables.

    Raises:
        ValueError: the page has no place for one, or two.
    """
    text = PAGE.read_text(encoding="utf-8")
    for name, make in TABLES.items():
        begin, end = f"<!-- Made by benchmarks/cluster_model.py: {name}. -->\n", f"\n<!-- End of {name}. -->"
        part = f"{begin}\n{make(of)}\n{end}"
        between = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        text, count = between.subn(lambda _, part=part: part, text)
        if count != 1:
            raise ValueError(f"{PAGE} has {count} places for '{name}'")
    return text


def main() -> int:
    of = result()
    for name, make in TABLES.items():
        print(f"{name}\n\n{make(of)}\n")
    (RESULTS / "cluster_model.json").write_text(json.dumps(of, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(of), encoding="utf-8")
    wrong = [each["case"] for each in of["cases"] if abs(each["error"]) > BOUND]
    for case in wrong:
        print(f"more than {BOUND:.0%} off: {case}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
