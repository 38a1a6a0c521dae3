"""Tiny models, hand-made samples and opened trainers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from coterie.backends.chat_formats.formats import AutoChat
from coterie.backends.models.loading import Loaded, load_model
from coterie.backends.models.policy import TorchPolicy
from coterie.backends.trainers import policies as policies_module
from coterie.backends.trainers.torch_trainer import TorchTrainer
from coterie.core.protocols import TrainerContext
from coterie.core.types import Key, Sample, Span
from coterie.plugins.losses.ppo_clip import PPOClip

WORDS = tuple(f"w{number}" for number in range(29))
VOCABULARY = 32
MODEL = {
    "init": "qwen3", "hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_size": 48,
    "context": 128,
}  # fmt: skip


def policy(train: str = "full", **settings: Any) -> TorchPolicy:
    table: dict[str, Any] = {"model": MODEL, "train": train, "optimizer": {"learning_rate": 1e-2}, **settings}
    if train == "lora":
        table.setdefault("lora", {"rank": 4, "alpha": 8})
    return TorchPolicy.model_validate(table)


def really_double(model: Any) -> Any:
    """Cast to float64, and keep transformers' RMSNorms from going through float32."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = partial(_rms_norm, module)
    return model.double().eval()


def _rms_norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    return (
        module.weight * hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + module.variance_epsilon)
    )


def in_float64(monkeypatch: Any) -> None:
    """Make trainers load float64 models from now on."""

    def load(*args: Any, **kwargs: Any) -> Loaded:
        loaded = load_model(*args, **kwargs)
        return Loaded(really_double(loaded.module), loaded.tokenizer, loaded.context)

    monkeypatch.setattr(policies_module, "load_model", load)


def opened(
    policies: dict[str, TorchPolicy],
    loss: Any = None,
    *,
    needs: Sequence[str] = (),
    seed: int = 0,
    trainer: type[TorchTrainer] = TorchTrainer,
    **settings: Any,
) -> TorchTrainer:
    made = trainer(trainer.Config(**{"device": "cpu", **settings}))
    context = TrainerContext(
        policies=policies,
        loss=loss or PPOClip(),
        chat=AutoChat(),
        seed=seed,
        deterministic=True,
        vocabulary=WORDS,
        needs=tuple(needs),
    )
    asyncio.run(made.open(context))
    return made


def update(
    trainer: TorchTrainer, samples: dict[str, list[Sample]], step: int = 0
) -> dict[str, dict[str, float]]:
    return asyncio.run(trainer.update(samples, step))


def sample(
    policy: str, task: str, branch: int, prompt: Sequence[int], completion: Sequence[int],
    mask: Sequence[bool], *, seed: int = 0, temperature: float = 1.0, weight: float = 1.0,
    **extras: np.ndarray,
) -> Sample:  # fmt: skip
    """A sample whose behaviour log-probs and advantages are drawn from `seed`."""
    rng = np.random.default_rng([seed, branch])
    ids = np.array([*prompt, *completion], dtype=np.int64)
    loss_mask = np.array([False] * len(prompt) + list(mask))
    key = Key(task, role=f"role of {policy}", branch=branch)
    return Sample(
        key=key,
        policy=policy,
        token_ids=ids,
        loss_mask=loss_mask,
        logprobs=np.where(loss_mask, -np.log(VOCABULARY) + 0.2 * rng.normal(size=len(ids)), 0).astype(
            np.float32
        ),
        advantages=np.where(loss_mask, rng.normal(size=len(ids)), 0).astype(np.float32),
        spans=(Span(len(prompt), len(ids), key, weight),),
        version=0,
        temperature=temperature,
        prompt_tokens=len(prompt),
        extras=extras,
    )


def samples(
    policy: str = "p",
    *,
    groups: int = 3,
    siblings: int = 4,
    seed: int = 0,
    temperatures: Sequence[float] = (1.0,),
) -> list[Sample]:
    """Ragged groups; every third sample has a tool result between two calls."""
    rng = np.random.default_rng(seed)
    rows = []
    for group in range(groups):
        prompt = rng.integers(3, VOCABULARY, rng.integers(2, 40))
        for branch in range(siblings):
            completion = rng.integers(3, VOCABULARY, rng.integers(1, 14))
            mask = [True] * len(completion)
            if branch % 3 == 2 and len(completion) > 4:
                mask[2:4] = [False, False]
            rows.append(
                sample(policy, f"task-{group}", branch, prompt, completion, mask, seed=seed * 100 + group,
                       temperature=temperatures[len(rows) % len(temperatures)], weight=1.0 + 0.5 * branch)
            )  # fmt: skip
    return rows


def with_reference(rows: Sequence[Sample]) -> list[Sample]:
    """Reference log-probs near the behaviour's."""
    rng = np.random.default_rng(7)
    return [_with(row, ref_logprobs=row.logprobs + 0.1 * rng.normal(size=len(row.logprobs))) for row in rows]


def with_old(rows: Sequence[Sample]) -> list[Sample]:
    """Log-probs of an old policy near the behaviour's."""
    rng = np.random.default_rng(8)
    return [_with(row, old_logprobs=row.logprobs + 0.1 * rng.normal(size=len(row.logprobs))) for row in rows]


def with_targets(rows: Sequence[Sample], *, without: int = 0) -> list[Sample]:
    """Values and their targets, of all rows but every `without`th."""
    rng, aimed = np.random.default_rng(9), []
    for number, row in enumerate(rows):
        values, targets = rng.normal(scale=0.5, size=(2, len(row.token_ids)))
        aimed.append(row if without and number % without == 0 else _with(row, values=values, targets=targets))
    return aimed


def _with(row: Sample, **annotations: np.ndarray) -> Sample:
    masked = {
        name: np.where(row.loss_mask, values, 0).astype(np.float32) for name, values in annotations.items()
    }
    return replace(row, extras={**row.extras, **masked})


def turn_heads(trainer: TorchTrainer) -> None:
    """Set value heads to random weights: a fresh head gives 0 for every token."""
    for owner in trainer.policies.values():
        if owner.value_head is not None:
            torch.nn.init.normal_(owner.value_head, std=0.2, generator=torch.Generator().manual_seed(3))


def annotate(trainer: TorchTrainer, rows: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
    return asyncio.run(trainer.annotate(rows, what))


def independent_logprobs(model: Any, row: Sample) -> torch.Tensor:
    """Log-probs of a sample's trained tokens: the plain model, this row alone, every position."""
    logits = model(torch.from_numpy(row.token_ids)[None]).logits[0]
    all_logprobs = (logits / row.temperature).log_softmax(-1)
    at = torch.from_numpy(np.flatnonzero(row.loss_mask))
    return all_logprobs[at - 1, torch.from_numpy(row.token_ids)[at]]


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None}
