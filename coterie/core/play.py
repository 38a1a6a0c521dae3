"""What a sampler plays with: prompts, actions and steps, with keyed draws and faults kept apart."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.core.digest import digest, ids_sha256
from coterie.core.draws import seed64
from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.gathering import Strands
from coterie.core.protocols import Codec, Engine, Environment, StepContext, Team
from coterie.core.scoring import Mix, Source
from coterie.core.types import (
    TEAM,
    Action,
    Briefing,
    Call,
    Decision,
    Fault,
    Key,
    Message,
    Past,
    Prompt,
    Request,
    Sampling,
    Score,
    Scores,
    Step,
    Task,
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A role's prompt at a node, before anything is sampled."""

    role: str
    policy: str
    observation: Any
    messages: tuple[Message, ...]
    prompt: Prompt
    sampling: Sampling

    def decided(self, branches: tuple[Action, ...], trainable: bool) -> Decision:
        return Decision(
            role=self.role,
            policy=self.policy,
            observation=self.observation,
            messages=self.messages,
            prompt_ids=self.prompt.ids,
            prompt_sha256=ids_sha256(self.prompt.ids),
            branches=branches,
            trainable=trainable,
            temperature=self.sampling.temperature or 1.0,
        )


@dataclass(slots=True)
class Play:
    """One pass of play: a training step's, or an evaluation's. Samplers get it as `ctx`."""

    environment: Environment
    team: Team
    engine: Engine
    sources: Sequence[Source]
    mix: Mix
    strands: Strands
    run_seed: int
    evaluation: bool = False
    policies: Mapping[str, str] = field(default_factory=dict)
    """role -> policy where it differs from the team's: `--swap`."""
    scores: Scores = field(default_factory=Scores)
    background: list[asyncio.Task[None]] = field(default_factory=list)
    """Scores that no choice waits for, being written while play goes on."""
    codecs: dict[str, Codec] = field(default_factory=dict)
    stop_above: float | None = None
    """A played joint that earns at least this, on average over the roles that acted, ends its episode."""

    def seed(self, key: Key, what: str) -> int:
        """64 bits keyed by (run seed, place, purpose)."""
        return seed64(self.run_seed, key, what)

    def policy(self, role: str) -> str:
        return self.policies.get(role) or self.team.policies[role]

    def codec(self, policy: str) -> Codec:
        if policy not in self.codecs:
            self.codecs[policy] = self.engine.codec(policy)
        return self.codecs[policy]

    def digest(self, state: Any) -> str:
        own = getattr(self.environment, "digest", None)
        return own(state) if own is not None else digest(state)

    def later(self, work: Coroutine[Any, Any, None]) -> None:
        """Score in the background; `Run.score` waits for it."""
        self.background.append(asyncio.ensure_future(work))

    async def ask(
        self, role: str, state: Any, turn: int, history: tuple[Past, ...], sampling: Sampling
    ) -> Asked:
        """Make a role's prompt: render what the transition tells of what the environment shows."""
        observation = self.environment.observe(state, role)
        notes = await self.team.transition.tell(role, state, history, self.environment) if history else ()
        seat = self.team.roles[role]
        messages = tuple(
            seat.render(
                Briefing(role=role, turn=turn, observation=observation, notes=tuple(notes), history=history)
            )
        )
        policy = self.policy(role)
        codec = self.codec(policy)
        if history and getattr(seat, "remembers", False):
            last = history[-1]
            before = last.action.dialogue or last.messages
            messages = (*before, {"role": "assistant", "content": last.action.text}, *messages)
            prompt = codec.encode(messages, last.action.calls[-1] if last.action.calls else None, before)
        else:
            prompt = codec.encode(messages)
        return Asked(role, policy, observation, messages, prompt, sampling)

    async def act(self, key: Key, asked: Asked) -> Action:
        """Sample one branch: a call, and while the text asks for a tool, its result and another call."""
        codec, seat = self.codec(asked.policy), self.team.roles[asked.role]
        calls: list[Call] = []
        results: list[str] = []
        messages, prompt = asked.messages, asked.prompt
        tools = self.team.tools.get(asked.role, ())
        text = ""
        try:
            for index in range(self.team.max_tool_turns + 1):
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
                calls.append(call)
                text = codec.decode(call)
                found = next(((tool, use) for tool in tools if (use := tool.find(text)) is not None), None)
                if found is None or index == self.team.max_tool_turns:
                    break
                results.append(await found[0].run(found[1]))
                extended = (
                    *messages,
                    {"role": "assistant", "content": text},
                    {"role": "tool", "content": results[-1]},
                )
                prompt = codec.encode(extended, call, messages)
                messages = extended
        except SystemFault as fault:
            return Action(
                calls=tuple(calls),
                text=text,
                tool_results=tuple(results),
                fault=Fault(kind="system", reason=str(fault)),
            )
        try:
            parsed, fault_ = seat.parse(text, asked.observation), None
        except PolicyFault as fault:
            parsed, fault_ = None, Fault(kind="policy", reason=str(fault))
        except Exception as error:  # the text broke the parser: the output's doing, and told as such
            parsed, fault_ = None, Fault(kind="policy", reason=f"parser: {type(error).__name__}: {error}")
        return Action(
            calls=tuple(calls),
            text=text,
            parsed=parsed,
            tool_results=tuple(results),
            fault=fault_,
            dialogue=messages if results else (),
        )

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
        for source in self.sources:
            if source.scope == "joint":
                for component in source.plugin.components:
                    self.scores.add(key, TEAM, component, Score(None, reason, source.name))
