"""The policies that vLLM serves: where, in which contexts, and with which share of the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coterie.backends.engines.vllm.base import BaseServers
from coterie.backends.engines.vllm.settings import VLLMPolicy
from coterie.backends.models.bases import bases_of
from coterie.backends.models.loading import context_of, load_folder, load_model
from coterie.backends.models.precision import dtype_of
from coterie.core.types import Weights


@dataclass(slots=True)
class Served:
    """Where a policy's requests are computed."""

    base: BaseServers
    adapted: bool
    """Whether the policy is an adapter of the base."""
    version: int
    context: int
    vocabulary: int
    """Rows of the embedding."""
    trained: bool
    """Whether the base weights are the policy's own, so that a sync changes its version in flight."""


def with_module(weights: Weights, config: VLLMPolicy, vocabulary: tuple[str, ...]) -> Weights:
    """The handle with the module that its folder or its policy's `model` describes, loaded here."""
    policy = weights.policy
    if weights.folder is not None:
        module, tokenizer = load_folder(weights.folder, policy=policy)
    else:
        config = config.model_copy(update={"dtype": dtype_of(config)})
        loaded = load_model(config, policy=policy, seed=0, vocabulary=vocabulary)
        module, tokenizer = loaded.module, loaded.tokenizer
    return Weights(
        policy=policy, version=weights.version, module=module, tokenizer=weights.tokenizer or tokenizer
    )


def longest(configs: Mapping[str, VLLMPolicy], policy: str, config: Any, tokenizer: Any) -> int:
    """The longest context of the policies with the policy's model."""
    same = [name for name, other in configs.items() if other.model == configs[policy].model]
    return max(longest_of(configs, name, config, tokenizer) for name in same)


def longest_of(configs: Mapping[str, VLLMPolicy], policy: str, config: Any, tokenizer: Any) -> int:
    """The longest context of one policy."""
    limit = getattr(configs[policy], "context", None)
    options = {} if limit is None else {"limit": limit}
    return context_of(config, tokenizer, policy=policy, **options)


def share(configs: Mapping[str, VLLMPolicy]) -> float:
    """The share of the memory that one base may take: the number of bases follows from the policies."""
    resolved = {
        name: config.model_copy(update={"dtype": dtype_of(config)}) for name, config in configs.items()
    }
    return 1 / max(1, len(bases_of(resolved)))
