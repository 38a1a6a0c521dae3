"""Chains of the whole team, and the same chains without one of its roles."""

from __future__ import annotations

from typing import Any, cast

from pydantic import Field, model_validator

from coterie import (
    Action,
    Key,
    Plan,
    PolicyFault,
    PromptRequest,
    RolloutContext,
    Task,
    Tree,
    TreeSampler,
)


class WithoutRoles(TreeSampler):
    """Of a task, `chains` episodes of the team, and as many without each role of `remove`.

    A removed role is not asked: its action has no call, and is what its parser makes of an empty text (None
    where that can't be read). The environment then has to go on. Nothing of these chains is trained.
    """

    class Config(TreeSampler.Config):
        chains: int = Field(4, ge=2, description="Episodes of the whole team by task.")
        remove: tuple[str, ...] = Field((), description="Roles without which each episode is played again.")

        @model_validator(mode="after")
        def _whole_chains(self) -> WithoutRoles.Config:
            if self.branches != 1:
                raise ValueError("an outcome without a role is one of a whole chain: leave branches at 1")
            return self

    config: Config

    @property
    def plan(self) -> Plan:
        """The chains of the team and those without a role."""
        chains = self.config.chains * (1 + len(self.config.remove))
        return Plan(chains=chains, branches=1, expand=self.config.expand, pairing=self.config.pairing)

    async def play(self, task: Task, epoch: int, chain: int, ctx: RolloutContext) -> Tree:
        """Chain c is of the whole team where c is a multiple of 1 + the number of `remove`."""
        kind = chain % (1 + len(self.config.remove))
        if kind:
            ctx = cast(RolloutContext, Without(ctx, self.config.remove[kind - 1]))
        return await super().play(task, epoch, chain, ctx)


class Without:
    """A rollout's context in which one role writes nothing; everything else is the given context's."""

    def __init__(self, ctx: RolloutContext, role: str) -> None:
        self._ctx = ctx
        self._role = role

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def act(self, key: Key, request: PromptRequest) -> Action:
        """The action of a branch: of the removed role, one without a call."""
        if request.role != self._role or request.overflow or request.lost:
            return await self._ctx.act(key, request)
        try:
            parsed = self._ctx.team.members[self._role].role.parse("", request.observation)
        except PolicyFault:
            parsed = None
        return Action(calls=(), text="", parsed=parsed)
