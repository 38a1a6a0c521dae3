"""How often the 95 % intervals of `coterie eval` and `coterie compare` hold the truth.

    python benchmarks/interval_coverage.py                     # minutes
    python benchmarks/interval_coverage.py --evaluations 200   # a look; the committed results are of 2,000

Every synthetic evaluation draws its size and difficulty: 32 to 512 tasks, 1 to 8 samples each, mean success
from 0.05 to 0.95, tasks of one difficulty or of very different ones (a beta distribution). The truth is known
in closed form, for votes by a simulation of 200,000 tasks. Comparisons are of two runs whose samples are
independent, or share most of their draws, as two checkpoints of a run do; and of 2 to 8 seeds a side, whose
means spread by 0 to 0.08.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from coterie.analysis.comparison.report import crossed_mean
from coterie.api.at_k import at_k
from coterie.stats import Interval, clustered_bootstrap, paired_difference

RESULTS = Path(__file__).parent / "results" / "interval_coverage.json"
TASKS, SAMPLES = (32, 64, 128, 256, 512), (1, 2, 4, 8)
MEANS, CONCENTRATIONS = (0.05, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95), (0.5, 1.0, 3.0, 10.0)
Case = tuple[Interval, float, Mapping[str, Any]]
"""An interval, the true value, and the settings that it is listed under."""


def named(values: np.ndarray) -> dict[str, list[float]]:
    return {f"t{task}": row.astype(float).tolist() for task, row in enumerate(values)}


def pick(rng: np.random.Generator, of: tuple[Any, ...]) -> Any:
    return of[int(rng.integers(len(of)))]


def difficulties(rng: np.random.Generator) -> tuple[np.ndarray, dict[str, Any]]:
    """Probabilities of success of tasks, and the settings they were drawn with."""
    tasks, mean, concentration = pick(rng, TASKS), pick(rng, MEANS), pick(rng, CONCENTRATIONS)
    drawn = rng.beta(mean * concentration, (1 - mean) * concentration, tasks)
    return drawn, {"tasks": tasks, "mean": mean, "concentration": concentration}


def success(rng: np.random.Generator) -> Case:
    """Success of a run, as `coterie eval` prints it."""
    chances, settings = difficulties(rng)
    samples = pick(rng, SAMPLES)
    played = rng.random((len(chances), samples)) < chances[:, None]
    interval = clustered_bootstrap(named(played), share=True)
    return interval, settings["mean"], {**settings, "samples": samples}


def best_of_k(rng: np.random.Generator) -> Case:
    """pass@k for a k up to the number of samples."""
    chances, settings = difficulties(rng)
    samples = pick(rng, (4, 8))
    k = pick(rng, (2, 4) if samples == 4 else (2, 4, 8))
    played = rng.random((len(chances), samples)) < chances[:, None]
    a, b = settings["mean"] * settings["concentration"], (1 - settings["mean"]) * settings["concentration"]
    # E[(1 - p)^k] of a beta distribution
    missed = math.exp(math.lgamma(b + k) + math.lgamma(a + b) - math.lgamma(b) - math.lgamma(a + b + k))
    row = at_k(named(played), None, (k,), samples)[f"pass@{k}"]
    return row.interval, 1 - missed, {**settings, "samples": samples, "k": k}


WRONG = np.array([0.5, 0.3, 0.2])
"""Shares of the wrong answers of a task, among samples that are wrong."""


@cache
def true_majority(mean: float, concentration: float, k: int) -> float:
    """The success of a vote of k samples, ties broken uniformly, over 200,000 tasks."""
    rng = np.random.default_rng([1, k, int(100 * mean), int(10 * concentration)])
    chances = rng.beta(mean * concentration, (1 - mean) * concentration, 200_000)
    votes = rng.multinomial(k, np.column_stack([chances, (1 - chances)[:, None] * WRONG]))
    top = votes.max(axis=1)
    return float(((votes[:, 0] == top) / (votes == top[:, None]).sum(axis=1)).mean())


def majority(rng: np.random.Generator) -> Case:
    """majority@k of a task with one right and three wrong answers."""
    chances, settings = difficulties(rng)
    samples, k = 8, pick(rng, (3, 5, 8))
    wrong = np.cumsum(WRONG)
    uniforms = rng.random((len(chances), samples, 2))
    answers = np.where(
        uniforms[..., 0] < chances[:, None], 0, 1 + np.searchsorted(wrong, uniforms[..., 1].clip(max=0.999))
    )
    texts = {f"t{task}": [str(answer) for answer in row] for task, row in enumerate(answers)}
    row = at_k(named(answers == 0), texts, (k,), samples)[f"majority@{k}"]
    truth = true_majority(settings["mean"], settings["concentration"], k)
    return row.interval, truth, {**settings, "samples": samples, "k": k}


def two_runs(rng: np.random.Generator) -> Case:
    """The difference of two runs: independent samples, or those of one run with some of them drawn again."""
    chances, settings = difficulties(rng)
    samples, shared = pick(rng, SAMPLES), bool(rng.integers(2))
    first = rng.random((len(chances), samples)) < chances[:, None]
    if shared:
        redrawn, towards = pick(rng, (0.03, 0.1, 0.3)), pick(rng, (0.5, 0.8, 1.0))
        again = rng.random(first.shape) < redrawn
        second = np.where(again, rng.random(first.shape) < towards, first)
        truth = redrawn * (towards - settings["mean"])
    else:
        gain = pick(rng, (0.0, 0.05, 0.1, 0.2))
        helped = rng.random(len(chances)) < 0.5
        raised = chances + helped * 2 * gain * (1 - chances)
        second = rng.random(first.shape) < raised[:, None]
        truth = gain * (1 - settings["mean"])
    interval = paired_difference(named(second), named(first), flips=1)
    return interval, truth, {**settings, "samples": samples, "draws": "shared" if shared else "independent"}


def several_seeds(rng: np.random.Generator) -> Case:
    """The difference of two configurations of several seeds each, crossed with tasks."""
    tasks, samples, concentration = pick(rng, TASKS), pick(rng, (1, 2, 4)), pick(rng, CONCENTRATIONS)
    between, together, gain = (
        pick(rng, (0.0, 0.01, 0.03, 0.08)),
        pick(rng, (0.0, 0.03)),
        pick(rng, (0.0, 0.03)),
    )
    base = 0.3 + 0.4 * rng.beta(concentration, concentration, tasks)
    effects = gain + pick(rng, (0.0, 0.05)) * rng.uniform(-1, 1, tasks)
    seeds = [pick(rng, (2, 3, 5, 8)) for _ in range(2)]

    def side(count: int, shift: np.ndarray | float) -> np.ndarray:
        of_seed = np.clip(between * rng.normal(size=count), -0.2, 0.2)[:, None]
        chances = base + shift + of_seed + together * rng.uniform(-1, 1, (count, tasks))
        return rng.binomial(samples, np.clip(chances, 0, 1)) / samples

    first, second = side(seeds[0], 0.0), side(seeds[1], effects)
    interval = crossed_mean(second, first).interval(-1.0, 1.0)
    return interval, gain, {"tasks": tasks, "samples": samples, "between": between, "seeds": min(seeds)}


CASES: dict[str, Callable[[np.random.Generator], Case]] = {
    "eval: success": success,
    "eval: pass@k": best_of_k,
    "eval: majority@k": majority,
    "compare: one run a side": two_runs,
    "compare: several seeds a side": several_seeds,
}


def coverage(name: str, evaluations: int) -> dict[str, Any]:
    """The share of intervals that hold the truth, and the same by each setting; {covered, width, n}."""
    cells: dict[str, list[tuple[bool, float]]] = defaultdict(list)
    for number in range(evaluations):
        rng = np.random.default_rng([35, list(CASES).index(name), number])
        interval, truth, settings = CASES[name](rng)
        held = bool(interval.lo <= truth <= interval.hi)
        for cell in ("all", *_cells(settings)):
            cells[cell].append((held, interval.hi - interval.lo))
    return {cell: _summary(of) for cell, of in sorted(cells.items())}


def _cells(settings: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} {value}" for name, value in settings.items())


def _summary(of: list[tuple[bool, float]]) -> dict[str, Any]:
    held, widths = zip(*of, strict=True)
    return {
        "covered": round(sum(held) / len(held), 4),
        "width": round(float(np.mean(widths)), 4),
        "n": len(of),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--evaluations", type=int, default=2000, help="of each kind")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    results = {}
    for name in CASES:
        results[name] = coverage(name, options.evaluations)
        total = results[name].pop("all")
        results[name] = {"all": total, **results[name]}
        print(f"{name}: covered {total['covered']:.1%} of {total['n']}, mean width {total['width']:.3f}")
        for cell, of in results[name].items():
            if not 0.93 <= of["covered"] <= 0.97:
                print(f"  {cell}: {of['covered']:.1%} of {of['n']}")
    options.out.write_text(json.dumps(results, indent=1) + "\n")
    sys.exit(0 if all(0.93 <= of["all"]["covered"] <= 0.97 for of in results.values()) else 1)


if __name__ == "__main__":
    main()
