"""What a sampler rolls a job out with: prompts, actions and steps, with keyed draws and faults kept apart."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

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
)
from coterie.core.protocols.chat_format import DescribesTools
from coterie.core.protocols.environment import DigestsStates
from coterie.core.protocols.reward import ShowsFeedback
from coterie.core.protocols.role import Remembers
from coterie.core.protocols.tool import CountsMetrics, HasSchemas
from coterie.core.protocols.transition import RepeatsTask
from coterie.core.rollout import contracts
from coterie.core.rollout.actions import ActionBuilder, chat_message, full
from coterie.core.rollout.engine_client import not_counted
from coterie.core.rollout.rewards import write
from coterie.core.rollout.turns import without_oldest
from coterie.core.types import (
    Action,
    Fault,
    HistoryEntry,
    Key,
    Message,
    Prompt,
    RewardWeights,
    RoleInput,
    Sampling,
    Score,
    Scores,
    Step,
    Task,
)
from coterie.core.types.digest import digest
from coterie.core.types.seeding import seed64
from coterie.spans import span

T = TypeVar("T")

SILENT = ""
"""The policy of a role that no policy plays: its actions are empty messages, made without a call."""


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
    capabilities: dict[tuple[int, type], tuple[Any, bool]] = field(default_factory=dict)
    """By plugin and optional Protocol: the plugin, and whether it has it."""
    prompted: dict[tuple[str, int], int] = field(default_factory=dict)
    """By (role, number of its earlier actions): the scores with feedback when its prompt was made."""

    @property
    def evaluation(self) -> bool:
        return self.job.evaluation

    def has(self, plugin: Any, capability: type) -> bool:
        """`isinstance`, which takes 7 microseconds for a Protocol, and is asked several times a decision."""
        known = self.capabilities.get((id(plugin), capability))
        if known is None:  # the plugin stays alive with the entry, so that its id is no other's
            known = self.capabilities[id(plugin), capability] = plugin, isinstance(plugin, capability)
        return known[1]

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
        environment: Any = self.environment
        if self.has(environment, DigestsStates):
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
        environment, plugin = self.environment, cast(Any, self.team.members[role].role)
        with plugin_call(environment, "observe"):
            seen = contracts.check_async(environment, "observe", environment.observe(state, role), False)
        comments = self._comments(role, len(history))
        sentences, lost = await self._sentences(role, state, history)
        transition: Any = self.team.transition
        repeats = not self.has(transition, RepeatsTask) or transition.original_prompt
        role_input = RoleInput(
            role=role,
            turn=turn,
            observation=seen,
            feedback=(*sentences, *comments),
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
        if history and self.has(plugin, Remembers) and plugin.remembers:
            messages, prompt = self._after(codec, history, messages, sampling.max_new_tokens)
        else:
            prompt = codec.encode(messages)
        overflow = ""
        if full(codec, prompt) and self.team.overflow != "stop":
            overflow = (
                f"the prompt of role '{role}' has {len(prompt.ids)} tokens, and the context of policy "
                f"'{policy}' {codec.context}: shorten what the role renders, or use a longer context"
            )
        return PromptRequest(role, policy, seen, messages, prompt, sampling, overflow, lost)

    async def _sentences(
        self, role: str, state: Any, history: tuple[HistoryEntry, ...]
    ) -> tuple[Sequence[str], str]:
        """The transition mode's feedback, and why a system fault kept it away."""
        transition, sentences, lost = self.team.transition, list[str](), ""
        try:
            if history:
                with plugin_call(transition, "tell"):
                    telling = transition.tell(role, state, history, self.environment)
                    given = await contracts.check_async(transition, "tell", telling)
                sentences = contracts.check_feedback(transition, given)
        except SystemFault as fault:
            lost = failure(transition, "tell", fault)
        self._add_counts(transition)
        return sentences, lost

    def _after(
        self, codec: Codec, history: tuple[HistoryEntry, ...], messages: tuple[Message, ...], answer: int
    ) -> tuple[tuple[Message, ...], Prompt]:
        """The prompt of a role that remembers: its conversation so far, and these messages.

        With `team.overflow: truncate_oldest` it loses oldest turns until an answer of so many tokens fits.
        """
        last = history[-1]
        before = last.action.dialogue or last.messages
        call = last.action.calls[-1] if last.action.calls else None
        raw = last.action.text if call is None else codec.decode(call)
        whole = messages = (*before, chat_message("assistant", raw), *messages)
        prompt = codec.encode(messages, call, before)
        if self.team.overflow == "truncate_oldest" and full(codec, prompt, answer):
            for messages in without_oldest(whole, len(history[0].messages), len(before) + 1):
                prompt = codec.encode(messages)  # other ids than before: a new Sample
                if not full(codec, prompt, answer):
                    break
            self.count("prompts/truncated", float(not full(codec, prompt)))
        return messages, prompt

    def _comments(self, role: str, acted: int) -> list[str]:
        """What reward sources let a role read of the scores since its last of `acted` earlier actions."""
        sources: dict[str, Any]
        sources = {s.name: s.plugin for s in self.reward_sources if self.has(s.plugin, ShowsFeedback)}
        if not sources:
            return []
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
        if self.has(plugin, CountsMetrics):
            with plugin_call(plugin, "counted"):
                counted = plugin.counted()
            contracts.check_metrics(plugin, "counted", counted)
            for metric, value in counted.items():
                self.count(metric, float(value))

    async def act(self, key: Key, request: PromptRequest) -> Action:
        """Sample one branch: a call; while it uses tools, their results and another call.

        A silent role's action has no call; it means what the role's parser makes of "".
        """
        policy, role = request.policy, request.role
        builder = ActionBuilder(
            key=key,
            request=request,
            member=self.team.members[role],
            engine=self.engine,
            codec=None if policy == SILENT else self.codec(policy, role),
            seed=self.seed,
            version=self.job.versions.get(policy),
        )
        with span("decision", key.decision, shared=True, request=request, actions={}) as about:
            action: Action = about["actions"].setdefault(key.branch, await builder.action(self.warned))
        return action

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
