"""Weights on their way to the process of the engine.

A module travels whole the first time, pickled; afterwards only the tensors that the policy trains. Modules
that policies share stay one object on the other side, so that an engine may share their base there, too.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from coterie.core.types import Weights


@dataclass(frozen=True, slots=True)
class SentWeights:
    """A `Weights` that is picklable."""

    weights: Weights
    """Without its module, its tokenizer and its tensors."""
    module: int = -1
    """Number of the module; -1: none, or an object of another kind, which always travels whole."""
    pickled: bytes = b""
    """The module, the first time that it is sent."""
    state: Mapping[str, Any] | None = None
    """Afterwards: the tensors of the module that the policy trains, by name."""
    tokenizer: bytes = b""
    """The pickled tokenizer, the first time that the policy is sent."""
    tensors: list[tuple[str, Any]] | None = None

    @property
    def introduces(self) -> bool:
        """Whether what is sent later needs something of it."""
        return bool(self.tokenizer or (self.pickled and self.module >= 0))


class Sender:
    """Makes `SentWeights`. It has one receiver, which gets all that it makes, in that order."""

    def __init__(self) -> None:
        self._modules: list[Any] = []
        self._introduced: set[str] = set()
        """Policies whose tokenizers were sent."""

    def send(self, weights: Weights) -> SentWeights:
        """What the receiver needs of these weights, which may change as soon as this method returns."""
        bare = replace(weights, module=None, tokenizer=None, tensors=None)
        tensors = None if weights.tensors is None else [(n, _copied(t)) for n, t in weights.tensors()]
        new = weights.policy not in self._introduced and weights.tokenizer is not None
        self._introduced.add(weights.policy)
        sent = SentWeights(bare, tokenizer=pickle.dumps(weights.tokenizer) if new else b"", tensors=tensors)
        if weights.module is None or tensors is not None:
            return sent
        number = next((n for n, known in enumerate(self._modules) if known is weights.module), -1)
        if number >= 0:
            return replace(sent, module=number, state=_trained(weights.module, weights.adapter))
        if hasattr(weights.module, "named_parameters"):
            number = len(self._modules)
            self._modules.append(weights.module)
        whole = pickle.dumps(_on_cpu(weights.module), pickle.HIGHEST_PROTOCOL)
        return replace(sent, module=number, pickled=whole)


def _trained(module: Any, adapter: str | None) -> dict[str, Any]:
    """The tensors of an adapter, or all parameters of a plain model."""
    return {
        name: _copied(tensor)
        for name, tensor in module.named_parameters()
        if adapter is None or f".{adapter}." in f"{name}."
    }


def _on_cpu(module: Any) -> Any:
    """The module, or a copy without a tensor of a GPU, which the receiver may not have."""
    on_gpu = hasattr(module, "parameters") and any(tensor.is_cuda for tensor in module.parameters())
    return copy.deepcopy(module).to("cpu") if on_gpu else module


def _copied(tensor: Any) -> Any:
    return tensor.detach().to("cpu", copy=True)


class KeptWeights:
    """What another receiver needs to have the weights that the first one has: the newest version of each
    policy, older ones that are leased, and what introduced their modules.

    Args:
        stored: what is kept in place of a `SentWeights`, such as a reference to Ray's object store.
        dropped: called with it once no version needs it.
    """

    def __init__(
        self, stored: Callable[[Any], Any], dropped: Callable[[Any], object] = lambda stored: None
    ) -> None:
        self._stored, self._dropped = stored, dropped
        self.introductions: list[Any] = []
        self._versions: dict[str, dict[int, Any]] = {}
        """By policy and version, in the order in which they were loaded."""
        self._leases: Counter[tuple[str, int]] = Counter()

    def load(self, sent: Any) -> Any:
        """Keep a new version, a `SentWeights` or what stands for one; returns what is stored of it."""
        policy, stored = sent.weights.policy, self._stored(sent)
        if sent.introduces:
            self.introductions.append(stored)
        versions = self._versions.setdefault(policy, {})
        self._drop(versions, sent.weights.version)
        versions[sent.weights.version] = stored
        self._tidy(policy)
        return stored

    def lease(self, policy: str, version: int) -> None:
        self._leases[policy, version] += 1

    def release(self, policy: str, version: int) -> None:
        self._leases[policy, version] -= 1
        self._tidy(policy)

    def versions(self) -> Iterator[tuple[str, int, Any, int]]:
        """(policy, version, what is stored, leases) of each, older ones first."""
        for policy, versions in self._versions.items():
            for version, stored in versions.items():
                yield policy, version, stored, self._leases[policy, version]

    def _tidy(self, policy: str) -> None:
        versions = self._versions.get(policy, {})
        for version in [*versions][:-1]:
            if self._leases[policy, version] <= 0:
                self._drop(versions, version)

    def _drop(self, versions: dict[int, Any], version: int) -> None:
        if version in versions:
            self._dropped(versions.pop(version))


class Receiver:
    """Makes weights of what a `Sender` sends."""

    def __init__(self) -> None:
        self._modules: dict[int, Any] = {}
        self._tokenizers: dict[str, Any] = {}

    def receive(self, sent: SentWeights, load: Callable[[bytes], Any] = pickle.loads) -> Weights:
        """The weights; their module is this object's, and changes with the next of its policies.

        Args:
            load: makes a module of its bytes.
        """
        weights, policy = sent.weights, sent.weights.policy
        if sent.tokenizer:
            self._tokenizers[policy] = pickle.loads(sent.tokenizer)
        module = self._modules.get(sent.module)
        if sent.pickled and module is None:
            module = load(sent.pickled)
            if sent.module >= 0:
                self._modules[sent.module] = module = _on_gpu(module)
        if sent.state is not None:
            _write(module, sent.state)
        given = sent.tensors
        tensors = None if given is None else (lambda: iter(given))
        return replace(weights, module=module, tokenizer=self._tokenizers.get(policy), tensors=tensors)


def _on_gpu(module: Any) -> Any:
    """The module on this process's GPU, where it has one: engines compute where the module is."""
    import torch

    return module.to("cuda") if torch.cuda.is_available() else module


def _write(module: Any, state: Mapping[str, Any]) -> None:
    import torch

    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for name, tensor in state.items():
            parameters[name].copy_(tensor)
