"""The torch trainer's state in a folder: safetensors and one JSON file, restored bit for bit; and exports.

state.json                              versions, step counts, and the policies with the same initial weights
policies/<policy>.safetensors           the policy's weights: all, or its adapter's, and its value head if it
                                        has one; no file for `train: none`
policies/<policy>.optimizer.safetensors moments, and fp32 masters of bf16 weights
versions/<policy>/<version>.safetensors earlier weights that steps in play are pinned to
starts/<policy>.safetensors             frozen initial weights that can't be read from anywhere else
starts/adapters/<policy>.safetensors    the adapter of a `from`, with which a policy began
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from coterie.backends.models.loading import without_bars
from coterie.backends.models.policy import ModelInit
from coterie.backends.trainers.parameters import copies, digest
from coterie.backends.trainers.policies import InitialWeights, PolicyWeights
from coterie.core.errors import RunFolderError

_FORMAT = 1
_FILES = {
    "weights": "policies/{}.safetensors",
    "optimizer": "policies/{}.optimizer.safetensors",
    "version": "versions/{}/{}.safetensors",
    "initial": "starts/{}.safetensors",
    "initial_adapter": "starts/adapters/{}.safetensors",
}
"""The files above, in the state's folder: of a policy, or of one of its versions."""
_HEAD = 1024
"""The number of values per tensor that identify the base that the run began with."""


def save(
    folder: Path | None, initial_weights: Sequence[InitialWeights], policies: Mapping[str, PolicyWeights]
) -> None:
    """Write everything that `load` needs; creates the folder.

    Args:
        folder: None: write nothing, and take part in what ranks do together to make their weights whole.
    """
    for name, policy in policies.items():
        if policy.optimizer is not None:
            with policy.whole():
                _write(folder and _file("weights", folder, name), policy.weights())
            _write(folder and _file("optimizer", folder, name), policy.optimizer.state())
        for version, tensors in policy.kept.items():
            _write(folder and _file("version", folder, name, version), tensors)
        if policy.initial_adapter is not None:
            _write(folder and _file("initial_adapter", folder, name), policy.initial_adapter)
    heads: dict[str, str] = {}
    for initial in initial_weights:
        if initial.frozen is not None:
            with initial.whole():
                if initial.must_be_saved:
                    _write(folder and _file("initial", folder, initial.name), initial.weights())
                heads[initial.name] = digest(initial.weights(), _HEAD)
    state = {
        "format": _FORMAT,
        "policies": {
            name: {
                "train": policy.config.train,
                "value_head": policy.value_head is not None,
                "version": policy.version,
                "optimizer_steps": policy.optimizer.count if policy.optimizer is not None else 0,
                "initial_adapter": policy.initial_adapter is not None,
                **({"kept": sorted(policy.kept)} if policy.kept else {}),
            }
            for name, policy in policies.items()
        },
        "starts": {
            initial.name: {
                "policies": list(initial.policies),
                "dtype": initial.config.dtype,
                "warmed": initial.warmed,
                "vocabulary": _vocabulary(initial),
                "head_sha256": heads.get(initial.name),
            }
            for initial in initial_weights
        },
    }
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(_state_text(state))


def initial_groups(folder: Path) -> dict[tuple[str, ...], str | None]:
    """Policies with the same initial weights -> the dtype of these, in a state; None: it doesn't say.

    Raises:
        RunFolderError: the state can't be read.
    """
    starts = _read_state(folder)["starts"].values()
    return {tuple(initial["policies"]): initial.get("dtype") for initial in starts}


def part_of(folder: Path, policies: Collection[str]) -> dict[str, Path | bytes]:
    """What `save` would have written for some of the policies alone, of a state that it wrote.

    Returns:
        by their names: files of the folder, and the contents of those that differ.

    Raises:
        RunFolderError: the state can't be read.
    """
    state = _read_state(folder)
    files: dict[str, Path | bytes] = {}
    held = {name: saved for name, saved in state["policies"].items() if name in policies}
    for name, saved in held.items():
        of_policy = [_file("weights", folder, name), _file("optimizer", folder, name)]
        of_policy += [_file("version", folder, name, version) for version in saved.get("kept", ())]
        of_policy += [_file("initial_adapter", folder, name)] if saved.get("initial_adapter") else []
        files |= {file.relative_to(folder).as_posix(): file for file in of_policy if file.is_file()}
    starts = {}
    for first, initial in state["starts"].items():
        members = [name for name in initial["policies"] if name in policies]
        if members:
            starts[members[0]] = {**initial, "policies": members}
            file = _file("initial", folder, first)
            if file.is_file():
                files[_file("initial", Path(), members[0]).as_posix()] = file
    files["state.json"] = _state_text({**state, "policies": held, "starts": starts}).encode()
    return files


def join(parts: Sequence[Path], folder: Path, alike: Mapping[str, Sequence[str]]) -> None:
    """Make of states of some of the policies each the state of all; moves the files.

    Args:
        parts: folders that `save` wrote.
        alike: the policies with the same initial weights, by the first; they may be in several parts. Others
            keep those of their part.
    """
    first_of = {policy: name for name, members in alike.items() for policy in members}
    states = [_read_state(part) for part in parts]
    policies: dict[str, Any] = {}
    starts: dict[str, dict[str, Any]] = {}
    for part, state in zip(parts, states, strict=True):
        policies |= state["policies"]
        for name, initial in state["starts"].items():
            first = first_of.get(name, name)
            before = starts.setdefault(
                first, {**initial, "policies": list(alike.get(first, initial["policies"]))}
            )
            before["warmed"] = before["warmed"] or initial["warmed"]
            for known in ("vocabulary", "head_sha256"):  # only a part with frozen weights has the second
                before[known] = before[known] or initial[known]
            if (file := _file("initial", part, name)).is_file():
                _move(file, _file("initial", folder, first))
        for file in [path for path in part.rglob("*") if path.is_file() and path.name != "state.json"]:
            _move(file, folder / file.relative_to(part))
    text = _state_text({**states[0], "policies": policies, "starts": starts})
    (folder / "state.json").write_text(text)


def _move(file: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(file, target)


def _state_text(state: Mapping[str, Any]) -> str:
    return json.dumps(state, indent=1, sort_keys=True) + "\n"


def load(
    folder: Path, initial_weights: Sequence[InitialWeights], policies: Mapping[str, PolicyWeights]
) -> None:
    """Restore a state that `save` wrote, into policies of the same configuration.

    Raises:
        RunFolderError: a file is missing or damaged, or belongs to other policies or shapes.
    """
    state = _read_state(folder)
    _check_same("policies", {n: s["train"] for n, s in state["policies"].items()},
          {n: p.config.train for n, p in policies.items()}, folder)  # fmt: skip
    _check_same("starts", {n: s["policies"] for n, s in state["starts"].items()},
          {s.name: list(s.policies) for s in initial_weights}, folder)  # fmt: skip
    _check_same("value heads", {n: s.get("value_head", False) for n, s in state["policies"].items()},
          {n: p.value_head is not None for n, p in policies.items()}, folder)  # fmt: skip
    for initial in initial_weights:
        _load_initial(folder, initial, state["starts"][initial.name])
    for name, policy in policies.items():
        saved = state["policies"][name]
        policy.version = saved["version"]
        if policy.optimizer is not None:
            with policy.whole(write=True):
                fill(policy.weights(), _file("weights", folder, name))
            file = _file("optimizer", folder, name)
            policy.optimizer.restore(_read(file), saved["optimizer_steps"], str(file))
        policy.kept = {
            version: _read(_file("version", folder, name, version)) for version in saved.get("kept", ())
        }
        if saved.get("initial_adapter"):
            policy.initial_adapter = copies(policy.own_parameters())
            fill(policy.initial_adapter, _file("initial_adapter", folder, name))


def _load_initial(folder: Path, initial: InitialWeights, saved: dict[str, Any]) -> None:
    initial.warmed = saved["warmed"]
    if saved["vocabulary"] != _vocabulary(initial):
        raise RunFolderError(
            f"{folder} was trained on other words than the environment and the roles write now",
            path=f"policies.{initial.name}.model",
            why="a word would be read as another one was: `tokenizer: words` numbers them",
            fix="go back to the settings and plugins of that run, or begin a new run",
        )
    if initial.frozen is None:
        return
    if initial.must_be_saved:
        fill(initial.weights(), _file("initial", folder, initial.name))
    if saved["head_sha256"] is not None and digest(initial.weights(), _HEAD) != saved["head_sha256"]:
        raise RunFolderError(
            f"{initial.config.model} is not the model that this run began with",
            why="its weights differ from the weights that the checkpoint belongs to",
            fix=f"pin it: policies.{initial.name}.revision, or put the old folder back",
        )


def _vocabulary(initial: InitialWeights) -> str | None:
    """sha256 of the words and their ids; None for a tokenizer that comes with its model."""
    if not isinstance(initial.config.model, ModelInit) or initial.tokenizer is None:
        return None
    ids = json.dumps(initial.tokenizer.get_vocab(), sort_keys=True)
    return hashlib.sha256(ids.encode()).hexdigest()


def fill(target: Mapping[str, Tensor], file: Path) -> None:
    """Copy a file's tensors into parameters of the same names, shapes and dtypes.

    Raises:
        RunFolderError: they don't match.
    """
    source = _read(file)
    unmatched = sorted(set(target) ^ set(source))
    if unmatched:
        raise RunFolderError(
            f"{file}: {len(unmatched)} tensors are missing or too many, such as {unmatched[0]}"
        )
    with torch.no_grad():
        for name, tensor in target.items():
            saved = source[name]
            if saved.shape != tensor.shape or saved.dtype != tensor.dtype:
                raise RunFolderError(
                    f"{file}: {name} is {saved.dtype} {tuple(saved.shape)}, "
                    f"and the model has {tensor.dtype} {tuple(tensor.shape)}",
                    why="the configuration of the model, or the words of the environment, have changed",
                    fix="go back to the settings and plugins of that run, or begin a new run",
                )
            tensor.copy_(saved)


def _check_same(kind: str, saved: Any, configured: Any, folder: Path) -> None:
    if saved != configured:
        raise RunFolderError(
            f"{folder} is of other {kind}",
            why=f"it has {saved}, the configuration has {configured}",
            fix="resume with the configuration that the run was started with",
        )


def _file(kind: str, folder: Path, policy: str, *version: int) -> Path:
    return folder / _FILES[kind].format(quote(policy, safe=""), *version)


def _write(file: Path | None, tensors: Mapping[str, Tensor]) -> None:
    if file is None:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, str(file))


def _read(file: Path) -> dict[str, Tensor]:
    try:
        return load_file(str(file))
    except (OSError, SafetensorError) as error:
        raise RunFolderError(
            f"{file} can't be read",
            why=f"{type(error).__name__}: {error}",
            fix="resume from an earlier checkpoint",
        ) from error


def _read_state(folder: Path) -> dict[str, Any]:
    file = folder / "state.json"
    try:
        state: dict[str, Any] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{file} can't be read", why=f"{type(error).__name__}: {error}") from error
    if state.get("format") != _FORMAT:
        raise RunFolderError(f"{file} has format {state.get('format')}, and this version reads {_FORMAT}")
    return state


def export(policy: PolicyWeights, folder: Path, *, merge: bool) -> None:
    """Write a Hugging Face folder, or for an unmerged `lora` policy a PEFT adapter folder.

    An adapter names its base: the hub id or folder of the configuration. A base that was newly initialised or
    warm-started in this run is written to `folder/base`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    initial = policy.initial
    if policy.adapter is None:
        shares = policy.module is not policy.model  # a base with the adapters of other policies
        model = copy.deepcopy(initial.peft).unload() if shares else policy.model
        _write_model(model, initial.tokenizer, folder)
    elif merge:
        merged = copy.deepcopy(initial.peft).merge_and_unload(adapter_names=[policy.adapter])
        _write_model(merged, initial.tokenizer, folder)
    else:
        _write_adapter(policy, folder)


def _write_model(model: Any, tokenizer: Any, folder: Path) -> None:
    with without_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_adapter(policy: PolicyWeights, folder: Path) -> None:
    from peft import get_peft_model_state_dict

    initial, adapter = policy.initial, policy.adapter
    base = str(initial.config.model)  # a hub id
    if initial.must_be_saved:
        base = str((folder / "base").resolve())
        _write_model(copy.deepcopy(initial.peft).unload(), initial.tokenizer, Path(base))
    elif Path(base).expanduser().is_dir():
        base = str(Path(base).expanduser().resolve())
    tensors = get_peft_model_state_dict(initial.peft, adapter_name=adapter, save_embedding_layers=False)
    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()},
        str(folder / "adapter_model.safetensors"),
        metadata={"format": "pt"},
    )
    settings = copy.copy(initial.peft.peft_config[adapter])
    settings.base_model_name_or_path, settings.revision = base, initial.config.revision
    settings.inference_mode = True
    settings.save_pretrained(str(folder))
    initial.tokenizer.save_pretrained(folder)
