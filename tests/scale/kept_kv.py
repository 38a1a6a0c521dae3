"""A sync while a request draws, and what its tokens and those of later requests must be by `engine.kv`."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from typing import Any

import pytest
import torch

from coterie.backends.engines.vllm import in_process, own_process
from coterie.backends.engines.vllm.own_process import OwnProcessServer
from coterie.core.types import Call, Request
from tests.scale.vllm_models import LONG, TOLERANCE, Playing, mixed, request

VISIBLE = 1e-3
"""What a log-prob of stale keys and values differs by, at least."""
ENOUGH = 20
"""Tokens that are drawn before the sync."""


def check_kept_keys(runner: asyncio.Runner, playing: Playing, policy: str) -> None:
    """With `keep`, a request goes on with its keys and values, and no later one reads them.

    It is compared with `recompute`, and with `keep` where prompts have no salt: there, later requests must
    read the stale keys and values.
    """
    seed = 0
    for kv, salted in (("recompute", True), ("keep", True), ("keep", False)):
        with pytest.MonkeyPatch.context() as patch:
            for server in _servers(playing, policy):
                settings = server.spec.settings.model_copy(update={"kv": kv})
                patch.setattr(server, "spec", replace(server.spec, settings=settings))
            if not salted:
                for source in (in_process, own_process):
                    patch.setattr(source, "prompt", lambda ids, salt: {"prompt_token_ids": list(ids)})
            patch.setattr(playing.engine, "stops_of", lambda asked: ())  # an early end would leave no sync
            old, asked, whole, call = runner.run(_crossing(playing, policy, seed := seed + 1))
            if salted:
                _check_crossing(playing, asked, whole, call, old, kept=kv == "keep")
            later = mixed([policy])
            calls = runner.run(playing.wave(later))
            assert {call.version for call in calls} == {playing.versions[policy]}
            if salted:
                assert playing.gap(later, calls) < TOLERANCE, kv
            else:
                assert playing.gap(later, calls) > VISIBLE, "nothing was stale: this test sees nothing"
    runner.run(playing.load(policy))  # with no request in flight: the cache is emptied
    assert playing.gap(later, runner.run(playing.wave(later))) < TOLERANCE


def _servers(playing: Playing, policy: str) -> list[Any]:
    return list(playing.engine.served[policy].base.replicas.servers)


async def _crossing(playing: Playing, policy: str, number: int) -> tuple[Any, Request, Call, Call]:
    """A request that a sync finds half-way.

    Returns:
        The module before the sync, the request, its call without a sync, and with one.
    """
    asked = request(policy, LONG, number, max_new_tokens=200)
    (whole,) = await playing.wave([asked])
    old = copy.deepcopy(playing.modules[policy][0])
    task = asyncio.ensure_future(playing.wave([asked]))
    async with asyncio.timeout(60):
        await _drawn(playing, policy)
    await playing.update(policy, size=0.05)
    (call,) = await task
    return old, asked, whole, call


async def _drawn(playing: Playing, policy: str) -> None:
    """Wait until the only request has drawn some tokens."""
    servers = _servers(playing, policy)
    if not isinstance(servers[0], OwnProcessServer):
        scheduler = None
        while scheduler is None or not scheduler.running or scheduler.running[0].num_output_tokens < ENOUGH:
            await asyncio.sleep(0.001)
            scheduler = servers[0].engine.engine_core.engine_core.scheduler
        return
    router = playing.engine.served[policy].base.replicas.router
    while not any(router.in_flight):
        await asyncio.sleep(0.001)
    heard, patience = [], servers[router.in_flight.index(1)].patience
    seen = patience.seen
    patience.seen = lambda: (heard.append(None), seen())  # once a token
    while len(heard) < ENOUGH:
        await asyncio.sleep(0.001)
    del patience.seen


def _check_crossing(
    playing: Playing, asked: Request, whole: Call, call: Call, old: Any, *, kept: bool
) -> None:
    (before, begun), (after, rest) = call.version_runs
    assert (before, after) == (playing.versions[asked.policy] - 1, playing.versions[asked.policy])
    assert call.version == before and min(begun, rest) > 1 and begun + rest == len(call.token_ids)
    assert call.token_ids[:begun] == whole.token_ids[:begun]
    drawn = torch.tensor(call.logprobs)
    assert (drawn[:begun] - torch.tensor(whole.logprobs[:begun])).abs().max() < TOLERANCE
    with_new = playing.expected(asked, call)[begun:]
    with_old = _continued(old, playing.modules[asked.policy][0], asked, call, begun)
    right, wrong = (with_old, with_new) if kept else (with_new, with_old)
    assert (drawn[begun:] - right).abs().max() < TOLERANCE
    assert (drawn[begun:] - wrong).abs().max() > VISIBLE


def _continued(old: Any, new: Any, asked: Request, call: Call, begun: int) -> Any:
    """Log-probs of the tokens after the first `begun`, by the new weights with keys and values of the old."""
    ids = torch.tensor([asked.prompt_ids + call.token_ids])
    known = len(asked.prompt_ids) + begun - 1  # the last of `begun` tokens is read by the new weights
    with torch.no_grad():
        cache = old(input_ids=ids[:, :known], use_cache=True).past_key_values
        logits = new(input_ids=ids[:, known:-1], past_key_values=cache).logits[0]
    chosen = torch.tensor(call.token_ids[begun:])[:, None]
    return logits.float().log_softmax(-1).gather(1, chosen)[:, 0]
