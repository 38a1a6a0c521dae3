"""Generations, tokens and samples of a step, counted before anything is played.

Every count is an upper bound, but for the tokens of prompts: these follow from the first prompts, and later
ones may be longer. The counts follow from the sampling of trees (`sampler.plan`), the team and
`schedule`. A game that ends early, a call that stops before its limit or a branch without credit makes them
smaller.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.compose import trained_splits
from coterie.compose.contents import place_of
from coterie.compose.named_files import FILE, FUNCTION
from coterie.compose.settings import settings_of
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError, DataError, NoFileError, UserError
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Environment, Plan, TaskSource, Team
from coterie.core.protocols.reward import RewardSource
from coterie.core.protocols.transition import TransitionMode
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.training.curriculum import trained_on
from coterie.core.training.run import Run
from coterie.core.training.schedule import end_of
from coterie.core.types import Key, Task
from coterie.core.types.seeding import seed64
from coterie.core.types.splits import Split
from coterie.discovery.members import CountsCalls
from coterie.discovery.optional import EnvironmentDefaults, with_defaults
from coterie.estimate.counts import (
    PolicyCounts,
    RoleCalls,
    StepCounts,
    TreeShape,
    by_policy,
    outside_notes,
    outside_tokens,
    steps_of_update,
)

log = logging.getLogger("coterie")

BOUND = 20_000
"""Most generations of a step that `coterie plan` accepts. At 512 tokens each they are 10 million tokens for
one update. A cross tree of 4^(2*4) = 65,536 leaves exceeds the bound with its first task."""

MOST_BITS = 2**14
"""Length of the largest number of nodes that is counted, in bits: it is about 10^4,932."""
CUT_NOTE = "a tree grows past 10^4,932 nodes: its later turns are not counted"

Order = tuple[tuple[str, ...], ...]


def shape_of(order: Order, turns: int, plan: Plan) -> TreeShape:
    """The largest tree over `turns` turns of `order`, in a time that doesn't grow with it."""
    nodes, joints, later = 1, 0, 0
    decisions = dict.fromkeys((role for stage in order for role in stage), 0)
    waves: list[dict[str, int]] = []
    cut = False
    for turn in range(turns):
        before, waves = (dict(decisions), joints, later), []
        for stage in order:
            later += nodes * any(decisions[role] for role in stage)
            for role in stage:
                decisions[role] += nodes
            waves.append(dict.fromkeys(stage, nodes))
            joint_actions = plan.branches ** len(stage) if plan.pairing == "cross" else plan.branches
            recombined = plan.recombines and len(stage) > 1 and plan.branches > 1
            joints += nodes * (joint_actions + recombined)
            if plan.expand not in ("best", "sampled"):
                nodes *= joint_actions
        if nodes == 1 and turn == 1:  # the tree is a path: every later turn adds what this one did
            rest = turns - 2
            decisions = {role: n + rest * (n - before[0][role]) for role, n in decisions.items()}
            joints, later = joints + rest * (joints - before[1]), later + rest * (later - before[2])
            break
        cut = nodes.bit_length() > MOST_BITS and turn + 1 < turns
        if cut:
            break
    return TreeShape(
        decisions=decisions, joints=joints, leaves=nodes, waves=tuple(waves), later=later, cut=cut
    )


def layouts(order: Order, decides: bool, often: Mapping[str, int] | None = None) -> list[Order]:
    """The orders of a turn to count: that of the team, and both extremes where the environment decides.

    No order needs more than all roles at once or one by one. A role that acts several times in a turn has as
    many stages.

    Args:
        decides: whether the environment decides which roles act.
        often: by role, most actions in a turn; 1 where it is absent.
    """
    roles = tuple(dict.fromkeys(role for stage in order for role in stage))
    extremes = ((roles,), tuple((role,) for role in roles)) if decides else ()
    return [_repeated(each, often or {}) for each in (order, *extremes)]


def _repeated(order: Order, often: Mapping[str, int]) -> Order:
    """The order in which each stage is followed by those of its roles that act again."""
    stages: list[tuple[str, ...]] = []
    for stage in order:
        for time in range(max((often.get(role, 1) for role in stage), default=1)):
            stages.append(tuple(role for role in stage if often.get(role, 1) > time))
    return tuple(stages)


def actions_per_turn(run: Run) -> dict[str, int]:
    """By role, most actions in a turn of any environment that the run plays, where these are several."""
    levels = run.curriculum.levels if run.curriculum is not None else ()
    often: dict[str, int] = {}
    for environment in (run.environment, *(level.environment for level in levels)):
        for role, number in with_defaults(environment, EnvironmentDefaults).actions_per_turn.items():
            often[role] = max(often.get(role, 1), number)
    return {role: number for role, number in often.items() if role in run.team.members and number > 1}


def count(run: Run) -> StepCounts:
    """The counts of a step of a composed run. Its first task shows whether the environment decides stages.

    Raises:
        DataError: a record is wrong.
        NoFileError: a file of records that the configuration names isn't there.
    """
    try:
        decides = decides_stages(run)
    except (DataError, NoFileError):
        raise
    except Exception as error:  # an environment's mistake, or its data isn't here
        counts = count_in_order(run)
        note = f"stages are assumed to follow team.order, since the first task can't be read here: {error}"
        return replace(counts, notes=(*counts.notes, note))
    counts = count_in_order(run, decides)
    return replace(counts, notes=(*counts.notes, *few_tasks(run)))


def count_in_order(run: Run, decides: bool = False) -> StepCounts:
    """The counts of a step whose stages follow `team.order`; no task is read.

    Args:
        decides: the environment decides which roles act instead: bounds of any order.
    """
    plan, team, schedule = run.sampler.plan, run.team, run.config.schedule
    trees, often = schedule.tasks_per_step * plan.chains, actions_per_turn(run)
    shapes = [shape_of(order, team.max_turns, plan) for order in layouts(team.order, decides, often)]
    decisions = {role: trees * max(s.decisions[role] for s in shapes) for role in shapes[0].decisions}
    joints, actions = trees * max(shape.joints for shape in shapes), plan.branches * sum(decisions.values())
    leaves = trees * max(shape.leaves for shape in shapes)
    views = {
        "action": actions,
        "joint": joints,
        "siblings": sum(decisions.values()),
        "episode": leaves,
        "trajectory": leaves,
    }
    calls = {source.name: _calls_per_view(source.plugin) for source in run.reward_sources}
    in_transitions = trees * max(shape.later for shape in shapes) * _calls_per_view(team.transition)
    return StepCounts(
        trees=trees,
        actions=actions,
        joints=joints,
        leaves=leaves,
        policies={name: _policy_counts(run, name, decisions) for name in run.config.policies},
        waves=tuple(
            by_policy(team, {role: trees * nodes for role, nodes in wave.items()})
            for shape in shapes
            for wave in shape.waves
        ),
        outside_calls={
            source.name: calls[source.name] * views[source.scope]
            for source in run.reward_sources
            if calls[source.name]
        }
        | ({"transition": in_transitions} if in_transitions else {}),
        outside_tokens=outside_tokens(run.reward_sources, calls, views),
        evaluation=_evaluation(run) if run.evaluate_every else 0,
        notes=(
            *_notes(run.config, team, plan, decides, often),
            *((CUT_NOTE,) if any(shape.cut for shape in shapes) else ()),
            *outside_notes(calls, in_transitions),
        ),
    )


def calls_of(team: Team, role: str) -> int:
    """Most calls of one action: each round of tool results leads to another call."""
    return 1 + team.members[role].tool_turns


def _policy_counts(run: Run, policy: str, decisions: Mapping[str, int]) -> PolicyCounts:
    team, branches = run.team, run.sampler.plan.branches
    calls = {
        role: RoleCalls(
            decisions=number,
            branches=branches,
            calls=calls_of(team, role),
            answer=run.sampler.sampling(role).max_new_tokens,
        )
        for role, number in decisions.items()
        if team.policies[role] == policy
    }
    generations = sum(role.generations for role in calls.values())
    trained = run.config.policies[policy].train != "none"
    samples = generations if trained else 0
    return PolicyCounts(
        calls=calls,
        trained=trained,
        generations=generations,
        generated_tokens=sum(role.generations * role.answer for role in calls.values()),
        prompts=sum(role.prompts for role in calls.values()),
        samples=samples,
        optimizer_steps=steps_of_update(run.trainer, samples, branches),
    )


def _calls_per_view(plugin: RewardSource | TransitionMode) -> int:
    return plugin.calls_per_view if isinstance(plugin, CountsCalls) else 0


def _evaluation(run: Run) -> int:
    plan = run.sampler.for_evaluation(False).plan
    shape = shape_of(_repeated(run.team.order, actions_per_turn(run)), run.team.max_turns, plan)
    calls = sum(calls_of(run.team, role) * decisions for role, decisions in shape.decisions.items())
    try:
        trees = evaluated_trees(run.rollout_side)
    except (DataError, NoFileError):
        raise
    except UserError:  # the records of a set aren't here
        trees = run.config.schedule.evaluate_tasks * sum(
            each.samples for each in run.rollout_side.sets.values()
        )
    return int(trees * plan.chains * plan.branches * calls)


def evaluated_trees(side: LocalRolloutSide) -> int:
    """The trees of one evaluation in training, over all of its sets. It asks for their tasks."""
    return sum(len(each.tasks(side.seed)) * each.samples for each in side.sets.values())


def _notes(config: RunConfig, team: Team, plan: Plan, decides: bool, often: Mapping[str, int]) -> list[str]:
    notes = []
    if decides:
        turns = "a turn" if team.max_turns == 1 else f"{team.max_turns} turns"
        others = "".join(f", '{role}' at most {number} times" for role, number in often.items())
        notes.append(
            f"the environment '{config.env['type']}' decides which roles act: the counts are upper bounds "
            f"for {turns} in which each role acts at most once{others}"
        )
    if plan.expand not in ("best", "sampled", "all"):
        notes.append(
            f"the sampler '{config.sampler['type']}' expands '{plan.expand}': counted as if it expanded all"
        )
    for role in (role for role, member in team.members.items() if member.tools):
        path = f"roles.{role}." if config.team.roles[role].get("max_tool_turns") is not None else ""
        notes.append(
            f"role '{role}' is counted with {team.members[role].tool_turns} tool results an action "
            f"(team.{path}max_tool_turns)"
        )
    return notes


# ------------------------------------------------------------------------------------- what the tasks show


def few_tasks(run: Run) -> list[str]:
    """A note where a step plays more tasks than there are; of a curriculum the level with the fewest counts.

    Raises:
        ConfigError: there are no train tasks.
    """
    curriculum, wanted, sizes = run.curriculum, run.config.schedule.tasks_per_step, [len(run.order)]
    if curriculum is not None:
        sizes = [len(tasks) for _, tasks in trained_on(run.environment, curriculum, run.config.seed)]
    fewest = max(min(sizes), 1)
    if fewest >= wanted:
        return []
    least, most = wanted // fewest, -(-wanted // fewest)
    return [
        f"schedule.tasks_per_step is {wanted}, and there are {fewest} train tasks: a step plays each task "
        f"{least if least == most else f'{least} to {most}'} times, each time as a further epoch"
    ]


def warn_of_tasks(run: Run) -> None:
    """Warn of a step that plays more tasks than there are."""
    for note in few_tasks(run):
        log.warning("%s", note)


def decides_stages(run: Run) -> bool:
    """Whether the environment, and not `team.order`, decides which roles act when the first task starts."""
    for environment, tasks in played_environments(run):
        _, state = first_state(run, environment, tasks, 0)
        with plugin_call(environment, "acting_roles"):
            if environment.acting_roles(state):
                return True
    return False


def first_state(run: Run, environment: Environment, tasks: TaskSource, index: int) -> tuple[Task, Any]:
    """A task, and the state in which its episodes begin."""
    with plugin_call(environment, "reset"):
        task = tasks[index]
        return task, environment.reset(task, seed64(run.config.seed, Key(task.id), "reset"))


def played_environments(run: Run) -> list[tuple[Environment, TaskSource]]:
    """The environments that a run plays, levels of a curriculum included, with their train tasks."""
    seed = run.config.seed
    target = trained_on(run.environment, None, seed)
    levels = trained_on(run.environment, run.curriculum, seed) if run.curriculum is not None else []
    return [*target, *levels]


def read_splits(config: RunConfig) -> tuple[Split, ...]:
    """The splits that a run plays, where their files are here: their tasks are read too.

    Raises:
        ConfigError: nothing ends the run.
    """
    end_of(config.schedule, lambda: 1)
    return trained_splits(config.schedule) if _reads_files(config) else ()


def _reads_files(config: RunConfig) -> bool:
    """Whether `env` and `data` name files of records, all of which are here."""
    tables = [file for file in settings_of(config).files.values() if file.keys[0] in ("env", "data")]
    named = [file for file in tables if file.form != FUNCTION]
    return bool(named) and all(file.form == FILE and place_of(file) is not None for file in named)


# --------------------------------------------------------------------------------------------- the size bound


def check_size(counts: StepCounts) -> None:
    """Refuse a step that is too large to be intended.

    Raises:
        ConfigError: the step has more than BOUND generations.
    """
    if counts.generations > BOUND:
        raise ConfigError(
            f"a step has up to {readable(counts.generations)} generations, and {BOUND:,} are the bound",
            path="sampler",
            why=why_so_many(counts),
            fix="lower sampler.branches, sampler.chains, team.max_turns or schedule.tasks_per_step, or set "
            "sampler.expand to best or sampled; `--yes` plans it anyway",
        )


def why_so_many(counts: StepCounts) -> str:
    """The shape of a step's trees, as the reason for its generations."""
    return (
        f"{readable(counts.trees)} trees with {readable(counts.leaves // counts.trees)} leaves and "
        f"{readable(counts.joints // counts.trees)} joint actions each"
    )


def readable(number: int) -> str:
    """A number as `65,536`, or as `10^23.1` where it has 13 digits or more."""
    return f"{number:,}" if number < 10**12 else f"10^{math.log10(number):.1f}"


def longest_answer(run: Run, roles: Sequence[str]) -> int:
    """Most tokens that one call of these roles samples."""
    return max((run.sampler.sampling(role).max_new_tokens for role in roles), default=0)
