"""The rollout side of a replay: the run's own, with the record in place of what answered from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Any

from coterie.analysis.recorded_engine import RecordedActions, RecordedClient, with_recorded_tools
from coterie.answers import KEPT, KNOWN
from coterie.api.episodes import Row, is_lost
from coterie.core.concurrency.active_rollouts import together
from coterie.core.errors import PolicyFault, SystemFault, UserError
from coterie.core.plugins import PluginConfig, composed_fields
from coterie.core.plugins.origin import origin_of, plugin_call, record_origin
from coterie.core.protocols import Codec, NamedRewardSource, RolloutJob
from coterie.core.protocols.reward import ShowsFeedback
from coterie.core.protocols.transition import RepeatsTask
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.rewards import score_episodes
from coterie.core.rollout.side import LocalRolloutSide, open_resource
from coterie.core.training.run import Run
from coterie.core.types import (
    Action,
    ComponentKind,
    Fault,
    Key,
    RewardWeights,
    Score,
    Scores,
    Step,
    Task,
    Tree,
)
from coterie.discovery.members import CountsCalls, RunsInBackground

RUNS_PROGRAMS = ("run", "judge", "run_on")
"""Methods of a sandbox."""


class ReplayContext(JobContext):
    """The context of a job in which what a system fault lost in the run is lost again."""

    lost: Mapping[tuple[str, int], str]
    """(node, joint action) -> the recorded reason."""

    async def step(
        self, task: Task, key: Key, turn: int, state: Any, actions: Mapping[str, Action]
    ) -> Step | Fault:
        """Step the environment; or the recorded fault, which no action caused."""
        reason = self.lost.get((key.node.text(), key.joint))
        if reason is not None:
            return Fault(kind="system", reason=reason)
        return await super().step(task, key, turn, state, actions)


class RecordedTransition:
    """A transition mode that isn't asked: its feedback is in the recorded prompts alone."""

    def __init__(self, transition: Any) -> None:
        self.original_prompt = not isinstance(transition, RepeatsTask) or transition.original_prompt
        record_origin(self, origin_of(transition))

    async def tell(self, role: str, state: Any, history: Any, environment: Any) -> Sequence[str]:
        return ()


@dataclass(slots=True)
class PlayedTree:
    """A tree that was played again, with its scores."""

    job: RolloutJob
    tree: Tree | None = None
    scores: Scores = field(default_factory=Scores)
    error: str = ""
    """Why it couldn't be played to its end."""


@dataclass(slots=True)
class ReplaySide:
    """Plays the jobs of a step with what its rows recorded."""

    side: LocalRolloutSide
    client: RecordedClient
    cells: Mapping[str, Mapping[str, Cell]]
    lost: Mapping[tuple[str, int], str]
    answers: Mapping[str, Any]
    """What programs answered the environment."""
    again: Collection[str]
    sources: Sequence[str]
    """Reward sources whose scores are taken from the record."""
    feedback: bool
    """Whether the feedback of the transition mode is."""
    unanswered: list[str]
    """Programs that the environment wanted to run, and whose results the record doesn't have."""

    @classmethod
    def make(
        cls,
        run: Run,
        rows: Sequence[Row],
        codecs: Mapping[str, Codec],
        answers: Mapping[str, Any],
        again: Collection[str],
        beside: Sequence[NamedRewardSource] = (),
    ) -> ReplaySide:
        """The side of a composed run, whose components it may change.

        Args:
            answers: of programs, as the row of kind `step` has them.
            again: `sandbox`, `coach`: what is asked again.
            beside: reward sources that score beside those of their names, without an effect on play.
        """
        actions, side, unanswered = RecordedActions.of(rows), run.rollout_side, list[str]()
        taken = [source for source in side.reward_sources if asks(source.plugin) - set(again)]
        sources = [
            recorded_source(source) if source in taken else replace(source, failed=True)
            for source in side.reward_sources  # the run has told of missing scores
        ]
        sources = with_shadows(sources, beside)
        members = with_recorded_tools(side.team.members, actions)
        transition, feedback = side.team.transition, False
        if "coach" in asks(transition) - set(again):
            transition, feedback = RecordedTransition(transition), True
        if "sandbox" not in again:
            for resource in side.resources:
                if origin_of(resource).kind == "sandbox":
                    _refuse(resource, unanswered)
        lost = {
            (row["node"], row["joint"]): row["fault"]["reason"]
            for row in rows
            if row["kind"] == "joint" and is_lost(row)
        }
        return cls(
            side=replace(
                side,
                team=replace(side.team, members=members, transition=transition),
                reward_sources=sources,
                reward_weights=ignoring_shadows(side.reward_weights, beside),
            ),
            client=RecordedClient(actions, codecs),
            cells=recorded_cells(rows, taken),
            lost=lost,
            answers=answers,
            again=again,
            sources=[source.name for source in taken],
            feedback=feedback,
            unanswered=unanswered,
        )

    async def play(self, jobs: Sequence[RolloutJob]) -> list[PlayedTree]:
        """Play the jobs, in their order.

        Raises:
            UserError: a component can't be opened.
        """
        async with AsyncExitStack() as opened:
            for resource in self._opened():
                await open_resource(resource, opened)
            return await together(map(self._play, jobs))

    def _opened(self) -> list[Any]:
        kinds = {"environment", *(("sandbox",) if "sandbox" in self.again else ())}
        kinds |= {"chat_model"} if "coach" in self.again else set()
        resources = [each for each in self.side.resources if origin_of(each).kind in kinds]
        asked = [source.plugin for source in self.side.reward_sources if source.name not in self.sources]
        return [*resources, *asked]

    async def _play(self, job: RolloutJob) -> PlayedTree:
        made = self.side.context(job, self.client)
        context = ReplayContext(**{each.name: getattr(made, each.name) for each in fields(made)})
        context.lost, context.scores = self.lost, RecordedScores(self.cells)
        sampler, played = self.side.sampler, PlayedTree(job)
        KNOWN.set({} if "sandbox" in self.again else self.answers)
        KEPT.set(context.scores.answers)
        try:
            with plugin_call(sampler, "play"):
                tree = await sampler.play(job.task, job.epoch, job.chain, context)
            await asyncio.gather(*context.background)
            await score_episodes(
                self.side.reward_sources, context.scores, [tree], list(self.side.team.members)
            )
        except Exception as error:  # also a bug that a plugin has since the run
            what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            played.error = " ".join((what, *getattr(error, "__notes__", ())))
            for task in context.background:
                task.cancel()
            await asyncio.gather(*context.background, return_exceptions=True)
            return played
        played.tree = tree
        played.scores.merge(context.scores)
        return played


def _refuse(sandbox: Any, unanswered: list[str]) -> None:
    """Have a sandbox of a composed run refuse every program."""

    async def refused(program: Any, *rest: Any) -> Any:
        unanswered.append(str(getattr(program, "code", getattr(program, "candidate", ""))))
        raise SystemFault("the record has no result of this program")

    for method in RUNS_PROGRAMS:
        if hasattr(sandbox, method):
            object.__setattr__(sandbox, method, refused)


Cell = Mapping[tuple[str, str], Score]
ASKED = "taken from the record"
"""The reason of the scores for which `RecordedScores` writes the recorded ones."""
KINDS = {"sandbox": "sandbox", "chat_model": "coach"}
"""What `--again` calls the component that a plugin asks."""


def asks(plugin: Any) -> set[str]:
    """What a plugin needs besides this process: `sandbox`, `coach`."""
    config = getattr(plugin, "config", None)
    fields = composed_fields(type(config)) if isinstance(config, PluginConfig) else {}
    needed = {KINDS[kind] for name, kind in fields.items() if kind in KINDS and getattr(config, name)}
    if isinstance(plugin, CountsCalls) and plugin.calls_per_view:
        needed.add("coach")
    return needed


class RecordedSource:
    """A reward source that isn't asked: `RecordedScores` has what it answered."""

    def __init__(self, plugin: Any) -> None:
        self._plugin, self.scope, self.policy_fault = plugin, plugin.scope, plugin.policy_fault
        self.components: Mapping[str, ComponentKind] = plugin.components
        self.weights: Mapping[str, float] = plugin.weights
        self.background = isinstance(plugin, RunsInBackground) and plugin.background
        record_origin(self, origin_of(plugin))

    async def score(self, view: Any) -> Any:
        """Raise a fault, which the core writes as a score of this source without a warning."""
        raise PolicyFault(ASKED)


class RecordedSourceWithFeedback(RecordedSource):
    """One whose scores later roles read of."""

    def feedback(self, role: str, score: Score) -> str:
        return str(self._plugin.feedback(role, score))


def recorded_source(source: NamedRewardSource) -> NamedRewardSource:
    """The source with its plugin replaced."""
    made = RecordedSourceWithFeedback if isinstance(source.plugin, ShowsFeedback) else RecordedSource
    return replace(source, plugin=made(source.plugin), _slots=None)


class RecordedScores(Scores):
    """A table that writes a source's recorded scores where the source would have been asked."""

    __slots__ = ("_recorded", "_written")

    def __init__(self, recorded: Mapping[str, Mapping[str, Cell]]) -> None:
        super().__init__()
        self._recorded = recorded
        self._written: set[tuple[Key, str]] = set()

    def add(self, key: Key, role: str, component: str, score: Score) -> None:
        """Add one score; of a source that wasn't asked all that the record has at the place, once."""
        if score.reason != f"floor: {ASKED}":
            super().add(key, role, component, score)
        elif (key, score.source) not in self._written:
            self._written.add((key, score.source))
            for owner, known in self._recorded.get(key.text(), {}).get(score.source, {}).items():
                super().add(key, *owner, known)


def recorded_cells(
    rows: Iterable[Row], sources: Sequence[NamedRewardSource]
) -> dict[str, dict[str, dict[tuple[str, str], Score]]]:
    """Text of a key -> source -> {(role or TEAM, component): score}, of the sources' components."""
    source_of = {component: source.name for source in sources for component in source.plugin.components}
    table: dict[str, dict[str, dict[tuple[str, str], Score]]] = {}
    for row in rows if source_of else ():
        if row["kind"] not in ("branch", "joint"):
            continue
        branch = row["kind"] == "branch"
        key = f"{row['node']}/{row['role']}/b{row['branch']}" if branch else f"{row['node']}/j{row['joint']}"
        for owner, value, reason, comment in _scores_of(row, source_of):
            name, whole = source_of[owner[1]], owner[1] in row.get("whole", ())
            score = Score(value, reason, name, whole, comment)
            table.setdefault(key, {}).setdefault(name, {})[owner] = score
    return table


def _scores_of(
    row: Row, components: Iterable[str]
) -> Iterator[tuple[tuple[str, str], float | None, str, str]]:
    """((role or TEAM, component), value, reason, comment) of a row's own scores."""
    names = sorted(components, key=len, reverse=True)
    for text, value in row["own_scores" if row["kind"] == "branch" else "scores"].items():
        for component in names:
            if text.endswith(f".{component}"):
                owner = text.removesuffix(f".{component}")
                short = component if owner == row.get("role") else text
                yield (
                    (owner, component),
                    value,
                    row["reasons"].get(short, ""),
                    row.get("comments", {}).get(short, ""),
                )
                break


# ---------------------------------------------------------------------- sources that score beside the run's

SUFFIX = "~again"
"""Of the components of a source that scores beside another one."""


class Shadow(RecordedSource):
    """A reward source under other names of its components."""

    def __init__(self, plugin: Any) -> None:
        super().__init__(plugin)
        self.components = {f"{name}{SUFFIX}": kind for name, kind in plugin.components.items()}
        self.weights = dict.fromkeys(self.components, 0.0)

    async def score(self, view: Any) -> Any:
        table = await self._plugin.score(view)
        return _renamed(table) if isinstance(table, Mapping) else [_renamed(each) for each in table]


def _renamed(table: Mapping[tuple[str, str], Any]) -> dict[tuple[str, str], Any]:
    return {(owner, f"{component}{SUFFIX}"): value for (owner, component), value in table.items()}


def with_shadows(
    sources: Sequence[NamedRewardSource], others: Sequence[NamedRewardSource]
) -> list[NamedRewardSource]:
    """The sources, each followed by the one of `others` with its name, which then scores beside it."""
    by_name = {other.name: other for other in others}
    both: list[NamedRewardSource] = []
    for source in sources:
        both.append(source)
        if (other := by_name.get(source.name)) is not None:
            shadow = Shadow(other.plugin)
            per_role = [f"{name}{SUFFIX}" for name in other.per_role]
            weights = dict(shadow.weights)
            both.append(
                replace(other, plugin=shadow, weights=weights, per_role=per_role, failed=True, _slots=None)
            )
    return both


def ignoring_shadows(weights: RewardWeights, others: Sequence[NamedRewardSource]) -> RewardWeights:
    """The weights with which what the shadows score counts nothing during play."""
    names = [f"{name}{SUFFIX}" for other in others for name in other.plugin.components]
    return replace(weights, weights={**weights.weights, **dict.fromkeys(names, 0.0)})


def divided(scores: Scores, replaced: Collection[str]) -> tuple[Scores, Scores]:
    """The scores of the run's own sources, and those with the shadows' in their place.

    Args:
        replaced: components that shadows score too.
    """
    ours, other = Scores(), Scores()
    ours.answers |= scores.answers
    for key, role, component, score in scores:
        if component.endswith(SUFFIX):
            other.add(key, role, component.removesuffix(SUFFIX), score)
        else:
            ours.add(key, role, component, score)
            if component not in replaced:
                other.add(key, role, component, score)
    return ours, other
