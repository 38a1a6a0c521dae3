"""A model's size without its weights: on torch's meta device, tensors have no storage."""

from __future__ import annotations

import copy
import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from coterie.backends.models.hub import hub, reason_of, unfetched
from coterie.backends.models.loading import (
    attach_adapter,
    load_tokenizer,
    longest_input,
    made_config,
    require_torch,
)
from coterie.backends.models.policy import (
    LoraSettings,
    ModelInit,
    TensorFields,
    TorchPolicy,
    local_folder,
)
from coterie.backends.models.sources import bounded_context
from coterie.core.errors import ConfigError, UserError

log = logging.getLogger("coterie")
FAMILY = re.compile(r".*?\d(?=-)")
"""The start of an id, through its version: `Qwen/Qwen2.5` of `Qwen/Qwen2.5-7B-Instruct`."""


class Adapted(NamedTuple):
    """A linear layer with a LoRA adapter."""

    name: str
    """Its last name, such as `q_proj`."""
    inputs: int
    """Its input's size."""
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """Counts of a model's parts; numbers, not bytes."""

    parameters: int
    """Tied parameters count once; adapters are left out."""
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int | None
    """Longest prompt plus completion of the model, in tokens; None: unknown."""
    adapters: Mapping[str, int] = field(default_factory=dict)
    """By policy: parameters of its LoRA adapter."""
    adapted: Mapping[str, tuple[Adapted, ...]] = field(default_factory=dict)
    """By policy: the linear layers that its adapter changes."""
    normed_heads: bool = True
    """Whether queries and keys pass a norm, as in Qwen3."""

    @property
    def cache(self) -> int:
        """Numbers per token in the key/value cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The initial model of some policies, on the meta device."""

    modules: Mapping[str, tuple[Any, str | None]]
    """By policy: the module and the name of the policy's adapter.

    The module is the policy's own transformers CausalLM (`train: full`), or the frozen CausalLM that `lora`
    and `none` policies share, inside a PeftModel where there are adapters.
    """
    tokenizer: Any | None
    """None: the model can be read and its tokenizer can't."""
    size: ModelSize
    dtype: str
    known: str
    """The hub id whose shape is that of Coterie's table; empty: its own configuration was read."""
    contexts: Mapping[str, int | None]
    """By policy: longest prompt plus completion, in tokens, with `policies.<name>.context`; None: unknown."""


def blueprint(configs: Mapping[str, TorchPolicy], *, vocabulary: tuple[str, ...]) -> Blueprint:
    """The model of policies with the same initial weights; fetches a configuration and a tokenizer at most.

    Args:
        configs: the policies, which agree in `model`, `revision` and `dtype`, which `precision.with_dtype`
            has resolved; `auto` counts as float32.
        vocabulary: words of the environment and the roles, for `tokenizer: words`.

    Raises:
        ConfigError: the model can't be read here, or a policy's `context` is longer than the model's.
        MissingExtra: torch, transformers or (for adapters) peft is not installed.
    """
    known = ""
    policy, config = next(iter(configs.items()))
    require_torch(f"policies.{policy}")
    if isinstance(config.model, ModelInit):
        tokenizer = load_tokenizer(config, policy=policy, vocabulary=vocabulary)
        model_config = made_config(config.model, tokenizer)
    else:
        model_config = read_config(config.model, config.revision, policy)
        known = config.model if stands_for(model_config) else ""
        try:
            tokenizer = load_tokenizer(config, policy=policy, vocabulary=vocabulary)
        except UserError:
            tokenizer = None
    dtype = "float32" if config.dtype == "auto" else config.dtype
    module = _on_meta(model_config, dtype)
    size = size_of(module, tokenizer)
    contexts = {
        name: bounded_context(size.context, configs[name].context, f"policies.{name}") for name in configs
    }
    modules: dict[str, tuple[Any, str | None]] = {
        name: (copy.deepcopy(module), None) for name in configs if configs[name].train == "full"
    }
    adapter_names = {
        name: f"policy_{index}" for index, name in enumerate(configs) if configs[name].train == "lora"
    }
    frozen = module.requires_grad_(False)
    if adapter_names:
        import torch

        for name, adapter in adapter_names.items():
            with torch.device("meta"):
                frozen = attach_adapter(frozen, adapter, configs[name].lora or LoraSettings())
        counts = {name: _parameters(frozen, f".{adapter_names[name]}.") for name in adapter_names}
        adapted = {name: adapted_layers(frozen, adapter_names[name]) for name in adapter_names}
        size = replace(size, adapters=counts, adapted=adapted)
    modules |= {name: (frozen, adapter_names.get(name)) for name in configs if name not in modules}
    return Blueprint(
        modules=modules, tokenizer=tokenizer, size=size, dtype=dtype, known=known, contexts=contexts
    )


def least_size(config: TensorFields, vocabulary: tuple[str, ...]) -> ModelSize | None:
    """The size of a policy's model without adapters, or a little less; None: the model can't be read here.

    Weights and tokenizer are not read, so of a tokenizer that is somewhere else the embeddings are left out.
    """
    try:
        if not isinstance(config.model, ModelInit):
            module = _on_meta(read_config(config.model, config.revision, ""), "float32")
            return size_of(module, None)
        init = config.model
        words = {"words": len(set(vocabulary)), "bytes": 256}.get(init.tokenizer, 0)
        kv_heads = init.kv_heads or init.heads
        attention = 2 * init.head_dim * (init.heads + kv_heads)
        layer = init.hidden_size * (attention + 3 * init.mlp_size)
        embeddings = words * init.hidden_size * (1 if init.tie_embeddings else 2)
        return ModelSize(
            parameters=init.layers * layer + embeddings,
            layers=init.layers,
            hidden=init.hidden_size,
            mlp=init.mlp_size,
            heads=init.heads,
            kv_heads=kv_heads,
            head_dim=init.head_dim,
            vocabulary=words,
            context=init.context,
        )
    except Exception:  # told where the model is loaded
        log.debug("the size of %s is unknown", config.model, exc_info=True)
        return None


def cache_numbers(config: Any) -> int:
    """Numbers per token in the key/value cache of a model with this configuration, over all layers."""
    text = config.get_text_config()
    return 2 * int(text.num_hidden_layers) * _kv_heads(text) * head_dim(text)


def _kv_heads(text: Any) -> int:
    return int(getattr(text, "num_key_value_heads", None) or text.num_attention_heads)


def head_dim(text: Any) -> int:
    """The width of a model's attention heads, by its configuration for text."""
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def size_of(module: Any, tokenizer: Any | None) -> ModelSize:
    config = module.config.get_text_config()
    return ModelSize(
        parameters=_parameters(module),
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        mlp=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=_kv_heads(config),
        head_dim=head_dim(config),
        vocabulary=config.vocab_size,
        context=longest_input(module.config, tokenizer),
        normed_heads=any(name.endswith("q_norm.weight") for name, _ in module.named_parameters()),
    )


def _parameters(module: Any, part: str = "") -> int:
    """The number of parameters whose name contains `part`."""
    return sum(parameter.numel() for name, parameter in module.named_parameters() if part in name)


def adapted_layers(module: Any, adapter: str) -> tuple[Adapted, ...]:
    """The linear layers that an adapter changes."""
    layers = []
    for name, layer in module.named_modules():
        first = getattr(layer, "lora_A", {})
        if adapter in first:
            rank, inputs = first[adapter].weight.shape
            layers.append(Adapted(name.rpartition(".")[2], inputs, rank))
    return tuple(layers)


def _on_meta(model_config: Any, dtype: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(model_config, dtype=getattr(torch, dtype)).eval()


def read_config(source: str, revision: str | None, policy: str) -> Any:
    """The model's configuration: a folder's, that in the hub's cache, that of the table of well-known
    models, or the hub's."""
    from transformers import AutoConfig

    path = f"policies.{policy}.model"
    folder = local_folder(source, path)
    unreachable = ""
    try:
        if folder is not None:
            return AutoConfig.from_pretrained(str(folder))
        try:
            return AutoConfig.from_pretrained(source, revision=revision, local_files_only=True)
        except OSError:
            if (known := known_config(source, revision)) is not None:
                return known
            with hub("model", source) as unreachable:
                return AutoConfig.from_pretrained(source, revision=revision)
    except (OSError, ValueError, KeyError, ImportError) as error:
        if unreachable:
            unread = unfetched("model", source, unreachable, path, error)
            unread.fix = advice(source, unread.fix)
            raise unread from error
        raise ConfigError(
            f"{source} can't be read here",
            path=path,
            why=reason_of(error),
            fix="download the model, or name a folder that holds its config.json",
        ) from error


# ---------------------------------------------------------------------- well-known models, without a hub


@cache
def shapes() -> dict[str, dict[str, Any]]:
    """Shapes of well-known models, by hub id, so that a plan needs no hub.

    `config`: fields of config.json that decide sizes; `parameters`: those that the hub states, tied ones
    counted once, against which a test checks each. Source: config.json and the safetensors index of each id
    on huggingface.co, November 2026.
    """
    entries = json.loads(Path(__file__).with_name("shapes.json").read_text(encoding="utf-8"))
    return {name: entry for entry in entries for name in entry["ids"]}


def known_config(source: str, revision: str | None) -> Any | None:
    """The configuration of a hub id from the table; None: it isn't there, or a revision is named."""
    entry = shapes().get(source)
    if entry is None or revision is not None:
        return None
    from transformers import AutoConfig

    config = AutoConfig.for_model(**entry["config"])
    config.shape_of_coterie = True
    return config


def advice(source: str, fix: str) -> str:
    """The fix for an id that can't be read, behind the id of the table that is spelt nearly so, in any case
    of letters, and before the families that the table has."""
    by_lower = {name.lower(): name for name in shapes()}
    near = difflib.get_close_matches(source.lower(), by_lower, n=1, cutoff=0.8)
    question = f"did you mean '{by_lower[near[0]]}'? " if near and by_lower[near[0]] != source else ""
    families = sorted({family.group() for name in shapes() if (family := FAMILY.match(name))})
    known = f"`coterie plan` knows the shapes of {len(shapes())} ids by itself: {', '.join(families)}"
    return f"{question}{fix}; {known}"


def stands_for(config: Any) -> bool:
    """Whether a configuration is one of the table."""
    return bool(getattr(config, "shape_of_coterie", False))
