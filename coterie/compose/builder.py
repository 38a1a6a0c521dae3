"""Components from their tables: find the plugin, check its settings, check the object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from coterie import deprecations
from coterie.compose.kinds import PROTOCOL, check_attributes, ignored, members
from coterie.compose.settings import REFERRED, type_missing
from coterie.compose.tables import TABLES, warn_of_settings
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError, PluginError, SystemFault, UserError, did_you_mean
from coterie.core.plugins import Table, as_table, composed_fields
from coterie.core.plugins.origin import Origin, failure, origin_of, plugin_call, record_origin
from coterie.core.protocols import ChatAnswer, ChatModel, ChatRequest, Environment
from coterie.core.protocols.tool import Closes, Opens
from coterie.core.rollout.contracts import check_async, refuse
from coterie.core.types.messages import encodable
from coterie.discovery import plugins
from coterie.discovery.validation import validate

log = logging.getLogger("coterie")

_CHECKED: set[tuple[str, type]] = set()
"""(kind, class) of the plugins whose attributes were compared with the members of their kind."""
SHARED = {kind: table for table, kind in TABLES.items() if table in ("sandbox", "data")}
"""Kinds whose top-level table serves every component with a field for the kind that sets none itself."""


@dataclass(frozen=True, slots=True)
class PreparedComponent:
    """A component whose settings are valid and whose plugin is not imported yet."""

    config: Any
    make: Callable[[], Any]

    def __call__(self) -> Any:
        return self.make()


@dataclass(frozen=True, slots=True)
class MadeModel:
    """A chat model, and what it was made from."""

    path: str
    name: str
    table: Table
    model: Any


@dataclass(slots=True)
class ComponentBuilder:
    """Builds components and remembers which tables were consumed."""

    run: RunConfig
    environment: Environment | None = None
    consumed: set[str] = field(default_factory=set)
    shared: dict[str, Any] = field(default_factory=dict)
    """By kind, or by path: the one component of a top-level table that serves many."""
    making: list[str] = field(default_factory=list)
    """Paths of the referred components that are being made, outer ones first."""
    resources: list[Any] = field(default_factory=list)
    """Components that may have `open` and `close`, in the order in which they were made."""
    chat_models: list[MadeModel] = field(default_factory=list)
    """Inner ones before those that use them."""
    elsewhere: Callable[[str, Table], Any] | None = None
    """The stand-in for the chat model of a path and a table; None, as its result too: it is made here."""

    def make(self, kind: str, table: Any, path: str, name: str = "", also: Sequence[str] = ()) -> Any:
        """One component from its table; `also` are keys of it that are somebody else's, for hints.

        Raises:
            ConfigError: no `type`, or settings that its Config refuses.
            PluginError: an unknown name, or a class that lacks a member of its kind.
        """
        if kind != "chat_model":
            return self.prepare(kind, table, path, name, also)()
        table = dict(as_table(table))
        if self.elsewhere is not None and (stand_in := self.elsewhere(path, table)) is not None:
            return stand_in
        made = self.prepare(kind, table, path, name, also)()
        self.chat_models.append(MadeModel(path, name, table, made))
        return made

    def prepare(
        self, kind: str, table: Any, path: str, name: str = "", also: Sequence[str] = ()
    ) -> PreparedComponent:
        """Validate a component's table now; calling the result imports the plugin and makes the component."""
        settings = dict(as_table(table))
        plugin = settings.pop("type", None)
        if plugin is None and name in plugins().registry.names(kind):
            plugin = name  # `rewards: {environment: {...}}`: the name is the type
        if plugin is None:
            raise type_missing(kind, path)
        config = self._config(kind, str(plugin), settings, path, also)
        return PreparedComponent(config, partial(self._make, kind, str(plugin), config, path, name))

    def _make(self, kind: str, plugin: str, config: Any, path: str, name: str) -> Any:
        entry = plugins().registry.find(kind, plugin, path=f"{path}.type")
        target, origin = entry.load_class(f"{path}.type"), Origin(kind, plugin, entry.distribution, path)
        entry.check(target, f"{path}.type")
        maker: Any = target
        with plugin_call(origin, "constructor"):
            try:
                made = maker(config, BuildContext(self, name or path.rpartition(".")[2], path))
            except TypeError as error:
                raise PluginError(
                    f"{origin} can't be made",
                    path=path,
                    why=str(error),
                    fix="its constructor is called as cls(config, build)",
                ) from error
        record_origin(made, origin)
        check_members(made, origin)
        check_attributes(made, kind)
        bound = kind == "environment" and isinstance(made, (Opens, Closes))
        if bound or kind in ("sandbox", "tool", "chat_model"):
            self.resources.append(made)
        return made

    def _config(self, kind: str, plugin: str, settings: Table, path: str, also: Sequence[str]) -> Any:
        model = plugins().registry.config_of(kind, plugin, path=f"{path}.type")
        if model is None:
            if settings:
                key = next(iter(settings))
                why = f"{kind} '{plugin}' has no settings"
                raise ConfigError(f"unknown key '{key}'", path=f"{path}.{key}", why=why)
            return None
        for field_name, inner in composed_fields(model).items():
            shared = SHARED.get(inner)
            if shared is not None and field_name not in settings and getattr(self.run, shared) is not None:
                if inner not in self.shared:
                    self.shared[inner] = self.make(inner, getattr(self.run, shared), shared)
                settings[field_name] = self.shared[inner]
                self.consumed.add(shared)
            where = f"{path}.{field_name}"
            if field_name in settings:
                _check_given(model.model_fields[field_name], inner, settings[field_name], where)
            if inner in REFERRED and isinstance(settings.get(field_name), str):
                settings[field_name] = self._referred(inner, settings[field_name], where)

        entry = plugins().registry.find(kind, plugin, path=f"{path}.type")
        warn_of_settings(model, settings, path, entry.label)

        def nested(kind: str, table: Table, where: str) -> Any:
            return checked(kind, self.make(kind, table, where))

        try:
            return validate(model, settings, path, context={"build": nested, "path": path}, also=also)
        except ConfigError as error:
            if error.fix.startswith("known: ") and error.path.rpartition(".")[0] == path:
                error.why = error.why or f"{kind.replace('_', ' ')} '{plugin}' has no such setting"
            raise

    def _referred(self, kind: str, name: str, path: str) -> Any:
        """The component that a field names, made once; or the name, where it is that of a plugin."""
        table = REFERRED[kind]
        entries, registered = getattr(self.run, table), plugins().registry.names(kind)
        if name not in entries:
            if name in registered or ":" in name:
                return name
            fix = did_you_mean(name, [*entries, *registered])
            raise ConfigError(f"no {table} entry and no plugin is called '{name}'", path=path, fix=fix)
        where = f"{table}.{name}"
        if where in self.making:
            cycle = " -> ".join([*self.making[self.making.index(where) :], where])
            what, fix = f"{table} refer to each other in a cycle", "name one that needs none of these"
            raise ConfigError(what, path=path, why=f"each needs the next one first: {cycle}", fix=fix)
        if where not in self.shared:
            if name in registered and entries[name].get("type", name) != name:
                text = "%s has the name of a %s plugin: components that name it get this entry, of type %s"
                log.warning(text, where, kind.replace("_", " "), entries[name]["type"])
            self.making.append(where)
            self.shared[where] = checked(kind, self.make(kind, entries[name], where, name))
            self.making.pop()
        self.consumed.add(where)
        return self.shared[where]


@dataclass(frozen=True, slots=True)
class BuildContext:
    """What a plugin's constructor is given as `build`."""

    builder: ComponentBuilder
    name: str
    path: str

    @property
    def run(self) -> RunConfig:
        return self.builder.run

    @property
    def environment(self) -> Environment:
        """The run's environment (not for the environment's own constructor)."""
        assert self.builder.environment is not None, "the environment is made first"
        return self.builder.environment

    def make(self, kind: str, table: Any, path: str) -> Any:
        return checked(kind, self.builder.make(kind, table, path))


def _check_given(field_info: FieldInfo, kind: str, given: Any, path: str) -> None:
    """Refuse what is no component, no table and no name, where a field holds one component."""
    if get_origin(field_info.annotation) not in (None, Union, UnionType):
        return  # it holds several
    may_be_none = field_info.default is None or type(None) in get_args(field_info.annotation)
    if isinstance(given, (bool, int, float, list, tuple)) or (given is None and not may_be_none):
        what, table = kind.replace("_", " "), REFERRED.get(kind)
        name = f"a name of `{table}`, " if table else ""
        fix = f"{name}the name of a plugin ({did_you_mean('', plugins().registry.names(kind))}), or a table"
        raise ConfigError(f"a {what} is needed here", path=path, why=f"got {given!r:.100}", fix=fix)


def _has(made: Any, name: str, origin: Origin) -> bool:
    with plugin_call(origin, name):  # a property of the plugin's may raise anything
        return hasattr(made, name)


def check_members(made: Any, origin: Origin) -> None:
    """Refuse a plugin that lacks a member; warn, once a class, of misspelt ones."""
    kind, where = origin.kind, f"{origin.path}.type"
    for entry in deprecations.members_of(kind):
        if _has(made, entry.old, origin):
            deprecations.warn(str(origin), entry.text())
    required = members(PROTOCOL[kind]).items()
    lacking = [
        part
        for part, method in required
        if not _has(made, part, origin) or (method and getattr(made, part) is None)
    ]
    texts = ignored(made, kind) if lacking or (kind, type(made)) not in _CHECKED else []
    if lacking:
        what, why = f"{origin} lacks {', '.join(lacking)}", "; ".join(f"it has {text}" for text in texts)
        see = f"see coterie.{PROTOCOL[kind].__name__}"
        raise PluginError(what, path=where, why=why, fix=see)
    for text in texts:
        log.warning("%s has %s", origin, text)
    _CHECKED.add((kind, type(made)))


class CheckedChatModel:
    """A chat model whose failures are never those of the output that it is asked about (invariant 3).

    Its members beside `answer` are those of `model`.
    """

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        record_origin(self, origin_of(model))

    def __getattr__(self, name: str) -> Any:
        if name == "model" or name.startswith("__"):  # of an object that `copy` is about to fill
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def structured(self) -> bool:
        return self.model.structured

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """The model's answer, without text that UTF-8 can't encode.

        Raises:
            SystemFault: the model raised anything but a UserError. A PolicyFault is one of the judge's.
            UserError: no request can be answered; with the model's path.
            PluginError: it returned no `ChatAnswer` of texts.
        """
        model = self.model
        messages = tuple(
            {**message, "content": encodable(message["content"])} for message in request.messages
        )
        try:
            asking = model.answer(replace(request, messages=messages))
            answer = await check_async(model, "answer", asking)
        except UserError as error:
            error.path = error.path or origin_of(model).path
            raise
        except SystemFault:
            raise
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # the run ends, and not a task of the model's own
            raise SystemFault(failure(model, "answer", error)) from error
        sound = isinstance(answer, ChatAnswer) and isinstance(answer.text, str)
        if not sound or not isinstance(answer.version, str):
            refuse(model, "answer", answer, "return coterie.ChatAnswer(text=..., version=...), both texts")
        return replace(answer, text=encodable(answer.text), version=encodable(answer.version))


def checked(kind: str, component: Any) -> Any:
    """A component that another one names; a chat model is checked."""
    return CheckedChatModel(component) if kind == "chat_model" else component
