"""What `cluster_model.py` predicts of one machine: measured cases, from costs of other measurements.

Nothing is measured here; all numbers stand in results/*.json.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cluster_simulation import Case, Costs, simulate

RESULTS = Path(__file__).resolve().parent / "results"
SHORT = 2
"""Tokens of the shortest prompts and answers, as in cluster.py."""


@cache
def stored(name: str) -> dict[str, Any]:
    """A committed result."""
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return result


def costs(place: str, live: float = 0) -> dict[str, Costs]:
    """By process, what cluster_costs.py measured with executor `local` or `ray`, for an idle machine.

    Args:
        live: episodes at the same time, for which growth was measured up to some thousand; linear in the
            logarithm. 0: as few as measured.
    """
    return {name: each.times(1 / slower()) for name, each in _measured(place, live).items()}


def slower() -> float:
    """How much slower the machine was beside other work: cluster.py's action with `local`, on an idle one."""
    live, idle = stored("cluster")["settings"]["live"], stored("cluster")["action_microseconds"]["local"]
    return 1e6 * _measured("local", live)["driver"].of(0, 1, SHORT, SHORT) / idle


def _measured(place: str, live: float) -> dict[str, Costs]:
    result = stored("cluster_costs")
    few, many = (result["settings"][name] for name in ("tasks", "many"))
    share = math.log(live / few) / math.log(many / few) if live else 0.0
    return {
        name: Costs(**each).times(1 + share * (result["growth"][place][name] - 1))
        for name, each in result[place]["seconds"].items()
    }


class Compared(NamedTuple):
    """A case that was measured, and what the model says of it."""

    case: str
    unit: str
    measured: float
    predicted: float
    source: str
    """Of the measurement."""
    costs: str
    """Where the costs come from."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def local_cases() -> list[Compared]:
    """All local cases."""
    return [*of_processes(), *of_cluster(), *of_steps_ahead(), *of_vllm()]


def of_processes() -> list[Compared]:
    """Processor seconds of each process, and a sync's, in cases whose costs were not solved from."""
    rows = []
    for place in ("local", "ray"):
        other = stored("cluster_costs")[place]["other"]
        for process, predicted in other["predicted"].items():
            name = f"processor time, `{place}`: {process}"
            measured = other["processor"][process]
            costs_of = "cluster_costs.py, three other kinds of steps"
            rows.append(Compared(name, "s", measured, predicted, "cluster_costs.py", costs_of))
    sync = stored("cluster_costs")["weights"]["other"]
    name = f"sync of {sync['bytes'] / 1e6:.0f} MB by the object store"
    costs_of = "cluster_costs.py, two other sizes"
    return [*rows, Compared(name, "s", sync["seconds"], sync["predicted"], "cluster_costs.py", costs_of)]


def of_cluster() -> list[Compared]:
    """The steps that wait, and with `ray` the cost of an action with 10,000 live episodes, of cluster.py."""
    result, rows = stored("cluster"), []
    settings = result["settings"]
    live, case = settings["live"], Case(trees=32, stages=4, branches=4, prompt=SHORT, answer=SHORT, cores=2)
    for place, hosts in (("local", 0), ("ray", settings["workers"])):
        waiting = replace(case, wait=4 * settings["sleep"], hosts=hosts, costs=_played(place, 0))
        rows.append(
            Compared(
                f"step that waits, `{place}`",
                "s",
                result["step_seconds"][place],
                simulate(waiting, 2).seconds,
                "cluster.py",
                "cluster_costs.py; 2.5 s for each of 16 joint actions",
            )
        )
    full = replace(
        case, trees=live, bundle=live // 500, hosts=settings["workers"], costs=_played("ray", live)
    )
    rows.append(
        Compared(
            "action of 10,000 episodes, `ray`",
            "us",
            result["action_microseconds"]["ray"],
            1e6 * simulate(full, 1).seconds / (live * 16),
            "cluster.py",
            "cluster_costs.py; the machine's speed: the same action with `local`",
        )
    )
    return rows


def _played(place: str, live: float) -> dict[str, Costs]:
    """The costs of a step's play."""
    parts = costs(place, live)
    if place == "local":
        return {"host": parts["driver"]}
    return {name: parts[name] for name in ("driver", "host", "engine")}


def of_steps_ahead() -> list[Compared]:
    """The runs of asynchronous.py, from its run without sleep."""
    result = stored("asynchronous")
    alone, turns, tokens = result["without_sleep"], 3, 32
    case = Case(
        trees=16,
        stages=turns,
        branches=4,
        answer=tokens,
        rows=64,  # a batch of engine `hf` is one step's
        decoding=(alone["play"] / (turns * tokens), 0.0),
        wait=result["slept_a_step"] / turns,
        update=alone["update"],
    )
    sources = ("asynchronous.py", "asynchronous.json, `without_sleep`, and the sleep itself")
    return [
        Compared(
            f"step with a sleeping environment, N = {row['ahead']}",
            "s",
            row["seconds"],
            simulate(replace(case, ahead=row["ahead"]), 12).seconds,
            *sources,
        )
        for row in result["rows"]
    ]


def of_vllm() -> list[Compared]:
    """The runs of asynchronous_vllm.py, from the run before them that chose the length of prompts."""
    result = stored("asynchronous_vllm")
    settings, prompts = result["settings"], result["prompts"]
    (few, short), (many, long) = ((int(n), each) for n, each in prompts["seconds_by_words"].items())
    share = (prompts["words"] - few) / (many - few)
    play, update = (short[part] + share * (long[part] - short[part]) for part in ("rollouts", "update"))
    case = Case(
        trees=settings["tasks"],
        stages=1,
        branches=settings["branches"],
        answer=settings["new_tokens"],
        decoding=(
            play / settings["new_tokens"],
            0.0,
        ),  # few rows: a step reads all weights, whatever their number
        update=update,  # without steps ahead, its sync is in it
    )
    sources = ("asynchronous_vllm.py", "asynchronous_vllm.json, `prompts.seconds_by_words`")
    return [
        Compared(
            f"step with vLLM on its own core, N = {row['ahead']}",
            "s",
            row["seconds"],
            simulate(replace(case, ahead=row["ahead"]), 12).seconds,
            *sources,
        )
        for row in result["rows"]
    ]
