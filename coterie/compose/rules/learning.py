"""Rules of what is learned from which samples: tasks, words, sampling, losses and updates."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sized
from inspect import isawaitable
from typing import Any, get_args

from coterie.compose.evaluation_sets import PATH, FirstTasks
from coterie.compose.rules.facts import ComposedParts
from coterie.compose.strata import check_strata
from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols import Environment, Length, TaskSource
from coterie.core.rollout.contracts import refuse
from coterie.core.rollout.side import EvaluationSet
from coterie.core.training.curriculum import LevelTasks, trained_on
from coterie.core.types import Sampling, Task
from coterie.core.types.splits import Split
from coterie.discovery.members import (
    Demonstrates,
    FingerprintsTasks,
    HasVocabulary,
    LeavesOut,
    NeedsFreshSamples,
)
from coterie.discovery.optional import EstimatorDefaults, PolicyDefaults, TrainerConfigDefaults, with_defaults

log = logging.getLogger("coterie")


def samples(run: ComposedParts) -> None:
    """Warn of samples that training can't compare, or that are of another distribution than it assumes."""
    side, plan = run.side, run.side.sampler.plan
    for role in side.team.members:
        with plugin_call(side.sampler, "sampling"):
            sampling = side.sampler.sampling(role)
        if not isinstance(sampling, Sampling):
            refuse(side.sampler, "sampling", sampling, "a coterie.Sampling")
        if sampling.filtered:
            log.warning(
                "role '%s' samples with top_p/top_k: what is trained is not what is sampled (log-probs are "
                "of the untruncated distribution)",
                role,
            )
        trained = run.config.policies[side.team.policies[role]].train != "none"
        if sampling.temperature == 0 and trained and plan.chains * plan.branches > 1:
            log.warning(
                "role '%s' samples at temperature 0: all its answers to one prompt are equal, so training "
                "that compares them learns nothing; fix: sampler.sampling.temperature=1",
                role,
            )


def paper_loss(run: ComposedParts) -> None:
    """Warn where an override of the algorithm keeps a loss, and its paper has another."""
    origins, algorithm = run.resolved.origins, run.config.algorithm["type"]
    if origins.get("algorithm.type") != "override" or origins.get("loss.type") == "override":
        return
    kept, settings = str(run.config.loss["type"]), getattr(run.loss, "config", None)
    paper = with_defaults(run.estimator, EstimatorDefaults).paper_loss or kept
    length, kl = getattr(settings, "length", ""), getattr(settings, "kl", 0)
    other_length = length not in paper and any(name in paper for name in get_args(Length))
    if not paper.startswith(kept) or other_length or (", kl" in paper and not kl):
        log.warning(
            "algorithm=%s keeps the loss that was there (%s, %s, kl %s), and its paper has another: %s. "
            "Set loss.type and its keys for the paper's",
            *(algorithm, kept, length, kl, paper),
        )


def oracle(run: ComposedParts) -> None:
    """Refuse a warm start in an environment without demonstrations."""
    for name, policy in run.config.policies.items():
        if policy.warm_started and not isinstance(run.side.environment, Demonstrates):
            raise ConfigError(
                "the environment has no oracle to imitate",
                path=f"policies.{name}.warm_start",
                why=f"'{run.config.env['type']}' has no demonstrate(state, role, noise, rng)",
                fix="remove it",
            )


def settings_with_an_effect(run: ComposedParts) -> None:
    """Let the trainer's settings refuse what neither the estimator nor the loss reads."""
    needs = {*run.estimator.needs, *run.loss.needs}
    with_defaults(run.trainer_config, TrainerConfigDefaults).check_needs(needs, "trainer")


def steps_of_an_update(run: ComposedParts) -> None:
    """Refuse steps on samples that the policy has left behind, where the loss doesn't notice."""
    repeats = with_defaults(run.trainer_config, TrainerConfigDefaults).repeats
    if repeats and isinstance(run.loss, NeedsFreshSamples) and run.loss.fresh_samples:
        key = repeats.split("=")[0]
        single = "1" if key == "epochs" else "null (micro_tokens bounds the memory)"
        raise ConfigError(
            f"the loss needs one optimiser step an update, and trainer.{repeats} makes several",
            path=f"trainer.{key}",
            why="it has no ratio: after the first step its gradient is of a policy that is gone",
            fix=f"set trainer.{key}={single}, or choose a loss with a ratio: loss.type=ppo_clip",
        )


def words(run: ComposedParts) -> None:
    """Let policies look at the words of prompts and answers, and at the lengths of answers."""
    side = run.side
    parts = (side.environment, side.team.transition, *(member.role for member in side.team.members.values()))
    lists = any(isinstance(part, HasVocabulary) for part in parts)
    vocabulary = side.vocabulary or (None if lists else ())
    for name, policy in run.config.policies.items():
        longest = {
            role: side.sampler.sampling(role).max_new_tokens
            for role, member in side.team.members.items()
            if member.policy == name
        }
        with plugin_call(policy, "check_words"):
            with_defaults(policy, PolicyDefaults).check_words(f"policies.{name}", vocabulary, longest)


def tasks(run: ComposedParts) -> None:
    """Refuse splits that will be played without tasks, train tasks without strata or of evaluated sets.

    Of `train` the tasks of every level of a curriculum are asked for, of `val` those of the sets that the run
    names.
    """
    environment, seed, sets = run.environment, run.config.seed, run.side.sets
    others = [each for each in sets.values() if each.environment is not environment]

    def evaluated() -> list[Task]:
        return [task for each in others for task in each.tasks(seed)]

    for trained in (environment, *run.side.levels) if others else ():
        if isinstance(trained, LeavesOut):  # its own val it leaves out itself
            with plugin_call(trained, "leave_out"):
                trained.leave_out(evaluated)
    for split in run.splits:
        played: list[tuple[Environment, Any]]
        if split == "val" and (named := _sources(sets, seed)):
            for owner, source, path in named:
                _check_source(owner, source, split, path)
            continue
        with plugin_call(environment, "tasks"):
            if split != "train":
                played = [(environment, environment.tasks(split, seed))]
            else:
                played = [*trained_on(environment, run.curriculum, seed)]
        for owner, source in played:
            _check_source(owner, source.source if isinstance(source, LevelTasks) else source, split)
            if split == "train":
                check_strata(owner, source, run.config.schedule.stratify)
                _check_apart(owner, source, sets, seed)


def _check_source(environment: Environment, tasks: Any, split: Split, path: str = "env") -> None:
    """Refuse what is no source of tasks. One that makes its tasks when it is asked shows its first two."""
    if isawaitable(tasks) or not isinstance(tasks, Sized):
        fix = (
            "a list of coterie.Task, or an object with `__len__` and `__getitem__`; `tasks` isn't `async def`"
        )
        refuse(environment, "tasks", tasks, fix)
    source: Any = tasks
    if len(source) == 0:
        origin = origin_of(environment)
        raise ConfigError(f"the {split} split has no tasks", path=path, why=f"{origin}: tasks returned none")
    with plugin_call(environment, "tasks"):
        shown = source if isinstance(source, (list, tuple)) else [source[at] for at in range(len(source))[:2]]
    ids: set[str] = set()
    for task in shown:
        if not isinstance(task, Task):
            refuse(environment, "tasks", task, "every task is a coterie.Task")
        if task.id in ids:
            refuse(
                environment, "tasks", task.id, f"give each task of '{split}' another id: this one is twice"
            )
        ids.add(task.id)


def _sources(sets: Mapping[str, EvaluationSet], seed: int) -> list[tuple[Environment, Any, str]]:
    """(environment, what it gives as its tasks, the set's path) of each set with a name."""
    sources = []
    for name, each in sets.items():
        if each.name:
            with plugin_call(each.environment, "tasks"):
                sources.append((each.environment, each.environment.tasks("val", seed), f"{PATH}.sets.{name}"))
    return sources


def _check_apart(
    environment: Environment, tasks: TaskSource, sets: Mapping[str, EvaluationSet], seed: int
) -> None:
    """Refuse a list of train tasks that has some of a set's, where the environment can't leave them out.

    The splits of tasks that are made one by one are the environment's own business.

    Raises:
        ConfigError: with the first task that is in both.
    """
    if isinstance(environment, LeavesOut) or not isinstance(environment, FingerprintsTasks):
        return
    for each in sets.values():
        evaluated = each.tasks(seed) if each.name and each.environment is not environment else ()
        source = evaluated.source if isinstance(evaluated, FirstTasks) else ()
        listed = source.source if isinstance(source, LevelTasks) else source
        if not isinstance(tasks, (list, tuple)) or not isinstance(listed, (list, tuple)):
            continue
        with plugin_call(environment, "fingerprints"):
            trained = {environment.fingerprints(task)["content"]: task.id for task in tasks}
            shared = [(trained.get(environment.fingerprints(task)["content"]), task.id) for task in evaluated]
        pairs = [(ours, theirs) for ours, theirs in shared if ours is not None]
        if pairs:
            raise ConfigError(
                f"{len(pairs)} of {len(shared)} tasks are in train too",
                path=f"{PATH}.sets.{each.name}",
                why=f"'{pairs[0][1]}' is '{pairs[0][0]}'",
                fix="give the set other records than train",
            )
