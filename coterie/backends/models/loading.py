"""A policy's model and tokenizer: from the hub, from a folder, or made on the spot."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.backends.models.word_tokenizer import words_tokenizer
from coterie.core.config import ModelInit, PolicyConfig
from coterie.core.errors import ConfigError, MissingExtra

_UNBOUNDED = 10**9
"""Transformers writes 1e30 where a tokenizer names no longest input."""

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "tekken.json",
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What `load_model` gives."""

    module: Any
    """A plain transformers CausalLM in eval mode; no adapter is attached."""
    tokenizer: Any
    """A Hugging Face tokenizer."""
    context: int
    """Longest prompt plus completion, in tokens."""


def require_torch(needed_by: str) -> None:
    """Raise `MissingExtra` where torch or transformers can't be imported."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "torch", needed_by=needed_by)


def load_model(config: PolicyConfig, *, policy: str, seed: int, vocabulary: tuple[str, ...]) -> Loaded:
    """Load or make a policy's model; global random state is left as it was.

    Args:
        config: the policy's table; `model`, `dtype` and `revision` are read.
        policy: its name, for error messages.
        seed: draws the weights of a model made on the spot.
        vocabulary: words of the environment and the roles, for `tokenizer: words`.

    Raises:
        ConfigError: there is no such model, or it has no weights or no tokenizer.
        MissingExtra: torch or transformers is not installed.
    """
    require_torch(f"policies.{policy}")
    tokenizer = load_tokenizer(config, policy=policy, vocabulary=vocabulary)
    if isinstance(config.model, ModelInit):
        module = _made(config.model, tokenizer, seed)
    else:
        module = _pretrained(config.model, config.revision, policy)
    module.to(getattr(_torch(), config.dtype)).eval()
    return Loaded(module, tokenizer, context_of(module.config, tokenizer, policy=policy))


def load_tokenizer(config: PolicyConfig, *, policy: str, vocabulary: tuple[str, ...]) -> Any:
    """The policy's tokenizer alone.

    Raises:
        ConfigError: there is none.
    """
    require_torch(f"policies.{policy}")
    if isinstance(config.model, str):
        return _tokenizer(config.model, config.revision, f"policies.{policy}.model")
    _check_init(config.model, policy)
    if config.model.tokenizer != "words":
        return _tokenizer(config.model.tokenizer, None, f"policies.{policy}.model.tokenizer")
    if not vocabulary:
        raise ConfigError(
            "`tokenizer: words` needs the words of the environment, and there are none",
            path=f"policies.{policy}.model.tokenizer",
            fix="give the environment a `vocabulary()`, or name a tokenizer's hub id or folder",
        )
    return words_tokenizer(vocabulary)


def load_folder(folder: str, *, policy: str) -> tuple[Any, Any | None]:
    """The module in a folder that a trainer wrote (an adapter is merged into its base), and its tokenizer.

    Raises:
        ConfigError: the folder is not there or not complete.
    """
    require_torch(f"policies.{policy}")
    path = f"policies.{policy}"
    place = Path(folder)
    if (place / "adapter_config.json").is_file():
        if importlib.util.find_spec("peft") is None:
            raise MissingExtra("peft", "torch", needed_by=path)
        from peft import AutoPeftModelForCausalLM

        with without_bars():
            module = AutoPeftModelForCausalLM.from_pretrained(folder, dtype="auto").merge_and_unload()
    else:
        local_folder(str(place.absolute()), path)
        module = _pretrained(folder, None, policy)
    known = any((place / name).is_file() for name in _TOKENIZER_FILES)
    return module.eval(), _tokenizer(folder, None, path) if known else None


@contextmanager
def without_bars() -> Iterator[None]:
    """Without the bars that transformers draws on stderr while it reads or writes weights.

    They would stand across our own progress, and fill the logs of jobs. Warnings stay, and so do the bars of
    downloads, which are the Hub's and can take minutes.
    """
    from transformers.utils import logging

    def silent(factory: Any, args: Any, named: Any) -> Any:
        return factory(*args, **{**named, "disable": True})

    before = logging.set_tqdm_hook(silent)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def context_of(config: Any, tokenizer: Any, *, policy: str) -> int:
    """Longest input of a model: the smaller of what its config and its tokenizer say.

    Raises:
        ConfigError: neither says.
    """
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    said = [getattr(text, "max_position_embeddings", None), getattr(tokenizer, "model_max_length", None)]
    bounds = [int(bound) for bound in said if bound and bound < _UNBOUNDED]
    if not bounds:
        raise ConfigError(
            "neither the model nor its tokenizer says how long an input may be",
            path=f"policies.{policy}.model",
            fix="set `model_max_length` in the folder's tokenizer_config.json",
        )
    return min(bounds)


def _torch() -> Any:
    import torch

    return torch


def _check_init(init: ModelInit, policy: str) -> None:
    if init.init == "qwen3":
        return
    user = {"tabular": "the engine and the trainer `tabular`", "none": "engines without weights (`scripted`)"}
    raise ConfigError(
        f"`init: {init.init}` is for {user[init.init]}; there are no tensors in it",
        path=f"policies.{policy}.model.init",
        fix="choose `init: qwen3`, or an engine and a trainer that take it",
    )


def made_config(init: ModelInit, tokenizer: Any) -> Any:
    """The transformers configuration of a model that is made on the spot."""
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=init.hidden_size,
        intermediate_size=init.mlp_size,
        num_hidden_layers=init.layers,
        num_attention_heads=init.heads,
        num_key_value_heads=init.kv_heads or init.heads,
        head_dim=init.head_dim,
        max_position_embeddings=init.context,
        tie_word_embeddings=init.tie_embeddings,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )


def _made(init: ModelInit, tokenizer: Any, seed: int) -> Any:
    """A Qwen3 with weights drawn from `seed` in float32, whatever the dtype it will be cast to."""
    import torch
    from transformers import AutoModelForCausalLM

    config = made_config(init, tokenizer)
    # The weights are drawn on the CPU, so that the same seed is the same model on every machine.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed % 2**63)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def _pretrained(source: str, revision: str | None, policy: str) -> Any:
    from transformers import AutoModelForCausalLM

    path = f"policies.{policy}.model"
    folder = local_folder(source, path)
    if folder is not None:
        _check_weights(folder, path)
    try:
        # Weights come as they are stored; the caller casts, so that one rule holds for all sources.
        with without_bars():
            return AutoModelForCausalLM.from_pretrained(
                str(folder or source),
                revision=revision if folder is None else None,
                attn_implementation="sdpa",
                dtype="auto",
            )
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _unloadable("model", source, folder, error, path) from error


def _tokenizer(source: str, revision: str | None, path: str) -> Any:
    from transformers import AutoTokenizer

    folder = local_folder(source, path)
    if folder is not None and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # Asked first: for a folder without one, transformers may make an empty tokenizer up.
        raise ConfigError(
            f"{folder} has no tokenizer",
            path=path,
            why=f"none of {', '.join(_TOKENIZER_FILES)} is there",
            fix=f"save it there with the model: tokenizer.save_pretrained({str(folder)!r})",
        )
    try:
        return AutoTokenizer.from_pretrained(
            str(folder or source), revision=revision if folder is None else None
        )
    except (OSError, ValueError, KeyError, ImportError, TypeError) as error:
        raise _unloadable("tokenizer", source, folder, error, path) from error


def local_folder(source: str, path: str) -> Path | None:
    """The local folder that `source` names, or None where it is a hub id.

    Raises:
        ConfigError: it is written like a path, and there is no such folder.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1 or "\\" in source:
        raise ConfigError(
            f"there is no folder {source}",
            path=path,
            why="it is a file" if folder.exists() else f"looked for it from {Path.cwd()}",
            fix="name an existing folder, or a hub id such as Qwen/Qwen3-0.6B",
        )
    return None


def _check_weights(folder: Path, path: str) -> None:
    if not (folder / "config.json").is_file():
        adapter = (folder / "adapter_config.json").is_file()
        raise ConfigError(
            f"{folder} holds {'an adapter' if adapter else 'no model'}",
            path=path,
            why="config.json is missing",
            fix="merge the adapter into its model first (`coterie export --merge`)"
            if adapter
            else "name a folder that `save_pretrained` wrote",
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ConfigError(
            f"{folder} has no weights",
            path=path,
            why="config.json is there, but no *.safetensors and no *.bin",
            fix="copy the weight files there, or make a fresh model: `model: {init: qwen3}`",
        )


def _unloadable(what: str, source: str, folder: Path | None, error: Exception, path: str) -> ConfigError:
    said = str(error).strip().splitlines()
    why = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    if folder is not None:
        return ConfigError(
            f"the {what} in {folder} can't be loaded",
            path=path,
            why=why,
            fix="check that the folder is complete and that transformers knows the model",
        )
    return ConfigError(
        f"the {what} '{source}' can't be fetched from the hub",
        path=path,
        why=why,
        fix="check the id and the network, or fetch it elsewhere and name its folder",
    )
