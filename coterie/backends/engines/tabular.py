"""The engine of tabular policies: exact, torch-free, and small enough to reason about in a test."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from coterie.backends.engines.request_batching import RequestBatcher
from coterie.backends.engines.requests import call_of
from coterie.backends.models.policy import TABLE_FILE, TablePolicy, check_table, declared
from coterie.backends.models.table import LogitTable, log_softmax, read_rows, table_words, uniforms
from coterie.backends.models.versions import Versions
from coterie.backends.models.wordcodec import EOS_ID, WordCodec
from coterie.core.errors import ConfigError
from coterie.core.plugins import Plugin
from coterie.core.protocols import EngineContext
from coterie.core.types import Call, Request, Sampling, Weights


class TabularEngine(Plugin):
    """Draws words from a table of logits, one row per context, with the same keyed uniforms as `hf`.

    The words are the environment's and the roles' vocabulary, and `<eos>`. Log-probs are those of the
    unfiltered distribution at the sampling temperature (at temperature 1 for greedy calls).
    """

    Policy = TablePolicy

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._codec = WordCodec(exact=False, markers=False)
        self._tables: Versions[tuple[LogitTable, int]] = Versions()
        self._batcher: RequestBatcher | None = None

    async def open(self, ctx: EngineContext) -> None:
        for name, policy in declared(ctx.policies, TablePolicy).items():
            check_table(policy, f"policies.{name}", "the engine `tabular` can't play")
        self._words = table_words(ctx.vocabulary)
        if not self._words:
            raise ConfigError(
                "a tabular policy needs words to choose from, and there are none",
                path="engine",
                fix="give the environment or a role a `vocabulary()`",
            )
        self._codec.ids(" ".join(self._words))  # the codec can then decode every drawn id
        self._batcher = RequestBatcher(
            self._generate, ctx.active_rollouts, deterministic=ctx.deterministic is not False, threaded=False
        )

    async def close(self) -> None:
        if self._batcher is not None:
            self._batcher.close()

    async def load_weights(self, weights: Weights) -> None:
        """Load a live table, or the `table.npz` of a folder that the trainer `tabular` exported."""
        table = weights.module if weights.module is not None else LogitTable(self._words)
        if weights.folder is not None:
            words, tables = read_rows(Path(weights.folder) / TABLE_FILE)
            table = LogitTable(words, tables["logits"])
        if table.words != self._words:
            differing = sorted({*table.words} ^ {*self._words})
            raise ConfigError(
                f"the table of policy '{weights.policy}' is over other words than the engine's",
                path=f"policies.{weights.policy}.model",
                why=f"{len(differing)} words are in one of them only, such as {differing[0]!r}"
                if differing
                else "they have the same words in another order",
                fix="play it in the environment that it was trained in",
            )
        self._tables.put(weights.policy, weights.version, (table, weights.version))

    async def lease(self, policy: str, version: int) -> None:
        self._tables.lease(policy, version)

    async def release(self, policy: str, version: int) -> None:
        self._tables.release(policy, version)

    def codec(self, policy: str) -> WordCodec:
        return self._codec

    async def codecs(self, ctx: EngineContext) -> dict[str, WordCodec]:
        self._codec.ids(" ".join(table_words(ctx.vocabulary)))
        return dict.fromkeys(ctx.policies, self._codec)

    async def generate(self, request: Request) -> Call:
        self._tables.at(request.policy, request.version)
        if self._batcher is None:
            raise RuntimeError("the engine is not open")
        self._stops(request.sampling)
        return await self._batcher.submit(request)

    def _stops(self, sampling: Sampling) -> set[int]:
        for word in sampling.stop:
            if word not in self._words:
                raise ConfigError(
                    f"the stop string {word!r} is not one token",
                    path="sampler.sampling.stop",
                    why="a tabular policy's tokens are the words of the vocabulary",
                )
        return {EOS_ID, *(index for word in sampling.stop for index in self._codec.ids(word))}

    def _generate(self, policy: str, requests: Sequence[Request]) -> list[Call]:
        tables = [self._tables.at(policy, request.version) for request in requests]
        seeds = np.array([request.seed % 2**64 for request in requests], dtype=np.uint64)
        contexts = [request.prompt_ids for request in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        finish: list[Literal["stop", "length"]] = ["length"] * len(requests)
        stops = [self._stops(request.sampling) for request in requests]
        alive = [index for index, request in enumerate(requests) if request.sampling.max_new_tokens > 0]
        position = 0
        while alive:
            draws = uniforms(seeds[alive], position)
            position += 1
            unfinished = []
            for index, uniform in zip(alive, draws.tolist(), strict=True):
                sampling = requests[index].sampling
                column, logprob = draw(tables[index][0].logits(contexts[index]), sampling, uniform)
                token = int(tables[index][0].ids[column])
                contexts[index] = (*contexts[index], token)
                logprobs[index].append(logprob)
                if token in stops[index]:
                    finish[index] = "stop"
                elif position < sampling.max_new_tokens:
                    unfinished.append(index)
            alive = unfinished
        return [
            call_of(
                request,
                tables[index][1],
                contexts[index][len(request.prompt_ids) :],
                tuple(logprobs[index]),
                finish[index],
            )
            for index, request in enumerate(requests)
        ]


def draw(logits: np.ndarray, sampling: Sampling, uniform: float) -> tuple[int, float]:
    """A column by inverse distribution function, and its unfiltered log-prob."""
    greedy = sampling.temperature == 0.0
    logprobs = log_softmax(logits if greedy else logits / sampling.temperature)
    if greedy:
        column = int(logits.argmax())
        return column, float(logprobs[column])
    mass = np.exp(logprobs)
    if sampling.filtered:
        mass = _filtered_mass(mass, sampling)
    summed = mass.cumsum()
    column = int(np.searchsorted(summed, uniform * summed[-1], side="right"))
    if column == len(mass):  # the product was rounded up to the total
        column = int(np.flatnonzero(mass)[-1])
    return column, float(logprobs[column])


def _filtered_mass(mass: np.ndarray, sampling: Sampling) -> np.ndarray:
    order = np.argsort(-mass, kind="stable")
    ordered = mass[order]
    if sampling.top_k > 0:
        ordered[sampling.top_k :] = 0.0
    before = ordered.cumsum() - ordered
    keep = before < sampling.top_p * ordered.sum()
    keep[0] = True
    result = np.zeros_like(mass)
    result[order] = ordered * keep
    return result
