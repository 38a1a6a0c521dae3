"""What a run has once, however many processes play it: its chat models, their keys, and bounds of calls.

A chat model behind an endpoint has limits, a budget and a cache, and a reward source or a sandbox has a bound
of what it does at once. In each process anew, H processes would pay and ask H times as much. So rollout sides
in other processes have stand-ins, which ask the one process that has them: the *account*.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel

from coterie.compose.builder import CheckedChatModel, ComponentBuilder, MadeModel, checked
from coterie.compose.rollout_side import make_rollout_parts
from coterie.compose.rules.table import check
from coterie.core.config import Resolved
from coterie.core.errors import ConfigError
from coterie.core.plugins import Table, composed_fields
from coterie.core.plugins.origin import Origin, origin_of, plugin_call, record_origin
from coterie.core.protocols import ChatAnswer, ChatRequest, NamedRewardSource
from coterie.core.protocols.chat_model import UsesEngine
from coterie.core.rollout.side import LocalRolloutSide, open_resource
from coterie.discovery.members import SharesSlots, UsesRunFolder

_NAME = re.compile(r"\$\{(\w+)\}")
_ENGINE = ("engine", "policies")
_RUN = ("trainer", "trackers", "executor", "cluster")
"""Tables that the run's own process alone reads."""


class Account(Protocol):
    """What a rollout side asks the account for."""

    async def answer(self, model: int, request: ChatRequest) -> ChatAnswer:
        """The answer of a shared chat model, by its number. Raises what the model raises there."""

    def slots(self, name: str, limit: int) -> asyncio.Semaphore:
        """A semaphore that all processes with this name have in common."""


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A chat model that the account has. Picklable."""

    path: str
    name: str
    table: Table
    structured: bool
    origin: Origin


class ModelElsewhere:
    """Stands for a chat model that the account opens, asks and closes."""

    def __init__(self, shared: SharedModel, number: int, account: Account) -> None:
        self.structured = shared.structured
        self._number, self._account = number, account
        record_origin(self, shared.origin)

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """The model's answer; raises what it raises there."""
        return await self._account.answer(self._number, request)


# ------------------------------------------------------------------------------------------- what is shared


@dataclass(frozen=True, slots=True)
class Shared:
    """What the account of a run has, and how the processes of the run are made with it."""

    models: tuple[SharedModel, ...]
    bounded: bool
    """Whether rollout sides share bounds."""
    make_models: Callable[[], SharedModels]
    """Makes the chat models, in any process. Picklable."""
    make_side: Callable[[Account], LocalRolloutSide]
    """Makes a rollout side that asks the account, in any process. Picklable."""
    variables: NamedVariables
    """Environment variables that the configuration names."""

    @property
    def anything(self) -> bool:
        """Whether there is anything to share."""
        return bool(self.models) or self.bounded


def shared_parts(resolved: Resolved, side: LocalRolloutSide, made: Sequence[MadeModel]) -> Shared:
    """What is shared of a rollout side.

    Args:
        side: of this process, which is never opened.
        made: its chat models, in the order in which they were made.
    """
    models = tuple(_shared_models(made))
    bounded = any(_shares_bound(source, resolved) for source in side.reward_sources)
    bounded = bounded or any(isinstance(resource, SharesSlots) for resource in side.resources)
    return Shared(
        models,
        bounded,
        make_models=partial(make_models, resolved, models),
        make_side=partial(make_side_with_account, resolved, models),
        variables=named_variables(resolved.table, [model.path for model in models]),
    )


def _shared_models(made: Sequence[MadeModel]) -> Iterator[SharedModel]:
    """All but those that generate with the run's engine, which knows the rollouts of each host itself.

    One that is written inside another shared one goes with it.
    """
    shared: list[tuple[str, Table]] = []
    for model in reversed(made):  # an inner one is made before those that use it
        inside = any(model.path.startswith(f"{path}.") for path, _ in shared)
        again = (model.path, model.table) in shared  # as in the environments of a curriculum's levels
        if _generates(model.model) or inside or again:
            continue
        shared.append((model.path, model.table))
        origin = origin_of(model.model)
        yield SharedModel(model.path, model.name, model.table, bool(model.model.structured), origin)


def _generates(model: Any) -> bool:
    """Whether a chat model, or one that its settings hold, generates with the run's engine."""
    if isinstance(model, CheckedChatModel):
        return _generates(model.model)
    if isinstance(model, (list, tuple)):
        return any(map(_generates, model))
    if isinstance(model, dict):
        return any(map(_generates, model.values()))
    config = getattr(model, "config", None)
    inner = [
        getattr(config, field)
        for field, kind in (composed_fields(type(config)).items() if isinstance(config, BaseModel) else ())
        if kind == "chat_model"
    ]
    return isinstance(model, UsesEngine) or _generates(inner)


@dataclass(frozen=True, slots=True)
class NamedVariables:
    """Variables that settings name as `${NAME}`."""

    every: frozenset[str] = frozenset()
    """Those of a tool's `env` are left out: they may be ordinary ones, such as HOME."""
    engine: frozenset[str] = frozenset()
    sides: frozenset[str] = frozenset()
    """Of rollout sides, such as the key of a search tool; those of shared chat models are left out."""


def named_variables(table: Mapping[str, Any], shared: Collection[str]) -> NamedVariables:
    """The variables of a configuration.

    Args:
        table: the configuration's.
        shared: dotted paths of the tables that the account reads.
    """
    every: set[str] = set()
    engine: set[str] = set()
    sides: set[str] = set()
    for path, name in _named_in(table, ""):
        parts = path.split(".")
        if not (parts[0] == "tools" and "env" in parts):
            every.add(name)
        if parts[0] in _ENGINE:
            engine.add(name)
        elif parts[0] not in _RUN and not any(f"{path}.".startswith(f"{inside}.") for inside in shared):
            sides.add(name)
    return NamedVariables(frozenset(every), frozenset(engine), frozenset(sides))


def _named_in(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """(dotted path, variable) of each in a table."""
    if isinstance(value, str):
        yield from ((path, name) for name in _NAME.findall(value))
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _named_in(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _named_in(inner, path)


# ------------------------------------------------------------------------------------------- in the account


class SharedModels:
    """The chat models of the account, by number, and the components that they use."""

    def __init__(self, models: Sequence[Any], resources: Sequence[Any]) -> None:
        self._models, self._resources = models, resources
        self._opened = AsyncExitStack()

    async def open(self, folder: Path | None) -> None:
        """Open all; after a failure none is open.

        Args:
            folder: the run's.

        Raises:
            UserError: one can't be opened, for want of its key for one.
        """
        try:
            for resource in self._resources:
                if isinstance(resource, UsesEngine):
                    what = f"{origin_of(resource)} generates with the run's engine, inside another chat model"
                    fix = "name it in the component that asks it, or set executor=local"
                    raise ConfigError(what, path=origin_of(resource).path, fix=fix)
                if folder is not None and isinstance(resource, UsesRunFolder):
                    with plugin_call(resource, "use_run_folder"):
                        resource.use_run_folder(folder)
                await open_resource(resource, self._opened)
        except BaseException:
            await self._opened.aclose()
            raise

    async def answer(self, number: int, request: ChatRequest) -> ChatAnswer:
        """The checked answer of a model."""
        answer: ChatAnswer = await self._models[number].answer(request)
        return answer

    async def close(self) -> None:
        await self._opened.aclose()


def make_models(resolved: Resolved, models: Sequence[SharedModel]) -> SharedModels:
    """The shared chat models of a run, in any process: those of one entry of `chat_models` are one."""
    builder, made = ComponentBuilder(resolved.config), []
    for model in models:
        shared = builder.shared if model.path == f"chat_models.{model.name}" else {}
        if model.path not in shared:
            new = builder.make("chat_model", model.table, model.path, model.name)
            shared[model.path] = checked("chat_model", new)
        made.append(shared[model.path])
    return SharedModels(made, tuple(builder.resources))


# --------------------------------------------------------------------------------------- in a rollout host


class SharingSource(NamedRewardSource):
    """A reward source whose calls at once are bounded over all processes of the run."""

    shared: asyncio.Semaphore

    def slots(self) -> asyncio.Semaphore:
        """Bounds the calls at once."""
        return self.shared


def make_side_with_account(
    resolved: Resolved, models: Sequence[SharedModel], account: Account
) -> LocalRolloutSide:
    """A rollout side that asks the account for answers and slots, in any process."""

    def elsewhere(path: str, table: Table) -> Any:
        for number, model in enumerate(models):
            if (model.path, model.table) == (path, table):
                return ModelElsewhere(model, number, account)
        return None

    check(resolved.config, policies=False)
    side = make_rollout_parts(resolved, ComponentBuilder(resolved.config, elsewhere=elsewhere)).side
    side.reward_sources = [
        _sharing(source, account) if _shares_bound(source, resolved) else source
        for source in side.reward_sources
    ]
    for resource in side.resources:
        if isinstance(resource, SharesSlots):
            with plugin_call(resource, "use_slots"):
                resource.use_slots(account.slots)
    return side


def _shares_bound(source: NamedRewardSource, resolved: Resolved) -> bool:
    """Whether a source is bounded over all processes.

    A plugin that has its calls made in turn, without a word of the configuration, waits for nothing.
    """
    return source.concurrency > 1 or resolved.config.rewards[source.name].get("concurrency") is not None


def _sharing(source: NamedRewardSource, account: Account) -> SharingSource:
    made = SharingSource(
        **{field.name: getattr(source, field.name) for field in fields(source) if field.init}
    )
    made.shared = account.slots(f"rewards.{source.name}", source.concurrency)
    return made
