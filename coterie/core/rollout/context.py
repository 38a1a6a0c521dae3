"""What a sampler plays with: prompts, actions and steps, with keyed draws and faults kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.concurrency.request_batching import ActiveRollouts
from coterie.core.errors import ConfigError, PolicyFault, SystemFault
from coterie.core.protocols import (
    Codec,
    Engine,
    Environment,
    NamedRewardSource,
    PromptRequest,
    StepContext,
    Team,
    Tool,
)
from coterie.core.rollout.thoughts import split
from coterie.core.types import (
    TEAM,
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
from coterie.core.types.seeding import seed64

SILENT = ""
"""The policy of a role that nobody plays: its actions are empty messages, made without a call."""


@dataclass(slots=True)
class ActionBuilder:
    """An action while it is made."""

    messages: tuple[Message, ...]
    """Of the last call's prompt, or of the one that is to come."""
    calls: list[Call] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    text: str = ""
    thought: str = ""
    limit: bool = False

    def handed_over(self, parsed: Any = None, fault: Fault | None = None) -> Action:
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
class RolloutPass:
    """One pass of play: a training step's, or an evaluation's. Samplers get it as `ctx`."""

    environment: Environment
    team: Team
    engine: Engine
    reward_sources: Sequence[NamedRewardSource]
    reward_weights: RewardWeights
    active_rollouts: ActiveRollouts
    run_seed: int
    evaluation: bool = False
    policies: Mapping[str, str | None] = field(default_factory=dict)
    """role -> policy where it differs from the team's; None: the role is silent (`api/compare.py`)."""
    scores: Scores = field(default_factory=Scores)
    background: list[asyncio.Task[None]] = field(default_factory=list)
    """Scores that no choice waits for, being written while play goes on."""
    codecs: dict[str, Codec] = field(default_factory=dict)
    told: dict[tuple[str, str], Codec] = field(default_factory=dict)
    """By (policy, role): codecs whose prompts tell of the role's tools."""
    stop_above: float | None = None
    """A played joint that earns at least this, on average over the roles that acted, ends its episode."""

    def seed(self, key: Key, what: str) -> int:
        """64 bits keyed by (run seed, place, purpose)."""
        return seed64(self.run_seed, key, what)

    def policy(self, role: str) -> str | None:
        """Who plays the role; None: nobody, and its messages are empty."""
        return self.policies[role] if role in self.policies else self.team.policies[role]

    def codec(self, policy: str, role: str = "") -> Codec:
        """A policy's codec; for a role whose tools have schemas, the one whose prompts tell of them.

        Raises:
            ConfigError: the policy's chat format has no place for tools.
        """
        if policy not in self.codecs:
            self.codecs[policy] = self.engine.codec(policy)
        schemas = [one for tool in self.team.tools.get(role, ()) for one in getattr(tool, "schemas", ())]
        if not schemas:
            return self.codecs[policy]
        if (policy, role) not in self.told:
            tell = getattr(self.codecs[policy], "with_tools", None)
            codec = tell(schemas) if tell is not None else None
            if codec is None:
                raise ConfigError(
                    f"the chat format of policy '{policy}' can't tell role '{role}' of its tools",
                    path=f"team.roles.{role}.tools",
                    why="there is no chat template, or it writes no tools",
                    fix="use a model whose chat template takes tools; or set `announce: false` on the tools "
                    "and describe them in the role's prompt",
                )
            self.told[policy, role] = codec
        return self.told[policy, role]

    def digest(self, state: Any) -> str:
        own = getattr(self.environment, "digest", None)
        return own(state) if own is not None else digest(state)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Score in the background; `Run.score` waits for it."""
        self.background.append(asyncio.ensure_future(work))

    async def ask(
        self, role: str, state: Any, turn: int, history: tuple[HistoryEntry, ...], sampling: Sampling
    ) -> PromptRequest:
        """Make a role's prompt: render what the transition tells of what the environment shows."""
        observation = self.environment.observe(state, role)
        notes = await self.team.transition.tell(role, state, history, self.environment) if history else ()
        seat = self.team.roles[role]
        messages = tuple(
            seat.render(
                RoleInput(
                    role=role, turn=turn, observation=observation, feedback=tuple(notes), history=history
                )
            )
        )
        policy = self.policy(role)
        if policy is None:  # nobody reads its prompt, so nobody encodes it
            return PromptRequest(role, SILENT, observation, messages, Prompt(ids=()), sampling)
        codec = self.codec(policy, role)
        if history and getattr(seat, "remembers", False):
            last = history[-1]
            before = last.action.dialogue or last.messages
            call = last.action.calls[-1] if last.action.calls else None
            raw = last.action.text if call is None else codec.decode(call)
            messages = (*before, _message("assistant", raw), *messages)
            prompt = codec.encode(messages, call, before)
        else:
            prompt = codec.encode(messages)
        return PromptRequest(role, policy, observation, messages, prompt, sampling)

    async def act(self, key: Key, asked: PromptRequest) -> Action:
        """Sample one branch: a call, and while it asks for tools, their results and another call.

        A silent role's action has no call: what its parser makes of "" is what it does.
        """
        draft = ActionBuilder(asked.messages)
        try:
            if asked.policy != SILENT:
                await self._speak(key, asked, draft)
        except SystemFault as fault:
            return draft.handed_over(fault=Fault(kind="system", reason=str(fault)))
        except PolicyFault as fault:  # what it had a tool do killed a sandbox, and did so again
            return draft.handed_over(fault=Fault(kind="policy", reason=str(fault)))
        try:
            parsed = self.team.roles[asked.role].parse(draft.text, asked.observation)
        except PolicyFault as fault:
            return draft.handed_over(fault=Fault(kind="policy", reason=str(fault)))
        except Exception as error:  # the text broke the parser: the output's doing, and told as such
            reason = f"parser: {type(error).__name__}: {error}"
            return draft.handed_over(fault=Fault(kind="policy", reason=reason))
        return draft.handed_over(parsed=parsed)

    async def _speak(self, key: Key, asked: PromptRequest, draft: ActionBuilder) -> None:
        codec, prompt = self.codec(asked.policy, asked.role), asked.prompt
        tools, turns = self.team.tools.get(asked.role, ()), self.team.tool_turns(asked.role)
        for index in range(turns + 1):
            place = key.of_call(index)
            call = await self.engine.generate(
                Request(
                    key=place,
                    policy=asked.policy,
                    prompt_ids=prompt.ids,
                    sampling=asked.sampling,
                    seed=self.seed(place, "tokens"),
                    continues=prompt.continues,
                )
            )
            if call.finish == "abort":
                raise SystemFault("the engine aborted the call")
            raw = codec.decode(call)
            said = split(raw, prompt.thinking)
            draft.calls.append(call)
            draft.thought = said.thought
            draft.text = raw if asked.role in self.team.show_thoughts else said.text
            # A thought may weigh a call and leave it: only what is said is searched, whoever sees the rest.
            uses = [(tool, use) for tool in tools if (use := _found(tool, said.text)) is not None]
            draft.limit = bool(uses) and index == turns
            if not uses or draft.limit:
                return
            results = [await _result(tool, use) for tool, use in uses]
            draft.results += results
            # The raw text, thought and all: what of it stays in the prompt is the chat template's business.
            answered = (_message("assistant", raw), *[_message("tool", result) for result in results])
            messages = (*draft.messages, *answered)
            prompt = codec.encode(messages, call, draft.messages)
            if codec.context is not None and len(prompt.ids) >= codec.context:
                draft.limit = True  # the results leave no room to say anything
                return
            draft.messages = messages

    async def step(
        self, task: Task, key: Key, turn: int, state: Any, actions: Mapping[str, Action]
    ) -> Step | Fault:
        """Step the environment; what is not the policy's doing comes back as a fault."""
        for action in actions.values():
            if action.fault is not None and action.fault.kind == "system":
                return action.fault
        try:
            return await self.environment.step(
                state, actions, StepContext(task=task, turn=turn, seed=self.seed(key, "environment"))
            )
        except SystemFault as fault:
            return Fault(kind="system", reason=str(fault))
        except Exception as error:  # an environment's mistake must not end everybody's episode
            return Fault(kind="system", reason=f"environment: {type(error).__name__}: {error}")

    def mark_missing(self, key: Key, reason: str) -> None:
        """A joint that a system fault kept from being played: every source's score of it is missing."""
        for source in self.reward_sources:
            if source.scope == "joint":
                for component in source.plugin.components:
                    self.scores.add(key, TEAM, component, Score(None, reason, source.name))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _found(tool: Tool, text: str) -> Any | None:
    """What the text asks of a tool; a tool's own mistake is no policy's doing."""
    try:
        return tool.find(text)
    except Exception as error:
        raise SystemFault(f"tool {tool.name}: {type(error).__name__}: {error}") from error


async def _result(tool: Tool, use: Any) -> str:
    try:
        return await tool.run(use)
    except PolicyFault as fault:
        raise PolicyFault(f"tool {tool.name}: {fault}") from fault
    except SystemFault as fault:
        raise SystemFault(f"tool {tool.name}: {fault}") from fault
    except Exception as error:
        raise SystemFault(f"tool {tool.name}: {type(error).__name__}: {error}") from error
