"""An estimate of the memory that a run's trainer and engine hold, made before any weights are loaded."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.api.cost import longest_answer
from coterie.api.counts import Counts
from coterie.backends.models.policy import of_tensors
from coterie.cli.disk import disk
from coterie.cli.memory_ahead import add_versions
from coterie.cli.memory_footprint import Footprint as Footprint
from coterie.cli.memory_layout import inside, layout_of
from coterie.cli.memory_notes import note_device, read_prompts
from coterie.cli.memory_served import served
from coterie.cli.memory_trainer import activations, device_of, division_of, leave, settings_of
from coterie.cli.memory_vllm import Server, adapter_bytes, server
from coterie.core.errors import UserError

if TYPE_CHECKING:  # the backends of models import torch, and a plan of tables works without it
    from coterie.backends.models.policy import TorchPolicy
    from coterie.backends.models.sizes import Blueprint
    from coterie.core.training.run import Run


class Lengths(NamedTuple):
    """Tokens of a policy's longest calls."""

    prompt: int
    answer: int


def footprint(
    run: Run, counts: Counts, *, device: str | None = None, gpu: float = 80e9, gpus: int | None = None
) -> Footprint:
    """Read the policies' models without their weights, and add up their tensors.

    Args:
        device: the type of the device that the plan is for; None: what this machine has.
        gpu: bytes of one GPU.
        gpus: how many there are; None: as many as keep trainer and engine apart.
    """
    estimate = Footprint()
    configs = of_tensors(run.config.policies)
    if not configs:
        return estimate
    estimate.device = device_of(run, device)
    estimate.division = division_of(run)
    estimate.layout = layout_of(run, estimate.device, gpus)
    configs = note_device(run, estimate, configs, gpu, hint=device is None)
    from coterie.backends.models.sizes import blueprint
    from coterie.backends.trainers.policies import initial_weights_of

    models: list[Blueprint] = []
    for names in initial_weights_of(configs).values():
        try:
            models.append(blueprint({name: configs[name] for name in names}, vocabulary=run.vocabulary))
        except UserError as error:
            estimate.unknown.update(dict.fromkeys(names, error))
    for model in models:
        estimate.adapters.update(model.size.adapters)
        estimate.parameters.update(dict.fromkeys(model.modules, model.size.parameters))
        if model.known:
            whose = f"{model.known} ({', '.join(model.modules)})"
            estimate.notes.append(f"the shape of {whose} is Coterie's own table's: the hub's cache lacks it")
        contexts = {name: context for name, context in model.contexts.items() if context is not None}
        estimate.contexts.update(contexts)
        if len(contexts) < len(model.contexts):
            policies = ", ".join(name for name in model.contexts if name not in contexts)
            estimate.notes.append(
                f"the context of {policies} is unknown: prompts that can't be made count nothing"
            )
    read_prompts(run, models, estimate)
    _Estimator(run, counts, models, estimate, configs, gpu if estimate.device == "cuda" else None).fill()
    return estimate


class _Estimator:
    """Fills in the `policies` and `phases` of a footprint."""

    def __init__(
        self,
        run: Run,
        counts: Counts,
        models: Sequence[Blueprint],
        estimate: Footprint,
        configs: Mapping[str, TorchPolicy],
        gpu: float | None,
    ) -> None:
        self.run, self.counts, self.models, self.estimate = run, counts, models, estimate
        self.configs, self.gpu = configs, gpu
        self.server: Server | None = None
        """vLLM's memory, where it is the engine."""
        self.sizes = {name: model.size for model in models for name in model.modules}
        self.lengths = {name: self._lengths(name) for name in self.sizes}
        self.branches = run.sampler.plan.branches
        self.kv_limit = math.inf
        self.prompt_once = set(self.sizes)
        """Policies whose siblings share one copy of their prompt's keys and values."""
        self.cached_in = {name: config.dtype for name, config in configs.items()}
        """The dtype of keys and values."""

    def fill(self) -> None:
        from coterie.backends.models import memory

        parts, phases = self.estimate.policies, self.estimate.phases
        annotations = {*self.run.estimator.needs, *self.run.loss.needs}
        for model in self.models:
            parts |= memory.trainer_bytes(
                {name: self.configs[name] for name in model.modules},
                model.size,
                references="ref_logprobs" in annotations,
                values="values" in annotations,
                low_gradients=self.run.config.trainer["type"] == "deepspeed",
            )
        trains = self._trains()
        if not trains:
            parts |= {name: dict.fromkeys(memory.PARTS, 0) for name in parts}
        if trains:
            self.estimate.disk = disk(self.run, self.configs, self.sizes, parts)
        self.estimate.cache = self._serve()
        kept = add_versions(self.run, self.configs, self.sizes, parts) if trains else 0
        self.estimate.one_device &= trains
        for name in parts:
            parts[name]["activations"] = self._update(name) if parts[name]["gradients"] else 0
            self.estimate.trained[name] = parts[name]["moments"] // (2 * memory.FP32)
        held = [self.estimate.division.on_gpu(part) for part in parts.values()]
        self.estimate.host = sum(self.estimate.division.on_host(part) for part in parts.values())
        staying, server = memory.summed(held), self.server
        if self.estimate.device == "cuda":
            self.estimate.host += kept
        else:
            staying += kept
        division, on_gpu = self.estimate.division, self.estimate.device == "cuda"
        leaving = leave(division, held, self.estimate.notes) if on_gpu else 0
        self.estimate.host += division.ranks * leaving
        phases["generation"] = staying - leaving + self.estimate.cache
        beside = server is None or (server.beside_trainer and not server.sleeps)
        if not beside:
            staying -= memory.summed(held, ("engine",))
        if server is not None and not server.beside_trainer:
            phases["generation"] = server.weights + server.cache  # on another GPU
        phases["update"] = staying + max(
            (part["gradients"] + part["activations"] for part in held), default=0
        )
        if (server is not None and beside) or (server is None and self.run.ahead):
            phases["update"] += self.estimate.cache  # a batch may be under way
        warm = [self._warm_start(model) for model in self.models]
        if trains and any(warm):
            resident = memory.summed(held, ("weights", "adapter", "reference", "masters"))
            phases["warm start"] = resident + max(warm)

    # -------------------------------------------------------------------------------------------- the trainer

    def _trains(self) -> bool:
        """Whether the trainer holds weights. A third-party trainer counts as `torch`."""
        from coterie.backends.trainers.none import NoTrainer
        from coterie.backends.trainers.tabular import TabularTrainer
        from coterie.backends.trainers.torch_trainer import TorchTrainer

        trainer = self.run.trainer
        kind = self.run.config.trainer["type"]
        if not isinstance(trainer, TorchTrainer | NoTrainer | TabularTrainer) and kind != "deepspeed":
            self.estimate.notes.append(f"the memory of trainer '{kind}' is counted as that of 'torch'")
        return not isinstance(trainer, NoTrainer | TabularTrainer)

    def _update(self, name: str) -> int:
        """Activations of the largest micro-batch of an update."""
        samples, settings = self.counts.policies[name].samples, settings_of(self.run)
        if settings is not None and settings.minibatch_size is not None:
            samples = min(samples, -(-settings.minibatch_size // self.branches) * self.branches)
        return self._activations(name, -(-samples // self.branches), samples)

    def _activations(self, name: str, prompts: int, samples: int) -> int:
        length = self.lengths[name]
        return activations(
            self.run,
            name,
            self.configs[name],
            self.sizes[name],
            prompts=prompts,
            samples=samples,
            prompt=length.prompt,
            answer=length.answer,
            gpu=self.gpu,
        )

    def _warm_start(self, model: Blueprint) -> int:
        """Bytes that the supervised steps of a warm start hold besides the tensors that stay."""
        from coterie.backends.models import memory

        name = next(iter(model.modules))
        settings = self.configs[name].warm_start
        if settings is None:
            return 0
        kept = self._activations(name, settings.batch, settings.batch)
        return memory.warm_start_bytes(self.configs[name], model.size) + kept

    # --------------------------------------------------------------------------------------------- the engine

    def _lengths(self, name: str) -> Lengths:
        counts, context = self.counts.policies[name], self.estimate.contexts.get(name)
        answer = longest_answer(self.run, counts.roles)
        prompts = [self.estimate.prompts.get(role) for role in counts.roles]
        if context is None:
            return Lengths(max((prompt or 0 for prompt in prompts), default=0), answer)
        answer = min(answer, context - 1)
        return Lengths(max(min(prompt or context, context - answer) for prompt in prompts), answer)

    def _serve(self) -> int:
        """Fill in `engine` and `kv`; return the bytes of the largest batch's cache."""
        from coterie.backends.engines.hf import HFEngine
        from coterie.backends.engines.scripted import ScriptedEngine
        from coterie.backends.engines.tabular import TabularEngine
        from coterie.backends.models import memory

        engine, parts = self.run.engine, self.estimate.policies
        if isinstance(engine, ScriptedEngine | TabularEngine) or not self.models:
            return 0
        batch_policy = {name: name for name in parts}
        if isinstance(engine, HFEngine):
            self.estimate.one_device = True
            longest = max(sum(length) for length in self.lengths.values())
            copies, batch_policy, self.prompt_once = asyncio.run(
                served(self.run, self.counts, self.models, longest)
            )
            for name in parts:
                parts[name]["engine"] = copies[name]
                if name in self.prompt_once and self.estimate.device == "cpu":
                    self.cached_in[name] = "float32"  # `engines.lean.precision.cache_dtype`
        elif self.run.config.engine["type"] == "vllm":
            return self._serve_vllm()
        else:
            self.estimate.notes.append(
                f"the memory of engine '{self.run.config.engine['type']}' is counted as a copy of every base"
            )
            for model in self.models:
                first = next(iter(model.modules))
                parts[first]["engine"] = memory.WIDTH[model.dtype] * model.size.parameters
        most = engine.config.max_batch if isinstance(engine, HFEngine) else 2**62
        if isinstance(engine, HFEngine):
            self.kv_limit = self._kv_limit(engine)
        largest = 0
        for wave in self.counts.waves:
            batches: dict[str, list[str]] = {}
            for name in [name for name in wave if name in parts]:
                parts[name]["kv"] = max(parts[name]["kv"], self._cache([name], wave, most))
                batches.setdefault(batch_policy[name], []).append(name)
            largest = max([largest, *(self._cache(names, wave, most) for names in batches.values())])
        return largest

    def _serve_vllm(self) -> int:
        """Fill in vLLM's weights and KV cache; return the bytes of the cache."""
        from coterie.backends.models import memory
        from coterie.backends.models.bases import bases_of

        bases = bases_of(self.configs)
        copies = {
            name: memory.WIDTH[model.dtype] * model.size.parameters
            for model in self.models
            for name in model.modules
            if name in bases
        }
        adapters = adapter_bytes(self.run, self.configs, self.sizes)
        for name, size in adapters.items():
            copies[name] = copies.get(name, 0) + size
        config: Any = self.run.engine.config  # type: ignore[attr-defined]
        whole = sum(copies.values())
        ahead = self.run.config.schedule.max_staleness > 0
        self.server = server(
            config, whole, self.gpu, self.estimate.layout, inside(self.run), beside_updates=ahead
        )
        self.estimate.notes.append(self.server.note)
        if adapters:
            self.estimate.notes.append(
                f"vLLM has places for versions of adapters, and twice as many in the host's memory: "
                f"{2 * sum(adapters.values()) / 1e9:.3g} GB"
            )
        self.estimate.one_device = self.server.beside_trainer
        for name, size in copies.items():
            self.estimate.policies[name]["engine"] = self.server.weights * size // whole
        self.estimate.policies[next(iter(copies))]["kv"] = self.server.cache
        return self.server.cache

    def _cache(self, names: list[str], wave: Mapping[str, int], most: int) -> int:
        """Bytes of the KV cache of a batch of these policies, which share a base."""
        from coterie.backends.models import memory

        def of(prompts: int, rows: int) -> int:
            return memory.cache_bytes(
                self.sizes[names[0]],
                self.cached_in[names[0]],
                prompts=prompts if names[0] in self.prompt_once else rows,
                prompt=max(self.lengths[name].prompt for name in names),
                rows=rows,
                answer=max(self.lengths[name].answer for name in names),
            )

        decisions = sum(wave[name] for name in names)
        return of(*memory.batch_of(decisions, self.branches, most, of, self.kv_limit))

    def _kv_limit(self, engine: Any) -> float:
        """The engine's bound of a batch's keys and values."""
        from coterie.backends.engines.batches import kv_limit
        from coterie.backends.models import memory

        wanted = self.run.config.deterministic
        return kv_limit(
            engine.config.kv_memory,
            None if self.gpu is None else (self.gpu, self.gpu),
            repeats=self.gpu is None if wanted == "auto" else bool(wanted),
            staying=memory.summed(self.estimate.policies.values()),
        )
