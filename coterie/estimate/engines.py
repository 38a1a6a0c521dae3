"""The engine's part of an estimate of memory: its copies of weights, and the keys and values of a batch."""

from __future__ import annotations

import asyncio
import gc
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.backends.engines.batches import kv_limit
from coterie.backends.engines.hf import HFEngine
from coterie.backends.engines.scripted import ScriptedEngine
from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.engines.vllm.arguments import APART, BESIDE, sleeps
from coterie.backends.engines.vllm.settings import VLLMConfig, adapter_versions
from coterie.backends.models import memory
from coterie.backends.models.memory import WIDTH
from coterie.backends.models.sources import bases_of
from coterie.core.errors import UserError
from coterie.core.protocols import EngineContext
from coterie.core.types import Weights
from coterie.estimate.gpus import GpuLayout, vllm_inside
from coterie.estimate.models import PlannedModels

if TYPE_CHECKING:  # the backends of models import torch, and a plan of tables works without it
    from torch import Tensor

    from coterie.backends.engines.lean.weights import LeanWeights

GIB = 2**30


class EngineMemory:
    """Fills in `engine` and `kv`, the engine's parts of each policy."""

    def __init__(self, planned: PlannedModels, parts: dict[str, dict[str, int]], layout: GpuLayout) -> None:
        self.planned, self.parts, self.layout = planned, parts, layout
        self.server: VllmMemory | None = None
        """vLLM's memory, where it is the engine."""
        self.beside_trainer = False
        """Whether the engine is on the trainer's device, however many there are."""
        self._sizes = planned.sizes
        self._lengths = {name: planned.lengths(name) for name in self._sizes}
        self._kv_limit = math.inf
        self._prompt_once = set(self._sizes)
        """Policies whose siblings share one copy of their prompt's keys and values."""
        self._cached_in = {name: config.dtype for name, config in planned.configs.items()}
        """The dtype of keys and values."""

    def fill(self) -> int:
        """Fill in `engine` and `kv`; return the bytes of the largest batch's cache."""
        engine, parts = self.planned.run.engine, self.parts
        if isinstance(engine, ScriptedEngine | TabularEngine) or not self.planned.models:
            return 0
        batch_policy, most = {name: name for name in parts}, 2**62
        kind = self.planned.run.config.engine["type"]
        if isinstance(engine, HFEngine):
            batch_policy, most = self._fill_hf(engine), engine.config.max_batch
        elif kind == "vllm":
            return self._fill_vllm()
        else:
            self.planned.notes.append(f"the memory of engine '{kind}' is counted as a copy of every base")
            for model in self.planned.models:
                first = next(iter(model.modules))
                parts[first]["engine"] = memory.WIDTH[model.dtype] * model.size.parameters
        largest = 0
        for wave in self.planned.counts.waves:
            batches: dict[str, list[str]] = {}
            for name in [name for name in wave if name in parts]:
                parts[name]["kv"] = max(parts[name]["kv"], self._cache([name], wave, most))
                batches.setdefault(batch_policy[name], []).append(name)
            largest = max([largest, *(self._cache(names, wave, most) for names in batches.values())])
        return largest

    def _fill_hf(self, engine: Any) -> dict[str, str]:
        """Fill in what engine `hf` makes; return, by policy, the policy in whose batches it is computed."""
        self.beside_trainer = True
        longest = max(sum(length) for length in self._lengths.values())
        copies, batch_policy, self._prompt_once = asyncio.run(_on_meta_device(self.planned, longest))
        for name, part in self.parts.items():
            part["engine"] = copies[name]
            if name in self._prompt_once and self.planned.device == "cpu":
                self._cached_in[name] = "float32"  # `engines.lean.precision.cache_dtype`
        wanted, gpu = self.planned.run.config.deterministic, self.planned.gpu
        self._kv_limit = kv_limit(
            engine.config.kv_memory,
            None if gpu is None else (gpu, gpu),
            repeats=gpu is None if wanted == "auto" else bool(wanted),
            staying=memory.summed(self.parts.values()),
        )
        return batch_policy

    def _fill_vllm(self) -> int:
        """Fill in vLLM's weights and KV cache; return the bytes of the cache."""
        run, bases = self.planned.run, bases_of(self.planned.configs)
        copies = {
            name: memory.WIDTH[model.dtype] * model.size.parameters
            for model in self.planned.models
            for name in model.modules
            if name in bases
        }
        adapters = self._adapters()
        for name, size in adapters.items():
            copies[name] = copies.get(name, 0) + size
        config: Any = run.engine.config  # type: ignore[attr-defined]
        whole, ahead = sum(copies.values()), run.config.schedule.max_staleness > 0
        self.server = vllm_memory(
            config, whole, self.planned.gpu, self.layout, vllm_inside(run), beside_updates=ahead
        )
        self.planned.notes.append(self.server.note)
        if adapters:
            self.planned.notes.append(
                f"vLLM has places for versions of adapters, and twice as many in the host's memory: "
                f"{2 * sum(adapters.values()) / 1e9:.3g} GB"
            )
        self.beside_trainer = self.server.beside_trainer
        for name, size in copies.items():
            self.parts[name]["engine"] = self.server.weights * size // whole
        self.parts[next(iter(copies))]["kv"] = self.server.cache
        return self.server.cache

    def _adapters(self) -> dict[str, int]:
        """Bytes of the places that vLLM reserves for versions of each adapter; the host has twice as many."""
        run, configs = self.planned.run, self.planned.configs
        versions = adapter_versions(run.config.schedule.max_staleness, run.pinned)
        return {
            name: versions * WIDTH[configs[name].dtype] * size.adapters.get(name, 0)
            for name, size in self._sizes.items()
            if configs[name].train == "lora"
        }

    def _cache(self, names: list[str], wave: Mapping[str, int], most: int) -> int:
        """Bytes of the KV cache of a batch of these policies, which share a base."""

        def of(prompts: int, rows: int) -> int:
            return memory.cache_bytes(
                self._sizes[names[0]],
                self._cached_in[names[0]],
                prompts=prompts if names[0] in self._prompt_once else rows,
                prompt=max(self._lengths[name].prompt for name in names),
                rows=rows,
                answer=max(self._lengths[name].answer for name in names),
            )

        decisions = sum(wave[name] for name in names)
        return of(*memory.batch_of(decisions, self.planned.branches, most, of, self._kv_limit))


class VllmMemory(NamedTuple):
    """The memory of vLLM on one GPU: it takes its share at the start, and keeps it."""

    weights: int
    """Bytes of all bases' copies, and of the places for adapters."""
    cache: int
    """Bytes of the KV cache."""
    beside_trainer: bool
    """Whether it is on the trainer's GPU."""
    sleeps: bool
    """Whether the memory is free during updates."""
    note: str


def vllm_memory(
    config: VLLMConfig,
    weights: int,
    gpu: float | None,
    layout: GpuLayout,
    inside: bool,
    *,
    beside_updates: bool = False,
) -> VllmMemory:
    """The memory that the engine's settings reserve.

    Args:
        weights: bytes of one copy of every base, and of the places for adapters.
        gpu: bytes of one GPU; None: a CPU.
        inside: vLLM is in the run's process.
        beside_updates: it generates during updates.
    """
    beside = inside or bool(layout.shared)
    held = -(-weights // config.tensor_parallel)
    if gpu is None:
        cache = int((config.kv_gib or 1) * GIB)
        return VllmMemory(held, cache, True, False, "vLLM's KV cache on a CPU is engine.kv_gib, or 1 GiB")
    share = config.memory_share or (BESIDE if beside else APART)
    cache = int(share * gpu) - held
    if config.kv_gib is not None:
        cache = int(config.kv_gib * GIB) // config.replicas
    if cache <= 0:
        raise UserError(
            f"vLLM's share of the GPU, {share:g} of {gpu / 1e9:.3g} GB, is smaller than the weights "
            f"({held / 1e9:.3g} GB)",
            path="engine.memory_share",
            why="nothing is left for its KV cache",
            fix="raise engine.memory_share or engine.tensor_parallel, or choose a smaller model",
        )
    place = "on GPUs that the trainer uses too" if beside else "on GPUs that the trainer doesn't use"
    note = (
        f"vLLM reserves {share:g} of a GPU, {place}: weights, KV cache and its own activations; what the "
        "weights leave is shown as KV cache"
    )
    sleep = sleeps(config, on_cpu=False, shared=beside and not beside_updates)
    return VllmMemory(held, cache, beside, sleep, note + ("; it is free during updates" if sleep else ""))


# ---------------------------------------------------------------------------------- engine `hf`, measured


async def _on_meta_device(
    planned: PlannedModels, longest: int
) -> tuple[dict[str, int], dict[str, str], set[str]]:
    """Load the models into the engine `hf` on the meta device, and measure what it makes of them.

    The engine has the run's settings and takes the code paths of a real run, so that its copies and shared
    tensors need no second description. Tensors that policies share are counted for the first of them.

    Args:
        longest: tokens of the longest prompt and answer.

    Returns:
        by policy, the bytes that the engine makes; by policy, the policy in whose batches its requests are
        computed; and the policies whose siblings share one copy of their prompt's keys and values.
    """
    run, models = planned.run, planned.models
    chosen: Any = run.engine
    engine = HFEngine(chosen.config, chosen.build)
    await engine.open(
        EngineContext(
            policies=run.config.policies,
            chat=run.chat,
            active_rollouts=run.engine_client.active_rollouts,
            deterministic=True,
            vocabulary=run.vocabulary,
        )
    )
    made: dict[str, int] = {}
    lean: set[str] = set()
    older = (tensor for model in models for module, _ in model.modules.values() for tensor in _held(module))
    with MadeOnMeta(older) as new:
        for model in models:
            decoders = len(new.decoders())
            for name, (module, adapter) in model.modules.items():
                before = new.meta_bytes()
                await engine.load_weights(Weights(policy=name, version=0, module=module, adapter=adapter))
                new.write_positions(longest)
                made[name] = new.meta_bytes() - before
            before = new.meta_bytes()
            for wave in planned.counts.waves:
                names = [name for name in model.modules if name in wave]
                engine.prepare({name: wave[name] * planned.branches for name in names})
            new.write_positions(longest)
            made[next(iter(model.modules))] += new.meta_bytes() - before
            if len(new.decoders()) > decoders:
                lean.update(model.modules)
    batch_policy = {name: engine.batch_of(name) for name in made}
    await engine.close()
    return made, batch_policy, lean


class MadeOnMeta:
    """What is made on the meta device inside the block.

    Garbage collection is off meanwhile: tensors that it freed would be subtracted from the count. New objects
    are therefore those of the youngest generation; a search through all of a large process takes a second.

    Args:
        older: the tensors from before the block whose storage new ones may share or replace.
    """

    def __init__(self, older: Iterable[Tensor] = ()) -> None:
        self._older = list(older)

    def __enter__(self) -> MadeOnMeta:
        self._enabled = gc.isenabled()
        gc.disable()
        gc.collect(0)
        # Held as storages, so that no new one gets the identity of one that is given up.
        self._storages = {storage._cdata: storage for storage in _storages(self._older)}
        return self

    def __exit__(self, *exception: object) -> None:
        self._older.clear()
        self._storages.clear()
        if self._enabled:
            gc.enable()

    def meta_bytes(self) -> int:
        """Bytes of new storages on the meta device, less the older ones that tensors have left."""
        now = {storage._cdata: storage.nbytes() for storage in _storages([*self._older, *_new_tensors()])}
        made = sum(size for key, size in now.items() if key not in self._storages)
        return made - sum(storage.nbytes() for key, storage in self._storages.items() if key not in now)

    def decoders(self) -> list[LeanWeights]:
        """The weights of lean decoders on the meta device."""
        from coterie.backends.engines.lean.weights import LeanWeights

        return [
            weights
            for weights in gc.get_objects(generation=0)
            if type(weights) is LeanWeights and weights.device.type == "meta"
        ]

    def write_positions(self, longest: int) -> None:
        """Make the tables of positions that lean decoders make in their first batch."""
        for weights in self.decoders():
            weights.rotary(longest)


def _storages(tensors: Iterable[Tensor]) -> Iterator[Any]:
    return (tensor.untyped_storage() for tensor in tensors)


def _held(module: Any) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()


def _new_tensors() -> list[Tensor]:
    """The tensors of the youngest generation that are on the meta device."""
    import torch

    objects = gc.get_objects(generation=0)
    return [thing for thing in objects if issubclass(type(thing), torch.Tensor) and thing.is_meta]
