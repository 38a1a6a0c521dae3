"""Addresses of weights: `RUN_DIR`, `RUN_DIR@best|latest|STEP`, either with `:POLICY`, or another folder."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from coterie.api.checkpoints import find_checkpoint
from coterie.core.config import RunConfig
from coterie.core.errors import ConfigError, RunFolderError, did_you_mean
from coterie.core.storage.checkpoint import Checkpoint
from coterie.core.training.run import Run

log = logging.getLogger("coterie")
Which = Literal["best", "latest"] | int
"""A checkpoint of a run: the best on val, the latest, or a step's."""

_ADDRESS = re.compile(r"(?P<folder>.+?)(?:@(?P<which>best|latest|\d+))?(?::(?P<policy>[^:/\\@]+))?")


@dataclass(frozen=True, slots=True)
class WeightsAddress:
    """The parts of an address."""

    folder: Path
    which: Which | None = None
    policy: str | None = None

    @property
    def is_run(self) -> bool:
        """Whether the folder is a run's."""
        return (self.folder / "config.yaml").is_file()

    @property
    def suffix(self) -> str | None:
        """What only a run's folder takes."""
        return None if self.which is None and self.policy is None else str(self.which or self.policy)

    def unread_suffix(self, path: str) -> ConfigError:
        """The error of a suffix at a folder that holds no run."""
        return ConfigError(
            f"{self.folder} holds one model, and nothing reads '{self.suffix}'",
            path=path,
            fix="remove it: only a run's folder takes a checkpoint or a policy",
        )


def address(text: str, path: str) -> WeightsAddress:
    """The parts of an address such as `RUN_DIR@best:POLICY`.

    Args:
        path: the option or the key that holds it, for errors.

    Raises:
        ConfigError: there is no such folder.
    """
    match = _ADDRESS.fullmatch(text)
    if Path(text).expanduser().is_dir() or match is None:  # a folder may have an @ in its name
        named = WeightsAddress(Path(text).expanduser())
    else:
        which = match["which"]
        step: Which | None = int(which) if which is not None and which.isdecimal() else which  # type: ignore[assignment]
        named = WeightsAddress(Path(match["folder"]).expanduser(), step, match["policy"])
    folder, at, which = text.rpartition("@")
    if at and not named.folder.is_dir() and Path(folder).expanduser().is_dir():
        what = f"'{which}' is no checkpoint of {folder}"
        raise ConfigError(what, path=path, fix="write @best, @latest or @STEP, with :POLICY if you like")
    if not named.folder.is_dir():
        raise ConfigError(
            f"there is no folder {named.folder}",
            path=path,
            why="" if named.folder.is_absolute() else f"looked for it from {Path.cwd()}",
            fix="name a run's folder, with @best, @latest or @STEP and :POLICY if you like, or a folder "
            "that `coterie export` wrote",
        )
    return named


def run_address(source: object) -> tuple[object, Which | None]:
    """A source without `@best`, `@latest` or `@STEP`, and that checkpoint; None: it names none.

    Raises:
        ConfigError: what follows the @ of a run's folder is no checkpoint, or names a policy as well.
    """
    text = str(source) if isinstance(source, (str, Path)) else ""
    if "@" not in text or Path(text).exists() or not Path(text.rpartition("@")[0]).expanduser().is_dir():
        return source, None
    named = address(text, "RUN_DIR")
    if not named.is_run:
        raise named.unread_suffix("RUN_DIR")
    if named.policy is not None:
        fix = f"leave :{named.policy} out; --policy ROLE={text} plays it in a role"
        raise ConfigError(f"{text} names one policy, and a whole team is evaluated", path="RUN_DIR", fix=fix)
    return named.folder, named.which


def checkpoint_of(named: WeightsAddress, default: Which, path: str) -> Checkpoint:
    """The checkpoint that an address names, else the default one.

    Args:
        path: the option or the key that holds the address, for errors.

    Raises:
        RunFolderError: the run has no such checkpoint, or it is damaged.
    """
    try:
        checkpoint = find_checkpoint(named.folder, default if named.which is None else named.which)
    except RunFolderError as error:
        raise RunFolderError(error.what, why=error.why, fix=error.fix, path=path) from error
    if named.which == "best" and not (checkpoint.path.parent / "best.json").exists():
        log.warning(
            "%s: %s was never evaluated on val, so no checkpoint is its best; its latest is of step %d",
            *(path, named.folder, checkpoint.step),
        )
    return checkpoint


def check_role(run: Run, role: str, option: str) -> None:
    """Refuse a role that an option names and the team lacks.

    Raises:
        ConfigError: there is none; the nearest name is in the message.
    """
    if role not in run.team.members:
        raise ConfigError(f"unknown role '{role}'", path=option, fix=did_you_mean(role, run.team.members))


def choose_policy(config: RunConfig, named: WeightsAddress, path: str, default: str, why: str) -> str:
    """The policy of another run that an address names, else the default, else that run's only one.

    Args:
        why: the reason why there is no default, for the error.

    Raises:
        ConfigError: the run has no such policy, or several and no default.
    """
    name = named.policy or default
    if name in config.policies:
        return name
    if named.policy is not None:
        fix = did_you_mean(name, config.policies)
        raise ConfigError(f"{named.folder} has no policy '{name}'", path=path, fix=fix)
    if len(config.policies) == 1:
        return next(iter(config.policies))
    raise ConfigError(
        f"which policy of {named.folder}?",
        path=path,
        why=f"{why}, and that run has several",
        fix=f"add one of: {', '.join(f':{policy}' for policy in config.policies)}",
    )
