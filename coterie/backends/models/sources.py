"""What policies name, checked and compared without weights or torch: a `from`, contexts, common weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.core.config import PolicyConfig
from coterie.core.errors import ConfigError

MODEL_FILES = ("config.json", "adapter_config.json")
"""A folder with one of them holds a model, or an adapter, in Hugging Face's format."""
TABLE_FILE = "table.npz"
"""What a trainer of tables exports."""
ARCHITECTURE = {
    "hidden_size": "hidden_size",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_dim",
    "intermediate_size": "mlp_size",
    "tie_word_embeddings": "tie_embeddings",
}
"""Entries of a folder's config.json that decide the shapes of weights, and the fields of `ModelInit`."""


@dataclass(frozen=True, slots=True)
class KnownWeights:
    """What is known of a policy's weights without loading them."""

    kind: str
    """`tensors`, `tables` or nothing."""
    lora: Mapping[str, Any] | None = None
    """`rank` and `alpha` of the adapter; None: full weights."""
    architecture: Mapping[str, Any] = field(default_factory=dict)
    """By the names of config.json; empty where it isn't known."""


def check_source(ours: KnownWeights, theirs: KnownWeights, train: str, path: str) -> None:
    """Check that a policy can begin with other weights.

    Args:
        ours: the policy's.
        train: the policy's.
        path: dotted path of the policy's table.

    Raises:
        ConfigError: weights of another kind, an adapter for a policy without one, another rank, another
            architecture.
    """
    at = f"{path}.from"
    if theirs.kind != ours.kind:
        here, there = ours.kind or "no weights", theirs.kind or "no weights"
        what = f"the policy has {here}, and what it would begin with has {there}"
        raise ConfigError(what, path=at, fix="name a policy of the same kind")
    if theirs.kind != "tensors":
        return
    if theirs.lora is not None and ours.lora is None:
        raise ConfigError(
            f"an adapter can't be the weights of a policy with `train: {train}`",
            path=at,
            why="an adapter changes the weights of a model, and holds none",
            fix=f"set {path}.train=lora, or merge it (`coterie export RUN --policy NAME --merge --out DIR`) "
            "and name that folder",
        )
    for name in ("rank", "alpha"):
        adapter, wanted = (theirs.lora or {}).get(name), (ours.lora or {}).get(name)
        if theirs.lora is not None and adapter != wanted:
            raise ConfigError(
                f"the adapter has another {name}",
                path=at,
                why=f"it has {adapter}, and {path}.lora.{name} is {wanted}",
                fix=f"set {path}.lora.{name}={adapter}",
            )
    known, other = ours.architecture, theirs.architecture
    differing = [name for name in known if name in other and known[name] != other[name]]
    if differing:
        raise ConfigError(
            "its model has another architecture than this policy's",
            path=at,
            why="; ".join(f"{name} is {other[name]} there, and {known[name]} here" for name in differing),
            fix=f"give the policy the same `model` ({path}.model)",
        )


def check_model_folder(folder: Path, at: str = "") -> None:
    """Raise ConfigError for a folder that has no model, adapter or table; `at` is the key that names it."""
    files = (*MODEL_FILES, TABLE_FILE)
    if not any((folder / name).is_file() for name in files):
        why = f"none of config.yaml, {', '.join(files)} is there"
        raise ConfigError(f"{folder} is neither a run's folder nor a model's", path=at, why=why)


def weights_in(folder: Path, at: str) -> KnownWeights:
    """What is known of the weights in a folder that holds no run.

    Raises:
        ConfigError: it holds no weights, or an adapter that is no plain LoRA; `at` is the key that names it.
    """
    if (folder / TABLE_FILE).is_file():
        return KnownWeights("tables")
    if is_adapter_folder(folder):
        settings = adapter_settings(folder, at)
        lora = {"rank": settings.get("r"), "alpha": settings.get("lora_alpha")}
        return KnownWeights("tensors", lora, architecture_in(base_of(folder, settings)))
    check_model_folder(folder, at)
    return KnownWeights("tensors", None, architecture_in(str(folder)))


def architecture_in(model: str) -> dict[str, Any]:
    """The architecture that a folder's config.json names; {} of a hub id."""
    table = _config_in(model)
    return {name: table[name] for name in ARCHITECTURE if name in table}


def known_context(model: str) -> int | None:
    """The longest input that a folder's config.json names, in tokens; None: unknown, as of a hub id."""
    table = _config_in(model)
    inner = table.get("text_config")
    longest = (inner if isinstance(inner, Mapping) else table).get("max_position_embeddings")
    return longest if isinstance(longest, int) and longest > 0 else None


def _config_in(model: str) -> dict[str, Any]:
    """A folder's config.json; {} of a hub id."""
    folder = named_folder(model)
    if folder is None or not (folder / "config.json").is_file():
        return {}
    return read_json(folder / "config.json", "")


def bounded_context(longest: int | None, limit: int | None, path: str) -> int | None:
    """The smaller of a model's longest input and a policy's `context`, in tokens; None: neither is known.

    Raises:
        ConfigError: `context` is larger than the model's longest input; `path` is the policy's.
    """
    if longest is None or limit is None:
        return longest if limit is None else limit
    if limit > longest:
        raise ConfigError(
            f"a context of {limit:,} tokens is longer than the model's of {longest:,}",
            path=f"{path}.context",
            why="the model has no positions beyond that, or its tokenizer allows none",
            fix=f"set it to at most {longest}, or remove it",
        )
    return limit


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder holds an adapter in PEFT's format."""
    return (folder / "adapter_config.json").is_file()


def adapter_settings(folder: Path, at: str) -> dict[str, Any]:
    """The settings of an adapter in PEFT's format.

    Raises:
        ConfigError: they can't be read, or the adapter is no plain LoRA.
    """
    settings = read_json(folder / "adapter_config.json", at)
    other = [name for name in ("use_dora", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save")
             if settings.get(name)]  # fmt: skip
    if settings.get("peft_type", "LORA") != "LORA" or settings.get("bias", "none") != "none" or other:
        why = ", ".join(other) or f"peft_type {settings.get('peft_type')}, bias {settings.get('bias')}"
        raise ConfigError(
            f"{folder} holds an adapter that is no plain LoRA",
            path=at,
            why=why,
            fix="merge it into its model with PEFT, and name that folder",
        )
    return settings


def base_of(folder: Path, settings: Mapping[str, Any]) -> str:
    """The folder or hub id of an adapter's model, which `coterie export` may write beside it."""
    beside = folder / "base"
    return str(beside) if (beside / "config.json").is_file() else str(settings["base_model_name_or_path"])


def read_json(file: Path, at: str) -> dict[str, Any]:
    """A table in a JSON file.

    Raises:
        ConfigError: it can't be read.
    """
    try:
        table = json.loads(file.read_text(encoding="utf-8"))
        return dict(table)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{file} can't be read", path=at, why=str(error)) from None


def named_folder(source: str) -> Path | None:
    """The folder of this name, or None where there is none."""
    folder = Path(source).expanduser()
    return folder if folder.is_dir() else None


def local_folder(source: str, path: str) -> Path | None:
    """The local folder that `source` names, or None where it is a hub id.

    Raises:
        ConfigError: `source` is written like a path, and there is no such folder.
    """
    if (folder := named_folder(source)) is not None:
        return folder
    folder = Path(source).expanduser()
    if folder.is_absolute() or source.startswith((".", "~")) or source.count("/") > 1 or "\\" in source:
        raise ConfigError(
            f"there is no folder {source}",
            path=path,
            why="it is a file" if folder.exists() else f"looked for it from {Path.cwd()}",
            fix="name an existing folder, or a hub id such as Qwen/Qwen3-0.6B",
        )
    return None


def initial_weights_of(
    policies: Mapping[str, PolicyConfig], sources: Mapping[str, object] | None = None
) -> dict[str, tuple[str, ...]]:
    """First policy -> all policies with the same initial weights, in the configuration's order.

    Args:
        sources: the model of each policy with a `from`. Without them, equal values of `from` count as equal
            weights, except where all weights are trained.
    """
    begun = {name: policy for name, policy in policies.items() if policy.from_ is not None}
    return _groups(
        policies, _apart(begun) if sources is None else {name: id(sources[name]) for name in begun}
    )


def bases_of(policies: Mapping[str, PolicyConfig]) -> dict[str, tuple[str, ...]]:
    """First policy -> all policies that its base model serves, in the configuration's order.

    LoRA and frozen policies share the base of their initial weights; a policy whose weights are all trained
    has its own.
    """
    return _groups(policies, _apart(policies))


def _apart(policies: Mapping[str, PolicyConfig]) -> dict[str, object]:
    return {name: (policy.from_, name if policy.train == "full" else "") for name, policy in policies.items()}


def _groups(policies: Mapping[str, PolicyConfig], apart: Mapping[str, object]) -> dict[str, tuple[str, ...]]:
    groups: dict[object, list[str]] = {}
    for name, policy in policies.items():
        weights = policy.model_dump_json(include={"model", "revision", "dtype", "warm_start"})
        groups.setdefault((weights, apart.get(name)), []).append(name)
    return {names[0]: tuple(names) for names in groups.values()}
