"""The Protocol of every kind of component, and the capabilities that its plugins may have."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, NoReturn, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from coterie.core import protocols
from coterie.core.errors import PluginError, did_you_mean
from coterie.core.plugins import DECLARING, Plugin
from coterie.core.plugins.origin import origin_of, plugin_call
from coterie.core.protocols.reward import ShowsFeedback
from coterie.discovery import members as optional
from coterie.discovery.optional import DEFAULTS

PROTOCOL: dict[str, type] = {
    "environment": protocols.Environment,
    "role": protocols.Role,
    "reward": protocols.RewardSource,
    "estimator": protocols.AdvantageEstimator,
    "loss": protocols.Loss,
    "transition": protocols.TransitionMode,
    "sampler": protocols.Sampler,
    "engine": protocols.Engine,
    "trainer": protocols.Trainer,
    "executor": protocols.Executor,
    "sandbox": protocols.Sandbox,
    "tool": protocols.Tool,
    "chat_format": protocols.ChatFormat,
    "chat_model": protocols.ChatModel,
    "data_source": protocols.DataSource,
    "tracker": protocols.Tracker,
}


CAPABILITIES: dict[str, tuple[type, ...]] = {
    "environment": (
        protocols.environment.DigestsStates,
        optional.Diagnoses,
        optional.GivesFindings,
        optional.HasVocabulary,
        optional.Demonstrates,
        optional.StepsConcurrently,
        optional.HasNotSummable,
        optional.HasFields,
        optional.RecordsTasks,
        optional.LocatesTasks,
        optional.FingerprintsTasks,
        optional.LeavesOut,
        optional.DrawsTasks,
        optional.GivesFinalAnswers,
        optional.ShowsWork,
        optional.ScoresRoles,
        protocols.tool.CountsMetrics,
        protocols.tool.Opens,
        protocols.tool.Closes,
    ),
    "role": (optional.HasVocabulary, protocols.role.Remembers, optional.MayLackFeedback, optional.OmitsTask),
    "transition": (
        optional.HasVocabulary,
        protocols.transition.RepeatsTask,
        optional.CountsCalls,
        protocols.tool.CountsMetrics,
    ),
    "reward": (
        optional.CountsCalls,
        optional.CountsTokens,
        optional.RunsInBackground,
        optional.BoundsCalls,
        protocols.reward.ShowsFeedback,
        optional.ScoresRoles,
        optional.ChecksComponents,
        protocols.tool.Opens,
        protocols.tool.Closes,
        optional.UsesRunFolder,
    ),
    "engine": (protocols.engine.LeasesVersions, optional.UsesRunFolder, optional.MakesCodecs),
    "estimator": (optional.SumsOverTurns, optional.StopsEpisodes),
    "loss": (optional.HasLengthConstant, optional.NeedsFreshSamples),
    "trainer": (
        protocols.trainer.FollowsBudget,
        protocols.trainer.KeepsVersions,
        optional.CountsOptimizerSteps,
        optional.TakesWeights,
        optional.TrainsApart,
        optional.WarmStarts,
    ),
    "sandbox": (optional.ReportsProtections, optional.KeepsFiles, optional.ChecksHost, optional.SharesSlots),
    "tool": (protocols.tool.Opens, protocols.tool.Closes, protocols.tool.HasSchemas),
    "chat_model": (
        protocols.tool.Opens,
        protocols.tool.Closes,
        protocols.chat_model.UsesEngine,
        optional.UsesRunFolder,
    ),
    "tracker": (protocols.tracker.TracksEpisodes, protocols.tracker.TracksSpans),
}
"""Protocols of optional members, by kind. `isinstance(plugin, Diagnoses)` asks whether a plugin has one."""


def members(*of: type) -> dict[str, bool]:
    """The names of the members of Protocols, and whether a method has that name."""
    names: dict[str, bool] = {}
    for protocol in of:
        names |= dict.fromkeys(get_type_hints(protocol), False)
        names |= {name: inspect.isfunction(value) for name, value in vars(protocol).items()}
    return {name: method for name, method in names.items() if name[0] != "_"}


def ignored(plugin: Any, kind: str) -> list[str]:
    """What a plugin, or its class, has and nothing reads: misspelt members, capabilities in part, no methods.

    A longer or shorter word (`records`, `field`) is no misspelling unless both are methods, or neither is.
    """
    capabilities = CAPABILITIES.get(kind, ())
    of_kind = members(PROTOCOL[kind], *capabilities)
    present = {name for name in dir(plugin) if name[0] != "_"} - set(dir(Plugin)) - {"config", "build"}
    of_author, bases = _inherited(plugin, kind)
    known = bases | members(DEFAULTS.get(kind, object)) | of_kind
    texts = []
    for name in sorted(present - known.keys()):
        left = known.keys() - (of_author if name in of_author else present)
        swapped = [
            member for member in left if sorted(member) == sorted(name)
        ]  # `opne` is not close to `open`
        for member in swapped[:1] or difflib.get_close_matches(name, left, n=1, cutoff=0.8):
            alike = callable(inspect.getattr_static(plugin, name)) == known[member]
            if alike or not (name.startswith(member) or member.startswith(name)):
                texts.append(f"`{name}`, which nothing reads: did you mean `{member}`?")
    methods = present & {name for name, method in of_kind.items() if method}
    texts += [
        f"`{name}`, which is {value!r:.40} and no method" for name, value in _no_methods(plugin, methods)
    ]
    for names in map(members, capabilities):
        if present & names.keys() and (lacks := names.keys() - present):
            has = "`, `".join(sorted(present & names.keys()))
            texts.append(f"`{has}` alone, which nothing reads without `{'`, `'.join(sorted(lacks))}`")
    return texts


def _no_methods(plugin: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Those of the names that can't be called, each with its value; None may take an inherited one away."""
    classes = inspect.getmro(plugin if inspect.isclass(plugin) else type(plugin))
    for name in sorted(names):
        value = inspect.getattr_static(plugin, name)
        taken_away = value is None and sum(name in vars(cls) for cls in classes) > 1
        if not (callable(value) or hasattr(value, "__get__") or taken_away):
            yield name, value


def _inherited(plugin: Any, kind: str) -> tuple[set[str], dict[str, bool]]:
    """The names that a plugin's own classes set, and of those of Coterie's classes which are methods.

    What these have is never missing, so a misspelt override of it shows only in the names of its own classes.
    """
    classes = inspect.getmro(plugin if inspect.isclass(plugin) else type(plugin))[:-1]
    of_coterie = [cls for cls in classes if cls.__module__.partition(".")[0] == "coterie"]
    of_author = {name for cls in classes if cls not in of_coterie for name in vars(cls) if name[0] != "_"}
    schemas = ("Config", "Policy") if kind in DECLARING else ("Config",)
    known = dict.fromkeys(schemas, True)
    for cls in of_coterie:
        known |= {name: callable(value) for name, value in vars(cls).items() if name[0] != "_"}
    return of_author, known


def check_attributes(plugin: Any, kind: str) -> None:
    """Check the types of a plugin's attributes, and what a reward source says of its calls and components.

    Raises:
        PluginError: the first that is wrong.
    """
    for name, adapter in _attribute_types(kind).items():
        with plugin_call(plugin, name):
            value = getattr(plugin, name, None)
        try:
            adapter.validate_python(dict(value) if isinstance(value, Mapping) else value)
        except ValidationError as error:
            details: Any = error.errors()[0]
            known = re.findall(r"'(\w+)'", details.get("ctx", {}).get("expected", ""))
            fix = did_you_mean(str(details["input"]), known) if known else details["msg"]
            _refuse(plugin, f"`{name}` is {value!r:.200}", fix)
    if "components" in members(PROTOCOL[kind]) and (unknown := set(plugin.weights) - set(plugin.components)):
        what = f"`weights` names {sorted(unknown)}, and `components` does not"
        _refuse(plugin, what, did_you_mean(min(unknown), plugin.components))
    if isinstance(plugin, optional.CountsCalls) and plugin.calls_per_view < 0:
        _refuse(plugin, f"`calls_per_view` is {plugin.calls_per_view}", "a number of calls, 0 or more")
    for name in ("call_tokens", "answer_tokens") if isinstance(plugin, optional.CountsTokens) else ():
        if getattr(plugin, name) < 0:
            _refuse(plugin, f"`{name}` is {getattr(plugin, name)}", "a number of tokens, 0 or more")
    check_coroutines(plugin, kind)
    if kind == "reward":
        check_source_attributes(plugin)


def check_source_attributes(plugin: Any) -> None:
    """Check what a reward source says of its calls and of its components.

    Raises:
        PluginError: a bound below 1; components of single roles that it lacks, or in a scope of one role;
            feedback that comes after the prompts.
    """
    if isinstance(plugin, optional.BoundsCalls) and (plugin.concurrency is None or plugin.concurrency < 1):
        _refuse(plugin, f"`concurrency` is {plugin.concurrency!r}", "a number of calls, 1 or more")
    per_role = plugin.per_role if isinstance(plugin, optional.ScoresRoles) else ()
    for component in per_role:
        if component not in plugin.components:
            what = f"`per_role` names '{component}', which is none of its components"
            _refuse(plugin, what, did_you_mean(component, plugin.components))
    if per_role and plugin.scope not in ("joint", "episode"):
        what = f"`per_role` is set, and the scope '{plugin.scope}' scores one role's action"
        _refuse(plugin, what, "leave it out: a failure is that role's anyway")
    scope, why = plugin.scope, ""
    if scope in ("episode", "trajectory"):
        why = f"the scope '{scope}' is scored after play"
    elif isinstance(plugin, optional.RunsInBackground) and plugin.background:
        why = "`background` is true, so a score may come after the prompt of the next role"
    if why and isinstance(plugin, ShowsFeedback):
        _refuse(plugin, "no role reads its `feedback`", "score in time, or leave `feedback` out", why)


def check_coroutines(plugin: Any, kind: str) -> None:
    """Check that no method is `async def` that is called without `await`, and that `open` and `close` are
    coroutine functions where the kind awaits them.

    Raises:
        PluginError: the first that is wrong.
    """
    for name, awaited in coroutines(plugin, kind).items():
        method = inspect.unwrap(getattr(type(plugin) if name == "__call__" else plugin, name))
        is_coroutine = is_async(method)
        if is_coroutine and not awaited:
            _refuse(plugin, f"`{name}` is a coroutine function, and nothing awaits it", f"def {name}")
        if awaited and not is_coroutine and name in ("open", "close"):
            signature = next(inspect.signature(method) for each, method in methods_of(kind) if each == name)
            fix = f"async def {name}{signature}".replace("'", "")
            _refuse(plugin, f"`{name}` is no coroutine function", fix)


def coroutines(plugin: Any, kind: str) -> dict[str, bool]:
    """The methods that a plugin, or its class, has of its kind, and which of them are awaited; without those
    that may be coroutine functions, such as `diagnose`."""
    awaited: dict[str, bool] = {}
    for name, method in methods_of(kind):
        has = callable(getattr(plugin, name, None))
        if has and "Awaitable" not in str(method.__annotations__.get("return")):
            awaited.setdefault(name, is_async(method))
    return awaited


def methods_of(kind: str) -> Iterator[tuple[str, Any]]:
    """The methods of a kind's Protocol, by name, and then those of its capabilities."""
    for protocol in (PROTOCOL[kind], *CAPABILITIES.get(kind, ())):
        for name, method in vars(protocol).items():
            if inspect.isfunction(method) and (name == "__call__" or name[0] != "_"):
                yield name, method


def is_async(method: Any) -> bool:
    """Whether a call gives something to await, or an asynchronous generator."""
    return inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)


def _refuse(plugin: Any, what: str, fix: str, why: str = "") -> NoReturn:
    origin = origin_of(plugin)
    raise PluginError(f"{origin}: {what}", path=origin.path, why=why, fix=fix) from None


@cache
def _attribute_types(kind: str) -> dict[str, TypeAdapter[Any]]:
    config = ConfigDict(strict=True, arbitrary_types_allowed=True, allow_inf_nan=False)
    required = get_type_hints(PROTOCOL[kind]).items()
    more = [item for protocol in CAPABILITIES.get(kind, ()) for item in get_type_hints(protocol).items()]
    return {name: TypeAdapter(hint, config=config) for name, hint in required} | {
        name: TypeAdapter(hint | None, config=config) for name, hint in more
    }
