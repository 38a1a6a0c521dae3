"""Policies from elsewhere that an evaluation brings along: `coterie eval --policy role=CHECKPOINT`.

A guest is a policy of another run, or of a folder that `coterie export` wrote. The engine is given its
weights beside the team's own. The team's trainer knows nothing of it, so a checkpoint is read as strictly as
ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coterie.api.checkpoints import find_checkpoint
from coterie.core.config import ModelInit, PolicyConfig, RunConfig, load
from coterie.core.errors import ConfigError, CoterieError, did_you_mean
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.training.assemble import compose
from coterie.core.training.run import Run
from coterie.core.types import Weights

Which = Literal["best", "latest"] | int
"""A checkpoint of a run: the best on val, the latest, or a step's."""

_FORM = re.compile(r"(?P<folder>.+?)(?:@(?P<which>best|latest|\d+))?(?::(?P<policy>[^:/\\@]+))?")
_TABLE = "table.npz"
_MODEL_FILES = ("config.json", "adapter_config.json", _TABLE)


@dataclass(frozen=True, slots=True)
class ExternalPolicy:
    """A policy from elsewhere."""

    name: str
    """Its name beside the team's own policies: `runs/b@120:planner`, or the folder."""
    config: PolicyConfig
    folder: Path
    checkpoint: Checkpoint | None = None
    """None: the folder holds a model, not a run."""
    policy: str = ""
    """Its name in its run."""
    replaces: tuple[str, ...] = ()
    """Policies of the team whose roles it was asked to play; their tokens must be its own."""


def resolve_policies(
    run: Run, policies: Mapping[str, str | Path], checkpoint: Which = "best"
) -> tuple[tuple[ExternalPolicy, ...], dict[str, str]]:
    """The guests that some roles are to be played by, and role -> guest's name. Nothing is loaded.

    Args:
        policies: role -> `RUN_DIR`, `RUN_DIR@best|latest|N`, either with `:POLICY`; or a folder that
            `coterie export` wrote.
        checkpoint: of a run where nothing follows an @.

    Raises:
        ConfigError: an unknown role, folder or policy, or a model that this run's engine can't play.
        RunFolderError: a run without that checkpoint.
    """
    found: dict[str, ExternalPolicy] = {}
    plays: dict[str, str] = {}
    for role, text in policies.items():
        if role not in run.team.roles:
            raise ConfigError(
                f"unknown role '{role}'", path="--policy", fix=did_you_mean(role, run.team.roles)
            )
        own = run.team.policies[role]
        guest = _find(str(text), role, run.config.policies[own], checkpoint)
        if guest.name in run.config.policies:
            guest = replace(guest, name=f"./{guest.name}")
        _check_kind(guest, own, run.config.policies[own])
        known = found.get(guest.name, guest)
        found[guest.name] = replace(known, replaces=tuple(dict.fromkeys((*known.replaces, own))))
        plays[role] = guest.name
    return tuple(found.values()), plays


async def seat(run: Run, guests: Sequence[ExternalPolicy]) -> None:
    """Give the engine of an opened run the weights of guests.

    A run's trainer is opened for its policies, and closed when the engine has taken their weights.

    Raises:
        ConfigError: weights that can't be loaded, or that were made for other tokens than the team's.
    """
    sources: dict[Path, list[ExternalPolicy]] = {}
    for guest in guests:
        if guest.checkpoint is None:
            await _give(run, guest, Weights(policy=guest.name, version=0, folder=str(guest.folder)))
        else:
            sources.setdefault(guest.checkpoint.path, []).append(guest)
    for path, guests in sources.items():
        other = compose(load(guests[0].folder))
        try:
            await other.open_trainer(path)
            for guest in guests:
                await _give(run, guest, replace(other.trainer.weights(guest.policy), policy=guest.name))
        finally:
            await other.trainer.close()


def _find(text: str, role: str, own: PolicyConfig, checkpoint: Which) -> ExternalPolicy:
    match = _FORM.fullmatch(text)
    if Path(text).is_dir() or match is None:  # a folder may have an @ in its name
        folder, which, policy = Path(text), None, None
    else:
        folder, which, policy = Path(match["folder"]), match["which"], match["policy"]
    if not folder.is_dir():
        raise ConfigError(
            f"there is no folder {folder}",
            path=f"--policy {role}",
            fix="name a run's folder, with @best, @latest or @STEP and :POLICY if you like, or a folder "
            "that `coterie export` wrote",
        )
    if not (folder / "config.yaml").is_file():
        return _model(folder, role, own, which or policy)
    wanted: Which = checkpoint if which is None else int(which) if which.isdecimal() else which  # type: ignore[assignment]
    stands = find_checkpoint(folder, wanted)
    config = load(folder).config
    name = policy or _counterpart(config, folder, role)
    if name not in config.policies:
        raise ConfigError(
            f"{folder} has no policy '{name}'",
            path=f"--policy {role}",
            fix=did_you_mean(name, config.policies),
        )
    return ExternalPolicy(f"{folder}@{stands.step}:{name}", config.policies[name], folder, stands, name)


def _counterpart(config: RunConfig, folder: Path, role: str) -> str:
    """The policy that plays the role in another run, else that run's only one."""
    if role in config.team.roles:
        return str(config.team.roles[role]["policy"])
    if len(config.policies) == 1:
        return next(iter(config.policies))
    raise ConfigError(
        f"which policy of {folder} is to play '{role}'?",
        path=f"--policy {role}",
        why=f"nobody plays '{role}' there, and it has several policies",
        fix=f"add one of: {', '.join(f':{name}' for name in config.policies)}",
    )


def _model(folder: Path, role: str, own: PolicyConfig, suffix: str | None) -> ExternalPolicy:
    if not any((folder / name).is_file() for name in _MODEL_FILES):
        raise ConfigError(
            f"{folder} is neither a run's folder nor a model's",
            path=f"--policy {role}",
            why=f"none of config.yaml, {', '.join(_MODEL_FILES)} is there",
        )
    if suffix is not None:
        raise ConfigError(
            f"{folder} holds one model, and nothing reads '{suffix}'",
            path=f"--policy {role}",
            fix="a checkpoint and a policy are named after a run's folder",
        )
    model = ModelInit(init="tabular") if (folder / _TABLE).is_file() else str(folder)
    return ExternalPolicy(str(folder), PolicyConfig(model=model, train="none", dtype=own.dtype), folder)


def _check_kind(guest: ExternalPolicy, own: str, config: PolicyConfig) -> None:
    """An engine is for tables, for tensors, or for no weights at all."""
    theirs, ours = _kind(guest.config), _kind(config)
    if ours == "none" or theirs != ours:
        what = {"none": "no weights", "tabular": "tables", "tensors": "tensors"}
        raise ConfigError(
            f"{guest.name} can't play beside '{own}'",
            path="--policy",
            why=f"it has {what[theirs]}, and the engine here plays {what[ours]}",
        )


def _kind(config: PolicyConfig) -> str:
    made = config.model.init if isinstance(config.model, ModelInit) else ""
    return made if made in ("none", "tabular") else "tensors"


async def _give(run: Run, guest: ExternalPolicy, weights: Weights) -> None:
    try:
        await run.engine.load_weights(weights)
    except CoterieError:
        raise
    except Exception as error:  # whatever a library makes of a folder that somebody names
        said = str(error).strip().splitlines()
        raise ConfigError(
            f"the weights of {guest.name} can't be loaded",
            path="--policy",
            why=f"{type(error).__name__}: {said[0]}" if said else type(error).__name__,
            fix="check that the folder is complete and of one model",
        ) from error
    theirs = getattr(run.engine.codec(guest.name), "vocabulary", None)
    for own in guest.replaces:
        ours = getattr(run.engine.codec(own), "vocabulary", None)
        if ours is not None and theirs is not None and ours != theirs:
            raise ConfigError(
                f"{guest.name} was made for other tokens than '{own}'",
                path="--policy",
                why=_apart(theirs, ours),
                fix="evaluate with the environment and the tokenizer that it was trained with",
            )


def _apart(theirs: Mapping[str, int], ours: Mapping[str, int]) -> str:
    def told(words: Iterable[str]) -> str:
        return f"such as {min(words)!r}" if words else ""

    lacks, adds = ours.keys() - theirs.keys(), theirs.keys() - ours.keys()
    if lacks or adds:
        return "; ".join(
            f"it {what} {len(words)} of them, {told(words)}"
            for what, words in (("lacks", lacks), ("adds", adds))
            if words
        )
    moved = {word for word, index in ours.items() if theirs[word] != index}
    return f"{len(moved)} tokens have other ids, {told(moved)}"
