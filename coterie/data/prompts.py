"""Prompts of an episode without a model: the environment is played, and the answers are not sampled.

The answers are those that the user gives, else the oracle's, else a sample that names its role.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from coterie.compose import RolloutParts
from coterie.core.errors import PluginError, PolicyFault, SystemFault, UserError, did_you_mean
from coterie.core.plugins.origin import closed, failure, plugin_call
from coterie.core.protocols import Codec, EngineClient, PromptRequest, RolloutJob, Sandbox
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.turns import History, Stage, extended, first_stage, next_stage
from coterie.core.types import Action, Call, Fault, Key, Message, Prompt, Task
from coterie.core.types.seeding import generator, seed64
from coterie.discovery.members import Demonstrates

MOST = 100
"""Prompts of an episode after which it is cut."""
NOISES = (0.0, 0.5, 1.0)
"""Rates of errors at which the oracle plays, in turn, until the episode reaches the turns that are wanted."""


@dataclass(slots=True)
class ShownPrompt:
    """One prompt of an episode."""

    turn: int
    role: str
    messages: Sequence[Message]
    answer: str | None = None
    """None: the episode ended before the role was asked."""
    by: Literal["given", "oracle", "sample"] | None = None
    fault: str | None = None
    """Why the role can't read the answer; None: it can."""


@dataclass(slots=True)
class PromptedEpisode:
    """The prompts of an episode, in order, and how it ended."""

    prompts: list[ShownPrompt] = field(default_factory=list)
    turns: int = 0
    """Turns that were reached."""
    end: str = ""
    noise: float = 0.0
    """The oracle's rate of errors."""


def play(
    run: RolloutParts, tasks: Sequence[Task], turns: int, answers: Mapping[str, str]
) -> list[PromptedEpisode]:
    """Play an episode of each task and keep the prompts.

    The sandboxes of the run are opened: the steps of an environment may run programs. Where that fails, only
    the prompts of the start are kept, and the episodes' `end` says why.

    Args:
        turns: most turns that are played.
        answers: by role, the text that it answers in every turn.

    Raises:
        UserError: there is no such role in the team.
    """
    for role in answers:
        check_role(run, role, "--answer")
    return asyncio.run(_play_all(run, tasks, turns, answers))


def check_role(run: RolloutParts, role: str, option: str) -> None:
    """Raise a UserError if the team has no such role."""
    if role not in run.team.members:
        fix = did_you_mean(role, run.team.members)
        raise UserError(f"'{role}' is no role of the team", path=option, fix=fix)


async def _play_all(
    run: RolloutParts, tasks: Sequence[Task], turns: int, answers: Mapping[str, str]
) -> list[PromptedEpisode]:
    async with AsyncExitStack() as opened:
        try:
            for resource in run.side.resources:
                if isinstance(resource, Sandbox):
                    with plugin_call(resource, "open"):
                        await resource.open()
                    opened.push_async_callback(closed, resource)
        except (UserError, SystemFault, OSError) as error:
            what = error.what if isinstance(error, UserError) else str(error)
            starts = [await _Player(run, task, 0, answers, 0.0).play() for task in tasks]
            return [replace(start, end=f"nothing is played: {what}") for start in starts]
        return [await _episode(run, task, turns, answers) for task in tasks]


async def _episode(run: RolloutParts, task: Task, turns: int, answers: Mapping[str, str]) -> PromptedEpisode:
    """The episode that reaches most of the wanted turns; of equals the one with the fewest errors."""
    wanted = min(turns, run.team.max_turns)
    oracle = isinstance(run.environment, Demonstrates) and any(r not in answers for r in run.team.members)
    episodes: list[PromptedEpisode] = []
    for noise in NOISES if oracle else NOISES[:1]:
        episodes.append(await _Player(run, task, turns, answers, noise).play())
        if episodes[-1].turns >= wanted:
            break
    return max(episodes, key=lambda episode: episode.turns)


class _Player:
    """Plays one episode."""

    def __init__(
        self, run: RolloutParts, task: Task, turns: int, answers: Mapping[str, str], noise: float
    ) -> None:
        self.run, self.task, self.turns, self.answers = run, task, turns, answers
        self.context: JobContext = run.side.context(RolloutJob(task=task), cast(EngineClient, _Client()))
        self.rng = generator(run.config.seed, Key(task.id), "shown answers")
        self.episode = PromptedEpisode(noise=noise)

    async def play(self) -> PromptedEpisode:
        run, env, episode = self.run, self.run.environment, self.episode
        with plugin_call(env, "reset"):
            state = env.reset(self.task, seed64(run.config.seed, Key(self.task.id), "reset"))
        history: History = {}
        key, stage = Key(self.task.id), first_stage(env, run.team.order, state)
        turn, over = 0, True
        while stage is not None and stage.turn < self.turns and len(episode.prompts) < MOST:
            turn = stage.turn
            prompts, actions = await self._act(stage, state, history)
            step = await self.context.step(self.task, key, turn, state, actions)
            if isinstance(step, Fault):
                episode.end = f"the step failed in turn {turn + 1}: {step.reason}"
                break
            history = extended(history, turn, prompts, actions, step.info)
            state, key = step.state, key.child(0)
            stage, over = next_stage(env, run.team.order, run.team.max_turns, stage, step)
        episode.turns = turn + 1 if episode.prompts else 0
        episode.end = episode.end or self._end(stage, turn, over)
        await self._unreached(state, turn, history)
        return episode

    async def _act(
        self, stage: Stage, state: Any, history: History
    ) -> tuple[dict[str, tuple[Any, Sequence[Message]]], dict[str, Action]]:
        """The prompts and the actions of a stage."""
        prompts: dict[str, tuple[Any, Sequence[Message]]] = {}
        actions: dict[str, Action] = {}
        for role in stage.roles:
            request = await self._ask(role, state, stage.turn, history)
            shown = ShownPrompt(stage.turn, role, request.messages)
            self._answer(shown, state)
            actions[role] = self._action(shown, request)
            prompts[role] = request.observation, request.messages
            self.episode.prompts.append(shown)
        return prompts, actions

    async def _ask(self, role: str, state: Any, turn: int, history: History) -> PromptRequest:
        sampling = self.run.side.sampler.sampling(role)
        return await self.context.ask(role, state, turn, history.get(role, ()), sampling)

    def _answer(self, shown: ShownPrompt, state: Any) -> None:
        env, role = self.run.environment, shown.role
        if role in self.answers:
            shown.answer, shown.by = self.answers[role], "given"
        elif isinstance(env, Demonstrates):
            with plugin_call(env, "demonstrate"):
                shown.answer = env.demonstrate(state, role, self.episode.noise, self.rng)
            shown.by = "oracle"
        else:
            shown.answer, shown.by = f"<{role}'s answer>", "sample"

    def _action(self, shown: ShownPrompt, request: PromptRequest) -> Action:
        """The answer as the role reads it, with the faults that play makes of what it can't read."""
        role, text = self.run.team.members[shown.role].role, shown.answer or ""
        try:
            return Action(calls=(), text=text, parsed=role.parse(text, request.observation))
        except PluginError:
            raise
        except PolicyFault as fault:
            shown.fault = str(fault)
        except Exception as error:
            shown.fault = failure(role, "parse", error)
        return Action(calls=(), text=text, fault=Fault(kind="policy", reason=shown.fault))

    def _end(self, stage: Stage | None, turn: int, over: bool) -> str:
        last = self.run.team.max_turns
        if stage is None:
            ended = f"the environment ended the episode in turn {turn + 1}"
            return ended if over else "the team's turns are used up"
        if stage.turn < self.turns:
            return f"{len(self.episode.prompts)} prompts are shown, and turn {turn + 1} goes on"
        rest = f"turn {last} is" if last == stage.turn + 1 else f"turns {stage.turn + 1} to {last} are"
        return f"{rest} left out: --turns {last} shows {'it' if last == stage.turn + 1 else 'them'}"

    async def _unreached(self, state: Any, turn: int, history: History) -> None:
        """Add the prompts of roles that were never asked, as they would be in the last state."""
        asked = {shown.role for shown in self.episode.prompts}
        for role in self.run.team.members:
            if role not in asked:
                request = await self._ask(role, state, turn, history)
                self.episode.prompts.append(ShownPrompt(turn, role, request.messages))


class _Client:
    """An engine client whose prompts are never encoded."""

    def codec(self, policy: str) -> Codec:
        return NoTokens()


class NoTokens:
    """A codec of no tokens, for messages alone."""

    stop_ids: frozenset[int] = frozenset()
    context: int | None = None

    def encode(
        self,
        messages: Sequence[Message],
        previous: Call | None = None,
        previous_messages: Sequence[Message] = (),
    ) -> Prompt:
        return Prompt(ids=())

    def decode(self, call: Call) -> str:
        return ""

    def encode_completion(self, text: str) -> tuple[int, ...]:
        return ()

    def with_tools(self, schemas: Sequence[Mapping[str, Any]]) -> Codec:
        return self
