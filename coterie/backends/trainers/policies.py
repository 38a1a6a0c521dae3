"""The weights of each policy: initial weights, shared bases and adapters.

Policies with the same `model`, `revision`, `dtype` and `warm_start` have the same initial weights, and those
with a `from` if it gives them the same. Among them, all `lora` and `none` policies share one frozen base;
each `lora` policy has an adapter in the base, named like the policy. Each `full` policy has its own module.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coterie.backends.models.loading import attach_adapter, in_memory, load_model, load_tokenizer
from coterie.backends.models.policy import LoraSettings, ModelInit, TorchPolicy, check_settings
from coterie.backends.models.precision import warn_of_float32, with_dtype
from coterie.backends.models.sources import initial_weights_of
from coterie.backends.trainers.attention import kernel_of
from coterie.backends.trainers.forward import TokenScorer
from coterie.backends.trainers.optim import Optimizer
from coterie.backends.trainers.parameters import (
    SourceWeights,
    adapter_parameters,
    copies,
    fill,
    plain_parameters,
)
from coterie.backends.trainers.settings import TorchConfig
from coterie.backends.trainers.value_head import NAME as VALUE_HEAD, value_head
from coterie.core.errors import ConfigError
from coterie.core.protocols import TrainerContext
from coterie.core.types.seeding import seed64

Gather = Callable[[Iterable[Tensor], bool], AbstractContextManager[Any]]
"""Makes parameters whole that are divided between ranks; with True, changes of them are kept."""


def _undivided(parameters: Iterable[Tensor], write: bool) -> AbstractContextManager[Any]:
    return nullcontext()


@dataclass(slots=True, eq=False)
class InitialWeights:
    """The weights that some policies begin with."""

    name: str
    """The first of these policies."""
    policies: tuple[str, ...]
    config: TorchPolicy
    """The first policy's."""
    tokenizer: Any
    context: int
    frozen: Any = None
    """A CausalLM with the initial weights: the shared base, or a copy kept as reference."""
    scorer: TokenScorer | None = None
    """The scorer of `frozen`."""
    peft: Any = None
    """The PeftModel around `frozen`, where there are adapters."""
    warmed: bool = False
    """Whether a warm start, or the weights of a `from`, changed what `model` names."""
    gather: Gather = _undivided

    @property
    def must_be_saved(self) -> bool:
        """Whether the weights can't be read again from a hub id or a folder."""
        return self.warmed or isinstance(self.config.model, ModelInit)

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Disable all adapters on the frozen weights."""
        with self.peft.disable_adapter() if self.peft is not None else nullcontext():
            yield

    def weights(self) -> dict[str, torch.nn.Parameter]:
        """The frozen weights by their names in a plain model."""
        return plain_parameters(self.frozen)

    def whole(self, *, write: bool = False) -> AbstractContextManager[Any]:
        """The context in which the frozen weights can be read on every rank, or written."""
        return self.gather(self.weights().values(), write)


@dataclass(frozen=True, slots=True)
class TrainedWeights:
    """Which weights of a policy are trained; what sets weights up, saves and exports them reads it here."""

    module: bool
    """A module of the policy's own, all of it; else the policy computes on a frozen base that it shares."""
    adapter: str | None
    """An adapter in the shared base, by its name there."""
    value_head: bool

    def __bool__(self) -> bool:
        """Whether anything is trained."""
        return self.module or self.adapter is not None


def trained_weights(name: str, config: TorchPolicy, *, values: bool) -> TrainedWeights:
    """What `train` says of a policy, with a value head where values are needed."""
    return TrainedWeights(
        module=config.train == "full",
        adapter=adapter_name(name) if config.train == "lora" else None,
        value_head=values and config.train != "none",
    )


@dataclass(slots=True, eq=False)
class PolicyWeights:
    """One policy's weights."""

    name: str
    config: TorchPolicy
    initial: InitialWeights
    model: Any
    """The CausalLM of the policy's forwards: its own module, or the shared base."""
    scorer: TokenScorer
    trained: TrainedWeights
    make_optimizer: Callable[[PolicyWeights], Optimizer]
    value_head: torch.nn.Parameter | None = None
    """Shape (H,), not part of the model; None unless values are needed."""
    value_rate: float | None = None
    """The head's learning rate; None: the policy's."""
    optimizer: Optimizer | None = None
    version: int = 0
    kept: dict[int, Mapping[str, Tensor]] = field(default_factory=dict)
    """By version: copies of its part of the model on the CPU, for steps that were pinned to them."""
    initial_adapter: Mapping[str, Tensor] | None = None
    """The adapter of a `from`, a part of the initial weights; None: a new adapter, which changes nothing."""
    gather: Gather = _undivided

    @property
    def adapter(self) -> str | None:
        """The name of the policy's adapter in the shared base; None: it has none."""
        return self.trained.adapter

    @property
    def module(self) -> Any:
        """The module for engines: the PeftModel if the base has adapters."""
        return self.model if self.trained.module or self.initial.peft is None else self.initial.peft

    def own_parameters(self) -> dict[str, torch.nn.Parameter]:
        """The policy's part of its model: the adapter for `lora`, else all; names without PEFT's prefixes."""
        if self.adapter is None:
            return plain_parameters(self.model)
        return adapter_parameters(self.model, self.adapter)

    def weights(self) -> dict[str, torch.nn.Parameter]:
        """All of the policy's weights: its part of the model, and the value head if there is one."""
        return (
            self.own_parameters()
            if self.value_head is None
            else {**self.own_parameters(), VALUE_HEAD: self.value_head}
        )

    def whole(self, *, write: bool = False) -> AbstractContextManager[Any]:
        """The context in which the policy's weights can be read on every rank, or written."""
        return self.gathered(self.weights().values(), write)

    def gathered(self, parameters: Iterable[Tensor], write: bool = False) -> AbstractContextManager[Any]:
        """`whole` of some of the policy's parameters, or of its base's."""
        return (self.gather if self.trained.module else self.initial.gather)(parameters, write)

    @property
    def rates(self) -> dict[str, float]:
        """Learning rates of single weights that differ from the policy's."""
        return {} if self.value_rate is None else {VALUE_HEAD: self.value_rate}

    def renew_optimizer(self) -> None:
        """Replace the optimiser by a new one over the present weights."""
        if self.trained:
            self.optimizer = self.make_optimizer(self)

    @contextmanager
    def scoring(self) -> Iterator[TokenScorer]:
        """The policy as the engine samples it: no dropout."""
        with ExitStack() as stack:
            if self.adapter is not None:
                self.initial.peft.set_adapter(self.adapter)
            elif not self.trained.module:
                stack.enter_context(self.initial.plain())
            stack.enter_context(self.scorer.session())
            yield self.scorer

    @contextmanager
    def training(self, seed: int) -> Iterator[TokenScorer]:
        """The policy as it is trained: adapter dropout drawn from `seed`, and checkpointing if enabled."""
        tables = [getattr(m, "lora_dropout", None) or {} for m in self.model.modules()]
        of_adapter = [table[self.adapter] for table in tables if self.adapter in table]
        drops = [m for m in of_adapter if isinstance(m, torch.nn.Dropout) and m.p > 0]
        layers = [m for m in self.model.modules() if getattr(m, "gradient_checkpointing", False)]
        device = next(self.model.parameters()).device
        with ExitStack() as stack:
            if drops:
                stack.enter_context(torch.random.fork_rng(devices=[device] if device.type == "cuda" else []))
                torch.manual_seed(seed % 2**63)
            scorer = stack.enter_context(self.scoring())
            # Only these: a model's own dropout would make the ratio to the behaviour policy noise.
            for module in (*drops, *layers):
                module.training = True
            try:
                yield scorer
            finally:
                for module in (*drops, *layers):
                    module.training = False

    @contextmanager
    def reference(self) -> Iterator[TokenScorer]:
        """The policy's initial weights.

        Raises:
            ConfigError: they were not kept, since neither the loss nor the estimator needs them.
        """
        if self.initial.scorer is None:
            raise ConfigError(
                f"policy '{self.name}' has no reference weights",
                path=f"policies.{self.name}",
                why="the initial weights of a fully trained policy are kept only where the loss or the "
                "estimator names ref_logprobs in its `needs`",
            )
        if self.initial_adapter is not None:
            with self.holding(self.initial_adapter), self.scoring() as scorer:
                yield scorer
            return
        with self.initial.plain(), self.initial.scorer.session():
            yield self.initial.scorer

    @contextmanager
    def holding(self, tensors: Mapping[str, Tensor]) -> Iterator[None]:
        """Replace the policy's part of its model for a while."""
        parameters = self.own_parameters()
        with self.whole(write=True):
            kept = copies(parameters)
            fill(parameters, tensors)
        try:
            yield
        finally:
            with self.whole(write=True):
                fill(parameters, kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySetup:
    """With what policies are set up."""

    ctx: TrainerContext
    config: TorchConfig
    device: torch.device
    make_optimizer: Callable[[PolicyWeights], Optimizer]


def set_up(
    configs: Mapping[str, TorchPolicy],
    setup: PolicySetup,
    sources: Mapping[str, SourceWeights] | None = None,
    groups: Sequence[Sequence[str]] | None = None,
) -> tuple[list[InitialWeights], dict[str, PolicyWeights]]:
    """Load all initial weights once, copy them for `full` policies, and attach adapters to shared bases.

    Args:
        sources: the weights of policies with a `from`; None: a checkpoint's replace all weights.
        groups: policies with the same initial weights; default: those of `initial_weights_of`.
    """
    for name, config in configs.items():
        check_settings(config, f"policies.{name}")
    configs = with_dtype(configs, setup.device.type)
    if groups is None:
        bases = None if sources is None else {name: source.base for name, source in sources.items()}
        groups = [*initial_weights_of(configs, bases).values()]
    initial_weights, policies = [], {}
    for names in groups:
        initial, members = _set_up_initial({name: configs[name] for name in names}, setup, sources or {})
        initial_weights.append(initial)
        policies.update(members)
    return initial_weights, {name: policies[name] for name in configs}


def _set_up_initial(
    configs: Mapping[str, TorchPolicy], setup: PolicySetup, sources: Mapping[str, SourceWeights]
) -> tuple[InitialWeights, dict[str, PolicyWeights]]:
    """The initial weights of some policies, and theirs."""
    trained = {
        name: trained_weights(name, configs[name], values="values" in setup.ctx.needs) for name in configs
    }
    full = [name for name in configs if trained[name].module]
    first, config = next(iter(configs.items()))
    attention = kernel_of(setup.config.attention, setup.device, getattr(torch, config.dtype))
    initial, original = _load_initial(configs, setup, sources)
    if len(full) < len(configs) or "ref_logprobs" in setup.ctx.needs:
        initial.frozen = original.requires_grad_(False)
    modules = {name: copy.deepcopy(original) for name in full[initial.frozen is None :]}
    if initial.frozen is None:
        modules[full[0]] = original
    for name in configs:
        if (adapter := trained[name].adapter) is not None:
            lora = configs[name].lora or LoraSettings()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed64(setup.ctx.seed, name, "lora") % 2**63)
                initial.peft = attach_adapter(initial.peft or initial.frozen, adapter, lora).eval()
    scorer_of = partial(
        TokenScorer, packing=setup.config.packing, budget=setup.config.micro_tokens, attention=attention
    )
    if initial.frozen is not None:
        initial.scorer = scorer_of(initial.frozen, name=first)
    members = {}
    for name in configs:
        model, scorer = initial.frozen, initial.scorer
        if trained[name].module:
            model = modules[name].requires_grad_(True)
            scorer = scorer_of(model, name=name)
        assert scorer is not None
        member = PolicyWeights(
            name, configs[name], initial, model, scorer, trained[name], setup.make_optimizer
        )
        if name in sources and sources[name].adapter is not None:
            sources[name].fill_adapter(member.own_parameters(), name)
            member.initial_adapter = copies(member.own_parameters())
        if trained[name].value_head:
            member.value_head, member.value_rate = value_head(model), setup.config.value.learning_rate
        member.renew_optimizer()
        members[name] = member
    return initial, members


def _load_initial(
    configs: Mapping[str, TorchPolicy], setup: PolicySetup, sources: Mapping[str, SourceWeights]
) -> tuple[InitialWeights, Any]:
    """The initial weights of some policies, without modules, and the module that they are in."""
    first, config = next(iter(configs.items()))
    vocabulary = setup.ctx.vocabulary
    for name in sources.keys() & configs.keys():  # before the model, which may be large
        tokenizer = load_tokenizer(configs[name], policy=name, vocabulary=vocabulary)
        sources[name].check_vocabulary(tokenizer, name)
    loaded = load_model(config, policy=first, seed=setup.ctx.seed, vocabulary=vocabulary)
    size = sum(parameter.numel() for parameter in loaded.module.parameters())
    warn_of_float32(first, config.dtype, setup.device.type, size)
    original = loaded.module.to(setup.device).eval()
    if isinstance(config.model, str):
        in_memory(original)
    if setup.config.gradient_checkpointing:
        original.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    context = min(loaded.context, *(member.context or loaded.context for member in configs.values()))
    initial = InitialWeights(first, tuple(configs), config, loaded.tokenizer, context)
    if first in sources:
        initial.warmed = sources[first].fill_base(plain_parameters(original), first)
    return initial, original


def adapter_name(policy: str) -> str:
    """The policy's name if torch's ModuleDict and PEFT accept it, else a name made from its hash."""
    plain = re.fullmatch(r"[A-Za-z_][\w-]*", policy) is not None
    unreserved = "lora_" not in policy and policy not in "lora_"  # PEFT finds its weights by this prefix
    if plain and unreserved and not hasattr(torch.nn.ModuleDict(), policy):
        return policy
    return "policy_" + hashlib.sha256(policy.encode()).hexdigest()[:12]
