"""The part of `check_trainer` for trainers that keep versions (`KeepsVersions`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from coterie.core.types import Weights
from coterie.testing.checks.updates import weights_of
from coterie.testing.support.failure import guarded, require
from coterie.testing.support.weights import digest_of, weights_digest

POLICY = "one"


async def check_kept_versions(
    trainer: Any, loaded: Any, update: Callable[[], Awaitable[Any]], folder: Path, name: str
) -> None:
    """Keep a version, update, read the kept version, and read it again after `save` and `load`.

    Args:
        loaded: a second trainer, which loads what the first one saves.
        update: updates the first trainer's policy `one`.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    present = weights_of(trainer, POLICY, name)
    version, kept = present.version, _read(present, f"{name}.weights")
    with guarded(f"{name}.keep"):
        trainer.keep(POLICY)
        trainer.keep(POLICY)  # of a second step that is pinned to it
    await update()
    after = digest_of(trainer, name)
    _check_at(trainer, version, kept, name)
    require(
        digest_of(trainer, name) == after and weights_of(trainer, POLICY, name).version > version,
        "changed the present weights",
        f"{name}.weights_at",
        fix="put the present weights back when its context ends",
    )
    folder.mkdir()
    with guarded(f"{name}.save"):
        trainer.save(folder)
    with guarded(f"{name}.load"):
        loaded.load(folder)
    _check_at(loaded, version, kept, name, " after `save` and `load`")
    for each in (trainer, loaded):
        with guarded(f"{name}.drop"):
            each.drop(POLICY, version)
            each.drop(POLICY, version)  # one that isn't kept is ignored
    require(
        digest_of(loaded, name) == digest_of(trainer, name) == after,
        "changed the present weights",
        f"{name}.drop",
        fix="forget the kept copy alone",
    )


def _check_at(trainer: Any, version: int, kept: str | None, name: str, when: str = "") -> None:
    where = f"{name}.weights_at"
    with guarded(where), trainer.weights_at(POLICY, version) as weights:
        sound = isinstance(weights, Weights) and (weights.policy, weights.version) == (POLICY, version)
        what = f"gave {weights!r} for version {version!r}{when}"
        require(sound, what, where, fix="Weights of that version")
        given = _read(weights, where)
    if kept is None or given is None:  # an engine reads them in a way that only it and the trainer know
        return
    now = _read(weights_of(trainer, POLICY, name), f"{name}.weights")
    which = "the present weights" if given == now else "other weights"
    require(
        given == kept,
        f"gave {which} under version {version!r}{when}, not those that were kept",
        where,
        fix="copy the weights in `keep`, and give that copy: a resume draws with it",
    )


def _read(weights: Weights, where: str) -> str | None:
    with guarded(where):
        return weights_digest(weights)
