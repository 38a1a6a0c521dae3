"""The engine `vllm`: tokens in, tokens out, from vLLM servers that follow the trainer's weights."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coterie.backends.engines.requests import TensorEngine, call_of, checked_limit
from coterie.backends.engines.vllm.base import (
    BaseServers,
    Served,
    longest,
    make_servers,
    runs_inside,
    share,
    with_module,
)
from coterie.backends.engines.vllm.server import Output, Params, ServerSpec
from coterie.backends.engines.vllm.settings import (
    VLLMConfig,
    VLLMPolicy,
    adapter_versions,
    check_actors,
    check_ahead,
    check_settings,
    one_version,
    warn_ahead,
)
from coterie.backends.engines.vllm.transfer import (
    Folders,
    adapter_tensors,
    largest_rank,
    rank_for,
    wrong_rank,
)
from coterie.backends.models.compute_threads import compute
from coterie.backends.models.loading import context_of, require_torch
from coterie.backends.models.policy import declared
from coterie.backends.models.precision import dtype_of
from coterie.core.errors import ConfigError, SystemFault, UserError
from coterie.core.types import Call, Request, Weights

if TYPE_CHECKING:
    from coterie.backends.cluster.hosts import Actors
    from coterie.core.protocols import EngineContext

log = logging.getLogger("coterie")


class VLLMEngine(TensorEngine):
    """Generates with vLLM: each request joins the running batch at once.

    Each base model has a server (or `replicas`); LoRA policies are adapters in their base's server, and
    frozen policies of the same model are requests without an adapter. Policies whose weights are all trained
    have servers of their own.

    Every request has a seed of its own, so its tokens do not depend on the batch, except for the rounding of
    matrix products. Log-probs are under the whole distribution at the sampling temperature.
    """

    Config = VLLMConfig
    Policy = VLLMPolicy
    config: VLLMConfig

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._actors: Actors | None = None
        self.served: dict[str, Served] = {}
        self.loaded_bases: dict[Any, BaseServers] = {}
        self._loading = asyncio.Lock()
        self._folders = Folders()
        """Of the models' configurations."""
        self._adapter_settings: dict[str, Any] = {}
        """PEFT's configuration of each policy's adapter."""
        self.spanning = 0
        """Calls so far whose tokens several versions of the weights drew."""

    def use_actors(self, actors: Actors) -> None:
        """Have every server in an actor, where the engine runs in a process of a cluster."""
        check_actors(self.config, actors.settings.weights)
        self._actors = actors if self.config.process != "inside" else None

    def check_ahead(self, policies: Mapping[str, Any], ahead: int, pinned: bool) -> None:
        """Refuse steps ahead that vLLM can't play.

        Raises:
            ConfigError: see `settings.check_ahead`.
        """
        check_ahead(declared(policies, VLLMPolicy), self.config, ahead, pinned)

    async def open(self, ctx: EngineContext) -> None:
        """Check the settings. vLLM starts with the first `load_weights`.

        Raises:
            ConfigError: settings that exclude each other, or steps ahead that vLLM can't play.
            MissingExtra: vLLM, torch or transformers is not installed.
        """
        require_torch("engine")
        check_settings(self.config)
        self.config.check_packages()
        policies = declared(ctx.policies, VLLMPolicy)
        if ctx.ahead:
            check_ahead(policies, self.config, ctx.ahead, ctx.pinned)
        warn_ahead(ctx, self.config, inside=self._actors is None and runs_inside(self.config))
        self._context, self._configs = ctx, policies

    async def close(self) -> None:
        bases, self.loaded_bases = self.loaded_bases, {}
        self.served.clear()
        for base in bases.values():
            await base.close()
        self._folders.close()

    async def load_weights(self, weights: Weights) -> None:
        """Send weights to vLLM: an adapter under a new name and id, base weights between two steps.

        Raises:
            UserError: a tensor does not fit the model, or vLLM refuses the adapter.
            SystemFault: vLLM fails, and fails again after a restart.
        """
        async with self._loading:
            await self._load(weights)

    async def lease(self, policy: str, version: int) -> None:
        """Keep an adapter's version loaded; frozen weights have one version, and need no lease.

        Raises:
            ConfigError: vLLM has one set of the policy's weights, which the next sync replaces.
            SystemFault: the version is not there.
        """
        served = self._serving(policy, version)
        if served.adapted:
            served.base.adapters.versions.lease(policy, version)
        elif served.trained:
            raise one_version(policy, self._opened.ahead, "its weights are trained in place")

    async def release(self, policy: str, version: int) -> None:
        served = self.served.get(policy)
        if served is not None and served.adapted:
            served.base.adapters.versions.release(policy, version)

    async def generate(self, request: Request) -> Call:
        """Generate one call. A cancelled call is aborted in vLLM.

        Raises:
            ConfigError: the prompt does not fit the context, or a stop string is not one token.
            SystemFault: the policy has no weights yet, or none of the request's version; they are damaged, or
                vLLM died twice.
        """
        served = self._serving(request.policy, request.version)
        params = self._params(request, served)
        rollouts = self._opened.active_rollouts
        rollouts.wait()
        try:
            output, version = await served.base.generate(
                request.prompt_ids,
                params,
                request.policy if served.adapted else None,
                request.key,
                request.version,
            )
        finally:
            rollouts.resume()
        return self._call(request, output, served, version)

    def _length_of(self, policy: str) -> int | None:
        served = self.served.get(policy)
        return None if served is None else served.context

    # ------------------------------------------------------------------------------------------- requests

    def _serving(self, policy: str, version: int | None = None) -> Served:
        """Where a policy's requests are computed, if it may have the version; None: the newest."""
        if policy not in self.served:
            raise SystemFault(f"the policy '{policy}' has no weights in the engine yet")
        served = self.served[policy]
        if version not in (None, served.version) and not served.adapted:
            raise SystemFault(f"the engine has no version {version} of '{policy}', but {served.version}")
        return served

    def _params(self, request: Request, served: Served) -> Params:
        sampling = request.sampling
        limit = checked_limit(request, served.context)
        if max(request.prompt_ids) >= served.vocabulary:
            raise ConfigError(  # it would end vLLM, and all requests in flight with it
                f"the token {max(request.prompt_ids)} of a prompt is not in the model's vocabulary",
                path=f"policies.{request.policy}.model",
                why=f"the embedding has {served.vocabulary} rows, and the tokenizer knows more tokens",
                fix="use the model's own tokenizer, or resize the embedding and save the model",
            )
        return Params(
            seed=request.seed,
            limit=limit,
            stops=self.stops_of(request),
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
        )

    def _call(self, request: Request, output: Output, served: Served, version: int | None) -> Call:
        if not all(math.isfinite(logprob) for logprob in output.logprobs):
            raise SystemFault("the model's logits are not finite: its weights are damaged")
        runs: tuple[tuple[int, int], ...] = ()
        if version is None:
            version = served.version
            if served.trained and output.spans:
                version = min(span.version for span in output.spans)
                if len(output.spans) > 1:
                    runs = tuple((span.version, span.stop - span.start) for span in output.spans)
                    self._note_spanning(request, output)
        logprobs = tuple(min(logprob, 0.0) for logprob in output.logprobs)
        return call_of(request, version, output.token_ids, logprobs, output.finish, runs)

    def _note_spanning(self, request: Request, output: Output) -> None:
        self.spanning += 1
        if self._opened.ahead:  # weights that arrive in flight are wanted
            return
        log.warning(
            "policy %s: several versions of the weights drew the tokens of one call (%s); its version is the "
            "oldest", request.policy,
            ", ".join(f"{span.version}: [{span.start}, {span.stop})" for span in output.spans),
        )  # fmt: skip

    # -------------------------------------------------------------------------------------------- weights

    async def _load(self, weights: Weights) -> None:
        policy = weights.policy
        if weights.module is None and weights.tensors is not None:
            await self._load_gathered(weights)
            return
        if weights.module is None and weights.folder is None and isinstance(self._configs[policy].model, str):
            await self._serve_source(weights)  # vLLM reads them itself, from a hub id or a folder
            return
        if weights.module is None:
            weights = await compute(with_module, weights, self._configs[policy], self._opened.vocabulary)
        from coterie.backends.models.merged_weights import MergedWeights

        merged = MergedWeights(weights.module, weights.adapter)
        reason = merged.inseparable if weights.adapter is not None else None
        merge = weights.adapter is not None and reason is not None
        if merge:
            if self._opened.pinned and self._opened.ahead:  # steps lease older versions beside the newest
                why = f"its adapter is merged into the model ({reason})"
                raise one_version(policy, self._opened.ahead, why)
            self._warn_once(f"policy {policy}: its adapter is merged, and it has a vLLM of its own: {reason}")
        base = await self._base(weights, merged, merge)
        if weights.adapter is not None and not merge:
            await self._add_adapter(base, weights)
        trained = weights.adapter is None and not merged.adaptable and self._configs[policy].train != "none"
        self._serve(weights, base, merged.config, trained or merge)

    async def _load_gathered(self, weights: Weights) -> None:
        """Load tensors that a trainer gathers when they are read; the policy's first weights had a module."""
        from coterie.backends.engines.vllm.sync import BaseWeights

        served = self.served.get(weights.policy)
        known = None if served is None else served.base.weights
        if served is None or known is None or served.adapted != (weights.adapter is not None):
            raise UserError(
                "vLLM can't take these weights",
                path=f"policies.{weights.policy}",
                why="the trainer gathers them, and the policy's first weights had no module of this kind",
                fix="train all weights or a plain LoRA adapter, or choose engine.type: hf",
            )
        if served.adapted:
            await self._write_adapter(served.base, weights, self._adapter_settings[weights.policy])
        else:
            await served.base.sync(BaseWeights(weights, layout=known.layout), weights.version)
        served.version = weights.version

    async def _base(self, weights: Weights, merged: Any, merge: bool) -> BaseServers:
        """The base of the weights, started and up to date."""
        from coterie.backends.engines.vllm.sync import BaseWeights

        key = ("merged", weights.policy) if merge else id(merged.model)
        alone = merge or not merged.adaptable
        base = self.loaded_bases.get(key)
        if base is None:
            source = await compute(BaseWeights, weights, merge=merge)
            source.check()
            base = await self._started(self._spec(weights, merged, merge), key, source)
            await base.sync(source, weights.version if alone else 0)
        elif alone:
            await base.sync(await compute(BaseWeights, weights, merge=merge), weights.version)
        elif base.weights is not None and not base.current:
            # A frozen base changed: a warm start, or weights that were read again.
            await base.sync(await compute(BaseWeights, weights), 0)
        return base

    async def _started(self, spec: ServerSpec, key: Any, source: Any) -> BaseServers:
        base = BaseServers(spec, make_servers(spec, self._actors), source)
        self.loaded_bases[key] = base  # `close` ends it even if it can't open
        try:
            await base.open()
        except BaseException:
            del self.loaded_bases[key]
            await base.close()
            raise
        return base

    def _spec(self, weights: Weights, merged: Any, merge: bool) -> ServerSpec:
        policy, adapters = weights.policy, {}
        if merged.adaptable and not merge:
            adapters = dict(weights.module.peft_config)
        rank = rank_for(adapters, policy)
        settings = copy.deepcopy(merged.config)
        settings.architectures = [type(merged.model).__name__]  # missing from a new model's configuration
        folder = self._folders.write(f"model-{len(self.loaded_bases)}", 2**16, settings.save_pretrained)
        return ServerSpec(
            name=policy,
            model=str(folder),
            dtype=dtype_of(self._configs[policy], merged.model),
            context=longest(self._configs, policy, merged.config, weights.tokenizer),
            tied=bool(getattr(merged.config, "tie_word_embeddings", False)),
            adapters=len(adapters) * adapter_versions(self._opened.ahead, self._opened.pinned),
            adapter_rank=rank,
            beside_updates=self._opened.ahead > 0,
            share=share(self._configs),
            ways=getattr(weights.tensors, "ways", None),
            settings=self.config,
        )

    async def _add_adapter(self, base: BaseServers, weights: Weights) -> None:
        settings = weights.module.peft_config[weights.adapter]
        rank = largest_rank(settings)
        if rank > base.spec.adapter_rank:
            raise wrong_rank(
                weights.policy, rank, f"its base was started for ranks up to {base.spec.adapter_rank}"
            )
        self._adapter_settings[weights.policy] = settings
        await self._write_adapter(base, weights, settings)

    async def _write_adapter(self, base: BaseServers, weights: Weights, settings: Any) -> None:
        tensors = await compute(adapter_tensors, weights)
        adapter = await compute(base.adapters.write, weights.policy, weights.version, settings, tensors)
        await base.add(weights.policy, adapter, weights.version)

    async def _serve_source(self, weights: Weights) -> None:
        from transformers import AutoConfig

        config = self._configs[weights.policy]
        dtype = dtype_of(config)
        key = config.model, config.revision, dtype
        loaded = await compute(AutoConfig.from_pretrained, config.model, revision=config.revision)
        base = self.loaded_bases.get(key)
        if base is None:
            spec = ServerSpec(
                name=weights.policy,
                model=str(config.model),
                revision=config.revision,
                stored=True,
                dtype=dtype,
                context=longest(self._configs, weights.policy, loaded, weights.tokenizer),
                beside_updates=self._opened.ahead > 0,
                share=share(self._configs),
                settings=self.config,
            )
            base = await self._started(spec, key, None)
        self._serve(weights, base, loaded, trained=False)

    def _serve(self, weights: Weights, base: BaseServers, config: Any, trained: bool) -> None:
        policy, adapted = weights.policy, weights.adapter is not None and bool(base.spec.adapters)
        if policy not in self.served:
            if weights.tokenizer is not None:
                self._tokenizers[policy] = weights.tokenizer
            self._codecs.pop(policy, None)  # it may have been made before the context was known
        limit = self._configs[policy].context
        context = context_of(config, self._tokenizers.get(policy), policy=policy, limit=limit)
        vocabulary = config.get_text_config().vocab_size
        self.served[policy] = Served(base, adapted, weights.version, context, vocabulary, trained)
