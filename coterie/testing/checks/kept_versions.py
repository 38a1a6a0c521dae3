"""The part of `check_trainer` for trainers that keep versions (`KeepsVersions`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from coterie.core.types import Weights
from coterie.testing.support.failure import guarded, require

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
    version = trainer.weights(POLICY).version
    with guarded(f"{name}.keep"):
        trainer.keep(POLICY)
        trainer.keep(POLICY)  # of a second step that is pinned to it
    await update()
    after = trainer.digest()
    _check_at(trainer, version, name)
    require(
        trainer.digest() == after and trainer.weights(POLICY).version > version,
        "changed the present weights",
        where=f"{name}.weights_at",
        fix="put the present weights back when its context ends",
    )
    folder.mkdir()
    with guarded(f"{name}.save"):
        trainer.save(folder)
    with guarded(f"{name}.load"):
        loaded.load(folder)
    _check_at(loaded, version, name)
    for each in (trainer, loaded):
        with guarded(f"{name}.drop"):
            each.drop(POLICY, version)
            each.drop(POLICY, version)  # one that isn't kept is ignored
    require(
        loaded.digest() == trainer.digest() == after,
        "changed the present weights",
        where=f"{name}.drop",
        fix="forget the kept copy alone",
    )


def _check_at(trainer: Any, version: int, name: str) -> None:
    where = f"{name}.weights_at"
    with guarded(where), trainer.weights_at(POLICY, version) as weights:
        pass
    sound = isinstance(weights, Weights) and (weights.policy, weights.version) == (POLICY, version)
    require(sound, f"gave {weights!r} for version {version}", where=where, fix="Weights of that version")
