"""How often a run evaluates on `val` where `schedule.evaluate_every` is `auto`."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from coterie.core.errors import DataError
from coterie.core.training.run import Run
from coterie.estimate.cost import evaluated_trees

log = logging.getLogger("coterie")

SHARE = 0.05
"""Most actions that evaluations sample, as a share of those that training samples."""
FEWEST = 10
"""Fewest steps from one evaluation to the next."""


def evaluating(run: Run) -> Run:
    """The run with its number of steps between evaluations, where the schedule leaves it to us.

    Raises:
        DataError: a record of val is wrong.
    """
    if run.config.schedule.evaluate_every != "auto":
        return run
    return replace(run, evaluate_every=val_interval(run))


def val_interval(run: Run) -> int:
    """Steps from one evaluation to the next; 0: none, since no policy is trained or there is no split `val`.

    Neither the clock nor the length of the run decides it: a run of another machine, and one that is made
    longer afterwards, have the same rows.

    Raises:
        DataError: a record of val is wrong.
        UserError: a run with a table `evaluate` lacks tasks.
    """
    schedule = run.config.schedule
    if all(policy.train == "none" for policy in run.config.policies.values()):
        return 0
    if schedule.steps is not None and schedule.steps < FEWEST:
        return 0  # no evaluation would come due: val isn't asked for
    try:
        evaluated = evaluated_trees(run.rollout_side)
    except DataError:
        raise
    except Exception as error:  # an environment need not have the split, and says so as it likes
        if run.config.evaluate is not None:  # somebody has asked for it
            raise
        what = "training is not evaluated on val: %s (with schedule.evaluate_every=0 nobody asks)"
        log.warning(what, " ".join(str(error).split()) or type(error).__name__)
        return 0
    training, evaluation = run.sampler.plan, run.sampler.for_evaluation(False).plan
    sampled = schedule.tasks_per_step * training.chains * training.branches
    evaluated *= evaluation.chains * evaluation.branches
    return max(FEWEST, math.ceil(evaluated / (SHARE * sampled)))
