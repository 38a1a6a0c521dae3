"""The in-process engine on PyTorch; it reads weights from the trainer's live modules."""

from __future__ import annotations

import logging
import math
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import ByteSize, Field

from coterie.backends.engines.batches import BatchBound, KvCost, generate, kv_limit, memory_of
from coterie.backends.engines.request_batching import RequestBatcher
from coterie.backends.engines.requests import TensorEngine, call_of, checked_limit, on_device
from coterie.backends.engines.rows import MERGED_NUMBERS, MIXED_ROWS, BatchRow, DecoderCounts, SharedBase
from coterie.backends.models.compute_threads import compute
from coterie.backends.models.devices import device_of, fix_cublas, is_deterministic
from coterie.backends.models.loading import context_of, in_memory, load_folder, load_model, require_torch
from coterie.backends.models.policy import TensorPolicy, declared
from coterie.backends.models.precision import chosen_dtypes, dtype_of
from coterie.backends.models.versions import Versions
from coterie.core.errors import ConfigError
from coterie.core.plugins import MayChange, PluginConfig
from coterie.core.types import Call, Request, Weights

if TYPE_CHECKING:
    from coterie.backends.engines.decoders import DecoderFactory
    from coterie.backends.engines.rows import Decoder
    from coterie.backends.models.merged_weights import MergedWeights
    from coterie.core.protocols import EngineContext

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
    kv: KvCost
    slot: int = 0
    """The place of the version among those that are held at once; adapters are named after it."""


class HFEngine(TensorEngine):
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
        kv_memory: Annotated[Literal["auto"] | Annotated[ByteSize, Field(gt=0)], MayChange()] = Field(
            "auto",
            description="Most bytes of one batch's keys and values, e.g. `8GB`. Larger batches are split "
            "between decisions. `auto`: on a GPU 70 % of the memory that is free (with `deterministic: true` "
            "25 % of all), on a CPU 32 GiB.",
        )
        device: Annotated[str, MayChange()] = Field(
            "auto",
            description="Device of models that no trainer holds (`trainer: none`): `auto`, or torch's name. "
            "The trainer's models are read where they are.",
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
            "merged into one spare copy, one after the other; in bfloat16, and on a base of more than "
            f"{MERGED_NUMBERS // 10**6} million weights, always mixed. In bfloat16 a merged copy would round "
            "small updates away: it is kept in float32.",
        )

    Policy = TensorPolicy
    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._unused: dict[str, list[_Served]] = {}
        """By policy: places of versions that are gone, to be written over."""
        self.served: Versions[_Served] = Versions(self._gone)
        self.loaded_bases: dict[tuple[int, str], SharedBase] = {}
        """By the base's module and the decoder's dtype."""
        self._slots: Counter[str] = Counter()
        """By policy: the places of versions that were held at once, so far."""
        self._computing = threading.Lock()  # held while a batch is computed, so that its weights don't change
        self._device: Any = None
        """The device of the weights that were loaded last; weights that the engine reads are placed on it."""
        self._most_bytes = math.inf
        """Of keys and values: half of a batch that ran out of memory."""
        self.batcher: RequestBatcher | None = None

    async def open(self, ctx: EngineContext) -> None:
        require_torch("engine")
        fix_cublas(wanted=ctx.deterministic)
        device_of(self.config.device, "engine.device")  # one that isn't there is told before weights load
        self._context, self._configs = ctx, declared(ctx.policies, TensorPolicy)
        self.batcher = RequestBatcher(
            self._generate,
            ctx.active_rollouts,
            deterministic=ctx.deterministic is not False,  # `auto`: `_load` learns the device
            beside_updates=ctx.ahead > 0,
            together=self.batch_of,
        )

    async def close(self) -> None:
        if self.batcher is not None:
            self.batcher.close()
        self.served.clear()
        self._unused.clear()
        self.loaded_bases.clear()

    async def load_weights(self, weights: Weights) -> None:
        """Copy the module's (or the folder's) weights, after the batch that is being computed.

        Where the newest version is leased, the copy is another one, and no batch is waited for. Where
        adapters share a frozen base, only the policy's adapter is copied now; the base is copied when a batch
        needs it.
        """
        await compute(self._load, weights)

    async def lease(self, policy: str, version: int) -> None:
        self.served.lease(policy, version)

    async def release(self, policy: str, version: int) -> None:
        self.served.release(policy, version)

    def _gone(self, policy: str, served: _Served) -> None:
        newest = self.served.newest(policy)
        if newest is None or newest.slot != served.slot:  # else it was written over where it was
            self._unused.setdefault(policy, []).append(served)

    async def generate(self, request: Request) -> Call:
        """Generate one call.

        Raises:
            ConfigError: the prompt does not fit the context, or a stop string is not one token.
            SystemFault: the policy has no weights yet, or they are damaged.
        """
        self._row(request)  # a faulty request raises by itself, before it joins a batch
        return await self._batches.submit(request)

    def _length_of(self, policy: str) -> int | None:
        served, config = self.served.newest(policy), self._configs[policy]
        context: int | None = config.context if served is None else served.context
        return context

    def counts(self, policy: str) -> DecoderCounts:
        """The counters of the policy's decoder, over all policies that share it."""
        return self.served.at(policy).decoder.counts

    def batch_of(self, policy: str) -> str:
        """The name of the policy's batches: the first policy of its shared base, or the policy itself."""
        served = self.served.newest(policy)
        return served.decoder.name if served and isinstance(served.decoder, SharedBase) else policy

    def prepare(self, rows: Mapping[str, int]) -> None:
        """Make the copies of weights that a first batch with these row counts per policy would make."""
        with self._computing:
            serving = [(self.served.at(policy), count) for policy, count in rows.items() if count]
            for base in self.loaded_bases.values():
                counts: Counter[str | None] = Counter()
                for served, count in serving:
                    if served.decoder is base:
                        counts[served.adapter] += count
                share = min(1.0, self.config.max_batch / max(counts.total(), 1))  # larger batches are split
                base.prepare({adapter: max(1, int(share * count)) for adapter, count in counts.items()})

    # ------------------------------------------------------------------------------------------- weights

    @property
    def _batches(self) -> RequestBatcher:
        if self.batcher is None:
            raise RuntimeError("the engine is not open")
        return self.batcher

    def _load(self, weights: Weights) -> None:
        from coterie.backends.engines.decoders import decoder_factory
        from coterie.backends.models.merged_weights import MergedWeights

        policy = weights.policy
        module, tokenizer = self._module(weights)
        adapter = weights.adapter
        if weights.module is None and hasattr(module, "peft_config"):
            adapter = "default"  # of an exported adapter
        newest, apart = self.served.newest(policy), self.served.leased(policy)
        unused, old = self._unused.get(policy, []), newest
        if apart:  # leased: a copy of its own, which no batch computes with yet
            old = unused.pop() if unused else None
        with nullcontext() if apart else self._computing:
            merged = MergedWeights(module, adapter)
            self._placed(merged)
            factory = decoder_factory(
                policy,
                merged,
                self._dtype(policy, merged),
                decoder=self.config.decoder,
                adapters=self.config.adapters,
                warn=self._warn_once,
            )
            slot = self._slots[policy] if old is None else old.slot
            self._slots[policy] += old is None
            adapter = f"{adapter}~{slot}" if adapter is not None and slot else adapter
            decoder = self._decoder_for(policy, merged, MergedWeights(module), factory, old, adapter)
            adapter = adapter if isinstance(decoder, SharedBase) else None
            if newest is not None:
                context = newest.context
            else:
                if tokenizer is not None:
                    self._tokenizers[policy] = tokenizer
                limit = self._configs[policy].context
                context = context_of(merged.config, self._tokenizers.get(policy), policy=policy, limit=limit)
                self._codecs.pop(policy, None)  # it may have been made before the context was known
            self.served.put(
                policy, weights.version, _Served(decoder, adapter, weights.version, context, factory.kv, slot)
            )
            used = [served.decoder for served in self.served.values()]
            self.loaded_bases = {key: base for key, base in self.loaded_bases.items() if base in used}

    def _placed(self, merged: MergedWeights) -> None:
        """Note the device of loaded weights, and what follows from it."""
        self._device = merged.model.get_input_embeddings().weight.device
        ctx = self._opened
        self._batches.deterministic = is_deterministic(ctx.deterministic, self._device)
        if ctx.ahead and (text := on_device(self._device)):
            self._warn_once(text)
        if self._device.type == "cuda" and "vllm" not in self._warned:
            self._warned.add("vllm")
            log.info(
                "engine hf starts every kernel of every token by itself, which a GPU spends waiting: "
                "`engine: vllm` is the engine for a GPU; `hf` is for CPUs, and to check another's numbers"
            )

    def _module(self, weights: Weights) -> tuple[Any, Any]:
        """The module and its tokenizer (None: unknown); loaded here unless a trainer provides the module."""
        if weights.module is not None:
            return weights.module, weights.tokenizer
        if weights.tensors is not None:
            raise ConfigError(
                f"the engine `hf` can't read the weights of policy '{weights.policy}'",
                path="engine",
                why="it generates with the trainer's own module, which the trainer divides between ranks",
                fix="set engine.type=vllm, or let the trainer keep modules whole (trainer.stage=2)",
            )
        device = self._device or device_of(self.config.device, "engine.device")
        if weights.folder is not None:
            module, tokenizer = load_folder(weights.folder, policy=weights.policy)
            in_memory(module.to(device)).requires_grad_(False)
            return module, tokenizer if weights.tokenizer is None else weights.tokenizer
        config = chosen_dtypes({weights.policy: self._configs[weights.policy]}, device.type)[weights.policy]
        loaded = load_model(config, policy=weights.policy, seed=0, vocabulary=self._opened.vocabulary)
        return in_memory(loaded.module.to(device)).requires_grad_(False), loaded.tokenizer

    def _decoder_for(
        self,
        policy: str,
        merged: MergedWeights,
        base: MergedWeights,
        make: DecoderFactory,
        unused: _Served | None,
        adapter: str | None,
    ) -> Decoder | SharedBase:
        """A decoder with these weights (an adapter's included) loaded; `base` has no adapter.

        Args:
            unused: what may be written over; None: a new decoder, or a new adapter of a shared one.
            adapter: its name in a shared base.
        """
        old = None if unused is None else unused.decoder
        make.share(base, policy)
        if make.unmixable is not None or not merged.adaptable or self.config.adapters == "merged":
            if old is None or isinstance(old, SharedBase):
                return make(merged)
            old.refresh(merged)
            return old
        key = id(merged.model), self._dtype(policy, merged)
        if key not in self.loaded_bases:
            self.loaded_bases[key] = SharedBase(policy, base, make, self._mixed_rows(policy, merged))
        self.loaded_bases[key].load(merged, adapter)
        return self.loaded_bases[key]

    def _mixed_rows(self, policy: str, merged: MergedWeights) -> float | None:
        """Most rows per adapter of a mixed batch; None: every batch is mixed."""
        # The memory planner computes on "meta", for a run on a CPU.
        on_cpu = merged.model.get_input_embeddings().weight.device.type in ("cpu", "meta")
        if self.config.adapters == "mixed" or self._dtype(policy, merged) != "float32":
            return None  # in 16 bits a merge would round small updates away
        if merged.base_numbers > MERGED_NUMBERS:
            return None
        return MIXED_ROWS if on_cpu else math.inf

    def _dtype(self, policy: str, merged: MergedWeights) -> str:
        """The policy's dtype; with `auto` that of the weights, which the trainer chose by its device."""
        return dtype_of(self._configs[policy], merged.model)

    # -------------------------------------------------------------------------------------------- batches

    def _row(self, request: Request) -> BatchRow:
        sampling, served = request.sampling, self.served.at(request.policy, request.version)
        limit = checked_limit(request, served.context)
        return BatchRow(
            prompt_ids=request.prompt_ids,
            seed=request.seed,
            limit=limit,
            stops=self.stops_of(request),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            adapter=served.adapter,
        )

    def _generate(self, _: str, requests: list[Request]) -> list[Call]:
        calls: dict[int, Call] = {}
        with self._computing:
            serving = [self.served.at(request.policy, request.version) for request in requests]
            # One decoder, unless weights were loaded since the batch was formed.
            for decoder in {id(served.decoder): served.decoder for served in serving}.values():
                indices = [index for index, served in enumerate(serving) if served.decoder is decoder]
                asked = [requests[index] for index in indices]
                rows = [self._row(request) for request in asked]
                if isinstance(decoder, SharedBase) and self._device.type == "cuda":
                    decoder.prepare(Counter(row.adapter for row in rows))  # before free memory is measured
                bound = self._bound(serving[indices[0]].kv)
                drawn = generate(decoder, asked, rows, bound, self._halved)
                for index, row in zip(indices, drawn, strict=True):
                    calls[index] = call_of(requests[index], serving[index].version, *row)
        return [calls[index] for index in range(len(requests))]

    def _bound(self, cost: KvCost) -> BatchBound:
        """The bounds of the next batch."""
        repeats = self._batches.deterministic
        limit = kv_limit(self.config.kv_memory, memory_of(self._device), repeats=repeats)
        return BatchBound(self.config.max_batch, min(limit, self._most_bytes), cost)

    def _halved(self, size: int) -> None:
        """Bound later batches too: what ran out of memory once would again."""
        self._most_bytes = min(self._most_bytes, max(size // 2, 1))
