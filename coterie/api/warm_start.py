"""Warm start: supervised steps on demonstrations of the environment's oracle.

A warm start replaces pretraining where no pretrained weights exist: the oracle plays the roles, with noise so
that RL has something left to learn, and the policy imitates its messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.protocols import Demonstration, PromptRequest, RolloutJob, StepContext
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.turns import History, Stage, extended, first_stage, named_roles, next_stage
from coterie.core.training.curriculum import trained_on
from coterie.core.training.run import Run
from coterie.core.types import Action, Call, Key, Message
from coterie.core.types.seeding import generator, seed64
from coterie.discovery.members import WarmStarts
from coterie.discovery.optional import PolicyDefaults, with_defaults

log = logging.getLogger("coterie")


async def warm_start(run: Run) -> None:
    """Warm-start every group of policies with the same initial weights, as configured.

    Raises:
        ConfigError: the trainer has no supervised steps.
    """
    configured = {
        name: with_defaults(policy, PolicyDefaults).warm_start
        for name, policy in run.config.policies.items()
        if policy.warm_started
    }
    if not configured:
        return
    first = next(iter(configured))
    if not isinstance(run.trainer, WarmStarts):
        raise ConfigError(
            "the trainer has no supervised steps", path=f"policies.{first}.warm_start", fix="remove it"
        )
    for group in run.trainer.bases().values():
        settings = configured.get(group[0])
        if settings is None:
            continue
        source = Oracle(run, group, settings.noise, asyncio.get_running_loop())
        log.info(
            "warm start of %s: %d steps of %d demonstrations",
            ", ".join(group),
            settings.steps,
            settings.batch,
        )
        metrics = await run.trainer.warm_start(
            group[0], partial(source.batch, count=settings.batch), settings
        )
        log.info("warm start of %s: loss %.3f", ", ".join(group), metrics.get("loss", float("nan")))


class Oracle:
    """Plays train tasks with the environment's oracle and collects its messages as demonstrations.

    Roles get the prompts that they get in play: with the transition mode's feedback, their history and their
    tools. Each level of a curriculum gives the same number of demonstrations.

    Args:
        policies: the policies whose roles are demonstrated.
        noise: the oracle's rate of errors, as `demonstrate` takes it.
        loop: the event loop that opened the run, whose sandbox serves no other. None: games need none.
    """

    def __init__(
        self,
        run: Run,
        policies: Sequence[str],
        noise: float,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._run, self._noise, self._loop = run, noise, loop
        self._roles = [
            role for stage in run.team.order for role in stage if run.team.policies[role] in policies
        ]
        self._overflow = ""
        """Why a game was broken off, the last one."""
        self._played = trained_on(run.environment, run.curriculum, run.config.seed)

    def batch(self, step: int, count: int) -> list[Demonstration]:
        """`count` demonstrations, in equal shares of the roles. Runs in the trainer's thread."""
        games = self._batch(step, count)
        if self._loop is None:
            return asyncio.run(games)
        return asyncio.run_coroutine_threadsafe(games, self._loop).result()

    async def _batch(self, step: int, count: int) -> list[Demonstration]:
        demonstrations, parts = [], len(self._played)
        for part in range(parts):
            # Where `count` is no multiple of the parts, the parts with one more change from step to step.
            demonstrations += await self._part(step, part, (count + (part + step) % parts) // parts)
        return demonstrations

    async def _part(self, step: int, part: int, count: int) -> list[Demonstration]:
        """`count` demonstrations of one part: the environment, or a level of its curriculum."""
        share = -(-count // len(self._roles))
        by_role: dict[str, list[Demonstration]] = {role: [] for role in self._roles}
        game = 0
        while any(len(rows) < share for rows in by_role.values()):
            for role, demonstration in await self._game(step, part, game):
                if role in by_role and len(by_role[role]) < share:
                    by_role[role].append(demonstration)
            game += 1
            if game > 20 * count + 20:
                raise ConfigError(
                    "some roles act too rarely in the oracle's games for a warm start",
                    path="policies",
                    why=f"after {game} games: { {role: len(rows) for role, rows in by_role.items()} }"
                    + (f"; {self._overflow}" if self._overflow else ""),
                )
        return [demonstration for rows in by_role.values() for demonstration in rows][:count]

    async def _game(self, step: int, part: int, game: int) -> list[tuple[str, Demonstration]]:
        """Play one game; (role, demonstration) of every message."""
        run, (env, tasks) = self._run, self._played[part]
        suffix = f" level {part}" if part else ""
        rng = generator(run.config.seed, f"warm start {step}", f"game {game}{suffix}")
        task = tasks[int(rng.integers(len(tasks)))]
        level = part if run.curriculum is not None else None
        context = run.rollout_side.context(RolloutJob(task=task, level=level), run.engine_client)
        state = env.reset(task, seed64(run.config.seed, Key(task.id), "reset"))
        demonstrations: list[tuple[str, Demonstration]] = []
        history: History = {}
        stage = first_stage(env, run.team.order, state)
        while stage is not None:
            prompts: dict[str, tuple[Any, Sequence[Message]]] = {}
            actions: dict[str, Action] = {}
            for role in stage.roles:
                request = await context.ask(
                    role, state, stage.turn, history.get(role, ()), run.sampler.sampling(role)
                )
                prompts[role] = request.observation, request.messages
                actions[role] = self._act(env, state, request, context, rng)
                overflow = request.lost or request.overflow
                if overflow := overflow or self._too_long(request, actions[role], context):
                    self._overflow = overflow  # the game is over, as an episode would be
                    return demonstrations
                demonstration = Demonstration(
                    policy=request.policy,
                    messages=request.messages,
                    completion=actions[role].text,
                    prompt_ids=request.prompt.ids,
                )
                demonstrations.append((role, demonstration))
            if self._is_last(env, state, stage):
                break
            after = await env.step(
                state, actions, StepContext(task=task, turn=stage.turn, seed=int(rng.integers(2**63)))
            )
            history = extended(history, stage.turn, prompts, actions, after.info)
            state = after.state
            team = run.team
            stage, _ = next_stage(env, team.order, team.max_turns, stage, after, team.max_stages)
        return demonstrations

    def _is_last(self, env: Any, state: Any, stage: Stage) -> bool:
        """Whether no prompt depends on what comes of a stage, whose step may wait for the sandbox."""
        team = self._run.team
        fixed = named_roles(env, team.order, state) is None
        return fixed and stage.stage + 1 >= len(team.order) and stage.turn + 1 >= team.max_turns

    def _too_long(self, request: PromptRequest, action: Action, context: JobContext) -> str:
        """Why a demonstration doesn't fit the context; empty where it does, or where that stops the run."""
        limit = context.codec(request.policy, request.role).context
        length = len(request.prompt.ids) + len(action.calls[0].token_ids)
        if limit is None or length <= limit or self._run.team.overflow == "stop":
            return ""
        return f"a demonstration of role '{request.role}' has {length} tokens, and the context is {limit}"

    def _act(self, env: Any, state: Any, request: PromptRequest, context: JobContext, rng: Any) -> Action:
        """The oracle's message as an action whose call has the tokens that a policy would have sampled."""
        role = request.role
        text = env.demonstrate(state, role, self._noise, rng)
        try:
            parsed = context.team.members[role].role.parse(text, request.observation)
        except PolicyFault as fault:
            raise ConfigError(
                f"role '{role}' can't read the oracle's own message {text!r}",
                path=f"team.roles.{role}",
                why=str(fault),
            ) from None
        tokens = tuple(context.codec(request.policy, role).encode_completion(text))
        call = Call(
            prompt_ids=request.prompt.ids,
            token_ids=tokens,
            logprobs=(0.0,) * len(tokens),
            version=0,
            finish="stop",
            continues=request.prompt.continues,
        )
        return Action(calls=(call,), text=text, parsed=parsed)
