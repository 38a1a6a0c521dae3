"""What a run's trainer and engine will hold in memory, told before any weights are loaded."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from coterie.api.cost import SAMPLED_TASKS, Counts, first_prompts, longest_answer
from coterie.backends.engines.lean.weights import LeanWeights
from coterie.backends.models.sizes import Blueprint
from coterie.core.config import ModelInit
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.core.training.run import Run


log = logging.getLogger("coterie")


@dataclass(slots=True)
class Footprint:
    """Bytes of tensors, and what they rest on."""

    policies: dict[str, dict[str, int]] = field(default_factory=dict)
    """By policy and part (`memory.PARTS`, and `activations`); without policies that have no tensors."""
    unknown: dict[str, UserError] = field(default_factory=dict)
    """Policies whose model can't be read here."""
    parameters: dict[str, int] = field(default_factory=dict)
    """By policy: of its model, without adapters."""
    adapters: dict[str, int] = field(default_factory=dict)
    """By policy: parameters of its adapter."""
    contexts: dict[str, int] = field(default_factory=dict)
    """By policy: longest prompt and answer, in tokens."""
    prompts: dict[str, int] = field(default_factory=dict)
    """By role: tokens of the longest first prompt that was seen."""
    cache: int = 0
    """Of the largest batch."""
    phases: dict[str, int] = field(default_factory=dict)
    """What is there at once, at most, while the run is in each of them."""
    one_device: bool = False
    """Trainer and engine compute on the same GPU, whatever there is."""
    notes: list[str] = field(default_factory=list)

    @property
    def peak(self) -> int | None:
        """None where a model is unknown."""
        return None if self.unknown else max(self.phases.values(), default=0)


class Lengths(NamedTuple):
    """Tokens of a policy's longest calls."""

    prompt: int
    answer: int


def footprint(run: Run, counts: Counts) -> Footprint:
    """Read the policies' models without their weights, and add up."""
    found = Footprint()
    configs = {
        name: config
        for name, config in run.config.policies.items()
        if not isinstance(config.model, ModelInit) or config.model.init == "qwen3"
    }
    if not configs:
        return found
    from coterie.backends.models.sizes import blueprint
    from coterie.backends.trainers.policies import initial_weights_of

    starts: list[Blueprint] = []
    for names in initial_weights_of(configs).values():
        try:
            starts.append(blueprint({name: configs[name] for name in names}, vocabulary=run.vocabulary))
        except UserError as error:
            found.unknown.update(dict.fromkeys(names, error))
    for start in starts:
        found.adapters.update(start.size.adapters)
        found.parameters.update(dict.fromkeys(start.modules, start.size.parameters))
        if start.size.context is not None:
            found.contexts.update(dict.fromkeys(start.modules, start.size.context))
        else:
            whose = ", ".join(start.modules)
            found.notes.append(
                f"the context of {whose} is unknown: prompts that can't be written count nothing"
            )
    _read_prompts(run, starts, found)
    _Sums(run, counts, starts, found).fill()
    return found


def _read_prompts(run: Run, starts: Sequence[Blueprint], found: Footprint) -> None:
    """Measure first prompts; whatever keeps that from being done is a note, and the context the bound."""
    try:
        found.prompts = first_prompts(
            run,
            {
                name: run.chat.codec(start.tokenizer, start.size.context)
                for start in starts
                if start.tokenizer is not None
                for name in start.modules
            },
        )
    except Exception as error:  # an environment's mistake, or its data isn't here
        log.debug("no first prompts", exc_info=True)
        said = str(error).strip().splitlines()
        found.notes.append(
            "the first prompts can't be written here, so every prompt is taken to fill the context: "
            + (said[0] if said else type(error).__name__)
        )
        return
    for start in starts:
        if start.tokenizer is None:
            found.notes.append(
                f"the tokenizer of {', '.join(start.modules)} can't be read here, so every prompt is taken "
                "to fill the context"
            )
    if found.prompts:
        found.notes.append(
            f"prompts are taken to be as long as the longest first one of {SAMPLED_TASKS} tasks: "
            + ", ".join(f"{role} {length:,}" for role, length in found.prompts.items())
            + "; later turns may be longer"
        )


class _Sums:
    """Fills a footprint's `policies` and `phases`."""

    def __init__(self, run: Run, counts: Counts, starts: Sequence[Blueprint], found: Footprint) -> None:
        self.run, self.counts, self.starts, self.found = run, counts, starts, found
        self.configs = run.config.policies
        self.sizes = {name: start.size for start in starts for name in start.modules}
        self.lengths = {name: self._lengths(name) for name in self.sizes}
        self.branches = run.sampler.plan.branches
        self.prompt_once = set(self.sizes)
        """Policies whose siblings share one copy of their prompt's keys and values."""

    def fill(self) -> None:
        from coterie.backends.models import memory

        parts, phases = self.found.policies, self.found.phases
        needs = {*self.run.estimator.needs, *self.run.loss.needs}
        for start in self.starts:
            parts |= memory.trainer_bytes(
                {name: self.configs[name] for name in start.modules},
                start.size,
                references="ref_logprobs" in needs,
                values="values" in needs,
            )
        trains = self._trains()
        if not trains:
            parts |= {name: dict.fromkeys(memory.PARTS, 0) for name in parts}
        self.found.cache = self._serve()
        self.found.one_device &= trains
        for name in parts:
            parts[name]["activations"] = self._update(name) if parts[name]["gradients"] else 0
        staying = memory.summed(parts.values())
        phases["generation"] = staying + self.found.cache
        phases["update"] = staying + max(
            (part["gradients"] + part["activations"] for part in parts.values()), default=0
        )
        warm = [self._warm_start(start) for start in self.starts]
        if trains and any(warm):
            held = memory.summed(parts.values(), ("weights", "adapter", "reference", "masters"))
            phases["warm start"] = held + max(warm)

    # -------------------------------------------------------------------------------------------- the trainer

    def _trains(self) -> bool:
        """Whether the trainer holds weights; one that nobody here knows is taken to do so as `torch` does."""
        from coterie.backends.trainers.none import NoTrainer
        from coterie.backends.trainers.tabular import TabularTrainer
        from coterie.backends.trainers.torch_trainer import TorchTrainer

        trainer = self.run.trainer
        if not isinstance(trainer, TorchTrainer | NoTrainer | TabularTrainer):
            self.found.notes.append(
                f"the memory of trainer '{self.run.config.trainer['type']}' is counted as of 'torch'"
            )
        return not isinstance(trainer, NoTrainer | TabularTrainer)

    def _update(self, name: str) -> int:
        """Activations of the largest micro-batch of an update."""
        samples = self.counts.policies[name].samples
        size = getattr(self.run.trainer.config, "minibatch_size", None)
        if size is not None:
            samples = min(samples, -(-size // self.branches) * self.branches)
        return self._activations(name, -(-samples // self.branches), samples)

    def _activations(self, name: str, prompts: int, samples: int) -> int:
        from coterie.backends.models import memory

        settings, length = self.run.trainer.config, self.lengths[name]
        tokens = prompts * length.prompt + samples * length.answer
        most = min(tokens, getattr(settings, "micro_tokens", tokens))
        return memory.activation_bytes(
            self.sizes[name],
            self.configs[name].dtype,
            tokens=most,
            trained=samples * length.answer * most // max(tokens, 1),
            checkpointing=getattr(settings, "gradient_checkpointing", False),
        )

    def _warm_start(self, start: Blueprint) -> int:
        """What the supervised steps of a start hold besides what is there already."""
        from coterie.backends.models import memory

        name = next(iter(start.modules))
        settings = self.configs[name].warm_start
        if settings is None:
            return 0
        kept = self._activations(name, settings.batch, settings.batch)
        return memory.warm_start_bytes(self.configs[name], start.size) + kept

    # --------------------------------------------------------------------------------------------- the engine

    def _lengths(self, name: str) -> Lengths:
        counts, context = self.counts.policies[name], self.found.contexts.get(name)
        answer = longest_answer(self.run, counts.roles)
        prompts = [self.found.prompts.get(role) for role in counts.roles]
        if context is None:
            return Lengths(max((prompt or 0 for prompt in prompts), default=0), answer)
        answer = min(answer, context - 1)
        return Lengths(max(min(prompt or context, context - answer) for prompt in prompts), answer)

    def _serve(self) -> int:
        """Fill in `engine` and `kv`; returns the bytes of the largest batch's cache."""
        from coterie.backends.engines.hf import HFEngine
        from coterie.backends.engines.scripted import ScriptedEngine
        from coterie.backends.engines.tabular import TabularEngine
        from coterie.backends.models import memory

        engine, parts = self.run.engine, self.found.policies
        if isinstance(engine, ScriptedEngine | TabularEngine) or not self.starts:
            return 0
        together = {name: name for name in parts}
        if isinstance(engine, HFEngine):
            self.found.one_device = True
            longest = max(sum(length) for length in self.lengths.values())
            held, together, self.prompt_once = asyncio.run(
                served(self.run, self.counts, self.starts, longest)
            )
            for name in parts:
                parts[name]["engine"] = held[name]
        else:
            self.found.notes.append(
                f"the memory of engine '{self.run.config.engine['type']}' is counted as a copy of every base"
            )
            for start in self.starts:
                first = next(iter(start.modules))
                parts[first]["engine"] = memory.WIDTH[start.dtype] * start.size.parameters
        most = getattr(engine.config, "max_batch", 2**62)
        largest = 0
        for wave in self.counts.waves:
            batches: dict[str, list[str]] = {}
            for name in [name for name in wave if name in parts]:
                parts[name]["kv"] = max(parts[name]["kv"], self._cache([name], wave, most))
                batches.setdefault(together[name], []).append(name)
            largest = max([largest, *(self._cache(names, wave, most) for names in batches.values())])
        return largest

    def _cache(self, names: list[str], wave: Mapping[str, int], most: int) -> int:
        """Of a batch in which these policies, of one base, wait together."""
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
    run: Run, counts: Counts, starts: Sequence[Blueprint], longest: int
) -> tuple[dict[str, int], dict[str, str], set[str]]:
    """What the engine `hf` does with the models.

    An engine of the run's settings loads the blueprints. On the meta device too, what it copies and what it
    shares is what it does, and needs no second description. What policies share is the first one's.

    Args:
        longest: tokens of the longest prompt and answer.

    Returns:
        by policy, the bytes that it makes; by policy, whom its requests are computed with; and the policies
        whose siblings share one copy of their prompt's keys and values.
    """
    from coterie.backends.engines.hf import HFEngine
    from coterie.core.protocols import EngineContext
    from coterie.core.types import Weights

    engine = HFEngine(run.engine.config, run.engine.build)
    await engine.open(
        EngineContext(
            policies=run.config.policies,
            chat=run.chat,
            active_rollouts=run.active_rollouts,
            deterministic=run.config.deterministic,
            vocabulary=run.vocabulary,
        )
    )
    found: dict[str, int] = {}
    lean: set[str] = set()
    with _no_collection():
        for start in starts:
            decoders = len(_decoders())
            for name, (module, adapter) in start.modules.items():
                before = meta_bytes()
                await engine.load_weights(Weights(policy=name, version=0, module=module, adapter=adapter))
                _write_positions(longest)
                found[name] = meta_bytes() - before
            before = meta_bytes()
            for wave in counts.waves:
                names = [name for name in start.modules if name in wave]
                engine.prepare({name: wave[name] * run.sampler.plan.branches for name in names})
            _write_positions(longest)
            found[next(iter(start.modules))] += meta_bytes() - before
            if len(_decoders()) > decoders:
                lean.update(start.modules)
    together = {name: engine.batch_of(name) for name in found}
    await engine.close()
    return found, together, lean


@contextmanager
def _no_collection() -> Iterator[None]:
    """Garbage that goes meanwhile would be taken off what is counted."""
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

    return [one for one in gc.get_objects() if type(one) is LeanWeights and one.device.type == "meta"]


def _write_positions(longest: int) -> None:
    """Lean decoders make their tables of positions with their first batch."""
    for one in _decoders():
        one.rotary(longest)


def meta_bytes() -> int:
    """Bytes that all tensors on the meta device would take, each storage once."""
    import torch

    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one.is_meta]
    storages = {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in tensors}
    return sum(storages.values())
