"""Weights on their way to the process of the engine.

A module travels whole the first time, pickled; afterwards only the tensors that the policy trains. Modules
that policies share stay one object on the other side, so that an engine may share their base there, too.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from coterie.backends.cluster.transfer import Order
from coterie.core.types import Weights


@dataclass(frozen=True, slots=True)
class SentWeights:
    """A `Weights` that is picklable."""

    weights: Weights
    """Without its module, its tokenizer and its tensors."""
    module: str = ""
    """Name of the module, which no other sender gives; empty: none, or an object of another kind, which
    always travels whole."""
    pickled: Any = b""
    """The pickled module, the first time that it is sent; of a file, the module."""
    state: Mapping[str, Any] | None = None
    """Afterwards: the tensors of the module that the policy trains, by name."""
    tokenizer: bytes = b""
    """The pickled tokenizer, the first time that the policy is sent."""
    tensors: list[tuple[str, Any]] | None = None
    ways: Mapping[str, str] | None = None
    """By replica: how it gets the tensors, which the process that has them sends itself (`Holder`), and the
    module is without memory. None: they are in this object."""

    @property
    def introduces(self) -> bool:
        """Whether what is sent later needs something of it."""
        return bool(self.tokenizer or (self.pickled and self.module))


@dataclass(frozen=True, slots=True, eq=False)
class Elsewhere:
    """Stands for the module of weights that another process has."""

    send: Callable[[Mapping[str, str] | None], Awaitable[tuple[Any, bool]]]
    """Lets that process make a `SentWeights` with these `ways`; returns what is stored of it, such as a
    reference to Ray's object store, and whether it introduces something."""
    fulfil: Callable[[Order], Awaitable[None]]
    """Lets that process send the tensors itself. Cancelled, it drops the order there."""
    can_send: Callable[[], Awaitable[bool]]
    """Whether that process has a GPU to send from."""


class Sender:
    """Makes `SentWeights`. It has one receiver, which gets all that it makes, in that order.

    Args:
        name: of this sender, where the receiver has several.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._modules: list[Any] = []
        self._introduced: set[str] = set()
        """Policies whose tokenizers were sent."""

    def send(self, weights: Weights) -> SentWeights:
        """What the receiver needs of these weights, which may change as soon as this method returns."""
        tensors = None if weights.tensors is None else [(n, _copied(t)) for n, t in weights.tensors()]
        sent = replace(self._bare(weights), tensors=tensors)
        if weights.module is None or tensors is not None:
            return sent
        if not hasattr(weights.module, "named_parameters"):
            return replace(sent, pickled=_whole(weights.module))
        name, known = self._named(weights.module)
        if known:
            return replace(sent, module=name, state=_trained(weights.module, weights.adapter))
        return replace(sent, module=name, pickled=_whole(weights.module))

    def outline(self, weights: Weights, ways: Mapping[str, str]) -> SentWeights:
        """The weights without a tensor: what the receiver must know of weights that are sent to others.

        Args:
            weights: of a policy whose module nobody shares.
        """
        sent = replace(self._bare(weights), ways=dict(ways))
        if weights.module is None:
            return sent
        name, known = self._named(weights.module)
        return replace(sent, module=name, pickled=b"" if known else pickle.dumps(_hollow(weights.module)))

    def _named(self, module: Any) -> tuple[str, bool]:
        """The name of a module, and whether it was sent before."""
        for number, known in enumerate(self._modules):
            if known is module:
                return f"{self._name}/{number}", True
        self._modules.append(module)
        return f"{self._name}/{len(self._modules) - 1}", False

    def _bare(self, weights: Weights) -> SentWeights:
        """The weights without module and tensors, and with a tokenizer that the receiver doesn't have."""
        bare = replace(weights, module=None, tokenizer=None, tensors=None)
        new = weights.policy not in self._introduced and weights.tokenizer is not None
        self._introduced.add(weights.policy)
        return SentWeights(bare, tokenizer=pickle.dumps(weights.tokenizer) if new else b"")


def _hollow(module: Any) -> Any:
    """A copy of a module whose parameters have no memory."""
    import torch

    known: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        known[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        known[id(buffer)] = buffer.detach().to("cpu", copy=True)
    return copy.deepcopy(module, known)


def _whole(module: Any) -> bytes:
    return pickle.dumps(_on_cpu(module), pickle.HIGHEST_PROTOCOL)


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


class Receiver:
    """Makes weights of what a `Sender` sends."""

    def __init__(self) -> None:
        self._modules: dict[str, Any] = {}
        self._tokenizers: dict[str, Any] = {}

    def receive(self, sent: SentWeights) -> Weights:
        """The weights; their module is this object's, and changes with the next of its policies."""
        weights, policy = sent.weights, sent.weights.policy
        if sent.tokenizer:
            self._tokenizers[policy] = pickle.loads(sent.tokenizer)
        module = self._modules.get(sent.module)
        if sent.pickled and module is None:
            module = pickle.loads(sent.pickled) if isinstance(sent.pickled, bytes) else sent.pickled
            if sent.module:
                self._modules[sent.module] = module = _on_gpu(module) if sent.ways is None else module
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


def sent_sources(weights: Mapping[str, Weights]) -> dict[tuple[str, ...], bytes]:
    """The weights that policies begin with (`from`), which may change as soon as this function returns.

    Returns:
        by policies that share a module, or by one alone: a pickle of the weights by policy.
    """
    groups: dict[int, dict[str, Weights]] = {}
    for number, (policy, source) in enumerate(weights.items()):
        shared = number if source.module is None else id(source.module)  # a folder has no module
        groups.setdefault(shared, {})[policy] = source
    sent = {}
    for group in groups.values():
        module = _on_cpu(next(iter(group.values())).module)
        bare = {policy: replace(source, module=module, tensors=None) for policy, source in group.items()}
        sent[tuple(group)] = pickle.dumps(bare, pickle.HIGHEST_PROTOCOL)
    return sent
