"""What a sampler rolls a job out with: prompts, actions and steps, with keyed draws and faults kept apart."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coterie.core.errors import ConfigError, PluginError, PolicyFault, SystemFault
from coterie.core.plugins.origin import cancelled, failure, plugin_call
from coterie.core.protocols import (
    Codec,
    EngineClient,
    Environment,
    NamedRewardSource,
    PromptRequest,
    RolloutJob,
    StepContext,
    Team,
    Tool,
)
from coterie.core.protocols.chat_format import DescribesTools
from coterie.core.protocols.environment import DigestsStates
from coterie.core.protocols.reward import ShowsFeedback
from coterie.core.protocols.role import Remembers
from coterie.core.protocols.tool import CountsMetrics, HasSchemas
from coterie.core.protocols.transition import RepeatsTask
from coterie.core.rollout import contracts
from coterie.core.rollout.engine_client import not_counted
from coterie.core.rollout.rewards import write
from coterie.core.rollout.thoughts import split
from coterie.core.rollout.turns import without_oldest
from coterie.core.types import (
    Action,
    Call,
    Fault,
    HistoryEntry,
    Key,
    Message,
    Prompt,
    Request,
    RewardWeights,
    RoleInput,
    Sampling,
    Score,
    Scores,
    Step,
    Task,
)
from coterie.core.types.digest import digest
from coterie.core.types.messages import encodable
from coterie.core.types.seeding import seed64
from coterie.spans import span

T = TypeVar("T")
log = logging.getLogger("coterie")

UNREADABLE = "raise PolicyFault for a text that can't be read; anything else is a bug of the parser"
SILENT = ""
"""The policy of a role that no policy plays: its actions are empty messages, made without a call."""


@dataclass(slots=True)
class ActionBuilder:
    """An action while its calls are made."""

    messages: tuple[Message, ...]
    """Of the last call's prompt, or of the next one's."""
    calls: list[Call] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    text: str = ""
    thought: str = ""
    limit: bool = False

    def build(self, parsed: Any = None, fault: Fault | None = None) -> Action:
        return Action(
            calls=tuple(self.calls),
            text=self.text,
            thought=self.thought,
            parsed=parsed,
            tool_results=tuple(self.results),
            tool_limit=self.limit,
            dialogue=self.messages if self.results else (),
            fault=fault,
        )


@dataclass(slots=True)
class JobContext:
    """The `RolloutContext` of one job."""

    environment: Environment
    team: Team
    engine: EngineClient
    reward_sources: Sequence[NamedRewardSource]
    reward_weights: RewardWeights
    run_seed: int
    job: RolloutJob
    stop_above: float | None = None
    """A joint action that earns at least this, on average over the roles that acted, ends its episode."""
    scores: Scores = field(default_factory=Scores)
    counts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """What `count` added up, by metric."""
    background: list[asyncio.Task[None]] = field(default_factory=list)
    """Scoring that no selection needs and that goes on while episodes are played."""
    tool_codecs: dict[tuple[str, str], Codec] = field(default_factory=dict)
    """By (policy, role): codecs whose prompts describe the role's tools."""
    warned: set[tuple[str, str]] = field(default_factory=set)
    """(role, exception) of the parsers' bugs that were logged."""
    prompted: dict[tuple[str, int], int] = field(default_factory=dict)
    """By (role, number of its earlier actions): the scores with feedback when its prompt was made."""

    @property
    def evaluation(self) -> bool:
        return self.job.evaluation

    def seed(self, key: Key, purpose: str) -> int:
        """64 bits keyed by (run seed, place, purpose)."""
        return seed64(self.run_seed, key, purpose)

    def policy(self, role: str) -> str | None:
        """The policy that plays the role; None: the role is silent."""
        return self.job.policies[role] if role in self.job.policies else self.team.members[role].policy

    def codec(self, policy: str, role: str) -> Codec:
        """A policy's codec; for a role whose tools have schemas, one whose prompts describe them.

        Raises:
            ConfigError: the policy's chat format has no place for tools.
        """
        codec = self.engine.codec(policy)
        tools = self.team.members[role].tools
        schemas = [schema for tool in tools if isinstance(tool, HasSchemas) for schema in tool.schemas]
        if not schemas:
            return codec
        if (policy, role) not in self.tool_codecs:
            described = codec.with_tools(schemas) if isinstance(codec, DescribesTools) else None
            if described is None:
                raise ConfigError(
                    f"the chat format of policy '{policy}' can't describe the tools of role '{role}'",
                    path=f"team.roles.{role}.tools",
                    why="there is no chat template, or it writes no tools",
                    fix="use a model whose chat template takes tools; or set `announce: false` on the tools "
                    "and describe them in the role's prompt",
                )
            self.tool_codecs[policy, role] = described
        return self.tool_codecs[policy, role]

    def digest(self, state: Any) -> str:
        environment = self.environment
        if isinstance(environment, DigestsStates):
            with plugin_call(environment, "digest"):
                return str(contracts.check_async(environment, "digest", environment.digest(state), False))
        try:
            return digest(state)
        except TypeError as error:
            contracts.refuse(environment, "reset or step", state, f"states are plain values; {error}")

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Score in the background; the rollout's scores are complete when it is done."""
        self.background.append(not_counted(work))

    async def gather(self, work: Sequence[Awaitable[T]]) -> list[T]:
        """Run concurrent branches or children as active rollouts."""
        return await self.engine.gather(work)

    def count(self, metric: str, value: float = 1.0) -> None:
        """Add to a metric of the step."""
        self.counts[metric] += value

    async def ask(
        self, role: str, state: Any, turn: int, history: tuple[HistoryEntry, ...], sampling: Sampling
    ) -> PromptRequest:
        """Make a role's prompt: the role renders the observation and the transition mode's feedback."""
        environment, transition, plugin = self.environment, self.team.transition, self.team.members[role].role
        with plugin_call(environment, "observe"):
            seen = contracts.check_async(environment, "observe", environment.observe(state, role), False)
        feedback, lost = self._comments(role, len(history)), ""
        try:
            if history:
                with plugin_call(transition, "tell"):
                    telling = transition.tell(role, state, history, environment)
                    sentences = await contracts.check_async(transition, "tell", telling)
                feedback = [*contracts.check_feedback(transition, sentences), *feedback]
        except SystemFault as fault:
            lost = failure(transition, "tell", fault)
        self._add_counts(transition)
        repeats = not isinstance(transition, RepeatsTask) or transition.original_prompt
        role_input = RoleInput(
            role=role,
            turn=turn,
            observation=seen,
            feedback=tuple(feedback),
            history=history,
            shows_task=not history or repeats,
        )
        with plugin_call(plugin, "render"):
            rendered = plugin.render(role_input)
        messages = contracts.check_messages(plugin, rendered)
        policy = self.policy(role)
        if policy is None:  # no policy reads the prompt, so nothing is encoded
            return PromptRequest(role, SILENT, seen, messages, Prompt(ids=()), sampling, lost=lost)
        codec = self.codec(policy, role)
        if history and isinstance(plugin, Remembers) and plugin.remembers:
            last, answer = history[-1], sampling.max_new_tokens
            before = last.action.dialogue or last.messages
            call = last.action.calls[-1] if last.action.calls else None
            raw = last.action.text if call is None else codec.decode(call)
            messages = (*before, _message("assistant", raw), *messages)
            prompt = codec.encode(messages, call, before)
            if self.team.overflow == "truncate_oldest" and _full(codec, prompt, answer):
                for fewer in without_oldest(messages, len(history[0].messages), len(before) + 1):
                    messages, prompt = fewer, codec.encode(fewer)  # other ids than before: a new Sample
                    if not _full(codec, prompt, answer):
                        break
                self.count("prompts/truncated", float(not _full(codec, prompt)))
        else:
            prompt = codec.encode(messages)
        overflow = ""
        if _full(codec, prompt) and self.team.overflow != "stop":
            overflow = (
                f"the prompt of role '{role}' has {len(prompt.ids)} tokens, and the context of policy "
                f"'{policy}' {codec.context}: shorten what the role renders, or use a longer context"
            )
        return PromptRequest(role, policy, seen, messages, prompt, sampling, overflow, lost)

    def _comments(self, role: str, acted: int) -> list[str]:
        """What reward sources let a role read of the scores since its last of `acted` earlier actions."""
        sources = {s.name: s.plugin for s in self.reward_sources if isinstance(s.plugin, ShowsFeedback)}
        scores = [(owner, score) for _, owner, _, score in self.scores if score.source in sources]
        self.prompted[role, acted] = len(scores)
        comments: list[str] = []
        for owner, score in scores[self.prompted.get((role, acted - 1), 0) :]:
            source = sources[score.source]
            with plugin_call(source, "feedback"):
                text = source.feedback(owner, score)
            comments += contracts.check_feedback(source, [text], "feedback")
        return [text for text in comments if text]

    def _add_counts(self, plugin: Any) -> None:
        """Add what a plugin counted to the metrics of the step."""
        if isinstance(plugin, CountsMetrics):
            with plugin_call(plugin, "counted"):
                counted = plugin.counted()
            contracts.check_metrics(plugin, "counted", counted)
            for metric, value in counted.items():
                self.count(metric, float(value))

    async def act(self, key: Key, request: PromptRequest) -> Action:
        """Sample one branch: a call; while it uses tools, their results and another call.

        A silent role's action has no call; it means what the role's parser makes of "".
        """
        with span("decision", key.decision, shared=True, request=request, actions={}) as about:
            action: Action = about["actions"].setdefault(key.branch, await self._act(key, request))
        return action

    async def _act(self, key: Key, request: PromptRequest) -> Action:
        action = ActionBuilder(request.messages)
        # The overflow is a first prompt's. No policy caused it, so the scores are missing.
        if reason := request.lost or request.overflow:
            return action.build(fault=Fault(kind="system", reason=reason))
        try:
            if request.policy != SILENT:
                await self._generate(key, request, action)
        except SystemFault as fault:
            return action.build(fault=Fault(kind="system", reason=str(fault)))
        except PolicyFault as fault:  # a tool call of the action killed its sandbox twice
            return action.build(fault=Fault(kind="policy", reason=str(fault)))
        role = self.team.members[request.role].role
        try:
            parsed = role.parse(action.text, request.observation)
        except PluginError:
            raise
        except PolicyFault as fault:
            return action.build(fault=Fault(kind="policy", reason=str(fault)))
        except SystemFault as fault:
            return action.build(fault=Fault(kind="system", reason=failure(role, "parse", fault)))
        except (Exception, SystemExit) as error:  # the text broke the parser: a fault of the output
            reason, kind = failure(role, "parse", error), (request.role, type(error).__name__)
            if kind not in self.warned:
                self.warned.add(kind)
                log.warning("%s. It counts as a fault of the policy: %s (told once)", reason, UNREADABLE)
            return action.build(fault=Fault(kind="policy", reason=reason))
        contracts.check_async(role, "parse", parsed, False)
        return action.build(parsed=parsed)

    async def _generate(self, key: Key, request: PromptRequest, action: ActionBuilder) -> None:
        codec, prompt = self.codec(request.policy, request.role), request.prompt
        member = self.team.members[request.role]
        for index in range(member.tool_turns + 1):
            place = key.of_call(index)
            seed, version = self.seed(place, "tokens"), self.job.versions.get(request.policy)
            sent = Request(key=place, policy=request.policy, prompt_ids=prompt.ids, sampling=request.sampling,
                           seed=seed, continues=prompt.continues, version=version)  # fmt: skip
            with span("call", place, request=sent, messages=action.messages) as about:
                call = about["call"] = await self.engine.generate(sent)
                if call.finish == "abort":
                    raise SystemFault("the engine aborted the call")
                contracts.check_version(self.engine, sent, call)
                raw = about["text"] = codec.decode(call)
            completion = split(raw, prompt.thinking)
            action.calls.append(call)
            action.thought = completion.thought
            action.text = raw if member.show_thoughts else completion.text
            # A thought may consider a tool call and reject it, so only the text outside it is searched.
            tried = [(tool, _tool_use(tool, completion.text)) for tool in member.tools]
            uses = [(tool, use) for tool, use in tried if use is not None]
            action.limit = bool(uses) and index == member.tool_turns
            if not uses or action.limit:
                return
            results = [await _result(tool, use, place) for tool, use in uses]
            action.results += results
            # The raw text, thought included: the chat template decides what of it stays in the prompt.
            answered = (_message("assistant", raw), *[_message("tool", result) for result in results])
            messages = (*action.messages, *answered)
            prompt = codec.encode(messages, call, action.messages)
            if _full(codec, prompt):
                action.limit = True  # the results leave no room for an answer
                return
            action.messages = messages

    async def step(
        self, task: Task, key: Key, turn: int, state: Any, actions: Mapping[str, Action]
    ) -> Step | Fault:
        """Step the environment; a failure comes back as a fault, the policy's where the actions caused it."""
        for action in actions.values():
            if action.fault is not None and action.fault.kind == "system":
                return action.fault
        environment = self.environment
        seed = self.seed(key, "environment")
        ctx = StepContext(task=task, turn=turn, seed=seed, evaluation=self.evaluation)
        try:
            stepping = environment.step(state, actions, ctx)
            step: Step = await contracts.check_async(environment, "step", stepping)
        except PluginError:  # a broken contract is no accident of one episode
            raise
        except PolicyFault as fault:
            return Fault(kind="policy", reason=str(fault))
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if cancelled(error):  # else it is a bug of the environment, which must not end every episode
                raise
            return Fault(kind="system", reason=failure(environment, "step", error))
        finally:
            self._add_counts(environment)
        contracts.check_step(environment, step)
        return step

    def mark_missing(self, key: Key, reason: str) -> None:
        """Mark every joint score of a joint action as missing: a system fault kept it from being played."""
        for source in self.reward_sources:
            if source.scope == "joint":
                write(self.scores, source, key, Score(None, reason, whole=True), ())

    def mark_floor(self, key: Key, roles: Collection[str], reason: str) -> None:
        """Score a joint action of these roles with the sources' floors: its actions made the step fail."""
        for source in self.reward_sources:
            if source.scope == "joint":
                floor = Score(float(source.plugin.policy_fault), f"floor: {reason}", source.name, whole=True)
                write(self.scores, source, key, floor, list(roles))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _full(codec: Codec, prompt: Prompt, answer: int = 1) -> bool:
    """Whether an answer of so many tokens, or of half the context, doesn't fit after the prompt."""
    return codec.context is not None and len(prompt.ids) + min(answer, codec.context // 2) > codec.context


def _tool_use(tool: Tool, text: str) -> Any | None:
    """The tool call in a text, or None. A tool's bug is a system fault."""
    try:
        use = tool.find(text)
    except (Exception, SystemExit) as error:
        raise SystemFault(failure(tool, "find", error)) from error
    if contracts.check_async(tool, "find", use, False) is False:
        contracts.refuse(tool, "find", use, "return None where the text has no call")
    return use


async def _result(tool: Tool, use: Any, place: Key) -> str:
    try:
        with span("tool", place, tool=tool.name, use=use) as about:
            result = about["result"] = await contracts.check_async(tool, "run", tool.run(use))
    except PluginError:
        raise
    except PolicyFault as fault:
        raise PolicyFault(f"tool {tool.name}: {fault}") from fault
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if cancelled(error):
            raise
        raise SystemFault(failure(tool, "run", error)) from error
    if not isinstance(result, str):
        contracts.refuse(tool, "run", result, "the result is a text")
    return encodable(result)
