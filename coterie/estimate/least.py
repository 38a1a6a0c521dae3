"""The least that a run takes of this machine. What can't be is refused before the run starts.

All numbers are lower bounds: an episode may end after its first stage, an answer after its first token. So
what is refused could not have ended well. `cost.py` counts from above.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.rollout.turns import first_stage
from coterie.core.training.run import Run
from coterie.core.types import Key
from coterie.core.types.seeding import seed64
from coterie.core.types.splits import Split
from coterie.discovery.optional import TrainerConfigDefaults, with_defaults
from coterie.estimate.cost import BOUND, count_in_order, evaluated_trees, readable, why_so_many
from coterie.estimate.counts import StepCounts
from coterie.machine import machine_memory

log = logging.getLogger("coterie")

TREE_BYTES, ACTION_BYTES, JOINT_BYTES = 2000, 1000, 1000
"""Fewest bytes of a tree, of an action and of a joint action, which live until a step's end: at most three
quarters of what the smallest game and an engine without a model take. A test measures them."""
ACTION_SECONDS = 10e-6
"""Least time of an action: a tenth of what drawing, scoring and crediting one takes without a model."""
HOUR = 3600.0
"""Longest step that starts unasked."""


@dataclass(frozen=True, slots=True)
class Least:
    """The least that all trees of a step, or of an evaluation, are together."""

    what: str
    path: str
    settings: str
    """The settings that it follows from."""
    trees: int
    actions: int
    joints: int
    in_play: int = 1
    """Steps whose trees live at once (`schedule.max_staleness`)."""

    @property
    def memory(self) -> int:
        """Bytes that are alive at once."""
        step = TREE_BYTES * self.trees + ACTION_BYTES * self.actions + JOINT_BYTES * self.joints
        return self.in_play * step

    @property
    def seconds(self) -> float:
        return ACTION_SECONDS * min(self.actions + self.joints, 10**300)


def least_step(side: LocalRolloutSide, config: RunConfig) -> Least:
    """The first stage of every tree of a step: no tree is smaller."""
    plan, tasks = side.sampler.plan, config.schedule.tasks_per_step
    trees = tasks * plan.chains
    branches = plan.branches if config.sampler["type"] == "tree" else 1  # others may fork later
    crossed = branches > 1 and plan.pairing == "cross"
    joints = branches ** (_first_roles(side, config) if crossed else 1)
    path = "sampler" if plan.chains * branches > tasks else "schedule.tasks_per_step"
    settings = "sampler.chains, sampler.branches or schedule.tasks_per_step"
    in_play = 1 + config.schedule.max_staleness
    if config.schedule.steps:
        in_play = min(in_play, config.schedule.steps)
    if in_play > 1:
        settings += ", or schedule.max_staleness"
    return Least("a step", path, settings, trees, trees * branches, trees * joints, in_play)


def _first_roles(side: LocalRolloutSide, config: RunConfig) -> int:
    """Roles that act at once when the first task starts; 1 where the task can't be read here."""
    environment = side.levels[0] if side.levels else side.environment
    try:
        task = environment.tasks("train", config.seed)[0]
        state = environment.reset(task, seed64(config.seed, Key(task.id), "reset"))
        stage = first_stage(environment, side.team.order, state)
    except Exception:  # told where the run itself asks for it
        log.debug("no first task", exc_info=True)
        return 1
    return len(stage.roles) if stage is not None else 1


def check_trees(side: LocalRolloutSide, config: RunConfig, splits: Collection[Split] = ()) -> None:
    """Refuse trees that this machine can't hold, or not play in an hour. Imports no torch.

    Args:
        splits: the splits that are played; evaluations count where `val` is one.

    Raises:
        ConfigError: with the numbers, for a step or for an evaluation.
    """
    parts = [least_step(side, config)]
    if "val" in splits:
        trees = evaluated_trees(side)
        setting, more = "schedule.evaluate_tasks", ", or what `evaluate` sets" if config.evaluate else ""
        parts.append(Least("an evaluation", setting, f"{setting}{more}", trees, trees, trees))
    limit = machine_memory()
    for least in parts:
        if limit is not None and least.memory > limit:
            steps = f" in {least.in_play} steps that are played at once" if least.in_play > 1 else ""
            has = (
                f"has at least {shown(least.memory)} of trees{steps}, and this machine has {shown(limit)} of "
                "memory"
            )
        elif least.seconds > HOUR:
            has = f"takes at least {readable(int(least.seconds / HOUR))} hours, whatever the model"
        else:
            continue
        raise ConfigError(
            f"{least.what} {has}",
            path=least.path,
            why=f"{readable(least.trees)} trees, with {readable(least.actions)} actions and "
            f"{readable(least.joints)} joint actions in their first stages alone",
            fix=f"lower {least.settings} (`coterie plan` counts)",
        )


def check_size(run: Run) -> None:
    """Refuse trees that grow past memory; let the trainer refuse models that its device can't hold.

    Raises:
        ConfigError: with the numbers.
    """
    counts = count_in_order(run)
    _check_forks(run, counts)
    tokens = {name: policy.generated_tokens for name, policy in counts.policies.items()}
    settings = with_defaults(getattr(run.trainer, "config", None), TrainerConfigDefaults)
    settings.check_size(run.config.policies, run.vocabulary, tokens, machine_memory())


def _check_forks(run: Run, counts: StepCounts) -> None:
    """Refuse trees all of whose joint actions are played on, where they could grow past memory.

    Their number grows with a power of the turns: an episode has to end in its first turns to save them.
    """
    plan, limit = run.sampler.plan, machine_memory()
    if plan.expand != "all" or plan.branches == 1 or limit is None or counts.joints * JOINT_BYTES <= limit:
        return
    raise ConfigError(
        f"a step has up to {readable(counts.joints)} joint actions: past the {shown(limit)} here",
        path="sampler.expand",
        why=why_so_many(counts),
        fix="lower sampler.branches or team.max_turns, or set sampler.expand=best (`coterie plan` counts)",
    )


@contextmanager
def acceptable(accepted: bool) -> Iterator[None]:
    """A context of a check: what it refuses is a warning where the user accepts it, else it says how to.

    Raises:
        ConfigError: that of the check.
    """
    try:
        yield
    except ConfigError as error:
        if not accepted:
            fix = f"{error.fix}; `--yes` (in Python `any_size=True`) starts it anyway"
            raise ConfigError(error.what, path=error.path, why=error.why, fix=fix) from None
        log.warning("%s: %s (%s)", error.path, error.what, error.why)


def warn_of_trees(run: Run) -> None:
    """Warn of trees that a new run would be refused for: a run that is resumed has played before."""
    with acceptable(True):
        check_trees(run.rollout_side, run.config)


def warn_of_size(run: Run) -> None:
    """Warn of a step past the bound that `coterie plan` refuses."""
    counts = count_in_order(run)
    if counts.generations > BOUND:
        log.warning(
            "a step has up to %s generations (%s): see `coterie plan`",
            readable(counts.generations),
            why_so_many(counts),
        )


# ---------------------------------------------------------------------------------------------- the machine


def shown(number: int) -> str:
    """Bytes as `23.6 GB`, or as `19,000 GB`."""
    return f"{number / 1e9:.3g} GB" if number < 10**12 else f"{readable(number // 10**9)} GB"
