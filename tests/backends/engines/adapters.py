"""PEFT models with adapters of different ranks and targets, and PEFT's own log-probs as a reference."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from coterie.backends.engines.rows import BatchRow, Drawn
from tests.backends.engines.support import tiny, worst_logprob

SETTINGS: dict[str, dict[str, Any]] = {
    "planner": {"r": 4, "lora_alpha": 16, "target_modules": "all-linear"},
    "coder": {"r": 2, "use_rslora": True, "target_modules": ["q_proj", "up_proj", "down_proj"]},
    "speaker": {"r": 3, "target_modules": ["v_proj", "lm_head"]},
}


def adapted(names: Sequence[str] = ("planner", "coder"), *, kind: str = "qwen3", **more: Any) -> Any:
    """A PEFT model with these adapters, all trained away from zero, in eval mode."""
    import peft

    model = None
    for name in names:
        settings = peft.LoraConfig(**SETTINGS[name])
        if model is None:
            model = peft.get_peft_model(tiny(kind, **more), settings, adapter_name=name)
        else:
            model.add_adapter(name, settings)
    assert model is not None
    trained(model, seed=1)
    return model.eval()


def trained(model: Any, *, seed: int, adapter: str = "") -> None:
    """Draw new values for the weights of one adapter, or of all."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for name, parameter in model.named_parameters():
            if "lora_" in name and adapter in name:
                parameter.normal_(std=0.15)


def dealt(rows: Sequence[BatchRow], adapters: Sequence[str | None]) -> list[BatchRow]:
    """The rows with adapters; prompts get the adapters in turn."""
    prompts = list(dict.fromkeys(row.prompt_ids for row in rows))
    return [replace(row, adapter=adapters[prompts.index(row.prompt_ids) % len(adapters)]) for row in rows]


def worst(model: Any, rows: Sequence[BatchRow], drawn: Sequence[Drawn]) -> float:
    """Largest difference of any row's log-probs from those of PEFT's own forward with the row's adapter."""
    largest = 0.0
    active = model.active_adapter
    for adapter in {row.adapter for row in rows}:
        chosen = [index for index, row in enumerate(rows) if row.adapter == adapter]
        if adapter is not None:
            model.set_adapter(adapter)
        with model.disable_adapter() if adapter is None else nullcontext():
            theirs = worst_logprob(model, [rows[i] for i in chosen], [drawn[i] for i in chosen])
        largest = max(largest, theirs)
    model.set_adapter(active)
    return largest
