"""A small stand-in for what `compose` gives a plugin's constructor, and actions without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.core.errors import PolicyFault
from coterie.core.protocols import StepContext
from coterie.core.types import Action, Fault, RoleInput, Task
from coterie.discovery.validation import validate
from coterie.testing import coterie_run


@dataclass
class Build:
    """As `coterie.core.protocols.build.Build`, for a team of these roles."""

    order: list[Any] = field(default_factory=lambda: ["planner", "executor"])
    name: str = "env"
    path: str = "env"
    environment: Any = None
    roles: dict[str, Any] = field(default_factory=dict)
    """Tables of roles; those without one have none."""

    @property
    def run(self) -> Any:
        names = [role for stage in self.order for role in ([stage] if isinstance(stage, str) else stage)]
        return SimpleNamespace(
            team=SimpleNamespace(order=self.order, roles={**dict.fromkeys(names), **self.roles}, max_turns=3)
        )

    def make(self, kind: str, table: Any, path: str) -> Any:
        from coterie.backends.data.jsonl import JsonlData

        assert (kind, table["type"]) == ("data_source", "jsonl")
        settings = {name: value for name, value in table.items() if name != "type"}
        return JsonlData(validate(JsonlData.Config, settings, path), Build(path=path))


def make(plugin: Any, build: Build | None = None, **settings: Any) -> Any:
    """An instance of a plugin class, its settings validated as `compose` does."""
    build = build or Build()
    return plugin(validate(plugin.Config, settings, build.path), build)


def team_run(answers: Any = "1", *, branches: int = 4, **tables: Any) -> Any:
    """A run of two turns."""
    return coterie_run(answers, max_turns=2, sampler={"branches": branches}, **tables)


def wait(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


def action(text: str, role: Any = None, observation: Any = None) -> Action:
    """What a role hands over, read by its own parser."""
    if role is None:
        return Action(calls=(), text=text, parsed=text)
    try:
        return Action(calls=(), text=text, parsed=role.parse(text, observation))
    except PolicyFault as fault:
        return Action(calls=(), text=text, fault=Fault(kind="policy", reason=str(fault)))


def read(role: Any, text: str, observation: Any, parsed: Any) -> None:
    """Assert that a role reads a text so; None: that it can't."""
    if parsed is None:
        with pytest.raises(PolicyFault):
            role.parse(text, observation)
    else:
        assert role.parse(text, observation) == parsed


def context(task: Task | None = None, turn: int = 0) -> StepContext:
    return StepContext(task=task or Task(id="t"), turn=turn, seed=0)


def role_input(observation: Any, role: str = "planner", turn: int = 0, **more: Any) -> RoleInput:
    return RoleInput(role=role, turn=turn, observation=observation, **more)
