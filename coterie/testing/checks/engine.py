"""`check_engine`: the same request gives the same tokens, whoever else is asking."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from coterie.core.concurrency.request_batching import ActiveRollouts
from coterie.core.config import PolicyConfig
from coterie.core.protocols import EngineContext
from coterie.core.types import Call, Key, Request, Sampling, Weights
from coterie.core.types.seeding import seed64
from coterie.testing.support.building import build
from coterie.testing.support.failure import guarded, require, require_kind

FINISHES = ("stop", "length", "abort")
_POLICY = "policy"
_TOLERANCE = 1e-3
"""Of log-probs between batches: matrix products are rounded by their shape."""


def check_engine(
    engine: Any,
    *,
    model: Any = None,
    weights: Sequence[Weights] | None = None,
    chat: Any = "auto",
    vocabulary: Sequence[str] = ("left", "right", "up", "down"),
    limits: Sequence[int] = (1, 6),
    alone: bool = True,
    seed: int = 0,
) -> None:
    """Open an engine, ask it in several orders, and close it.

    - A call echoes `prompt_ids` and `continues`, names the version of the weights that were loaded, has one
      log-prob a token, each at most 0, at least one token and at most `max_new_tokens`; `length` is said
      exactly when the limit was reached.
    - The same request gives the same tokens: again, in another order, with the batch formed differently,
      and (unless `alone` is False) by itself. Log-probs agree to 1e-3.
    - At temperature 0 the seed changes nothing.
    - `codec` encodes the same twice, and decodes what was generated.

    Args:
        model: of the policy in the configuration, e.g. {"init": "tabular"}.
        weights: what is loaded first; by default a handle without module or folder, version 3.
        chat: the chat's table.
        vocabulary: words that the prompts are made of, and that the environment would write.
        limits: values of `max_new_tokens`.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    name = require_kind(engine, "engine")
    config = PolicyConfig(model=model or {"init": "none"}, train="none")
    active_rollouts = ActiveRollouts()
    ctx = EngineContext(
        policies={_POLICY: config},
        chat=build("chat_format", chat),
        active_rollouts=active_rollouts,
        deterministic=True,
        vocabulary=tuple(vocabulary),
    )
    loaded = list(weights) if weights is not None else [Weights(policy=_POLICY, version=3)]

    async def go() -> None:
        with guarded(f"{name}.open"):
            await engine.open(ctx)
        try:
            with guarded(f"{name}.load_weights"):
                for one in loaded:
                    await engine.load_weights(one)
            await _check_open(
                engine, active_rollouts, vocabulary, limits, loaded[-1].version, alone, seed, name
            )
        finally:
            with guarded(f"{name}.close"):
                await engine.close()

    asyncio.run(go())


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
    first = await _wave(engine, active_rollouts, requests, name)
    for request in requests:
        _sound(engine, request, first[request.key], version, name)
    _same(first, await _wave(engine, active_rollouts, requests, name), name, "asked again")
    _same(first, await _wave(engine, active_rollouts, requests[::-1], name), name, "asked in another order")
    some = requests[::3]
    _same(first, await _wave(engine, active_rollouts, some, name), name, "in a smaller batch")
    if alone:
        for request in some:
            _same(first, await _wave(engine, active_rollouts, [request], name), name, "asked alone")
    greedy = [_greedy(request, number) for number, request in enumerate(requests[:2] * 2)]
    calls = await _wave(engine, active_rollouts, greedy, name)
    tokens = [calls[request.key].token_ids for request in greedy]
    require(
        tokens[:2] == tokens[2:],
        "the seed changes the tokens at temperature 0",
        where=f"{name}.generate",
        fix="take the likeliest token",
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
    found = []
    for task, words in enumerate((vocabulary, vocabulary[:1], vocabulary[::-1])):
        message = {"role": "user", "content": " ".join(words)}
        with guarded(where):
            codec = engine.codec(_POLICY)
            prompt, again = codec.encode([message]), codec.encode([dict(message)])
        require(prompt.ids and prompt.ids == again.ids, "encodes one message in two ways", where=where)
        for branch in range(4):
            key = Key(f"train-{task}").of_branch("solver", branch).of_call(0)
            limit = limits[(task + branch) % len(limits)]
            found.append(
                Request(
                    key=key,
                    policy=_POLICY,
                    prompt_ids=prompt.ids,
                    sampling=Sampling(max_new_tokens=limit),
                    seed=seed64(seed, key, "tokens"),
                    continues=branch == 3,
                )
            )
    return found


async def _wave(
    engine: Any, active_rollouts: ActiveRollouts, requests: Sequence[Request], name: str
) -> dict[Key, Call]:
    """All requests at once, each a strand of play."""

    async def one(request: Request) -> Call:
        try:
            with guarded(f"{name}.generate"):
                answer: Call = await engine.generate(request)
                return answer
        finally:
            active_rollouts.stop()

    active_rollouts.start(len(requests))
    calls = await asyncio.gather(*[one(request) for request in requests])
    return {request.key: call for request, call in zip(requests, calls, strict=True)}


def _sound(engine: Any, request: Request, call: Call, version: int, name: str) -> None:
    where = f"{name}.generate"
    require(isinstance(call, Call), f"returned a {type(call).__name__}", where=where, fix="a Call")
    require(call.prompt_ids == request.prompt_ids, "has other prompt_ids than were asked", where=where)
    require(call.continues == request.continues, "doesn't hand on `continues`", where=where)
    require(call.version == version, f"says version {call.version}, loaded was {version}", where=where)
    require(call.finish in FINISHES, f"finish is {call.finish!r}", where=where, fix=f"one of {FINISHES}")
    count, limit = len(call.token_ids), request.sampling.max_new_tokens
    require(len(call.logprobs) == count, f"{len(call.logprobs)} log-probs for {count} tokens", where=where)
    bad = [value for value in call.logprobs if not (math.isfinite(value) and value <= 1e-6)]
    require(
        not bad, f"a log-prob of {bad[:1]}", where=where, fix="of the sampled token, untruncated, at most 0"
    )
    require(1 <= count <= limit, f"{count} tokens where max_new_tokens is {limit}", where=where)
    cut = call.finish != "length" or count == limit
    require(cut, f"says `length` after {count} of {limit} tokens", where=where)
    with guarded(f"{name}: decode"):
        text = engine.codec(_POLICY).decode(call)
    require(isinstance(text, str), f"returned {text!r}", where=f"{name}: decode", fix="a text")


def _same(first: dict[Key, Call], second: dict[Key, Call], name: str, how: str) -> None:
    for key, call in second.items():
        before = first[key]
        require(
            call.token_ids == before.token_ids and call.finish == before.finish,
            f"{how}, the same request gave {call.token_ids} instead of {before.token_ids}",
            where=f"{name}.generate",
            fix="key every draw by request.seed and the token's position, never by the row or by time",
        )
        apart = max(abs(a - b) for a, b in zip(call.logprobs, before.logprobs, strict=True))
        require(apart <= _TOLERANCE, f"{how}, log-probs differ by {apart:.2g}", where=f"{name}.generate")
