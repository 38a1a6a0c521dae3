"""The weights of models and of adapters by name: listed, copied, filled, compared; those of a `from`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from coterie.backends.models.loading import folder_tokenizer, pretrained
from coterie.backends.models.sources import adapter_settings, base_of, is_adapter_folder
from coterie.core.errors import ConfigError
from coterie.core.types import Weights


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of tensors, on their devices."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def fill(target: Mapping[str, Tensor], source: Mapping[str, Tensor]) -> None:
    """Copy tensors into parameters of the same names and shapes."""
    with torch.no_grad():
        for name, tensor in target.items():
            tensor.copy_(source[name])


def plain_parameters(model: Any) -> dict[str, torch.nn.Parameter]:
    """Weights of a model by their names without adapters; tied weights are listed once."""
    return {
        name.replace(".base_layer.", "."): parameter
        for name, parameter in model.named_parameters()
        if "lora_" not in name
    }


def adapter_parameters(model: Any, adapter: str) -> dict[str, torch.nn.Parameter]:
    """One adapter's weights, by names without the adapter's name."""
    parameters = {}
    for name, parameter in model.named_parameters():
        pieces = name.split(".")
        for place, piece in enumerate(pieces[:-1]):
            if piece.startswith("lora_") and pieces[place + 1] == adapter:
                parameters[".".join(pieces[: place + 1] + pieces[place + 2 :])] = parameter
    return parameters


def digest(tensors: Mapping[str, Tensor], head: int | None = None) -> str:
    """sha256 over names, dtypes, shapes and bytes; with `head`, only of each tensor's first `head` values."""
    hashed = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        values = tensor.reshape(-1)[:head].contiguous().cpu()
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(values.view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


_WRAPPER = "base_model.model."
"""What PEFT puts before the names of a model's weights."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceWeights:
    """What one policy begins with."""

    base: Mapping[str, Tensor]
    """The model's weights on the CPU, by their names in a plain model; the same object: shared weights."""
    adapter: Mapping[str, Tensor] | None
    """By the names of `adapter_parameters`, on the CPU; None: there is none, or a new one."""
    vocabulary: Mapping[str, int] | None
    """Token -> id, where the source has a tokenizer."""

    def check_vocabulary(self, tokenizer: Any, policy: str) -> None:
        """Refuse weights that were trained on other tokens.

        Raises:
            ConfigError: the vocabularies differ.
        """
        ours = tokenizer.get_vocab()
        if self.vocabulary is None or self.vocabulary == ours:
            return
        differing = {token for token, _ in self.vocabulary.items() ^ ours.items()}
        raise ConfigError(
            "its weights were trained on other tokens than this policy's",
            path=f"policies.{policy}.from",
            why=f"{len(differing)} tokens differ, such as {min(differing)!r}",
            fix="train with the environment, the roles and the tokenizer of that run, or from another one",
        )

    def fill_base(self, parameters: Mapping[str, Tensor], policy: str) -> bool:
        """Copy the model's weights into parameters; whether that changes one of them.

        Raises:
            ConfigError: they have other names or shapes.
        """
        return _copy(parameters, self.base, policy, "give the policy the `model` of the source")

    def fill_adapter(self, parameters: Mapping[str, Tensor], policy: str) -> None:
        """Copy the adapter's weights into parameters.

        Raises:
            ConfigError: they have other names or shapes.
        """
        assert self.adapter is not None
        fix = f"set policies.{policy}.lora.rank and policies.{policy}.lora.target_modules to the adapter's"
        _copy(parameters, self.adapter, policy, fix)


def read_sources(weights: Mapping[str, Weights]) -> dict[str, SourceWeights]:
    """The weights of each policy, from live modules and folders; each model is copied once.

    Raises:
        ConfigError: a folder can't be read, or a policy holds no tensors.
    """
    bases: dict[Any, Mapping[str, Tensor]] = {}
    return {policy: _read(policy, source, bases) for policy, source in weights.items()}


def hollow(sources: Mapping[str, SourceWeights] | None) -> dict[str, SourceWeights] | None:
    """Zeros of the same names and shapes, which take no memory: for a rank that receives the weights."""
    if sources is None:
        return None
    bases: dict[int, Mapping[str, Tensor]] = {}

    def zeros(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: torch.zeros((), dtype=t.dtype).expand(t.shape) for name, t in tensors.items()}

    return {
        policy: SourceWeights(
            bases.setdefault(id(source.base), zeros(source.base)),
            None if source.adapter is None else zeros(source.adapter),
            source.vocabulary,
        )
        for policy, source in sources.items()
    }


def _read(policy: str, source: Weights, bases: dict[Any, Mapping[str, Tensor]]) -> SourceWeights:
    at = f"policies.{policy}.from"
    if source.folder is None:
        if not isinstance(source.module, torch.nn.Module):
            raise ConfigError("the policy that it names has no tensors", path=at)
        module = source.module
        adapter = None
        if source.adapter is not None:
            adapter = _on_cpu(adapter_parameters(module, source.adapter))
        base = _base(module, id(module), bases)
        vocabulary = source.tokenizer.get_vocab() if source.tokenizer is not None else None
        return SourceWeights(base, adapter, vocabulary)
    folder = Path(source.folder)
    tokenizer = folder_tokenizer(folder, at)
    model, revision, adapter = str(folder), None, None
    if is_adapter_folder(folder):
        settings = adapter_settings(folder, at)
        model, revision = base_of(folder, settings), settings.get("revision")
        adapter = _adapter(folder, at)
    if (model, revision) not in bases:
        _base(pretrained(model, revision, at), (model, revision), bases)
    return SourceWeights(
        bases[model, revision], adapter, tokenizer.get_vocab() if tokenizer is not None else None
    )


def _base(module: Any, key: Any, bases: dict[Any, Mapping[str, Tensor]]) -> Mapping[str, Tensor]:
    if key not in bases:
        bases[key] = _on_cpu(plain_parameters(module))
    return bases[key]


def _adapter(folder: Path, at: str) -> dict[str, Tensor]:
    file = folder / "adapter_model.safetensors"
    try:
        return _on_cpu(load_file(str(file)))
    except Exception as error:  # a damaged file raises what safetensors likes
        raise ConfigError(
            f"{file} can't be read",
            path=at,
            why=f"{type(error).__name__}: {error}",
            fix="name a folder that `coterie export` or PEFT's save_pretrained wrote",
        ) from error


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix(_WRAPPER): tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()
    }


def _copy(target: Mapping[str, Tensor], source: Mapping[str, Tensor], policy: str, fix: str) -> bool:
    unmatched = sorted(target.keys() ^ source.keys())
    shapes = [name for name in target.keys() & source.keys() if target[name].shape != source[name].shape]
    if unmatched or shapes:
        name = min(shapes) if shapes else unmatched[0]
        there, here = (
            tuple(tensors[name].shape) if name in tensors else "absent" for tensors in (source, target)
        )
        raise ConfigError(
            "its weights don't fit this policy's model",
            path=f"policies.{policy}.from",
            why=f"{len(unmatched) + len(shapes)} tensors differ, such as {name}: {there} there, {here} here",
            fix=fix,
        )
    changed = False
    with torch.no_grad():
        for name, tensor in target.items():
            new = source[name].to(device=tensor.device, dtype=tensor.dtype)
            changed = changed or not torch.equal(tensor, new)
            tensor.copy_(new)
    return changed
