"""The prompts of a sample episode, made as a run makes them, without a model: answers are the oracle's or
empty, and nothing is scored."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from coterie.core.errors import UserError
from coterie.core.plugins.origin import closed, origin_of, plugin_call
from coterie.core.protocols import (
    ActionView,
    Codec,
    EngineClient,
    Member,
    NamedRewardSource,
    PromptRequest,
    RolloutJob,
    Sampler,
)
from coterie.core.protocols.reward import ShowsFeedback
from coterie.core.protocols.tool import Closes, Opens
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.side import LocalRolloutSide
from coterie.core.types import (
    Action,
    Call,
    Fault,
    HistoryEntry,
    Key,
    Message,
    Request,
    RoleInput,
    Sampling,
    Score,
    Task,
)
from coterie.core.types.digest import digest
from coterie.core.types.seeding import generator
from coterie.data.prompts import NoTokens
from coterie.discovery.members import CountsCalls, Demonstrates

log = logging.getLogger("coterie")
T = TypeVar("T")
TASK = "--task"
"""The path of the error about a number that no task has."""
MOST_TURNS = 2
"""Turns that are played: later ones add what the second one does."""
REPEATS = 3
"""Times that a prompt is made again: a draw may fall as before."""
NOISE = 1.0
"""Of the oracle: with errors the task isn't solved at once, and there is a second turn."""


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """A prompt of the sample episode, and what its role was given."""

    role: str
    turn: int
    role_input: RoleInput
    sentences: int
    """Sentences of the feedback that the transition mode wrote; the others are comments."""
    request: PromptRequest
    codec: Codec


@dataclass(frozen=True, slots=True)
class SampleEpisode:
    """The prompts of one task, in the order in which they were made."""

    task: Task
    prompts: list[SamplePrompt]
    answers: str
    """What the answers are: `the oracle's, with errors` or `empty`."""
    ended: str = ""
    """Why it ended before its time; empty: it didn't."""
    drawn: Sequence[str] = ()
    """The methods that gave another prompt when they were called again: `role 'x' of y: render`."""


class TextsAlone(NoTokens):
    """A codec for policies whose tokenizer can't be had: prompts have no ids, and answers are kept as they
    are."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def decode(self, call: Call) -> str:
        return self._texts[call.token_ids[0]]

    def encode_completion(self, text: str) -> tuple[int, ...]:
        self._texts.append(text)
        return (len(self._texts) - 1,)


@dataclass(slots=True)
class GivenAnswers:
    """An engine client whose answers are given."""

    codecs: Mapping[str, Codec]
    next: tuple[str, Codec] = field(default=("", cast(Codec, TextsAlone())))
    """The next answer, and the codec of its role."""

    def codec(self, policy: str) -> Codec:
        return self.codecs[policy]

    async def generate(self, request: Request) -> Call:
        text, codec = self.next
        ids = tuple(codec.encode_completion(text))
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=ids,
            logprobs=(0.0,) * len(ids),
            version=0 if request.version is None else request.version,
            finish="stop",
            continues=request.continues,
        )

    async def active(self, work: Awaitable[T]) -> T:
        return await work

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        return [await each for each in work]  # one after the other: `next` is that of one call


class _Comments:
    """In the place of a reward source that shows feedback: it asks nobody, and its comment is a blank."""

    scope = "action"
    components: Mapping[str, Any] = {"comment": "increment"}
    weights: Mapping[str, float] = {}
    policy_fault = 0.0

    def __init__(self, name: str, plugin: Any) -> None:
        self._text, self._plugin = f"(what '{name}' writes of this action)", plugin

    async def score(self, view: ActionView) -> Mapping[tuple[str, str], Score]:
        return {(view.role, "comment"): Score(0.0, comment=self._text)}

    def feedback(self, role: str, score: Score) -> str:
        return str(self._plugin.feedback(role, score))


class _Context(JobContext):
    """The context of a job, which notes what roles are given and answers for them."""

    client: GivenAnswers
    inputs: list[RoleInput]
    sentences: list[int]
    prompts: list[SamplePrompt]
    states: dict[str, Any]
    rendered: Sequence[Message]
    drawn: dict[str, None]
    fault: str

    async def ask(
        self, role: str, state: Any, turn: int, history: tuple[HistoryEntry, ...], sampling: Sampling
    ) -> PromptRequest:
        self.sentences.append(0)
        request = await super().ask(role, state, turn, history, sampling)
        self.states[role] = state
        codec = self.codec(request.policy, role)
        self.prompts.append(SamplePrompt(role, turn, self.inputs[-1], self.sentences[-1], request, codec))
        self.fault = self.fault or request.lost or request.overflow
        self._call_again(role, state)
        return request

    def _call_again(self, role: str, state: Any) -> None:
        """Note the method that gives another prompt at a second call."""
        plugin, given, first = self.team.members[role].role, self.inputs[-1], [*self.rendered]
        with suppress(Exception):  # the first call was sound, and its prompt stands
            for _ in range(REPEATS):
                if [*plugin.render(given)] != first:
                    self.drawn[f"{origin_of(plugin)}: render"] = None
                    return
                if digest(self.environment.observe(state, role)) != digest(given.observation):
                    self.drawn[f"{origin_of(self.environment)}: observe"] = None
                    return

    async def act(self, key: Key, request: PromptRequest) -> Action:
        text, environment = "", self.environment
        if isinstance(environment, Demonstrates):
            rng = generator(self.run_seed, f"sample {key.text()}", request.role)
            with plugin_call(environment, "demonstrate"):
                text = environment.demonstrate(self.states[request.role], request.role, NOISE, rng)
        self.client.next = (text, self.codec(request.policy, request.role))
        return await super().act(key, request)

    async def step(self, *args: Any) -> Any:
        stepped = await super().step(*args)
        if isinstance(stepped, Fault) and stepped.kind == "system":
            self.fault = stepped.reason
        return stepped


async def sample_episode(
    side: LocalRolloutSide, sampler: Sampler, codecs: Mapping[str, Codec], number: int = 0
) -> SampleEpisode:
    """Play the first turns of a train task with made-up answers, and keep each prompt.

    The run's sampler plays one path. Sandboxes are opened, no model is asked, and nothing is scored; what a
    coach or an expert would write stands as a text in parentheses.

    Args:
        codecs: by policy; a role of another policy has texts alone.
        number: of the task in the train split.

    Raises:
        UserError: the tasks can't be read here.
    """
    environment = side.environment
    with plugin_call(environment, "tasks"):
        tasks = environment.tasks("train", side.seed)
    if not 0 <= number < len(tasks):
        why = f"there are {len(tasks):,}, from 0 on"
        raise UserError(f"there is no train task {number}", path=TASK, why=why, fix="choose another number")
    task = tasks[number]
    known = {name: codecs.get(name, cast(Codec, TextsAlone())) for name in side.team.policies.values()}
    context = _context(side, task, GivenAnswers(known))
    with plugin_call(sampler, "for_evaluation"):
        player = sampler.for_evaluation(False)
    ended = ""
    try:
        async with _sandboxes(side):
            await player.play(task, 0, 0, context)
    except Exception as error:  # a plugin's mistake, or what it needs isn't open; prompts before it stand
        if not context.prompts:
            raise
        log.debug("the sample episode broke off", exc_info=True)
        ended = next(iter(str(error).strip().splitlines()), type(error).__name__)
    answers = "the oracle's, with errors" if isinstance(environment, Demonstrates) else "empty"
    return SampleEpisode(task, context.prompts, answers, ended or context.fault, [*context.drawn])


@asynccontextmanager
async def _sandboxes(side: LocalRolloutSide) -> AsyncIterator[None]:
    """The sandboxes of a side, open; where one can't be, the first step that needs it says so."""
    async with AsyncExitStack() as opened:
        for resource in side.resources:
            if origin_of(resource).kind != "sandbox" or not isinstance(resource, Opens):
                continue
            try:
                await resource.open()
            except Exception:
                log.debug("%s can't be opened", origin_of(resource), exc_info=True)
                continue
            if isinstance(resource, Closes):
                opened.push_async_callback(closed, resource)
        yield


def _context(side: LocalRolloutSide, task: Task, client: GivenAnswers) -> _Context:
    """The context in which the job is played."""
    plain = side.context(RolloutJob(task=task), cast(EngineClient, client))
    context = _Context(**{each.name: getattr(plain, each.name) for each in dataclasses.fields(JobContext)})
    context.client, context.inputs, context.sentences = client, [], []
    context.prompts, context.states, context.fault = [], {}, ""
    context.rendered, context.drawn = [], {}
    context.stop_above, context.tool_codecs = None, {}
    context.reward_sources = [
        NamedRewardSource(source.name, cast(Any, _Comments(source.name, source.plugin)), {})
        for source in side.reward_sources
        if isinstance(source.plugin, ShowsFeedback)
    ]
    members = {name: _noting(member, context) for name, member in side.team.members.items()}
    context.team = dataclasses.replace(
        side.team,
        members=members,
        max_turns=min(side.team.max_turns, MOST_TURNS),
        transition=_telling(side.team.transition, context),
    )
    return context


def _noting(member: Member, context: _Context) -> Member:
    """The member whose role notes its inputs."""
    role = member.role

    def render(role_input: RoleInput) -> Sequence[Message]:
        context.inputs.append(role_input)
        context.rendered = role.render(role_input)
        return context.rendered

    return dataclasses.replace(member, role=_with(role, "render", render))


def _telling(transition: Any, context: _Context) -> Any:
    """The transition mode, which notes how many sentences it wrote; one that asks a model is not asked."""
    asks = isinstance(transition, CountsCalls) and transition.calls_per_view > 0

    async def tell(*args: Any) -> Sequence[str]:
        name = origin_of(transition).name
        sentences = [f"(what '{name}' writes, which asks a model)"] if asks else await transition.tell(*args)
        if isinstance(sentences, Sequence):
            context.sentences[-1] = len(sentences)
        return cast(Sequence[str], sentences)

    return _with(transition, "tell", tell)


def _with(plugin: Any, name: str, method: Callable[..., Any]) -> Any:
    """A shallow copy of a plugin with another method."""
    changed = copy.copy(plugin)
    object.__setattr__(changed, name, method)
    return changed
