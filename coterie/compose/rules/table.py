"""The table of rules: what a run is refused for, or warned of, before it begins.

A rule is a function with the condition, the message and the fix: it raises a ConfigError, or logs a warning.
Rules stand in the order in which they refuse, in four lists, by when they can be asked: a new one stands
beside those of its subject, or in the first whose facts suffice (`facts.py`), and in `BROKEN` of
tests/compose/test_rules.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from coterie.compose.rules import learning, names, rewards, staleness
from coterie.compose.rules.facts import ComposedParts, WeightHolders
from coterie.core.config import RunConfig
from coterie.core.rollout.side import LocalRolloutSide

F = TypeVar("F")


class Rule(NamedTuple, Generic[F]):
    """A rule between tables."""

    check: Callable[[F], None]
    tables: tuple[str, ...]
    """Tables of the top level that it reads, the one that it refuses first."""


def _rule(check: Callable[[F], None], tables: str) -> Rule[F]:
    return Rule(check, tuple(tables.split()))


OF_TABLES: tuple[Rule[RunConfig], ...] = (
    _rule(names.stages, "team sampler"),
    _rule(names.policies, "policies team chat_models rewards transition"),
    _rule(names.settings_of_policies, "policies trainer engine"),
    _rule(names.tools, "tools team"),
    _rule(names.one_end, "schedule"),
    _rule(names.trackers, "trackers"),
    _rule(names.a_reward, "rewards"),
)
"""Asked before any component is made, in each process that makes a rollout side."""

OF_SIDE: tuple[Rule[LocalRolloutSide], ...] = (
    _rule(rewards.named_components, "rewards"),
    _rule(rewards.feedback, "rewards sampler team"),
    _rule(rewards.task_shown, "transition team"),
)
"""Asked once a rollout side is made, in each process that makes one."""

OF_COMPONENTS: tuple[Rule[ComposedParts], ...] = (
    _rule(names.cluster, "cluster executor"),
    _rule(names.shared_tables, "sandbox data"),
    _rule(names.chat_models, "chat_models"),
    _rule(rewards.any_weight, "rewards"),
    _rule(rewards.trajectories_without_forks, "rewards sampler"),
    _rule(rewards.best_branch, "rewards sampler"),
    _rule(rewards.compared_siblings, "rewards sampler algorithm"),
    _rule(rewards.stopped_episodes, "algorithm rewards"),
    _rule(rewards.stopping_forgoes_increments, "algorithm rewards"),
    _rule(rewards.sums_over_turns, "algorithm env rewards evaluate"),
    _rule(learning.samples, "sampler policies team"),
    _rule(learning.paper_loss, "loss algorithm"),
    _rule(learning.oracle, "policies env"),
    _rule(learning.settings_with_an_effect, "trainer algorithm loss"),
    _rule(learning.steps_of_an_update, "trainer loss"),
    _rule(learning.tasks, "env evaluate schedule"),
    _rule(learning.words, "policies env team sampler transition"),
    # The tables would suffice for two of these; they refuse after what is wrong with a plugin.
    _rule(staleness.play_has_an_effect, "schedule"),
    _rule(staleness.loss_of_older_samples, "schedule loss"),
    _rule(staleness.versions_in_flight, "schedule"),
)
"""Asked in the run's own process, once all components but engine and trainer are made."""

OF_WEIGHTS: tuple[Rule[WeightHolders], ...] = (
    _rule(staleness.engine_plays_ahead, "schedule engine policies"),
    _rule(staleness.versions_are_kept, "schedule engine trainer"),
)
"""Asked once engine and trainer are made, before either is opened."""


def ask(rules: Iterable[Rule[F]], facts: F, *, but: Collection[Callable[[Any], None]] = ()) -> None:
    """Ask rules.

    Args:
        but: checks that are left out.

    Raises:
        ConfigError: of the first rule that refuses.
    """
    for rule in rules:
        if rule.check not in but:
            rule.check(facts)


def check(config: RunConfig, *, policies: bool = True) -> None:
    """Check the tables of a configuration against each other.

    Args:
        policies: whether trainer and engine check the policies, e.g. that their models are there.

    Raises:
        ConfigError: as `ask`.
    """
    ask(OF_TABLES, config, but=() if policies else (names.settings_of_policies,))
