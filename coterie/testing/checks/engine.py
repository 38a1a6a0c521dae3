"""`check_engine`: the same request gives the same tokens, whatever else is in the batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from coterie.core.concurrency.active_rollouts import ActiveRollouts
from coterie.core.errors import PluginError, type_text
from coterie.core.protocols import EngineContext
from coterie.core.protocols.engine import LeasesVersions
from coterie.core.rollout.contracts import check_call
from coterie.core.types import Call, Key, Request, Sampling, Weights
from coterie.core.types.seeding import seed64
from coterie.testing.support.building import build, declared_policy
from coterie.testing.support.failure import ConformanceError, awaited, guarded, require, require_kind
from coterie.testing.support.promises import promise

FINISHES = ("stop", "length", "abort")
_POLICY = "policy"
_TOLERANCE = 1e-3
"""Largest difference of a log-prob between batches: rounding of matrix products depends on their shape."""


def check_engine(
    engine: Any,
    *,
    model: Any = None,
    weights: Sequence[Weights] | None = None,
    chat: Any = "auto",
    vocabulary: Sequence[str] = ("left", "right", "up", "down"),
    limits: Sequence[int] = (1, 6),
    alone: bool = True,
    leases: bool = True,
    seed: int = 0,
) -> None:
    """Open an engine, send requests in several orders, and close it.

    - A call repeats the request's `prompt_ids` and `continues`, and has the version of the loaded weights. It
      has from 1 to `max_new_tokens` tokens and one log-prob a token, each at most 0; `finish` is "length"
      only where the limit was reached. `version_runs` is as a run requires it, also where a request names a
      version.
    - The same request gives the same tokens: a second time, in another order, in a smaller batch, and (unless
      `alone` is False) in a batch of its own. Log-probs agree to 1e-3.
    - At temperature 0 the seed changes nothing.
    - An engine with `lease` draws the same with a leased version when newer weights are loaded, and with the
      newest otherwise. With two `weights` that differ, it can't take one for the other.
    - `codec` encodes a message the same twice, and decodes what was generated.

    Args:
        model: the policy's `model` in the configuration, e.g. {"init": "tabular"}.
        weights: weights to load first; by default a handle without module or folder, version 3.
        chat: the table of the chat format.
        vocabulary: words of the prompts and of the environment.
        limits: values of `max_new_tokens`.
        leases: whether versions are leased; False for an engine that leases those of adapters alone.
        alone: whether a request is also sent in a batch of its own.
        seed: seed of the requests.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(engine, "engine")
    ctx = _context(engine, model, chat, vocabulary, leases)
    active_rollouts = ctx.active_rollouts
    loaded = list(weights) if weights is not None else [Weights(policy=_POLICY, version=3)]

    async def check() -> None:
        promise("it opens, and loads weights")
        await awaited(f"{name}.open", engine.open, ctx)
        try:
            for handle in loaded:
                await awaited(f"{name}.load_weights", engine.load_weights, handle)
            newest = loaded[-1].version
            await _check_open(engine, active_rollouts, vocabulary, limits, newest, alone, seed, name)
            if ctx.ahead:
                promise("a leased version draws the same when newer weights are loaded")
                requests = _requests(engine, vocabulary, limits, seed, name)
                send = partial(_send_all, engine, active_rollouts, name)
                await check_leases(engine, send, requests, loaded, name)
        finally:
            await awaited(f"{name}.close", engine.close)

    asyncio.run(check())


def _context(engine: Any, model: Any, chat: Any, vocabulary: Sequence[str], leases: bool) -> EngineContext:
    table = {"model": model or {"init": "none"}, "train": "none"}
    return EngineContext(
        policies={_POLICY: declared_policy(engine).model_validate(table)},
        chat=build("chat_format", chat),
        active_rollouts=ActiveRollouts(),
        deterministic=True,
        vocabulary=tuple(vocabulary),
        ahead=1 if leases and isinstance(engine, LeasesVersions) else 0,
    )


async def _check_open(
    engine: Any,
    active_rollouts: ActiveRollouts,
    vocabulary: Sequence[str],
    limits: Sequence[int],
    version: int,
    alone: bool,
    seed: int,
    name: str,
) -> None:
    requests = _requests(engine, vocabulary, limits, seed, name)
    promise("a call has the request's ids, version and limits")
    first = await _generate(engine, active_rollouts, requests, name)
    for request in requests:
        _check_call(engine, request, first[request.key], version, name)
    promise("the same request gives the same tokens, whatever else is in the batch")
    _same(first, await _generate(engine, active_rollouts, requests, name), name, "sent again")
    _same(
        first, await _generate(engine, active_rollouts, requests[::-1], name), name, "sent in another order"
    )
    part = requests[::3]
    _same(first, await _generate(engine, active_rollouts, part, name), name, "in a smaller batch")
    if alone:
        for request in part:
            _same(first, await _generate(engine, active_rollouts, [request], name), name, "sent alone")
    promise("at temperature 0 the seed changes nothing")
    greedy = [_greedy(request, number) for number, request in enumerate(requests[:2] * 2)]
    calls = await _generate(engine, active_rollouts, greedy, name)
    tokens = [calls[request.key].token_ids for request in greedy]
    require(
        tokens[:2] == tokens[2:],
        "the seed changes the tokens at temperature 0",
        f"{name}.generate",
        fix="take the most likely token",
    )


def _greedy(request: Request, number: int) -> Request:
    return Request(
        key=request.key._replace(branch=100 + number),
        policy=request.policy,
        prompt_ids=request.prompt_ids,
        sampling=Sampling(temperature=0.0, max_new_tokens=request.sampling.max_new_tokens),
        seed=request.seed + number,
    )


def _requests(
    engine: Any, vocabulary: Sequence[str], limits: Sequence[int], seed: int, name: str
) -> list[Request]:
    where = f"{name}.codec"
    requests = []
    for task, words in enumerate((vocabulary, vocabulary[:1], vocabulary[::-1])):
        message = {"role": "user", "content": " ".join(words)}
        with guarded(where):
            codec = engine.codec(_POLICY)
            prompt, again = codec.encode([message]), codec.encode([dict(message)])
        require(
            prompt.ids and prompt.ids == again.ids,
            "encodes one message in two ways",
            where,
            fix="no draws in `encode`",
        )
        for branch in range(4):
            key = Key(f"train-{task}").of_branch("solver", branch).of_call(0)
            limit = limits[(task + branch) % len(limits)]
            requests.append(
                Request(
                    key=key,
                    policy=_POLICY,
                    prompt_ids=prompt.ids,
                    sampling=Sampling(max_new_tokens=limit),
                    seed=seed64(seed, key, "tokens"),
                    continues=branch == 3,
                )
            )
    return requests


async def _send_all(
    engine: Any, active_rollouts: ActiveRollouts, name: str, requests: Sequence[Request]
) -> dict[Key, Call]:
    return await _generate(engine, active_rollouts, requests, name)


async def _generate(
    engine: Any, active_rollouts: ActiveRollouts, requests: Sequence[Request], name: str
) -> dict[Key, Call]:
    """The calls of requests that are sent at once, each from an active rollout of its own."""

    async def send(request: Request) -> Call:
        try:
            call = await awaited(f"{name}.generate", engine.generate, request)
            return _checked(engine, request, call, f"{name}.generate")
        finally:
            active_rollouts.stop()

    active_rollouts.start(len(requests))
    calls = await asyncio.gather(*[send(request) for request in requests])
    return {request.key: call for request, call in zip(requests, calls, strict=True)}


def _checked(engine: Any, request: Request, call: Any, where: str) -> Call:
    """The call, which a run would not refuse."""
    require(isinstance(call, Call), f"returned {type_text(call)}", where, fix="a Call")
    other = request.version not in (None, call.version)
    what = f"has version {call.version!r}, and the request names {request.version!r}"
    require(not other, what, where, fix="draw with Request.version")
    try:
        return check_call(engine, request, call)
    except PluginError as error:
        what = f"returned a call of {len(call.token_ids)} tokens with version {call.version!r} and "
        what += f"version_runs {call.version_runs!r}"
        raise ConformanceError(what, where=where, fix=error.fix) from error


def _check_call(engine: Any, request: Request, call: Call, version: int, name: str) -> None:
    where = f"{name}.generate"
    require(
        call.prompt_ids == request.prompt_ids,
        "has other prompt_ids than the request",
        where,
        fix="copy the request's",
    )
    require(
        call.continues == request.continues,
        "has another `continues` than the request",
        where,
        fix="copy the request's",
    )
    require(
        call.version == version,
        f"has version {call.version!r}, loaded was {version!r}",
        where,
        fix="the version of the loaded Weights",
    )
    others = sorted({drawn for drawn, _ in call.version_runs} - {version})
    what = f"version_runs names {others}, and {version!r} alone was loaded while it was drawn"
    require(not others, what, where, fix="the versions whose weights drew the tokens")
    require(call.finish in FINISHES, f"finish is {call.finish!r}", where, fix=f"one of {FINISHES}")
    count, limit = len(call.token_ids), request.sampling.max_new_tokens
    require(
        len(call.logprobs) == count,
        f"{len(call.logprobs)} log-probs for {count} tokens",
        where,
        fix="one log-prob a sampled token",
    )
    bad = [value for value in call.logprobs if not (math.isfinite(value) and value <= 1e-6)]
    require(
        not bad,
        f"a log-prob of {bad[:1]}",
        where,
        fix="the log-prob of the sampled token before any filter, at most 0",
    )
    require(
        1 <= count <= limit,
        f"{count} tokens where max_new_tokens is {limit}",
        where,
        fix="from 1 to max_new_tokens",
    )
    require(
        call.finish != "length" or count == limit,
        f"finish is 'length' after {count} of {limit} tokens",
        where,
        fix="'length' only where max_new_tokens was reached",
    )
    with guarded(f"{name}: decode"):
        text = engine.codec(_POLICY).decode(call)
    require(isinstance(text, str), f"returned {text!r}", f"{name}: decode", fix="a text")


def _same(first: dict[Key, Call], second: dict[Key, Call], name: str, how: str) -> None:
    for key, call in second.items():
        before = first[key]
        require(
            call.token_ids == before.token_ids and call.finish == before.finish,
            f"{how}, the same request gave {call.token_ids} instead of {before.token_ids}",
            f"{name}.generate",
            fix="key every draw by request.seed and the token's position, never by batch row or time",
        )
        difference = max(abs(a - b) for a, b in zip(call.logprobs, before.logprobs, strict=True))
        require(
            difference <= _TOLERANCE,
            f"{how}, log-probs differ by {difference:.2g}",
            f"{name}.generate",
            fix="compute every row alike, whatever else is in the batch",
        )


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
