"""What a step will ask for, counted before anything is played: an upper bound in every number.

The counts follow from how trees are sampled (`sampler.plan`), who plays (the team) and `schedule`. A game
that ends early, a call that stops before its limit or a branch without credit makes them smaller.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError
from coterie.core.protocols import Codec, Environment, Plan, TaskSource, Team
from coterie.core.training.curriculum import trained_on
from coterie.core.training.run import Run
from coterie.core.types import Key

log = logging.getLogger("coterie")

BOUND = 20_000
"""Generations a step past which a plan is refused: at 512 tokens each they are 10 million tokens, for one
update. A cross tree of 4^(2*4) = 65,536 leaves is past it with its first task."""

SAMPLED_TASKS = 16
"""Tasks whose first prompts are measured."""

Order = tuple[tuple[str, ...], ...]
Wave = Mapping[str, int]
"""By policy: decisions that wait for their tokens at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one tree grows to, at most."""

    decisions: Mapping[str, int]
    """By role."""
    joints: int
    leaves: int
    """K^(stages * turns) where all aligned joints go on, K^(roles * turns) where all cross ones do, or 1."""
    waves: tuple[Mapping[str, int], ...]
    """Of each stage of the last turn, which is the widest: by role, decisions at the same depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCounts:
    """What one policy does in a step, at most."""

    roles: tuple[str, ...]
    trained: bool
    generations: int = 0
    """Calls of the engine."""
    generated_tokens: int = 0
    prompts: int = 0
    """Distinct prompts: the branches of a decision share theirs."""
    prompt_tokens: int | None = None
    """Of the distinct prompts, each as long as the context allows; None where no context is known."""
    samples: int = 0
    optimizer_steps: int = 0

    def bounded(self, context: int | None, longest: int) -> PolicyCounts:
        """The same for a model whose prompt and answer, of up to `longest` tokens, share `context` tokens."""
        if context is None:
            return self
        return replace(
            self,
            prompt_tokens=self.prompts * (context - 1),
            generated_tokens=min(self.generated_tokens, self.generations * min(longest, context - 1)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What a step asks for, at most."""

    trees: int
    actions: int
    joints: int
    leaves: int
    policies: Mapping[str, PolicyCounts]
    waves: tuple[Wave, ...]
    """What waits together, stage by stage."""
    outside_calls: Mapping[str, int]
    """By reward source: calls of a coach or a judge."""
    evaluation: int
    """Generations of one evaluation on `val`; 0 where there is none."""
    notes: tuple[str, ...] = field(default_factory=tuple)

    @property
    def generations(self) -> int:
        return sum(policy.generations for policy in self.policies.values())


def shape_of(order: Order, turns: int, plan: Plan) -> Shape:
    """What a tree over `turns` turns of `order` grows to."""
    nodes, joints = 1, 0
    decisions = dict.fromkeys((role for stage in order for role in stage), 0)
    waves: list[dict[str, int]] = []
    for _ in range(turns):
        waves = []
        for stage in order:
            for role in stage:
                decisions[role] += nodes
            waves.append(dict.fromkeys(stage, nodes))
            played = plan.branches ** len(stage) if plan.pairing == "cross" else plan.branches
            again = plan.recombines and len(stage) > 1 and plan.branches > 1
            joints += nodes * (played + again)
            if plan.expand not in ("best", "sampled"):
                nodes *= played
    return Shape(decisions=decisions, joints=joints, leaves=nodes, waves=tuple(waves))


def layouts(order: Order, decides: bool) -> list[Order]:
    """The orders of a turn to count: the team's own, or where the environment decides both extremes.

    In a turn in which each role acts at most once, nothing asks for more than all at once or one by one do.
    """
    if not decides:
        return [order]
    roles = tuple(dict.fromkeys(role for stage in order for role in stage))
    return [order, (roles,), tuple((role,) for role in roles)]


def count(run: Run) -> Counts:
    """What a step of a composed run asks for; a look at the first task tells who decides on the stages."""
    try:
        decides = decides_stages(run)
    except Exception as error:  # an environment's mistake, or its data isn't here
        counts = _count(run, False)
        said = f"who acts is taken to be as team.order says, since the first task can't be read here: {error}"
        return replace(counts, notes=(*counts.notes, said))
    return _count(run, decides)


def _count(run: Run, decides: bool) -> Counts:
    plan, team, schedule = run.sampler.plan, run.team, run.config.schedule
    trees = schedule.tasks_per_step * plan.chains
    shapes = [shape_of(order, team.max_turns, plan) for order in layouts(team.order, decides)]
    decisions = {role: trees * max(s.decisions[role] for s in shapes) for role in shapes[0].decisions}
    joints = trees * max(shape.joints for shape in shapes)
    leaves = trees * max(shape.leaves for shape in shapes)
    actions = plan.branches * sum(decisions.values())
    views = {
        "action": actions,
        "joint": joints,
        "siblings": sum(decisions.values()),
        "episode": leaves,
    }
    calls = {source.name: int(getattr(source.plugin, "calls_per_view", 0)) for source in run.reward_sources}
    return Counts(
        trees=trees,
        actions=actions,
        joints=joints,
        leaves=leaves,
        policies={name: _policy_counts(run, name, decisions) for name in run.config.policies},
        waves=tuple(
            _by_policy(team, {role: trees * nodes for role, nodes in wave.items()})
            for shape in shapes
            for wave in shape.waves
        ),
        outside_calls={
            source.name: calls[source.name] * views[source.scope]
            for source in run.reward_sources
            if calls[source.name]
        },
        evaluation=_evaluation(run) if schedule.evaluate_every else 0,
        notes=tuple(_notes(run.config, team, plan, decides)),
    )


def calls_of(team: Team, role: str) -> int:
    """Most calls of one action: each round of tool results is answered by another."""
    return 1 + team.tool_turns(role)


def _policy_counts(run: Run, policy: str, decisions: Mapping[str, int]) -> PolicyCounts:
    team, branches = run.team, run.sampler.plan.branches
    roles = tuple(role for role in decisions if team.policies[role] == policy)
    calls = {role: calls_of(team, role) for role in roles}
    generations = {role: decisions[role] * branches * calls[role] for role in roles}
    trained = team.trainable.get(policy, False)
    samples = sum(generations.values()) if trained else 0
    settings = run.trainer.config
    return PolicyCounts(
        roles=roles,
        trained=trained,
        generations=sum(generations.values()),
        generated_tokens=sum(generations[role] * run.sampler.sampling(role).max_new_tokens for role in roles),
        # After a tool's result every branch has a prompt of its own.
        prompts=sum(decisions[role] * (1 + branches * (calls[role] - 1)) for role in roles),
        samples=samples,
        optimizer_steps=optimizer_steps(
            samples, branches, getattr(settings, "minibatch_size", None), getattr(settings, "epochs", 1)
        ),
    )


def optimizer_steps(samples: int, siblings: int, size: int | None, epochs: int = 1) -> int:
    """How many minibatches `batching.minibatches` makes of groups of `siblings` samples, over all epochs."""
    if size is None or samples <= size:
        return epochs * (samples > 0)
    filled = -(-size // siblings) * siblings  # siblings stay together, so a minibatch may pass its size
    whole, rest = divmod(samples, filled)
    return epochs * max(whole + (rest > 0 and 2 * rest >= size), 1)


def _by_policy(team: Team, wave: Mapping[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for role, number in wave.items():
        policy = team.policies[role]
        found[policy] = found.get(policy, 0) + number
    return found


def _evaluation(run: Run) -> int:
    plan = run.sampler.for_evaluation(False).plan
    shape = shape_of(run.team.order, run.team.max_turns, plan)
    calls = sum(calls_of(run.team, role) * asked for role, asked in shape.decisions.items())
    return int(run.config.schedule.evaluate_tasks * plan.chains * plan.branches * calls)


def _notes(config: RunConfig, team: Team, plan: Plan, decides: bool) -> list[str]:
    found = []
    if decides:
        found.append(
            f"the environment '{config.env['type']}' says itself who acts: the counts are upper bounds for "
            f"{team.max_turns} turns in which each role acts at most once"
        )
    if plan.expand not in ("best", "sampled", "all"):
        found.append(
            f"the sampler '{config.sampler['type']}' expands '{plan.expand}': counted as if all went on"
        )
    for role in (role for role, tools in team.tools.items() if tools):
        own = f"roles.{role}." if role in team.role_tool_turns else ""
        found.append(
            f"role '{role}' is counted with {team.tool_turns(role)} tool results an action "
            f"(team.{own}max_tool_turns)"
        )
    return found


# ------------------------------------------------------------------------------------- what the tasks tell


def decides_stages(run: Run) -> bool:
    """Whether the environment says itself who acts, and not `team.order`, where the first task starts."""
    for environment, tasks in _played(run):
        task = tasks[0]
        state = environment.reset(task, run.new_pass().seed(Key(task.id), "reset"))
        if environment.acting_roles(state):
            return True
    return False


def _played(run: Run) -> list[tuple[Environment, TaskSource]]:
    """What a run plays: its environment, and the levels of a curriculum, with their train tasks."""
    seed = run.config.seed
    target = trained_on(run.environment, None, seed)
    levels = trained_on(run.environment, run.curriculum, seed) if run.curriculum is not None else []
    return [*target, *levels]


def first_prompts(run: Run, codecs: Mapping[str, Codec], tasks: int = SAMPLED_TASKS) -> dict[str, int]:
    """By role: tokens of its longest prompt in the start states of some tasks.

    A role that remembers sees its own earlier prompts and answers again in every turn; they are added. What
    other roles say, and what a transition tells, is not: nobody has spoken yet.

    Args:
        codecs: by policy, of the roles that are wanted.
    """
    found = asyncio.run(_first_prompts(run, codecs, tasks))
    turns = run.team.max_turns
    for role, length in found.items():
        if getattr(run.team.roles[role], "remembers", False):
            found[role] = turns * length + (turns - 1) * run.sampler.sampling(role).max_new_tokens
    return found


async def _first_prompts(run: Run, codecs: Mapping[str, Codec], tasks: int) -> dict[str, int]:
    play = run.new_pass(evaluation=True)
    play.codecs.update(codecs)
    found: dict[str, int] = {}
    for play.environment, source in _played(run):
        for index in range(min(tasks, len(source))):
            task = source[index]
            state = play.environment.reset(task, play.seed(Key(task.id), "reset"))
            for role, policy in run.team.policies.items():
                if policy in codecs:
                    asked = await play.ask(role, state, 0, (), run.sampler.sampling(role))
                    found[role] = max(found.get(role, 0), len(asked.prompt.ids))
    return found


# ------------------------------------------------------------------------------------------- what is too much


def check_size(counts: Counts) -> None:
    """Refuse a step that nobody means.

    Raises:
        ConfigError: it has more than BOUND generations.
    """
    if counts.generations > BOUND:
        raise ConfigError(
            f"a step has up to {told(counts.generations)} generations, and {BOUND:,} are the bound",
            path="sampler",
            why=_why(counts),
            fix="lower sampler.branches, sampler.chains, team.max_turns or schedule.tasks_per_step, or set "
            "sampler.expand to best or sampled; `--yes` plans it all the same",
        )


def warn_of_size(run: Run) -> None:
    """Say so where a step is past the bound that `coterie plan` refuses."""
    counts = _count(run, False)
    if counts.generations > BOUND:
        log.warning(
            "a step has up to %s generations (%s): see `coterie plan`", told(counts.generations), _why(counts)
        )


def _why(counts: Counts) -> str:
    return (
        f"{told(counts.trees)} trees with {told(counts.leaves // counts.trees)} leaves and "
        f"{told(counts.joints // counts.trees)} joint actions each"
    )


def told(number: int) -> str:
    """`65,536`, and `10^23.1` where nobody reads the digits."""
    return f"{number:,}" if number < 10**12 else f"10^{math.log10(number):.1f}"


def longest_answer(run: Run, roles: Sequence[str]) -> int:
    """Most tokens that one call of these roles draws."""
    return max((run.sampler.sampling(role).max_new_tokens for role in roles), default=0)
