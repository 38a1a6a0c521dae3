"""What a configuration means: which plugin serves each part, which hooks run, who reads each key, and what of
a role's prompt comes from where."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from coterie.analysis.explained_keys import PLUGIN_DEFAULT, ExplainedKey, explained_keys
from coterie.analysis.explained_prompts import ExplainedPrompt, explain_prompts
from coterie.analysis.recorded_engine import codecs_of_engine
from coterie.analysis.sample_episode import TASK, sample_episode
from coterie.api.run_record import RunRecord, read_record, recall
from coterie.compose import prepare
from coterie.compose.builder import ComponentBuilder
from coterie.compose.described import source_of
from coterie.compose.run import make_engine
from coterie.compose.settings import Settings, settings_of
from coterie.core.config import Resolved, RunConfig
from coterie.core.errors import ConfigError, MissingExtra, UserError, did_you_mean
from coterie.core.protocols import Codec
from coterie.core.rollout.side import LocalRolloutSide
from coterie.discovery import Plugins, hookspecs, plugins
from coterie.discovery.members import MakesCodecs
from coterie.recipes import flatten, load

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPart:
    """A table of the configuration and the plugin that serves it."""

    path: str
    kind: str
    plugin: str
    distribution: str
    """Of a plugin file, its path."""
    version: str
    recorded: str = ""
    """Of a run folder: the version with which the run was made, where it was another one."""
    file: str = ""
    line: int | None = None
    chosen_by: str
    """The layer that chose it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverCall:
    """A function that a hook calls in a run, in the order of the calls."""

    hook: str
    when: str
    distribution: str
    version: str
    function: str
    file: str = ""
    line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedPlugin:
    """A plugin that was loaded: its hooks were called in this order of plugins."""

    distribution: str
    version: str
    hooks: list[str]
    serves: list[str]
    """Dotted paths of the parts that it serves."""
    errors: list[str]
    """What is wrong with it, each with its fix; it is left out."""


@dataclass(slots=True, kw_only=True)
class Explanation:
    """All that `coterie explain` shows."""

    name: str
    folder: str = ""
    """Of a run; empty: it is a recipe, a file or a table."""
    parts: list[ServedPart]
    observers: list[ObserverCall]
    loaded: list[LoadedPlugin]
    keys: list[ExplainedKey]
    prompts: list[ExplainedPrompt] = field(default_factory=list)
    task: str = ""
    """The id of the train task whose prompts these are."""
    answers: str = ""
    """What answered them, so that there are later ones."""
    missing: list[str] = field(default_factory=list)
    """What can't be shown here, why, and how it could be."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def explain(
    source: str | Path | Mapping[str, Any] | RunConfig,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
    prompts: bool = True,
    tokenizers: bool = True,
    role: str | None = None,
    task: int = 0,
) -> Explanation:
    """Explain a recipe, a YAML file, a table, or a run folder as the run was made.

    No model is loaded. With `prompts` the first two turns of a train task are played with made-up answers,
    programs of which run in the sandbox; nothing is scored, and no outside model is asked.

    Args:
        tokenizers: whether to read the policies' tokenizers, for the text as a model reads it.
        role: the only role whose prompts are explained.
        task: number of the task in the train split.

    Raises:
        UserError: whatever is wrong with the configuration, with its path.
    """
    folder = _run_folder(source)
    record = recall(folder) if folder is not None else None
    resolved = load(source, overrides=overrides, scale=scale, overlays=overlays)
    if role is not None and role not in resolved.config.team.roles:
        fix = did_you_mean(role, resolved.config.team.roles)
        raise ConfigError(f"the team has no role '{role}'", path="--prompt", fix=fix)
    settings, changed = settings_of(resolved.config), ""
    if record is not None and not overrides:
        now, settings = settings, replace(settings, table=record.settings)
        changed = _changed(now.table, record)
    explanation = Explanation(
        name=resolved.name,
        folder=str(folder or ""),
        parts=_parts(resolved, settings, record),
        observers=_observers(plugins()),
        loaded=_loaded(plugins(), settings),
        keys=explained_keys(resolved, settings),
    )
    if changed:
        explanation.missing.append(changed)
    try:
        side = prepare(resolved).side
    except MissingExtra as error:  # as `coterie config`: the configuration can still be shown
        explanation.missing.append(f"not checked in full, and no prompts: {error.what}; {error.fix}")
        return explanation
    if prompts:
        _add_prompts(explanation, resolved, side, tokenizers=tokenizers, role=role, task=task)
    return explanation


def _run_folder(source: Any) -> Path | None:
    if not isinstance(source, (str, Path)) or not (Path(source) / "config.yaml").is_file():
        return None
    return Path(source) if read_record(Path(source)) is not None else None


def _changed(now: Mapping[str, Any], record: RunRecord) -> str:
    """Which settings nobody stated and are otherwise today than when the run was made; empty: none."""
    after = dict(flatten(now))
    paths = [path for path, value in flatten(record.settings) if after.get(path, value) != value]
    paths = [path for path in paths if not (path.startswith("rewards.") and ".weights" in path)]
    if not paths:
        return ""
    return f"prompts with the defaults of then: the plugins have other ones for {', '.join(paths)}"


# ----------------------------------------------------------------------------------------- parts and hooks


def _parts(resolved: Resolved, settings: Settings, record: RunRecord | None) -> list[ServedPart]:
    parts, registry = [], plugins().registry
    versions = {report.distribution: report.version for report in plugins().reports}
    for path, (kind, name) in settings.components.items():
        entry = registry.find(kind, name, path=f"{path}.type")
        place, version = source_of(entry.target), versions.get(entry.distribution, "")
        before = record.versions.get(entry.distribution, version) if record is not None else version
        origins = resolved.origins
        parts.append(
            ServedPart(
                path=path,
                kind=kind,
                plugin=name,
                distribution=entry.distribution,
                version=version,
                recorded="" if before == version else before,
                file=place.file,
                line=place.line,
                chosen_by=origins.get(f"{path}.type", origins.get(path, PLUGIN_DEFAULT)),
            )
        )
    return parts


def _observers(manager: Plugins) -> list[ObserverCall]:
    versions, calls = {report.distribution: report.version for report in manager.reports}, []
    for hook, when in hookspecs.WHEN.items():
        for observer in getattr(manager.hook, hook).get_hookimpls():
            distribution = observer.plugin_name.rpartition(":")[0]
            place = source_of(observer.function)
            calls.append(
                ObserverCall(
                    hook=hook,
                    when=when,
                    distribution=distribution,
                    version=versions.get(distribution, ""),
                    function=observer.function.__qualname__,
                    file=place.file,
                    line=place.line,
                )
            )
    return calls


def _loaded(manager: Plugins, settings: Settings) -> list[LoadedPlugin]:
    served: dict[str, list[str]] = {}
    for path, (kind, name) in settings.components.items():
        entry = manager.registry.find(kind, name)
        served.setdefault(entry.distribution, []).append(path)
    return [
        LoadedPlugin(
            distribution=report.distribution,
            version=report.version,
            hooks=list(report.hooks),
            serves=served.get(report.distribution, []),
            errors=list(report.errors),
        )
        for report in manager.reports
    ]


# ----------------------------------------------------------------------------------------------- the prompts


def _add_prompts(
    explanation: Explanation,
    resolved: Resolved,
    side: LocalRolloutSide,
    *,
    tokenizers: bool,
    role: str | None,
    task: int,
) -> None:
    """Add the prompts of a task; what they lack is noted."""
    config = resolved.config
    chat = ComponentBuilder(config).make("chat_format", config.chat, "chat")
    codecs = _codecs(explanation, resolved, side, chat) if tokenizers else {}
    try:
        episode = asyncio.run(sample_episode(side, side.sampler, codecs, task))
    except UserError as error:
        if error.path == TASK:
            raise
        explanation.missing.append(f"no prompts: {' '.join(str(error).split())}")
        return
    except Exception as error:
        log.debug("no prompts", exc_info=True)
        notes = "; ".join(getattr(error, "__notes__", ()))
        explanation.missing.append(f"no prompts: {type(error).__name__}: {error} {notes}".strip())
        return
    explanation.task, explanation.answers = episode.task.id, episode.answers
    samples = [sample for sample in episode.prompts if role in (None, sample.role)]
    explanation.prompts = explain_prompts(samples, config, side, codecs, chat)
    if episode.drawn:
        explanation.missing.append(
            f"the origin of words that a second call gives otherwise: {', '.join(episode.drawn)}; a resume "
            "and a replay get other ones, too"
        )
    if episode.ended:
        explanation.missing.append(f"the sample episode ended early: {episode.ended}")
    for name in side.team.members if role is None else (role,):
        if name not in {prompt.role for prompt in explanation.prompts}:
            explanation.missing.append(f"role '{name}' did not act in the sample episode")


def _codecs(
    explanation: Explanation, resolved: Resolved, side: LocalRolloutSide, chat: Any
) -> dict[str, Codec]:
    """The codecs of the policies, by policy, as far as their tokenizers can be had."""
    try:
        engine = make_engine(resolved)
    except UserError as error:
        explanation.missing.append(f"no text of a chat format: {' '.join(str(error).split())}")
        return {}
    if not isinstance(engine, MakesCodecs):
        kind = resolved.config.engine["type"]
        explanation.missing.append(f"no text of a chat format: engine '{kind}' has no `codecs`")
        return {}
    codecs = codecs_of_engine(engine, resolved.config, chat, side.vocabulary)
    lacking: dict[str, list[str]] = {}
    for policy in dict.fromkeys(side.team.policies.values()):
        if policy not in codecs:
            lacking.setdefault(str(resolved.config.policies[policy].model), []).append(policy)
    for model, policies in lacking.items():
        explanation.missing.append(
            f"no text of the chat format for {', '.join(policies)}: the tokenizer of {model} can't be read "
            f"here (fix: hf download {model}, where there is a network; or name a folder that has it)"
        )
    return codecs
