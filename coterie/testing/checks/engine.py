"""`check_engine`: the same request gives the same tokens, whatever else is in the batch."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    checker = _EngineChecker(engine, name, ctx.active_rollouts, vocabulary, limits, seed)
    loaded = list(weights) if weights is not None else [Weights(policy=_POLICY, version=3)]

    async def check() -> None:
        promise("it opens, and loads weights")
        await awaited(f"{name}.open", engine.open, ctx)
        try:
            for handle in loaded:
                await awaited(f"{name}.load_weights", engine.load_weights, handle)
            await checker.check(loaded[-1].version, alone)
            if ctx.ahead:
                promise("a leased version draws the same when newer weights are loaded")
                await check_leases(engine, checker.calls, checker.requests(), loaded, name)
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


@dataclass(frozen=True, slots=True)
class _EngineChecker:
    """Sends requests to an open engine, and checks its calls."""

    engine: Any
    name: str
    active_rollouts: ActiveRollouts
    vocabulary: Sequence[str]
    limits: Sequence[int]
    seed: int

    async def check(self, version: int, alone: bool) -> None:
        """Send the requests in several orders; `version` is that of the loaded weights."""
        requests, name = self.requests(), self.name
        promise("a call has the request's ids, version and limits")
        first = await self.calls(requests)
        for request in requests:
            _check_call(self.engine, request, first[request.key], version, name)
        promise("the same request gives the same tokens, whatever else is in the batch")
        _same(first, await self.calls(requests), name, "sent again")
        _same(first, await self.calls(requests[::-1]), name, "sent in another order")
        part = requests[::3]
        _same(first, await self.calls(part), name, "in a smaller batch")
        for request in part if alone else ():
            _same(first, await self.calls([request]), name, "sent alone")
        promise("at temperature 0 the seed changes nothing")
        greedy = [_greedy(request, number) for number, request in enumerate(requests[:2] * 2)]
        calls = await self.calls(greedy)
        tokens = [calls[request.key].token_ids for request in greedy]
        what = "the seed changes the tokens at temperature 0"
        require(tokens[:2] == tokens[2:], what, f"{name}.generate", fix="take the most likely token")

    def requests(self) -> list[Request]:
        """Four requests for each of three prompts."""
        requests = []
        every = self.vocabulary
        for task, words in enumerate((every, every[:1], every[::-1])):
            message = {"role": "user", "content": " ".join(words)}
            where = f"{self.name}.codec"
            with guarded(where):
                codec = self.engine.codec(_POLICY)
                prompt, again = codec.encode([message]), codec.encode([dict(message)])
            same = prompt.ids and prompt.ids == again.ids
            require(same, "encodes one message in two ways", where, fix="no draws in `encode`")
            for branch in range(4):
                key = Key(f"train-{task}").of_branch("solver", branch).of_call(0)
                limit = self.limits[(task + branch) % len(self.limits)]
                requests.append(
                    Request(
                        key=key,
                        policy=_POLICY,
                        prompt_ids=prompt.ids,
                        sampling=Sampling(max_new_tokens=limit),
                        seed=seed64(self.seed, key, "tokens"),
                        continues=branch == 3,
                    )
                )
        return requests

    async def calls(self, requests: Sequence[Request]) -> dict[Key, Call]:
        """The calls of requests that are sent at once, each from an active rollout of its own."""

        async def send(request: Request) -> Call:
            try:
                call = await awaited(f"{self.name}.generate", self.engine.generate, request)
                return _checked(self.engine, request, call, f"{self.name}.generate")
            finally:
                self.active_rollouts.stop()

        self.active_rollouts.start(len(requests))
        calls = await asyncio.gather(*[send(request) for request in requests])
        return {request.key: call for request, call in zip(requests, calls, strict=True)}


def _greedy(request: Request, number: int) -> Request:
    sampling = Sampling(temperature=0.0, max_new_tokens=request.sampling.max_new_tokens)
    key = request.key._replace(branch=100 + number)
    return replace(request, key=key, sampling=sampling, seed=request.seed + number, continues=False)


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
    count, limit = len(call.token_ids), request.sampling.max_new_tokens
    others = sorted({drawn for drawn, _ in call.version_runs} - {version})
    bad = [value for value in call.logprobs if not (math.isfinite(value) and value <= 1e-6)]
    of_request = "copy the request's"
    for holds, what, fix in (
        (call.prompt_ids == request.prompt_ids, "has other prompt_ids than the request", of_request),
        (call.continues == request.continues, "has another `continues` than the request", of_request),
        (call.version == version, f"has version {call.version!r}, loaded was {version!r}",
         "the version of the loaded Weights"),
        (not others, f"version_runs names {others}, and {version!r} alone was loaded while it was drawn",
         "the versions whose weights drew the tokens"),
        (call.finish in FINISHES, f"finish is {call.finish!r}", f"one of {FINISHES}"),
        (len(call.logprobs) == count, f"{len(call.logprobs)} log-probs for {count} tokens",
         "one log-prob a sampled token"),
        (not bad, f"a log-prob of {bad[:1]}",
         "the log-prob of the sampled token before any filter, at most 0"),
        (1 <= count <= limit, f"{count} tokens where max_new_tokens is {limit}", "from 1 to max_new_tokens"),
        (call.finish != "length" or count == limit, f"finish is 'length' after {count} of {limit} tokens",
         "'length' only where max_new_tokens was reached"),
    ):  # fmt: skip
        require(holds, what, where, fix)
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
