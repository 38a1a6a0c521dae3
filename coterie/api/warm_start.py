"""Demonstrations of the environment's oracle, and the supervised steps that use them.

A warm start stands in for pretraining where no pretrained weights can be had: roles are played by the oracle
(with noise, so that RL has something left to learn) and the policy imitates what they wrote.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.protocols import Demonstration, StepContext
from coterie.core.training.curriculum import trained_on
from coterie.core.training.run import Run
from coterie.core.types import Action, Key, RoleInput
from coterie.core.types.seeding import generator, seed64

log = logging.getLogger("coterie")


async def warm_start(run: Run) -> None:
    """Warm-start every group of policies that begins from the same weights.

    Raises:
        ConfigError: a policy asks for a warm start and the environment or the trainer has none to give.
    """
    wanting = {name: policy.warm_start for name, policy in run.config.policies.items() if policy.warm_start}
    if not wanting:
        return
    first = next(iter(wanting))
    if not hasattr(run.environment, "demonstrate"):
        raise ConfigError(
            "the environment has no oracle to imitate",
            path=f"policies.{first}.warm_start",
            why=f"'{run.config.env['type']}' has no demonstrate(state, role, noise, rng)",
            fix="remove it",
        )
    if not hasattr(run.trainer, "warm_start"):
        raise ConfigError(
            "the trainer has no supervised steps", path=f"policies.{first}.warm_start", fix="remove it"
        )
    for group in run.trainer.bases().values():
        settings = wanting.get(group[0])
        if settings is None:
            continue
        source = Oracle(run, group, settings.noise)
        log.info(
            "warm start of %s: %d steps of %d demonstrations",
            ", ".join(group),
            settings.steps,
            settings.batch,
        )
        metrics = await run.trainer.warm_start(
            group[0], lambda step, source=source, n=settings.batch: source.batch(step, n), settings
        )
        log.info("warm start of %s: loss %.3f", ", ".join(group), metrics.get("loss", float("nan")))


class Oracle:
    """Plays train tasks by the oracle, as many of each level of a curriculum, and yields what each role would
    have written."""

    def __init__(self, run: Run, policies: Sequence[str], noise: float) -> None:
        self._run, self._noise = run, noise
        self._roles = [
            role for stage in run.team.order for role in stage if run.team.policies[role] in policies
        ]
        self._played = trained_on(run.environment, run.curriculum, run.config.seed)

    def batch(self, step: int, count: int) -> list[Demonstration]:
        """`count` demonstrations, shared equally by the roles. Runs in the trainer's thread."""
        return asyncio.run(self._batch(step, count))

    async def _batch(self, step: int, count: int) -> list[Demonstration]:
        found, parts = [], len(self._played)
        for part in range(parts):
            # Which ones have one more, where they don't divide evenly, changes from step to step.
            found += await self._part(step, part, (count + (part + step) % parts) // parts)
        return found

    async def _part(self, step: int, part: int, count: int) -> list[Demonstration]:
        """Those of the environment, or of one level."""
        share = -(-count // len(self._roles))
        found: dict[str, list[Demonstration]] = {role: [] for role in self._roles}
        game = 0
        while any(len(rows) < share for rows in found.values()):
            for role, row in await self._game(step, part, game):
                if role in found and len(found[role]) < share:
                    found[role].append(row)
            game += 1
            if game > 20 * count + 20:
                raise ConfigError(
                    "the oracle's games ask some roles too rarely for a warm start",
                    path="policies",
                    why=f"after {game} games: { {role: len(rows) for role, rows in found.items()} }",
                )
        return [row for rows in found.values() for row in rows][:count]

    async def _game(self, step: int, part: int, game: int) -> list[tuple[str, Demonstration]]:
        run, (env, tasks) = self._run, self._played[part]
        level = f" level {part}" if part else ""
        rng = generator(run.config.seed, f"warm start {step}", f"game {game}{level}")
        task = tasks[int(rng.integers(len(tasks)))]
        state = env.reset(task, seed64(run.config.seed, Key(task.id), "reset"))
        found: list[tuple[str, Demonstration]] = []
        turn = stage = 0
        while turn < run.team.max_turns:
            own = env.acting_roles(state)
            roles = run.team.order[stage] if own is None else own
            if not roles:
                break
            actions: dict[str, Action] = {}
            for role in roles:
                text, parsed, messages = self._demonstrate(env, state, role, turn, rng)
                actions[role] = Action(calls=(), text=text, parsed=parsed)
                found.append(
                    (role, Demonstration(policy=run.team.policies[role], messages=messages, completion=text))
                )
            step_ = await env.step(
                state, actions, StepContext(task=task, turn=turn, seed=int(rng.integers(2**63)))
            )
            state = step_.state
            over = step_.turn_over or (own is None and stage + 1 >= len(run.team.order))
            turn, stage = (turn + 1, 0) if over else (turn, stage + 1)
        return found

    def _demonstrate(
        self, env: Any, state: Any, role: str, turn: int, rng: Any
    ) -> tuple[str, Any, tuple[Any, ...]]:
        seat = self._run.team.roles[role]
        observation = env.observe(state, role)
        messages = tuple(seat.render(RoleInput(role=role, turn=turn, observation=observation)))
        text = env.demonstrate(state, role, self._noise, rng)
        try:
            return text, seat.parse(text, observation), messages
        except PolicyFault as fault:
            raise ConfigError(
                f"role '{role}' can't read the oracle's own message {text!r}",
                path=f"team.roles.{role}",
                why=str(fault),
            ) from None
