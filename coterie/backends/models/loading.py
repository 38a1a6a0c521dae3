"""A policy's model and tokenizer: from the hub, from a folder, or newly initialised."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.backends.models.hub import hub, unfetched
from coterie.backends.models.policy import LoraSettings, ModelInit, TensorFields, check_init, local_folder
from coterie.backends.models.sources import bounded_context
from coterie.backends.models.tokenizers import bytes_tokenizer, check_vocabulary, words_tokenizer
from coterie.core.errors import ConfigError, MissingExtra

END_IDS = "coterie_end_ids"
"""The attribute of a tokenizer that holds the tokens which end an answer."""
_UNBOUNDED = 10**9
"""Lengths from here on mean "no limit": transformers uses 1e30 where a tokenizer sets no longest input."""

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
    """The result of `load_model`."""

    module: Any
    """A plain transformers CausalLM in eval mode; no adapter is attached."""
    tokenizer: Any
    """A Hugging Face tokenizer."""
    context: int
    """Longest prompt plus completion of the policy, in tokens."""


def require_torch(needed_by: str) -> None:
    """Raise `MissingExtra` if torch or transformers is not installed."""
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, "torch", needed_by=needed_by)


def load_model(config: TensorFields, *, policy: str, seed: int, vocabulary: tuple[str, ...]) -> Loaded:
    """Load or initialise a policy's model; the global random state does not change.

    Args:
        config: the policy's table; `model`, `dtype`, `revision` and `context` are read.
        policy: its name, for error messages.
        seed: draws the weights of a newly initialised model.
        vocabulary: words of the environment and the roles, for `tokenizer: words`.

    Raises:
        ConfigError: the model does not exist, or has no weights or no tokenizer.
        MissingExtra: torch or transformers is not installed.
    """
    tokenizer = load_tokenizer(config, policy=policy, vocabulary=vocabulary)
    import torch

    if isinstance(config.model, ModelInit):
        module = _initialised(config.model, tokenizer, seed)
    else:
        module = pretrained(config.model, config.revision, f"policies.{policy}.model")
    # Trainers, and engines that load by themselves, resolve `auto` by their device before.
    module.to(getattr(torch, "float32" if config.dtype == "auto" else config.dtype)).eval()
    context = context_of(module.config, tokenizer, policy=policy, limit=config.context)
    return Loaded(module, tokenizer, context)


def in_memory(module: Any) -> Any:
    """The module, with weights on a CPU copied out of the file that they were read from.

    safetensors maps the file: as long as one weight lies in it, all of its pages count as the process's.
    Weights on other devices were copied there.
    """
    for parameter in module.parameters():
        if parameter.device.type == "cpu":
            parameter.data = parameter.data.clone()
    return module


def load_tokenizer(config: TensorFields, *, policy: str, vocabulary: tuple[str, ...]) -> Any:
    """The policy's tokenizer, without the model.

    Raises:
        ConfigError: there is no tokenizer.
    """
    require_torch(f"policies.{policy}")
    if isinstance(config.model, str):
        return _tokenizer(config.model, config.revision, f"policies.{policy}.model")
    check_init(config.model, f"policies.{policy}")
    if config.model.tokenizer == "bytes":
        return bytes_tokenizer()
    if config.model.tokenizer != "words":
        return _tokenizer(config.model.tokenizer, None, f"policies.{policy}.model.tokenizer")
    check_vocabulary(vocabulary, f"policies.{policy}.model.tokenizer")
    return words_tokenizer(vocabulary)


def load_folder(folder: str, *, policy: str) -> tuple[Any, Any | None]:
    """The module in a folder that a trainer wrote, and its tokenizer (None: the folder has none).

    An adapter is merged into a base in float32. Of a base in 16 bits, whose sums would round small changes
    away, the module is the PeftModel, with the adapter `default`.

    Raises:
        ConfigError: the folder is missing or incomplete.
    """
    require_torch(f"policies.{policy}")
    path = f"policies.{policy}"
    directory = Path(folder)
    if (directory / "adapter_config.json").is_file():
        if importlib.util.find_spec("peft") is None:
            raise MissingExtra("peft", "torch", needed_by=path)
        from peft import AutoPeftModelForCausalLM

        with without_bars():
            module = AutoPeftModelForCausalLM.from_pretrained(folder, dtype="auto")
            if module.get_base_model().dtype.itemsize > 2:
                module = module.merge_and_unload()
    else:
        local_folder(str(directory.absolute()), path)
        module = pretrained(folder, None, f"{path}.model")
    return module.eval(), folder_tokenizer(directory, path)


def folder_tokenizer(folder: Path, path: str) -> Any | None:
    """The tokenizer in a folder; None: it has none."""
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return _tokenizer(str(folder), None, path) if has_tokenizer else None


@contextmanager
def without_bars() -> Iterator[None]:
    """Suppress the progress bars that transformers draws on stderr while it reads or writes weights.

    The bars would break Coterie's own progress lines and fill the logs of jobs. Warnings still appear, and so
    do the Hub's download bars, since downloads can take minutes.
    """
    from transformers.utils import logging

    def disabled(factory: Any, args: Any, options: Any) -> Any:
        return factory(*args, **{**options, "disable": True})

    before = logging.set_tqdm_hook(disabled)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)


def context_of(config: Any, tokenizer: Any, *, policy: str, limit: int | None = None) -> int:
    """A policy's longest prompt plus completion: the smallest of its model's, its tokenizer's and its own.

    Args:
        limit: `policies.<name>.context`.

    Raises:
        ConfigError: none of them sets a limit, or `limit` is larger than the others.
    """
    context = bounded_context(longest_input(config, tokenizer), limit, f"policies.{policy}")
    if context is None:
        raise ConfigError(
            "neither the model nor its tokenizer says how long an input may be",
            path=f"policies.{policy}.model",
            fix=f"set policies.{policy}.context, or `model_max_length` in the folder's tokenizer_config.json",
        )
    return context


def longest_input(config: Any, tokenizer: Any) -> int | None:
    """The smaller of a model's and its tokenizer's limits, in tokens; None: neither sets one."""
    text_config = config.get_text_config() if hasattr(config, "get_text_config") else config
    limits = [
        getattr(text_config, "max_position_embeddings", None),
        getattr(tokenizer, "model_max_length", None),
    ]
    return min((int(limit) for limit in limits if limit and limit < _UNBOUNDED), default=None)


def attach_adapter(module: Any, name: str, lora: LoraSettings) -> Any:
    """The module with a new adapter: a PeftModel around a CausalLM, or the PeftModel that it is.

    PEFT makes adapters of a 16-bit base in fp32 by itself.
    """
    try:
        import peft
    except ImportError as error:
        raise MissingExtra("peft", "torch", needed_by="train: lora") from error
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=int(lora.alpha) if lora.alpha == int(lora.alpha) else lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.target_modules,
        task_type="CAUSAL_LM",
    )
    if not isinstance(module, peft.PeftModel):
        return peft.get_peft_model(module, settings, adapter_name=name)
    module.add_adapter(name, settings)
    return module


def made_config(init: ModelInit, tokenizer: Any) -> Any:
    """The transformers configuration of a newly initialised model."""
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


def _initialised(init: ModelInit, tokenizer: Any, seed: int) -> Any:
    """A Qwen3 with weights drawn from `seed`; they are drawn in float32, whatever the policy's dtype."""
    import torch
    from transformers import AutoModelForCausalLM

    config = made_config(init, tokenizer)
    # The weights are drawn on the CPU, so that a seed gives the same model on every machine.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(seed % 2**63)
        return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def pretrained(source: str, revision: str | None, path: str) -> Any:
    """A plain CausalLM of a hub id or a folder, with its weights as they are stored.

    Raises:
        ConfigError: there is none; `path` is the key that names it.
    """
    from transformers import AutoModelForCausalLM

    folder = local_folder(source, path)
    if folder is not None:
        _check_weights(folder, path)

    def load(name: str, revision: str | None) -> Any:
        # Weights come as they are stored; the caller casts, so that one rule holds for all sources.
        with without_bars():
            return AutoModelForCausalLM.from_pretrained(
                name, revision=revision, attn_implementation="sdpa", dtype="auto"
            )

    return _loaded("model", source, revision, folder, path, load)


def _tokenizer(source: str, revision: str | None, path: str) -> Any:
    from transformers import AutoTokenizer

    folder = local_folder(source, path)
    if folder is not None and not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        # Checked first: transformers may make up an empty tokenizer for a folder that has none.
        raise ConfigError(
            f"{folder} has no tokenizer",
            path=path,
            why=f"none of {', '.join(_TOKENIZER_FILES)} is there",
            fix=f"save it there with the model: tokenizer.save_pretrained({str(folder)!r})",
        )

    def load(name: str, revision: str | None) -> Any:
        return with_end_ids(AutoTokenizer.from_pretrained(name, revision=revision), name, revision)

    return _loaded("tokenizer", source, revision, folder, path, load)


def _loaded(
    part: str,
    source: str,
    revision: str | None,
    folder: Path | None,
    path: str,
    load: Callable[[str, str | None], Any],
) -> Any:
    """What `load(name, revision)` gives, from a folder or from the hub; errors become ConfigErrors."""
    from safetensors import SafetensorError

    unreachable = ""
    try:
        if folder is not None:
            return load(str(folder), None)
        with hub(part, source) as unreachable:
            return load(source, revision)
    except (OSError, ValueError, KeyError, ImportError, TypeError, RuntimeError, SafetensorError) as error:
        if folder is None:
            raise unfetched(part, source, unreachable, path, error) from error
        lines = str(error).strip().splitlines()
        whole = " ".join(lines) if lines and lines[0].rstrip().endswith(":") else "".join(lines[:1])
        raise ConfigError(
            f"the {part} in {folder} can't be loaded",
            path=path,
            why=f"{type(error).__name__}: {whole}" if whole else type(error).__name__,
            fix="check that the folder is complete and that transformers knows the model",
        ) from error


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


def with_end_ids(tokenizer: Any, source: str, revision: str | None) -> Any:
    """The tokenizer of a folder or hub id, with the ids that end answers of its model as `END_IDS`.

    Models of a family end turns, messages with calls of tools, and texts with different tokens: Llama 3.1
    has three, and the tokenizer's `eos_token` is one of them. They are `eos_token_id` of
    generation_config.json or, where it has none, of config.json; without both files there are none. An
    adapter's are those of its base, if that is still there.
    """
    setattr(tokenizer, END_IDS, _end_ids(source, revision))
    return tokenizer


def _end_ids(source: str, revision: str | None) -> tuple[int, ...]:
    adapter = _table(source, "adapter_config.json", revision)
    places = [(source, revision), (adapter.get("base_model_name_or_path"), adapter.get("revision"))]
    for place, its_revision in places:
        for name in ("generation_config.json", "config.json"):
            ids = _table(str(place), name, its_revision).get("eos_token_id") if place else None
            if ids is not None:
                return tuple(ids) if isinstance(ids, list) else (int(ids),)
    return ()


def _table(source: str, name: str, revision: str | None) -> dict[str, Any]:
    """A JSON file of a folder or of the hub, fetched if the cache lacks it; empty where there is none."""
    from transformers.utils import cached_file

    try:
        path: str | None = cached_file(
            source,
            name,
            revision=revision,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:  # a base's folder that is gone is no id of the hub either
        return {}
    return {} if path is None else dict(json.loads(Path(path).read_text()))
