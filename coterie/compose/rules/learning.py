"""Rules of what is learned from which samples: tasks, words, sampling, losses and updates."""

from __future__ import annotations

import logging
from typing import get_args

from coterie.compose.rules.facts import ComposedParts
from coterie.compose.tasks import check_tasks
from coterie.core.errors import ConfigError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Length
from coterie.core.rollout.contracts import refuse
from coterie.core.types import Sampling
from coterie.discovery.members import Demonstrates, HasVocabulary, NeedsFreshSamples
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


def tasks(run: ComposedParts) -> None:
    """Refuse splits that will be played without tasks, train tasks without strata or of evaluated sets."""
    check_tasks(run.config, run.side, run.curriculum, run.splits)


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
