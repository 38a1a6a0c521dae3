"""Counts of a step's work: of a tree, of a role's calls, of a policy, of all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral
from types import MappingProxyType
from typing import Any

from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import NamedRewardSource, Role, Team
from coterie.core.protocols.role import Remembers
from coterie.core.rollout.contracts import refuse
from coterie.discovery.members import CountsOptimizerSteps, CountsTokens

Wave = Mapping[str, int]
"""By policy: decisions whose tokens are generated at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeShape:
    """Upper bounds on the size of one tree."""

    decisions: Mapping[str, int]
    """Decisions, by role."""
    joints: int
    leaves: int
    """K^(stages * turns) where all aligned joint actions are expanded, K^(roles * turns) where all cross ones
    are, else 1."""
    waves: tuple[Mapping[str, int], ...]
    """For each stage of the last turn, which is the widest: by role, decisions at the same depth."""
    later: int = 0
    """Nodes at which the transition mode tells roles something: one of them has acted before."""
    cut: bool = False
    """Whether the last turns are left out, since the numbers have thousands of digits without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCalls:
    """Upper bounds on the calls of one role in a step."""

    decisions: int
    branches: int
    calls: int
    """Calls of one action: each round of tool results leads to another one."""
    answer: int
    """Tokens that one call samples."""
    anew: tuple[bool, ...] | None = None
    """Of each later call of an action: whether it begins a new sample; None: it isn't known, so each does."""

    def begins_sample(self, call: int) -> bool:
        """Whether a call of an action, counted from 0, begins a sample."""
        if not call or not self.anew:
            return True
        return self.anew[min(call, len(self.anew)) - 1]

    @property
    def samples(self) -> int:
        return self.decisions * self.branches * sum(self.begins_sample(call) for call in range(self.calls))

    def sample_tokens(self, length: int, most: int | None) -> int:
        """Tokens of the samples, prompts included; the arguments are those of `prompt_tokens`."""
        tokens = 0
        for call in range(self.calls):
            if call + 1 == self.calls or self.begins_sample(call + 1):
                sample = length + (call + 1) * self.answer
                tokens += sample if most is None else min(sample, most + 1)
        return self.decisions * self.branches * tokens

    @property
    def generations(self) -> int:
        return self.decisions * self.branches * self.calls

    @property
    def prompts(self) -> int:
        """Distinct prompts: branches share their first; after a tool's result each has one of its own."""
        return self.decisions * (1 + self.branches * (self.calls - 1))

    def prompt_tokens(self, length: int, most: int | None) -> int:
        """Tokens of the distinct prompts. A later prompt holds the answers before it; results are left out.

        Args:
            length: tokens of an action's first prompt.
            most: most tokens of a prompt; None: no limit is known.
        """
        later = self.calls - 1
        if most is None:
            growing, first = later, length
        else:  # a prompt is longer by an answer than the one before, until it fills the context
            growing, first = max(0, min(later, (most - length) // max(self.answer, 1))), min(length, most)
        tokens = growing * length + self.answer * growing * (growing + 1) // 2
        tokens += (later - growing) * (most or 0)
        return self.decisions * (first + self.branches * tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The prompts of one role in an episode, or of one action where it doesn't remember."""

    begins_anew: tuple[bool, ...]
    """Of each later prompt: whether it doesn't extend what was sampled."""
    calls: int
    """Prompts of one action."""
    whole: int
    """Tokens of all prompts."""
    new: int
    """Tokens of all prompts, but for what the one before and its answer have in common with each."""
    least: int
    """What `new` would be if every prompt extended the one before."""
    why: str = ""
    """What the chat format rewrites; empty: nothing."""

    @property
    def anew(self) -> int:
        """Later prompts that don't extend what was sampled."""
        return sum(self.begins_anew)

    @property
    def of_call(self) -> tuple[bool, ...]:
        """Of each later call of an action: whether it begins a new sample in any turn."""
        measured = min(self.calls, len(self.begins_anew) + 1)
        return tuple(any(self.begins_anew[call - 1 :: self.calls]) for call in range(1, measured))

    @property
    def factor(self) -> float:
        """Tokens to prefill with a prefix cache, as a multiple of those if every prompt extended."""
        return self.new / max(self.least, 1)

    def sentence(self, role: str, *, cached: bool) -> str:
        """The measurement for people.

        Args:
            cached: whether the run's engine keeps a prefix cache.
        """
        prompts = len(self.begins_anew) + 1
        if not self.anew:
            later = "the later prompt" if prompts == 2 else f"each of {prompts - 1} later prompts"
            return f"prefill: {later} of role '{role}' extends what was sampled"
        begin = "begins" if self.anew == 1 else "begin"
        samples = 1 + sum(self.of_call)
        parts = f"; the calls of an action are {samples} samples" if samples > 1 else ""
        where = "" if cached else ", if the engine had a prefix cache"
        return (
            f"prefill: of {prompts} prompts of role '{role}', {self.anew} {begin} anew ({self.why}): "
            f"{self.factor:.1f} times the tokens to prefill{where}{parts}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCounts:
    """Upper bounds on the work of one policy in a step."""

    calls: Mapping[str, RoleCalls]
    """By role that the policy plays."""
    trained: bool
    generations: int = 0
    """Calls of the engine."""
    generated_tokens: int = 0
    prompts: int = 0
    """Distinct prompts: the branches of a decision share one."""
    prompt_tokens: int | None = None
    """Tokens of the distinct prompts; None: neither their length nor a context is known."""
    prefill_tokens: int | None = None
    """Those of them that the engine computes: with a prefix cache, what is new in each; None: unknown."""
    samples: int = 0
    sample_tokens: int | None = None
    """Tokens of the samples, prompts included; None: unknown."""
    optimizer_steps: int = 0

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.calls)

    def bounded(
        self,
        context: int | None,
        longest: int,
        first_prompts: Mapping[str, int] = MappingProxyType({}),
        growths: Mapping[str, Growth] = MappingProxyType({}),
        cached: bool = False,
    ) -> PolicyCounts:
        """The counts for a model with a context of `context` tokens.

        Args:
            context: most tokens of a prompt and its answer together; None: unknown.
            longest: most tokens of one answer.
            first_prompts: by role, tokens of its first prompts (`first_prompts`). The prompts of a role that
                isn't there fill the context.
            growths: by role, how its prompts grow. Each call of a role that isn't there begins a sample.
            cached: whether the engine has a prefix cache.
        """
        most = None if context is None else context - 1
        tokens: int | None = 0
        prefilled, updated, samples = 0, 0, 0
        for role, calls in self.calls.items():
            grown = growths.get(role)
            if grown is not None:
                calls = replace(calls, anew=grown.of_call)
            samples += calls.samples
            length = first_prompts.get(role, most)
            if tokens is None or length is None:
                tokens = None
                continue
            prompts = calls.prompt_tokens(length, most)
            tokens += prompts
            prefilled += prompts * grown.new // grown.whole if grown is not None and cached else prompts
            updated += calls.sample_tokens(length, most)
        answer = longest if most is None else min(longest, most)
        generated = min(self.generated_tokens, self.generations * answer)
        return replace(
            self,
            prompt_tokens=tokens,
            generated_tokens=generated,
            prefill_tokens=None if tokens is None else prefilled,
            samples=samples if self.trained else 0,
            sample_tokens=None if tokens is None else updated * self.trained,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideTokens:
    """Tokens of a reward source's calls in a step, at most, beside what the actions themselves have."""

    overhead: int
    """That they read beside the actions."""
    written: int

    def read(self, policies: Mapping[str, PolicyCounts], contexts: Mapping[str, int]) -> int | None:
        """All that they read: each action is shown once, with a prompt and an answer that fill its context.

        Args:
            contexts: by policy, in tokens. Where one is unknown, so is the sum.
        """
        if any(name not in contexts for name, policy in policies.items() if policy.calls):
            return None
        return self.overhead + sum(
            role.decisions * role.branches * contexts[name]
            for name, policy in policies.items()
            for role in policy.calls.values()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCounts:
    """Upper bounds on the work of a step."""

    trees: int
    actions: int
    joints: int
    leaves: int
    policies: Mapping[str, PolicyCounts]
    waves: tuple[Wave, ...]
    """Decisions that are generated together, stage by stage."""
    outside_calls: Mapping[str, int]
    """By reward source, and of the transition mode: calls of an outside service, such as a coach."""
    outside_tokens: Mapping[str, OutsideTokens]
    """By reward source that shows actions to an outside model."""
    evaluation: int
    """Generations of one evaluation on `val`; 0 where there is none."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def generations(self) -> int:
        return sum(policy.generations for policy in self.policies.values())


def outside_tokens(
    sources: Iterable[NamedRewardSource], calls: Mapping[str, int], views: Mapping[str, int]
) -> dict[str, OutsideTokens]:
    """The tokens of each source that says what its calls take.

    Args:
        calls: by source, of a view; `views`: by scope, how many there are.
    """
    return {
        source.name: OutsideTokens(
            overhead=calls[source.name] * views[source.scope] * source.plugin.call_tokens,
            written=views["action"] * source.plugin.answer_tokens,
        )
        for source in sources
        if calls[source.name] and isinstance(source.plugin, CountsTokens)
    }


def outside_notes(calls: Mapping[str, int], in_transitions: int) -> list[str]:
    """What the calls of outside services leave out."""
    names = [f"rewards.{name}" for name, number in calls.items() if number] + ["transition"] * (
        in_transitions > 0
    )
    left_out = "attempts after a failure, a second question after a malformed answer, and evaluations"
    return [f"the outside calls of {', '.join(names)} leave out {left_out}"] if names else []


def by_policy(team: Team, wave: Mapping[str, int]) -> dict[str, int]:
    """The decisions of a wave, given by role, by policy."""
    numbers: dict[str, int] = {}
    for role, number in wave.items():
        policy = team.policies[role]
        numbers[policy] = numbers.get(policy, 0) + number
    return numbers


def steps_of_update(trainer: Any, samples: int, siblings: int) -> int:
    """Optimiser steps of one update of a policy, as its trainer counts them, or one where it has samples.

    Raises:
        PluginError: the trainer's count is no integer, or is negative.
    """
    if not isinstance(trainer, CountsOptimizerSteps):
        return int(samples > 0)
    with plugin_call(trainer, "optimizer_steps"):
        steps: Any = trainer.optimizer_steps(samples, siblings)
    if not isinstance(steps, Integral) or int(steps) < 0:
        refuse(trainer, "optimizer_steps", steps, "return an integer, 0 or more: the steps of one update")
    return int(steps)


def remembers(role: Role) -> bool:
    """Whether a role's prompts are conversations: its earlier prompts and answers come first."""
    return isinstance(role, Remembers) and role.remembers
