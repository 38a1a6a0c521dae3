"""The jobs of `reference.py`: short training runs, started from the command line of one version of Coterie.

A job names a recipe and its settings, never a module of Coterie: modules move between versions, the command
line and the settings don't.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABULAR = ROOT / "tests" / "recipes" / "tabular.yaml"
"""Read from this repository, not from a checkout, so that both versions get the same bytes."""

LIMIT = 900
"""Seconds after which a job counts as failed."""

PINNED = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
"""Variables of every job. One thread, because sums of floats depend on the number of threads."""


@dataclass(frozen=True, slots=True)
class Job:
    """One training run."""

    name: str
    recipe: str
    """A registered recipe, or the path of a file."""
    settings: tuple[str, ...] = ()
    """As KEY=VALUE."""
    scale: str | None = None
    overlays: str = ""
    """Names of overlays, as `--with` takes them."""

    def words(self, out: Path) -> list[str]:
        """The words after `coterie` that run the job into the folder `out`."""
        scale = [] if self.scale is None else ["--scale", self.scale]
        overlays = ["--with", self.overlays] if self.overlays else []
        return ["run", self.recipe, *self.settings, *scale, *overlays, "--out", str(out)]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a job's process."""

    seconds: float
    error: str = ""
    """The end of what it printed, where it failed."""


def run(job: Job, checkout: Path, out: Path) -> Outcome:
    """Run a job with the code of a checkout, in a process of its own."""
    begin = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "coterie", *job.words(out)],
            cwd=out.parent,  # -m puts the working folder before PYTHONPATH, so it must hold no `coterie`
            env=environment(checkout),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return Outcome(time.perf_counter() - begin, f"not finished after {LIMIT} s")
    error = (done.stderr or done.stdout).strip()[-2000:] or f"exit code {done.returncode}"
    return Outcome(time.perf_counter() - begin, error if done.returncode else "")


def environment(checkout: Path) -> dict[str, str]:
    """This process's environment, with the code of a checkout first and without settings of Coterie."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COTERIE_")}
    return {**kept, **PINNED, "PYTHONPATH": str(checkout)}


# --------------------------------------------------------------------------------- tabular: every algorithm

# A table starts out uniform over all words of a game, so the game has few words and messages are short: else
# hardly any message would be a move, and all advantages would be 0, whatever the algorithm.
SMALL = (
    "env.size=2",
    "env.train_tasks=8",
    "env.val_tasks=8",
    "env.test_tasks=8",
    "rewards.environment={type: environment, weights: {format: 0.5, legal: 0.2, illegal: -0.2}}",
    "sampler.sampling.max_new_tokens=1",
    "sampler.roles.planner.max_new_tokens=2",
    "trainer.learning_rate=150",
    "schedule.steps=6",
)
CHAINS = ("sampler.chains=4", "sampler.branches=1", "env.team=potential")
TREE = ("sampler.branches=2", "sampler.expand=all", "env.team=potential")
AT_ONCE = ("team.order=[[planner, executor]]",)
REINFORCE = ("loss.type=reinforce",)

# Each algorithm has a way of sampling that fits it (docs/algorithms.md). Pairings, losses and optimisers vary
# along with the algorithms, so that few runs pass through most of the code.
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "at_grpo": ("sampler.expand=best",),
    "grpo": (*CHAINS, "loss.kl=0.05"),
    "dr_grpo": (*CHAINS, "loss.type=cispo", "trainer.minibatch_size=32"),
    "rloo": (
        *CHAINS,
        "loss.type=gspo",
        "trainer.optimizer=adam",
        "trainer.learning_rate=0.1",
        "trainer.epochs=2",
    ),
    "reinforce": (*CHAINS, *REINFORCE, "algorithm.gamma=0.9"),
    "magrpo": (*AT_ONCE, *TREE, *REINFORCE, "sampler.branches=4", "loss.length=sequence_sum"),
    "marloo": (*AT_ONCE, *TREE, *REINFORCE, "sampler.pairing=cross"),
    "mareinforce": (*TREE, *REINFORCE, "loss.length=sequence_mean"),
    "maremax": (*TREE, *REINFORCE, "algorithm.gamma=0.9"),
    "reinforce_pp": ("sampler.chains=2", "sampler.branches=1", "algorithm.truncated=keep"),
    "reinforce_pp_baseline": ("sampler.chains=2", "sampler.branches=2", "sampler.expand=sampled"),
    "rae": (*CHAINS, *REINFORCE, "sampler.chains=1"),
    "gae": (*CHAINS, "sampler.chains=2", "loss.entropy=0.01"),
    "compose": (
        *AT_ONCE,
        "sampler.pairing=cross",
        "sampler.commit=per_role",
        "algorithm.group=decision",
        "algorithm.return=immediate",
        "algorithm.baseline=loo",
        "algorithm.normalise={type: none}",
    ),
}
"""algorithm -> the settings of its tabular run, besides those of the recipe."""


def tabular(algorithm: str) -> Job:
    """The tabular run of one algorithm: six steps on a 2x2 grid, all rollouts recorded."""
    settings = (f"algorithm.type={algorithm}", *SMALL, *ALGORITHMS[algorithm])
    return Job(f"tabular-{algorithm}", str(TABULAR), settings)


FROZEN = (
    "policies.planner={model: {init: tabular}}",
    "policies.executor={model: {init: tabular}, train: none}",
    "policies.shared=null",
    "team.roles.planner.policy=planner",
    "team.roles.executor.policy=executor",
)


def beside_frozen(algorithm: str) -> Job:
    """The tabular run of one algorithm in which the executor's policy isn't trained."""
    job = tabular(algorithm)
    return Job(f"frozen-{algorithm}", job.recipe, (*job.settings, *FROZEN))


# ----------------------------------------------------------------------------------- games, on a small model

FORMS = {
    "shared": ("_split", "", ("shared",)),
    "per-role": ("_split", "per_role", ("planner", "executor")),
    "single": ("_single", "", ("shared",)),
}
"""form -> (how the recipe's name ends, the overlays, the policies)."""


def game(name: str, form: str) -> Job:
    """A few steps of a game at the CPU scale; the budget in tokens makes the learning rate decay."""
    suffix, overlays, policies = FORMS[form]
    return replace(small(f"{name}-{form}", f"{name}{suffix}", policies), overlays=overlays)


def small(name: str, recipe: str, policies: tuple[str, ...]) -> Job:
    """A few steps of a recipe at the CPU scale, after a short warm start of its policies."""
    schedule = (
        "{steps: 3, tokens: 10000, tasks_per_step: 8, evaluate_every: 2, evaluate_tasks: 16, record_every: 1}"
    )
    warm = [
        f"policies.{policy}.warm_start.{what}" for policy in policies for what in ("steps=10", "batch=64")
    ]
    return Job(name, recipe, (f"schedule={schedule}", *warm), scale="cpu")


QUICKSTART = Job("quickstart", "quickstart", ("seed=0", "schedule.steps=40"))
GAMES = tuple(game(name, form) for name in ("plan_path", "sudoku", "sokoban") for form in FORMS)
MAGRPO = tuple(small(name, name, ("planner", "executor")) for name in ("magrpo", "magrpo_v1"))
BESIDE_FROZEN = tuple(map(beside_frozen, ("at_grpo", "rae", "reinforce_pp")))
JOBS = (QUICKSTART, *GAMES, *MAGRPO, *map(tabular, ALGORITHMS), *BESIDE_FROZEN)
"""All jobs, the longest first, so that no process is left alone with a long one at the end."""
