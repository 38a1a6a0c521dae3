"""The part of `check_engine` for engines that lease versions (`LeasesVersions`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from coterie.core.types import Call, Key, Request, Weights
from coterie.testing.support.failure import awaited, require

Send = Callable[[Sequence[Request]], Awaitable[Mapping[Key, Call]]]
"""Sends requests at once; returns their calls by key."""


async def check_leases(
    engine: Any, send: Send, requests: Sequence[Request], loaded: Sequence[Weights], name: str
) -> None:
    """Lease the loaded version twice, load a newer one, and draw with both.

    Args:
        loaded: the weights that were loaded, in this order; the first are loaded again, as newer versions.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    newer, policy, version = loaded[0], loaded[-1].policy, loaded[-1].version
    old = [replace(request, version=version) for request in requests]
    before = await send(old)
    for _ in range(2):  # two steps are pinned to it
        await awaited(f"{name}.lease", engine.lease, policy, version)
    await awaited(f"{name}.load_weights", engine.load_weights, replace(newer, version=version + 1))
    _check_same(before, await send(old), "after a newer version was loaded", name)
    await awaited(f"{name}.release", engine.release, policy, version)
    _check_same(before, await send(old), "when one of two leases had ended", name)
    for wanted in (version + 1, None):
        calls = await send([replace(request, version=wanted) for request in requests])
        require(
            {call.version for call in calls.values()} == {version + 1},
            f"a request of version {wanted} is drawn by version {next(iter(calls.values())).version!r}, and "
            f"{version + 1} was loaded last",
            f"{name}.generate",
            fix="draw with Request.version; None is what was loaded last",
        )
    await awaited(f"{name}.release", engine.release, policy, version)
    await awaited(f"{name}.load_weights", engine.load_weights, replace(newer, version=version + 2))
    calls = await send([replace(request, version=version + 2) for request in requests])
    require(
        {call.version for call in calls.values()} == {version + 2},
        f"a version that was loaded after the leases ended is not drawn with: {version + 2}",
        f"{name}.load_weights",
        fix="use the weights for all later requests that name no older version",
    )


def _check_same(before: Mapping[Key, Call], after: Mapping[Key, Call], when: str, name: str) -> None:
    for key, call in before.items():
        same = (call.token_ids, call.version) == (after[key].token_ids, after[key].version)
        require(
            same,
            f"a leased version draws other tokens {when}: {after[key].token_ids} of version "
            f"{after[key].version!r}, not {call.token_ids} of {call.version!r}",
            f"{name}.lease",
            fix="keep a copy of the leased weights, and draw with the one that Request.version names",
        )
