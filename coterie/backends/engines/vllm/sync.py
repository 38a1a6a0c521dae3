"""The weights of a base model, as a sync sends them: names, shapes, tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from coterie.backends.models.merged_weights import Distant, Gathered, MergedWeights
from coterie.core.errors import UserError
from coterie.core.types import Weights

Named = Iterable[tuple[str, Tensor]]


class CheckpointLayout(NamedTuple):
    """The tensors that a model is made of, by their names in a checkpoint."""

    shapes: Mapping[str, tuple[int, ...]]
    tied: Mapping[str, str]
    """Second names of tied tensors -> the name in `shapes`; a sync sends each tensor once."""

    @classmethod
    def of(cls, config: Any) -> CheckpointLayout:
        """The layout of a transformers configuration's CausalLM; no memory is taken."""
        from transformers import AutoModelForCausalLM

        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        model.tie_weights()
        shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
        names = getattr(model, "_tied_weights_keys", None) or {}
        tied = dict(names) if isinstance(names, Mapping) else {}
        return cls(shapes, {second: first for second, first in tied.items() if second not in shapes})

    def checked(self, named_tensors: Named, policy: str) -> Iterator[tuple[str, Tensor]]:
        """The tensors, each compared with the layout as it passes.

        Raises:
            UserError: names the first tensor that is wrong, or that is missing.
        """
        left = dict(self.shapes)
        for name, tensor in named_tensors:
            self._check_one(name, tuple(tensor.shape), left, policy)
            yield name, tensor
        if left:
            first = next(iter(left))
            raise _wrong(f"the tensor {first} is missing", f"the trainer gave {len(left)} too few", policy)

    def _check_one(
        self, name: str, shape: tuple[int, ...], left: dict[str, tuple[int, ...]], policy: str
    ) -> None:
        if name not in left:
            again = "it came twice" if name in self.shapes else "the model has no tensor of this name"
            raise _wrong(f"the tensor {name} can't be sent to vLLM", again, policy)
        wanted = left.pop(name)
        if shape != wanted:
            raise _wrong(
                f"the tensor {name} can't be sent to vLLM", f"its shape is {shape}, not {wanted}", policy
            )


class BaseWeights:
    """The base weights behind a trainer's handle; they are read when they are sent, not before.

    Args:
        merge: add the handle's adapter into the weights.
        layout: of the model, for a handle without a module.
    """

    def __init__(
        self, weights: Weights, *, merge: bool = False, layout: CheckpointLayout | None = None
    ) -> None:
        self.policy = weights.policy
        provided = getattr(weights, "tensors", None)
        if weights.adapter is not None:
            provided = None if merge else getattr(provided, "base", None)
        self._provided = provided
        if provided is not None and layout is not None:
            self.layout = layout
            return
        self._merged = MergedWeights(weights.module, weights.adapter if merge else None)
        self.layout = CheckpointLayout.of(self._merged.config)
        if self._provided is not None:
            return
        whole, shapes = self._merged, self.layout.shapes
        empty = (name for name in whole if name in shapes and not whole[name].numel())
        if (first := next(empty, None)) is not None:
            raise _wrong(
                f"the tensor {first} can't be sent to vLLM",
                "the trainer keeps only a part of it in this process",
                self.policy,
            )

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor once, by its name in a checkpoint; detached.

        Raises:
            UserError: while it is read, at the first tensor that does not fit the model.
        """
        yield from self.layout.checked(self._read(), self.policy)

    @property
    def distant(self) -> Distant | None:
        """Set where another process has the tensors, and sends them itself."""
        return self._provided if isinstance(self._provided, Distant) else None

    def check(self) -> None:
        """Compare names and shapes before anything is sent.

        Tensors that the trainer only gathers when they are read are compared as they pass.
        """
        if self._provided is None:
            deque(self, maxlen=0)

    def fingerprint(self) -> int | None:
        """A number that changes with the values (each in-place change of a tensor is counted by torch).

        None: nobody knows; the trainer's tensors aren't a `Gathered`.
        """
        if self._provided is not None:
            return self._provided.state() if isinstance(self._provided, Gathered) else None
        return hash(tuple((id(tensor), tensor._version) for tensor in self._merged.parameters()))

    def _read(self) -> Iterator[tuple[str, Tensor]]:
        if self._provided is not None:
            yield from ((name, tensor) for name, tensor in self._provided() if name not in self.layout.tied)
            return
        for name in self._merged:
            first = self.layout.tied.get(name)
            if first is None:
                yield name, self._merged[name]
            elif not self._merged.tied(name, first):
                raise _wrong(
                    f"the tensor {name} can't be sent to vLLM",
                    f"it differs from {first}, to which the model's configuration ties it",
                    self.policy,
                )


def _wrong(what: str, why: str, policy: str) -> UserError:
    return UserError(
        what,
        path=f"policies.{policy}",
        why=why,
        fix="the trainer's module must be the model that `model` names, unchanged in its layers; nothing "
        "was sent that is used",
    )
