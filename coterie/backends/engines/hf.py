"""The in-process engine on PyTorch: weights are read from the trainer's live modules."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from coterie.backends.engines.rows import Counts, Drawn, Row
from coterie.backends.models.loading import context_of, load_folder, load_model, load_tokenizer, require_torch
from coterie.core.config import PluginConfig
from coterie.core.errors import ConfigError, SystemFault
from coterie.core.gathering import Batcher
from coterie.core.plugins import Plugin
from coterie.core.threads import compute
from coterie.core.types import Call, Request, Weights

if TYPE_CHECKING:
    from coterie.backends.engines.rows import Decoder
    from coterie.core.protocols import Codec, EngineContext

log = logging.getLogger("coterie")


@dataclass(slots=True)
class _Served:
    """What answers one policy's requests."""

    decoder: Decoder
    version: int
    context: int


class HFEngine(Plugin):
    """Generates with the trainer's own modules, all live requests of a policy in one batch.

    Every draw is keyed by the request's seed and the token's position, so tokens do not depend on the
    batch (beyond the rounding of its matrix products, which only the order of rows can change). Weights
    are copied at `load_weights`; a batch is drawn with one version.
    """

    class Config(PluginConfig):
        max_batch: int = Field(
            512, ge=1, description="Rows computed together; more are split, siblings together."
        )
        decoder: Literal["auto", "lean", "transformers"] = Field(
            "auto",
            description="`lean`: our own, for Llama-like models; `transformers`: any CausalLM; "
            "`auto`: lean where it can.",
        )

    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._served: dict[str, _Served] = {}
        self._codecs: dict[str, Codec] = {}
        self._tokenizers: dict[str, Any] = {}
        self._stops: dict[tuple[str, tuple[str, ...], str], tuple[int, ...]] = {}
        self._computing = threading.Lock()  # no weights change under a batch
        self._batcher: Batcher | None = None
        self._context: EngineContext | None = None

    async def open(self, ctx: EngineContext) -> None:
        require_torch("engine")
        self._context = ctx
        self._batcher = Batcher(self._generate, ctx.strands, deterministic=ctx.deterministic)

    async def close(self) -> None:
        if self._batcher is not None:
            self._batcher.close()
        self._served.clear()

    async def load_weights(self, weights: Weights) -> None:
        """Copy the module's (or the folder's) weights, LoRA merged; waits for a batch in work."""
        await compute(self._load, weights)

    async def generate(self, request: Request) -> Call:
        """One call.

        Raises:
            ConfigError: the prompt does not fit the context, or a stop string is not one token.
            SystemFault: the policy has no weights yet, or they are damaged.
        """
        self._row(request)  # so that what is wrong with a request is told to that request alone
        return await self._opened[1].submit(request)

    def codec(self, policy: str) -> Codec:
        """The policy's codec; it may be asked for before the weights have come."""
        if policy not in self._codecs:
            ctx = self._opened[0]
            served = self._served.get(policy)
            if policy not in self._tokenizers:
                self._tokenizers[policy] = load_tokenizer(
                    ctx.policies[policy], policy=policy, vocabulary=ctx.vocabulary
                )
            context = None if served is None else served.context
            self._codecs[policy] = ctx.chat.codec(self._tokenizers[policy], context)
        return self._codecs[policy]

    def counts(self, policy: str) -> Counts:
        """What the policy's decoder has computed so far."""
        return self._serving(policy).decoder.counts

    # ------------------------------------------------------------------------------------------- weights

    @property
    def _opened(self) -> tuple[EngineContext, Batcher]:
        if self._context is None or self._batcher is None:
            raise RuntimeError("the engine is not open")
        return self._context, self._batcher

    def _serving(self, policy: str) -> _Served:
        if policy not in self._served:
            raise SystemFault(f"the policy '{policy}' has no weights in the engine yet")
        return self._served[policy]

    def _load(self, weights: Weights) -> None:
        from coterie.backends.models.dense import Dense

        policy = weights.policy
        module, tokenizer = self._module(weights)
        with self._computing:
            dense = Dense(module, weights.adapter)
            served = self._served.get(policy)
            if served is not None:
                served.decoder.refresh(dense)
                served.version = weights.version
                return
            if tokenizer is not None:
                self._tokenizers[policy] = tokenizer
            tokenizer = self._tokenizers.get(policy)
            context = context_of(dense.config, tokenizer, policy=policy)
            self._served[policy] = _Served(self._decoder(policy, dense), weights.version, context)
            self._codecs.pop(policy, None)  # one that was made before the context was known

    def _module(self, weights: Weights) -> tuple[Any, Any]:
        """The module and, where one comes with it, the tokenizer; loaded here when no trainer holds them."""
        if weights.module is not None:
            return weights.module, weights.tokenizer
        ctx = self._opened[0]
        if weights.folder is not None:
            module, tokenizer = load_folder(weights.folder, policy=weights.policy)
            return module, tokenizer if weights.tokenizer is None else weights.tokenizer
        loaded = load_model(
            ctx.policies[weights.policy], policy=weights.policy, seed=0, vocabulary=ctx.vocabulary
        )
        return loaded.module, loaded.tokenizer

    def _decoder(self, policy: str, dense: Any) -> Decoder:
        import torch

        from coterie.backends.engines.lean import LeanDecoder
        from coterie.backends.engines.lean_weights import unsupported
        from coterie.backends.engines.stepwise import StepwiseDecoder

        dtype = getattr(torch, self._opened[0].policies[policy].dtype)
        reason = unsupported(dense.model)
        if self.config.decoder == "lean" and reason is not None:
            raise ConfigError(
                f"the lean decoder can't compute the model of policy '{policy}'",
                path="engine.decoder",
                why=reason,
                mend="set `engine.decoder: transformers` (or `auto`)",
            )
        if self.config.decoder == "transformers":
            return StepwiseDecoder(dense, dtype)
        if reason is None:
            return LeanDecoder(dense, dtype)
        log.warning(
            "policy %s: generating with transformers' forward, which is several times slower than the "
            "lean decoder: %s",
            policy,
            reason,
        )
        return StepwiseDecoder(dense, dtype)

    # -------------------------------------------------------------------------------------------- batches

    def _row(self, request: Request) -> Row:
        sampling, served = request.sampling, self._serving(request.policy)
        length = len(request.prompt_ids)
        where = f"team.roles.{request.key.role}" if request.key.role else f"policies.{request.policy}"
        if length == 0:
            raise ConfigError(
                "the prompt is empty: there is nothing to continue",
                path=where,
                mend="make the role render some text",
            )
        if length >= served.context:
            raise ConfigError(
                f"prompt of {length} tokens does not fit the context of {served.context} tokens",
                path=where,
                why="a prompt and at least one new token must fit",
                mend="shorten what the role renders (history, observation), or use a longer context",
            )
        return Row(
            prompt_ids=request.prompt_ids,
            seed=request.seed,
            limit=max(1, min(sampling.max_new_tokens, served.context - length)),
            stops=self._stop_ids(request.policy, sampling.stop, where),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )

    def _stop_ids(self, policy: str, strings: tuple[str, ...], where: str) -> tuple[int, ...]:
        known = self._stops.get((policy, strings, where))
        if known is not None:
            return known
        ids = set(getattr(self.codec(policy), "stop_ids", ()))
        tokenizer = self._tokenizers[policy]
        for string in strings:
            found = tokenizer.encode(string, add_special_tokens=False)
            if len(found) != 1 or found[0] == tokenizer.unk_token_id:
                raise ConfigError(
                    f"the stop string {string!r} is not one token of policy '{policy}'",
                    path="sampler.sampling.stop",
                    why=f"{where} stops on it; it becomes {tokenizer.convert_ids_to_tokens(found)}",
                    mend="stop on a string that is one token, or cut the text in the role's parser",
                )
            ids.add(found[0])
        return self._stops.setdefault((policy, strings, where), tuple(sorted(ids)))

    def _generate(self, policy: str, requests: list[Request]) -> list[Call]:
        calls: list[Call] = []
        with self._computing:
            served = self._serving(policy)
            for part in split(requests, self.config.max_batch):
                drawn = served.decoder.generate([self._row(request) for request in part])
                calls += [
                    _call(request, one, served.version) for request, one in zip(part, drawn, strict=True)
                ]
        return calls


def split(requests: Sequence[Request], most: int) -> list[list[Request]]:
    """Parts of at most `most` requests, in order; the siblings of a decision stay together where they fit."""
    parts: list[list[Request]] = [[]]
    start = 0
    while start < len(requests):
        stop = start + 1
        while stop < len(requests) and requests[stop].key.decision == requests[start].key.decision:
            stop += 1
        family = list(requests[start:stop])
        if parts[-1] and len(parts[-1]) + len(family) > most:
            parts.append([])
        for request in family:
            if len(parts[-1]) == most:
                parts.append([])
            parts[-1].append(request)
        start = stop
    return parts


def _call(request: Request, drawn: Drawn, version: int) -> Call:
    return Call(
        prompt_ids=request.prompt_ids,
        token_ids=drawn.token_ids,
        logprobs=drawn.logprobs,
        version=version,
        finish=drawn.finish,
        continues=request.continues,
    )
