"""The in-process engine on PyTorch; it reads weights from the trainer's live modules."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from coterie.backends.engines.request_batching import RequestBatcher
from coterie.backends.engines.rows import Counts, Drawn, Row
from coterie.backends.engines.shared_base import MIXED_ROWS, SharedBase
from coterie.backends.models.compute_threads import compute
from coterie.backends.models.loading import context_of, load_folder, load_model, load_tokenizer, require_torch
from coterie.backends.models.policy import TensorPolicy, declared
from coterie.core.errors import ConfigError, SystemFault
from coterie.core.plugins import MayChange, Plugin, PluginConfig
from coterie.core.types import Call, Request, Weights

if TYPE_CHECKING:
    from coterie.backends.engines.rows import Decoder
    from coterie.backends.models.merged_weights import MergedWeights
    from coterie.core.protocols import Codec, EngineContext

log = logging.getLogger("coterie")


@dataclass(slots=True)
class _Served:
    """The decoder of one policy's requests."""

    decoder: Decoder | SharedBase
    """The policy's own decoder, or the one that all policies of a base share."""
    adapter: str | None
    """The policy's adapter in a shared base."""
    version: int
    context: int


class HFEngine(Plugin):
    """Generates with the trainer's own modules, all live requests of a policy in one batch.

    Policies that are adapters on one frozen base, and the base itself, generate together (see `adapters`).

    Every draw is keyed by the request's seed and the token's position. Tokens therefore do not depend on the
    batch, except for the rounding of its matrix products, which only the order of rows can change. Weights
    are copied at `load_weights`; all requests of a policy in a batch are drawn with one version.
    """

    class Config(PluginConfig):
        max_batch: Annotated[int, MayChange()] = Field(
            512, ge=1, description="Most rows of one batch. Larger batches are split between decisions."
        )
        decoder: Annotated[Literal["auto", "lean", "transformers"], MayChange()] = Field(
            "auto",
            description="`lean`: Coterie's decoder for Llama-like models; `transformers`: any CausalLM; "
            "`auto`: lean where it supports the model.",
        )
        adapters: Annotated[Literal["auto", "mixed", "merged"], MayChange()] = Field(
            "auto",
            description="LoRA policies of one base. `mixed`: one batch and one copy of the base, adapters "
            "apart from it; `merged`: a copy of the weights and a batch for each policy; `auto`: mixed for "
            f"several waiting policies with at most {MIXED_ROWS} rows each (on a GPU: any number), else "
            "merged into one spare copy, one after the other.",
        )

    Policy = TensorPolicy
    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._served: dict[str, _Served] = {}
        self._bases: dict[tuple[int, str], SharedBase] = {}
        """By the base's module and the decoder's dtype."""
        self._warned: set[str] = set()
        self._codecs: dict[str, Codec] = {}
        self._tokenizers: dict[str, Any] = {}
        self._stops: dict[tuple[str, tuple[str, ...], str], tuple[int, ...]] = {}
        self._computing = threading.Lock()  # held while a batch is computed, so that its weights don't change
        self._device: Any = "cpu"
        """The device of the trainer's modules; weights read from a folder are placed on it too."""
        self._batcher: RequestBatcher | None = None
        self._context: EngineContext | None = None
        self._configs: dict[str, TensorPolicy] = {}

    async def open(self, ctx: EngineContext) -> None:
        require_torch("engine")
        self._context, self._configs = ctx, declared(ctx.policies, TensorPolicy)
        self._batcher = RequestBatcher(
            self._generate, ctx.active_rollouts, deterministic=ctx.deterministic, together=self.batch_of
        )

    async def close(self) -> None:
        if self._batcher is not None:
            self._batcher.close()
        self._served.clear()
        self._bases.clear()

    async def load_weights(self, weights: Weights) -> None:
        """Copy the module's (or the folder's) weights, after the batch that is being computed.

        Where adapters share a frozen base, only the policy's adapter is copied now; the base is copied when a
        batch needs it.
        """
        await compute(self._load, weights)

    async def generate(self, request: Request) -> Call:
        """Generate one call.

        Raises:
            ConfigError: the prompt does not fit the context, or a stop string is not one token.
            SystemFault: the policy has no weights yet, or they are damaged.
        """
        self._row(request)  # a faulty request raises by itself, before it joins a batch
        return await self._opened[1].submit(request)

    def codec(self, policy: str) -> Codec:
        """The policy's codec; available before the weights are loaded."""
        if policy not in self._codecs:
            ctx = self._opened[0]
            served = self._served.get(policy)
            if policy not in self._tokenizers:
                self._tokenizers[policy] = load_tokenizer(
                    self._configs[policy], policy=policy, vocabulary=ctx.vocabulary
                )
            context = None if served is None else served.context
            self._codecs[policy] = ctx.chat.codec(self._tokenizers[policy], context)
        return self._codecs[policy]

    def counts(self, policy: str) -> Counts:
        """The counters of the policy's decoder, over all policies that share it."""
        return self._serving(policy).decoder.counts

    def batch_of(self, policy: str) -> str:
        """The name of the policy's batches: the first policy of its shared base, or the policy itself."""
        served = self._served.get(policy)
        return served.decoder.name if served and isinstance(served.decoder, SharedBase) else policy

    def prepare(self, rows: Mapping[str, int]) -> None:
        """Make the copies of weights that a first batch with these row counts per policy would make."""
        with self._computing:
            serving = [(self._serving(policy), count) for policy, count in rows.items() if count]
            for base in self._bases.values():
                counts: Counter[str | None] = Counter()
                for served, count in serving:
                    if served.decoder is base:
                        counts[served.adapter] += count
                share = min(1.0, self.config.max_batch / max(counts.total(), 1))  # larger batches are split
                base.prepare({adapter: max(1, int(share * count)) for adapter, count in counts.items()})

    # ------------------------------------------------------------------------------------------- weights

    @property
    def _opened(self) -> tuple[EngineContext, RequestBatcher]:
        if self._context is None or self._batcher is None:
            raise RuntimeError("the engine is not open")
        return self._context, self._batcher

    def _serving(self, policy: str) -> _Served:
        if policy not in self._served:
            raise SystemFault(f"the policy '{policy}' has no weights in the engine yet")
        return self._served[policy]

    def _load(self, weights: Weights) -> None:
        from coterie.backends.models.merged_weights import MergedWeights

        policy = weights.policy
        module, tokenizer = self._module(weights)
        with self._computing:
            merged = MergedWeights(module, weights.adapter)
            if weights.module is not None:
                self._device = merged.model.get_input_embeddings().weight.device
            decoder = self._decoder_for(policy, merged, MergedWeights(module))
            adapter = weights.adapter if isinstance(decoder, SharedBase) else None
            served = self._served.get(policy)
            if served is not None:
                served.decoder, served.adapter, served.version = decoder, adapter, weights.version
            else:
                if tokenizer is not None:
                    self._tokenizers[policy] = tokenizer
                context = context_of(merged.config, self._tokenizers.get(policy), policy=policy)
                self._served[policy] = _Served(decoder, adapter, weights.version, context)
                self._codecs.pop(policy, None)  # it may have been made before the context was known
            used = [served.decoder for served in self._served.values()]
            self._bases = {key: base for key, base in self._bases.items() if base in used}

    def _module(self, weights: Weights) -> tuple[Any, Any]:
        """The module and its tokenizer (None: unknown); loaded here unless a trainer provides the module."""
        if weights.module is not None:
            return weights.module, weights.tokenizer
        ctx = self._opened[0]
        if weights.folder is not None:
            module, tokenizer = load_folder(weights.folder, policy=weights.policy)
            module.to(self._device)
            return module, tokenizer if weights.tokenizer is None else weights.tokenizer
        loaded = load_model(
            self._configs[weights.policy], policy=weights.policy, seed=0, vocabulary=ctx.vocabulary
        )
        return loaded.module, loaded.tokenizer

    def _decoder_for(self, policy: str, merged: MergedWeights, base: MergedWeights) -> Decoder | SharedBase:
        """The policy's decoder, with these weights (an adapter's included) loaded; `base` has no adapter."""
        make, reason = self._decoder_factory(policy, merged)
        old = self._served[policy].decoder if policy in self._served else None
        if not merged.adaptable or self.config.adapters == "merged" or self._needs_own_copy(policy, reason):
            if old is None or isinstance(old, SharedBase):
                return make(merged)
            old.refresh(merged)
            return old
        key = id(merged.model), self._configs[policy].dtype
        if key not in self._bases:
            # The memory planner computes on "meta", for a run on a CPU.
            on_cpu = merged.model.get_input_embeddings().weight.device.type in ("cpu", "meta")
            mixed_rows = None if self.config.adapters == "mixed" else MIXED_ROWS if on_cpu else math.inf
            self._bases[key] = SharedBase(policy, base, make, mixed_rows)
        self._bases[key].load(merged)
        return self._bases[key]

    def _decoder_factory(
        self, policy: str, merged: MergedWeights
    ) -> tuple[Callable[[MergedWeights], Decoder], str | None]:
        """A factory of the policy's decoder, and why its adapter can't share the base (None: it can)."""
        import torch

        from coterie.backends.engines.lean.adapters import unmixable
        from coterie.backends.engines.lean.decode import LeanDecoder
        from coterie.backends.engines.lean.weights import unsupported
        from coterie.backends.engines.stepwise import StepwiseDecoder

        dtype = getattr(torch, self._configs[policy].dtype)
        reason = unsupported(merged.model)
        if self.config.decoder == "lean" and reason is not None:
            raise ConfigError(
                f"the lean decoder can't compute the model of policy '{policy}'",
                path="engine.decoder",
                why=reason,
                fix="set `engine.decoder: transformers` (or `auto`)",
            )
        if self.config.decoder != "transformers" and reason is None:
            return partial(LeanDecoder, dtype=dtype), unmixable(merged)
        if self.config.decoder != "transformers":
            self._warn_once(
                f"policy {policy}: generating with transformers' forward, which is several times slower than "
                f"the lean decoder: {reason}"
            )
        return partial(StepwiseDecoder, dtype=dtype), merged.inseparable

    def _needs_own_copy(self, policy: str, reason: str | None) -> bool:
        """Whether the policy needs its own copy of the weights and its own batches; logs a warning if so."""
        if reason is None:
            return False
        if self.config.adapters == "mixed":
            raise ConfigError(
                f"policy '{policy}' can't generate in one batch with other adapters",
                path="engine.adapters",
                why=reason,
                fix="set `engine.adapters: auto`, which gives such a policy a merged copy of the weights",
            )
        self._warn_once(f"policy {policy}: its adapter is merged, and its batches are its own: {reason}")
        return True

    def _warn_once(self, warning: str) -> None:
        """Log each warning once, although weights are loaded repeatedly."""
        if warning not in self._warned:
            self._warned.add(warning)
            log.warning("%s", warning)

    # -------------------------------------------------------------------------------------------- batches

    def _row(self, request: Request) -> Row:
        sampling, served = request.sampling, self._serving(request.policy)
        length = len(request.prompt_ids)
        path = f"team.roles.{request.key.role}" if request.key.role else f"policies.{request.policy}"
        if length == 0:
            raise ConfigError(
                "the prompt is empty: there is nothing to continue",
                path=path,
                fix="make the role render some text",
            )
        if length >= served.context:
            raise ConfigError(
                f"prompt of {length} tokens does not fit the context of {served.context} tokens",
                path=path,
                why="a prompt and at least one new token must fit",
                fix="shorten what the role renders (history, observation), use a longer context, or set "
                "team.overflow=floor or truncate_oldest",
            )
        return Row(
            prompt_ids=request.prompt_ids,
            seed=request.seed,
            limit=max(1, min(sampling.max_new_tokens, served.context - length)),
            stops=self._stop_ids(request.policy, sampling.stop, path),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            adapter=served.adapter,
        )

    def _stop_ids(self, policy: str, strings: tuple[str, ...], path: str) -> tuple[int, ...]:
        cached = self._stops.get((policy, strings, path))
        if cached is not None:
            return cached
        ids = set(self.codec(policy).stop_ids)
        tokenizer = self._tokenizers[policy]
        for string in strings:
            token_ids = tokenizer.encode(string, add_special_tokens=False)
            if len(token_ids) != 1 or token_ids[0] == tokenizer.unk_token_id:
                raise ConfigError(
                    f"the stop string {string!r} is not one token of policy '{policy}'",
                    path="sampler.sampling.stop",
                    why=f"{path} stops on it; it becomes {tokenizer.convert_ids_to_tokens(token_ids)}",
                    fix="stop on a string that is one token, or cut the text in the role's parser",
                )
            ids.add(token_ids[0])
        return self._stops.setdefault((policy, strings, path), tuple(sorted(ids)))

    def _generate(self, _: str, requests: list[Request]) -> list[Call]:
        calls: dict[int, Call] = {}
        with self._computing:
            serving = [self._serving(request.policy) for request in requests]
            # One decoder, unless weights were loaded since the batch was formed.
            for decoder in {id(served.decoder): served.decoder for served in serving}.values():
                indices = [index for index, served in enumerate(serving) if served.decoder is decoder]
                drawn: list[Drawn] = []
                for part in split([requests[index] for index in indices], self.config.max_batch):
                    drawn += decoder.generate([self._row(request) for request in part])
                for index, row in zip(indices, drawn, strict=True):
                    calls[index] = _call(requests[index], row, serving[index].version)
        return [calls[index] for index in range(len(requests))]


def split(requests: Sequence[Request], most: int) -> list[list[Request]]:
    """Parts of at most `most` requests, in order; siblings of a decision stay together where they fit."""
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
