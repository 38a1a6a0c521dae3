"""An estimate of the memory that a run's trainer and engine hold, made before any weights are loaded."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from coterie.api.cost import SAMPLED_TASKS, first_prompts, longest_answer
from coterie.api.counts import Counts
from coterie.backends.models.policy import of_tensors
from coterie.core.errors import UserError

if TYPE_CHECKING:  # the backends of models import torch, and a plan of tables works without it
    from coterie.backends.engines.lean.weights import LeanWeights
    from coterie.backends.models.sizes import Blueprint
    from coterie.backends.trainers.settings import TorchConfig
    from coterie.core.training.run import Run

log = logging.getLogger("coterie")


@dataclass(slots=True)
class Footprint:
    """Bytes of tensors, and the sizes that they follow from."""

    policies: dict[str, dict[str, int]] = field(default_factory=dict)
    """By policy and part (`memory.PARTS` and `activations`). Policies without tensors are absent."""
    unknown: dict[str, UserError] = field(default_factory=dict)
    """By policy whose model can't be read on this machine: why."""
    parameters: dict[str, int] = field(default_factory=dict)
    """By policy: parameters of its model, without adapters."""
    adapters: dict[str, int] = field(default_factory=dict)
    """By policy: parameters of its adapter."""
    contexts: dict[str, int] = field(default_factory=dict)
    """By policy: longest prompt and answer, in tokens."""
    prompts: dict[str, int] = field(default_factory=dict)
    """By role: tokens of its longest first prompt in the sampled tasks."""
    cache: int = 0
    """Bytes of the largest batch's KV cache."""
    phases: dict[str, int] = field(default_factory=dict)
    """By phase of a run: the most bytes that are alive at once."""
    one_device: bool = False
    """Whether trainer and engine share one GPU, however many there are."""
    notes: list[str] = field(default_factory=list)

    @property
    def peak(self) -> int | None:
        """The most bytes of any phase; None where a model is unknown."""
        return None if self.unknown else max(self.phases.values(), default=0)


class Lengths(NamedTuple):
    """Tokens of a policy's longest calls."""

    prompt: int
    answer: int


def footprint(run: Run, counts: Counts) -> Footprint:
    """Read the policies' models without their weights, and add up their tensors."""
    estimate = Footprint()
    configs = of_tensors(run.config.policies)
    if not configs:
        return estimate
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
        if model.size.context is not None:
            estimate.contexts.update(dict.fromkeys(model.modules, model.size.context))
        else:
            policies = ", ".join(model.modules)
            estimate.notes.append(
                f"the context of {policies} is unknown: prompts that can't be made count nothing"
            )
    _read_prompts(run, models, estimate)
    _Estimator(run, counts, models, estimate).fill()
    return estimate


def _read_prompts(run: Run, models: Sequence[Blueprint], estimate: Footprint) -> None:
    """Measure first prompts. Where that fails, a note says why, and prompts are assumed to fill it."""
    try:
        estimate.prompts = first_prompts(
            run,
            {
                name: run.chat.codec(model.tokenizer, model.size.context)
                for model in models
                if model.tokenizer is not None
                for name in model.modules
            },
        )
    except Exception as error:  # an environment's mistake, or its data isn't here
        log.debug("no first prompts", exc_info=True)
        lines = str(error).strip().splitlines()
        estimate.notes.append(
            "the first prompts can't be made here, so prompts are assumed to fill the context: "
            + (lines[0] if lines else type(error).__name__)
        )
        return
    for model in models:
        if model.tokenizer is None:
            estimate.notes.append(
                f"the tokenizer of {', '.join(model.modules)} can't be read here, so prompts are assumed to "
                "fill the context"
            )
    if estimate.prompts:
        estimate.notes.append(
            f"prompts are assumed to be as long as the longest first prompt of {SAMPLED_TASKS} tasks: "
            + ", ".join(f"{role} {length:,}" for role, length in estimate.prompts.items())
            + "; later turns, and prompts that hold other roles' messages, may be longer"
        )


class _Estimator:
    """Fills in the `policies` and `phases` of a footprint."""

    def __init__(self, run: Run, counts: Counts, models: Sequence[Blueprint], estimate: Footprint) -> None:
        self.run, self.counts, self.models, self.estimate = run, counts, models, estimate
        self.configs = of_tensors(run.config.policies)
        self.sizes = {name: model.size for model in models for name in model.modules}
        self.lengths = {name: self._lengths(name) for name in self.sizes}
        self.branches = run.sampler.plan.branches
        self.prompt_once = set(self.sizes)
        """Policies whose siblings share one copy of their prompt's keys and values."""

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
            )
        trains = self._trains()
        if not trains:
            parts |= {name: dict.fromkeys(memory.PARTS, 0) for name in parts}
        self.estimate.cache = self._serve()
        self.estimate.one_device &= trains
        for name in parts:
            parts[name]["activations"] = self._update(name) if parts[name]["gradients"] else 0
        staying = memory.summed(parts.values())
        phases["generation"] = staying + self.estimate.cache
        phases["update"] = staying + max(
            (part["gradients"] + part["activations"] for part in parts.values()), default=0
        )
        warm = [self._warm_start(model) for model in self.models]
        if trains and any(warm):
            resident = memory.summed(parts.values(), ("weights", "adapter", "reference", "masters"))
            phases["warm start"] = resident + max(warm)

    # -------------------------------------------------------------------------------------------- the trainer

    def _trains(self) -> bool:
        """Whether the trainer holds weights. A third-party trainer counts as `torch`."""
        from coterie.backends.trainers.none import NoTrainer
        from coterie.backends.trainers.tabular import TabularTrainer
        from coterie.backends.trainers.torch_trainer import TorchTrainer

        trainer = self.run.trainer
        if not isinstance(trainer, TorchTrainer | NoTrainer | TabularTrainer):
            self.estimate.notes.append(
                f"the memory of trainer '{self.run.config.trainer['type']}' is counted as that of 'torch'"
            )
        return not isinstance(trainer, NoTrainer | TabularTrainer)

    def _settings(self) -> TorchConfig | None:
        """The settings of trainer `torch`; None: another trainer, whose micro-batches are not known."""
        from coterie.backends.trainers.torch_trainer import TorchTrainer

        trainer = self.run.trainer
        return trainer.config if isinstance(trainer, TorchTrainer) else None

    def _update(self, name: str) -> int:
        """Activations of the largest micro-batch of an update."""
        samples, settings = self.counts.policies[name].samples, self._settings()
        if settings is not None and settings.minibatch_size is not None:
            samples = min(samples, -(-settings.minibatch_size // self.branches) * self.branches)
        return self._activations(name, -(-samples // self.branches), samples)

    def _activations(self, name: str, prompts: int, samples: int) -> int:
        from coterie.backends.models import memory

        settings, length = self._settings(), self.lengths[name]
        tokens = prompts * length.prompt + samples * length.answer
        most = tokens if settings is None else min(tokens, settings.micro_tokens)
        return memory.activation_bytes(
            self.sizes[name],
            self.configs[name].dtype,
            tokens=most,
            trained=samples * length.answer * most // max(tokens, 1),
            checkpointing=settings is not None and settings.gradient_checkpointing,
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
        else:
            self.estimate.notes.append(
                f"the memory of engine '{self.run.config.engine['type']}' is counted as a copy of every base"
            )
            for model in self.models:
                first = next(iter(model.modules))
                parts[first]["engine"] = memory.WIDTH[model.dtype] * model.size.parameters
        most = engine.config.max_batch if isinstance(engine, HFEngine) else 2**62
        largest = 0
        for wave in self.counts.waves:
            batches: dict[str, list[str]] = {}
            for name in [name for name in wave if name in parts]:
                parts[name]["kv"] = max(parts[name]["kv"], self._cache([name], wave, most))
                batches.setdefault(batch_policy[name], []).append(name)
            largest = max([largest, *(self._cache(names, wave, most) for names in batches.values())])
        return largest

    def _cache(self, names: list[str], wave: Mapping[str, int], most: int) -> int:
        """Bytes of the KV cache of a batch of these policies, which share a base."""
        from coterie.backends.models import memory

        prompts, rows = memory.batch_of(sum(wave[name] for name in names), self.branches, most)
        prompts = prompts if names[0] in self.prompt_once else rows
        return memory.cache_bytes(
            self.sizes[names[0]],
            self.configs[names[0]].dtype,
            prompts=prompts,
            prompt=max(self.lengths[name].prompt for name in names),
            rows=rows,
            answer=max(self.lengths[name].answer for name in names),
        )


async def served(
    run: Run, counts: Counts, models: Sequence[Blueprint], longest: int
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
    from coterie.backends.engines.hf import HFEngine
    from coterie.core.protocols import EngineContext
    from coterie.core.types import Weights

    chosen: Any = run.engine
    engine = HFEngine(chosen.config, chosen.build)
    await engine.open(
        EngineContext(
            policies=run.config.policies,
            chat=run.chat,
            active_rollouts=run.engine_client.active_rollouts,
            deterministic=run.config.deterministic,
            vocabulary=run.vocabulary,
        )
    )
    made: dict[str, int] = {}
    lean: set[str] = set()
    with _no_collection():
        for model in models:
            decoders = len(_decoders())
            for name, (module, adapter) in model.modules.items():
                before = meta_bytes()
                await engine.load_weights(Weights(policy=name, version=0, module=module, adapter=adapter))
                _write_positions(longest)
                made[name] = meta_bytes() - before
            before = meta_bytes()
            for wave in counts.waves:
                names = [name for name in model.modules if name in wave]
                engine.prepare({name: wave[name] * run.sampler.plan.branches for name in names})
            _write_positions(longest)
            made[next(iter(model.modules))] += meta_bytes() - before
            if len(_decoders()) > decoders:
                lean.update(model.modules)
    batch_policy = {name: engine.batch_of(name) for name in made}
    await engine.close()
    return made, batch_policy, lean


@contextmanager
def _no_collection() -> Iterator[None]:
    """Switch garbage collection off: tensors that it freed would be subtracted from the count."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decoders() -> list[LeanWeights]:
    """The weights of lean decoders on the meta device."""
    from coterie.backends.engines.lean.weights import LeanWeights

    return [
        weights
        for weights in gc.get_objects()
        if type(weights) is LeanWeights and weights.device.type == "meta"
    ]


def _write_positions(longest: int) -> None:
    """Make the tables of positions that lean decoders make in their first batch."""
    for weights in _decoders():
        weights.rotary(longest)


def meta_bytes() -> int:
    """Bytes of all tensors on the meta device, each storage counted once."""
    import torch

    tensors = [
        tensor for tensor in gc.get_objects() if issubclass(type(tensor), torch.Tensor) and tensor.is_meta
    ]
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())
