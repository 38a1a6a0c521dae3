"""Play from a recorded state on, with one role's action replaced or as it was recorded.

The run's own sampler plays one chain of the task. Up to the state, and for the other roles that act in it, it
gets the recorded calls, and the environment's draws are those of the recorded places. From the state on, the
environment and the policies draw afresh, keyed by the sample and not by the arm: so both arms meet the same
draws wherever they ask at the same place, and the recorded action doesn't profit from the luck for which it
may have been selected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from coterie.analysis.credit.component_returns import Rules, component_returns
from coterie.analysis.recorded_engine import (
    CALL,
    RecordedActions,
    RecordedClient,
    RecordedTool,
    place_of,
    with_recorded_tools,
)
from coterie.api.episodes import (
    RecordedEpisode,
    RecordedNode,
    RecordedTree,
    is_lost,
    mean_advantage,
    trees_of,
)
from coterie.api.rollouts import rollout_rows
from coterie.core.protocols import EngineClient, PromptRequest, RolloutJob, Sampler
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.rewards import score_episodes
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.training.run import Run
from coterie.core.types import Action, HistoryEntry, Key, Sampling, Task, Tree
from coterie.core.types.seeding import seed64

FRESH = 1_000_000
"""Chain index of the first sample: no run has so many chains, so no draw is one of training."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """A state on a recorded path, and the joint action in which a role's action is replaced."""

    tree: RecordedTree
    path: tuple[tuple[RecordedNode, int], ...]
    """The nodes before it, each with the joint action taken."""
    node: RecordedNode
    joint: int
    """Of the node: the other roles act as in it."""
    role: str
    task: Task
    level: int | None = None

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def acted(self) -> int:
        """How often the role acted before."""
        return sum(self.role in node.joints[index]["branches"] for node, index in self.path)

    def key(self, depth: int) -> Key:
        """Key of the recorded node at a depth of the path, this state's included."""
        key = Key(self.tree.task_id, self.tree.epoch, self.tree.chain)
        for _, index in self.path[:depth]:
            key = key.child(index)
        return key

    def taken(self, depth: int) -> tuple[RecordedNode, int]:
        """(recorded node, joint action) at a depth."""
        return self.path[depth] if depth < self.depth else (self.node, self.joint)


@dataclass(frozen=True, slots=True)
class Arm:
    """What the role does in the state."""

    branch: int | None = None
    """The recorded action; None: `policy` acts."""
    policy: str | None = None
    """A policy of the engine; None: the role is silent."""


@dataclass(frozen=True, slots=True)
class Playout:
    """What an episode came to."""

    value: float | None
    """Its return to the role, the part before the state included; None: a score is missing."""
    success: float | None
    reached: bool = True
    """Whether play came to the recorded state."""
    fault: str = ""
    """Of one that didn't: the fault of the system that ended it before; empty: there was none."""


@dataclass(slots=True, kw_only=True)
class PlayoutContext(JobContext):
    """A context that repeats the record up to a state."""

    state: RecordedState
    arm: Arm

    def seed(self, key: Key, purpose: str) -> int:
        """The recorded place's bits before the state; else those of the sample."""
        depth = len(key.path)
        if purpose != "reset" and depth < self.state.depth:
            recorded = self.state.key(depth)
            joint = self.state.path[depth][1] if key.joint >= 0 else -1
            key = recorded._replace(role=key.role, branch=key.branch, joint=joint, call=key.call)
        return seed64(self.run_seed, key, purpose)

    async def ask(
        self, role: str, state: Any, turn: int, history: tuple[HistoryEntry, ...], sampling: Sampling
    ) -> PromptRequest:
        # No zero-argument super(): slots=True makes a new class, which that form doesn't find.
        here = role == self.state.role and len(history) == self.state.acted
        if not here or self.arm.branch is not None:
            return await JobContext.ask(self, role, state, turn, history, sampling)
        job = replace(self.job, policies={**self.job.policies, role: self.arm.policy})
        return await JobContext.ask(replace(self, job=job), role, state, turn, history, sampling)

    async def act(self, key: Key, request: PromptRequest) -> Action:
        depth = len(key.path)
        if depth <= self.state.depth:
            node, index = self.state.taken(depth)
            branch: int | None = node.joints[index]["branches"].get(request.role)
            if depth == self.state.depth and request.role == self.state.role:
                branch = self.arm.branch
            if branch is not None:
                key = self.state.key(depth).of_branch(request.role, branch)
        return await JobContext.act(self, key, request)


class EitherTool(RecordedTool):
    """A tool that answers recorded calls with what it answered then, and others itself."""

    async def run(self, call: Any) -> str:
        key = CALL.get()
        if key is not None and place_of(key) in self._actions.branches:
            return await super().run(call)
        return str(await self._tool.run(call))


@dataclass(slots=True)
class Player:
    """Plays from recorded states of one step."""

    side: LocalRolloutSide
    """Opened."""
    sampler: Sampler
    """For evaluation: one chain of one branch."""
    engine: EngineClient
    """Of the opened run."""
    actions: RecordedActions
    rules: Rules
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(512))

    async def play(self, state: RecordedState, arm: Arm, sample: int) -> Playout:
        """Play one sample of an arm to its end."""
        async with self.gate:
            context, client = self._context(state, arm, sample)
            try:
                playing = self.sampler.play(state.task, state.tree.epoch, FRESH + sample, context)
                tree = await client.active(playing)
                if context.background:
                    await asyncio.gather(*context.background)
            except BaseException:
                for task in context.background:
                    task.cancel()
                await asyncio.gather(*context.background, return_exceptions=True)
                raise
            roles = list(self.side.team.members)
            await score_episodes(self.side.reward_sources, context.scores, [tree], roles)
        if not _reached(tree, state, arm):
            return Playout(None, None, reached=False, fault=_fault(tree))
        return self._judged(tree, context, state)

    def _context(self, state: RecordedState, arm: Arm, sample: int) -> tuple[PlayoutContext, RecordedClient]:
        client = RecordedClient(self.actions, otherwise=self.engine)
        job = RolloutJob(
            task=state.task, epoch=state.tree.epoch, chain=FRESH + sample, level=state.level, versions={}
        )
        plain = self.side.context(job, client)
        values: dict[str, Any] = {each.name: getattr(plain, each.name) for each in fields(JobContext)}
        members = with_recorded_tools(plain.team.members, self.actions, EitherTool)
        values["team"] = replace(plain.team, members=members)
        return PlayoutContext(**values, state=state, arm=arm), client

    def _judged(self, tree: Tree, context: PlayoutContext, state: RecordedState) -> Playout:
        made = rollout_rows([tree], context.scores, None, self.side.reward_weights)
        (played,) = trees_of(made)
        returns = component_returns(played, self.rules)
        key = list(tree.nodes())[state.depth].key.text()
        value = returns[key, state.role, 0]["episode"].value
        ends = [leaf.outcome for _, leaf in tree.leaves() if leaf.outcome is not None and not leaf.lost]
        success = float(ends[0]["success"]) if ends else None
        return Playout(value, success)


def _fault(tree: Tree) -> str:
    """The reason of the first fault of the system in a played chain; empty: there is none."""
    for node in tree.nodes():
        actions = (action.fault for decision in node.decisions.values() for action in decision.branches)
        for fault in (*actions, *(joint.fault for joint in node.joints)):
            if fault is not None and fault.kind == "system":
                return fault.reason
    return ""


def _reached(tree: Tree, state: RecordedState, arm: Arm) -> bool:
    """Whether the states of a played chain are the recorded ones, and so are the actions that are kept."""
    nodes = list(tree.nodes())
    if len(nodes) <= state.depth:
        return False
    for depth, played in enumerate(nodes[: state.depth + 1]):
        node, index = state.taken(depth)
        for role, decision in node.decisions.items():
            if role not in played.decisions or played.state_digest != decision.prompt["state_digest"]:
                return False
            replaced = depth == state.depth and role == state.role
            branch = arm.branch if replaced else node.joints[index]["branches"][role]
            text = played.decisions[role].branches[0].text
            if branch is not None and text != decision.branches[branch]["completion"]:
                return False
    return True


@dataclass(frozen=True, slots=True)
class ChosenAction:
    """A recorded action to be checked."""

    state: RecordedState
    branch: int
    drawn: bool
    """Whether it was drawn among all of its prompt; else it was added for its advantage, of the other sign
    than the drawn one's, and counts in the comparison with advantages alone."""

    @property
    def advantage(self) -> float | None:
        return mean_advantage(self.state.node.decisions[self.state.role].branches[self.branch])


def choices(
    run: Run, trees: Mapping[int, Sequence[RecordedTree]], tasks: int, roles: Collection[str] = ()
) -> list[ChosenAction]:
    """The actions that are checked.

    Of each task that is drawn, one recorded episode is walked; at each of its states every role's action is
    drawn among those of its prompt that were played, with the others of its joint action. An action of the
    same role and turn with an advantage of the other sign joins it where there is one: a sibling of its
    prompt, else of another chain of the task.

    Args:
        trees: by step.
        tasks: most tasks.
        roles: only these; empty: all.
    """
    by_task: dict[str, list[RecordedTree]] = {}
    for of_step in trees.values():
        for tree in of_step:
            by_task.setdefault(tree.task_id, []).append(tree)
    seed = run.config.seed
    names = sorted(by_task, key=lambda name: seed64(seed, name, "credit check task"))[:tasks]
    known: dict[int, dict[tuple[str, int], tuple[Task, int | None]]] = {}
    result: list[ChosenAction] = []
    for name in names:
        ordered = sorted(by_task[name], key=lambda tree: seed64(seed, _name(tree), "credit check tree"))
        drawn = ordered[0]
        if drawn.step not in known:
            known[drawn.step] = tasks_of(run, drawn.step, trees[drawn.step])
        place = known[drawn.step].get((drawn.task_id, drawn.epoch))
        if place is None:
            continue
        first = [*_of_tree(drawn, *place, seed, roles)]
        result += first
        others = [tree for tree in ordered[1:] if (tree.step, tree.epoch) == (drawn.step, drawn.epoch)]
        result += _counterparts(first, others, *place, seed)
    return result


def _name(tree: RecordedTree) -> str:
    return f"{tree.step} {tree.root.key}"


def _of_tree(
    tree: RecordedTree, task: Task, level: int | None, seed: int, roles: Collection[str]
) -> Iterator[ChosenAction]:
    """The drawn actions on one episode of a tree, and their siblings of the other sign."""
    for state, key in _states(tree, task, level, seed):
        if roles and state.role not in roles:
            continue
        branch = state.node.joints[state.joint]["branches"][state.role]
        choice = ChosenAction(state, branch, drawn=True)
        yield choice
        siblings = state.node.decisions[state.role].branches
        others = [
            index
            for index, row in enumerate(siblings)
            if _opposite(choice.advantage, mean_advantage(row)) and not is_lost(row)
        ]
        if others:
            yield ChosenAction(
                state, others[seed64(seed, key, "credit check sibling") % len(others)], drawn=False
            )


def _states(
    tree: RecordedTree, task: Task, level: int | None, seed: int
) -> Iterator[tuple[RecordedState, str]]:
    """The states of an episode of a tree with a drawn joint action each, once a role that acts there."""
    episode = _drawn_episode(tree, seed)
    path: list[tuple[object, int]] = []
    for node, taken in episode.path:
        played = [
            index
            for index, joint in enumerate(node.joints)
            if joint["branches"] and not joint["recombined"] and not is_lost(joint)
        ]
        if played and node.decisions:
            joint = played[seed64(seed, f"{tree.step} {node.key}", "credit check joint") % len(played)]
            for role in node.decisions:
                yield RecordedState(tree, tuple(path), node, joint, role, task, level), f"{node.key} {role}"  # type: ignore[arg-type]
        if taken is None:
            return
        path.append((node, taken))


def _drawn_episode(tree: RecordedTree, seed: int) -> RecordedEpisode:
    """One path of a tree, with the probability that it has in a walk from the root."""
    share = seed64(seed, _name(tree), "credit check episode") / 2**64
    episodes = list(tree.episodes())
    for episode in episodes:
        share -= episode.share
        if share < 0:
            return episode
    return episodes[-1]


def _counterparts(
    choices: Sequence[ChosenAction], others: Sequence[RecordedTree], task: Task, level: int | None, seed: int
) -> Iterator[ChosenAction]:
    """For drawn actions without such a sibling: one of another chain."""
    paired = {id(choice.state) for choice in choices if not choice.drawn}
    for choice in choices:
        if not choice.advantage or id(choice.state) in paired:
            continue
        counterparts = (
            ChosenAction(state, state.node.joints[state.joint]["branches"][state.role], drawn=False)
            for tree in others
            for state, _ in _states(tree, task, level, seed)
            if (state.role, state.node.turn, state.node.stage)
            == (choice.state.role, choice.state.node.turn, choice.state.node.stage)
        )
        yield from [other for other in counterparts if _opposite(choice.advantage, other.advantage)][:1]


def _opposite(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and a * b < 0


def tasks_of(
    run: Run, step: int, trees: Sequence[RecordedTree]
) -> dict[tuple[str, int], tuple[Task, int | None]]:
    """(id, epoch) -> the task and the curriculum's level of a recorded step's trees, where there is one.

    Looked for among the tasks that the step plays, then among all of each level.
    """
    wanted = {(tree.task_id, tree.epoch) for tree in trees}
    result: dict[tuple[str, int], tuple[Task, int | None]] = {}
    for index, order in enumerate(run.orders):
        level = None if run.curriculum is None else index
        for task, epoch in order.step(step - 1, run.config.schedule.tasks_per_step):
            if (task.id, epoch) in wanted:
                result.setdefault((task.id, epoch), (task, level))
    missing = wanted - result.keys()
    if missing:  # tasks_per_step was another
        for index, order in enumerate(run.orders):
            level = None if run.curriculum is None else index
            for task, _ in order.step(0, len(order)):
                for name, of in [pair for pair in missing if pair[0] == task.id]:
                    result.setdefault((name, of), (task, level))
    return result
