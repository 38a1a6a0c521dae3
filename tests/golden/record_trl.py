"""Records what TRL's GRPOTrainer and RLOOTrainer make of fixed rollouts: `record_trl.py > trl.json`.

The trainers run whole: rewards go in through a reward function and completions through a rollout function,
and out come the advantages of `_generate_and_score_completions` and the loss of `_compute_loss`. Only the
models are scripted: `_get_per_token_logps_and_entropies` answers with the log-probs of the rollout, so that
they are an input, in float64, and autograd gives the loss's gradient with respect to them.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import recording
import torch
import transformers
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.trainer.utils import split_tensor_dict

PROMPTS, SIBLINGS = 3, 4
LONGEST = 6
PAD, FILL, FIRST = 0, 1, 2
"""Token ids. A completion starts with FIRST plus its row, by which the scripted models know it."""
GAPS: list[float | None] = [1.0, None, 0.25, 0.5, None, None, None, 0.75, 0.0, 1.5, None, 0.0]
"""Rewards: a prompt lacks one, one has a single one, one lacks one."""


@dataclass
class Rollout:
    """Completions prompt by prompt; every policy's log-probs of their tokens; one reward each."""

    rewards: list[float | None]
    current: list[list[float]]
    old: list[list[float]]
    """Of the trainer's weights before the update."""
    sampling: list[list[float]]
    """Of the engine."""
    ref: list[list[float]]

    def record(self) -> dict[str, Any]:
        return {"siblings": SIBLINGS, **vars(self)}


def rollout(seed: int, rewards: list[float | None] | None = None) -> Rollout:
    """Ratios on both sides of every clip, a few of them far away."""
    draw = random.Random(seed)
    lengths = [draw.randint(1, LONGEST) for _ in range(PROMPTS * SIBLINGS)]
    current = [[recording.logprob(draw) for _ in range(length)] for length in lengths]

    def near(table: list[list[float]], scale: float) -> list[list[float]]:
        return [
            [recording.beside(number, scale * (5 if draw.random() < 0.1 else 1), draw) for number in row]
            for row in table
        ]

    old = near(current, 0.3)
    drawn = [recording.reward(draw) for _ in lengths]
    return Rollout(
        rewards=drawn if rewards is None else rewards,
        current=current,
        old=old,
        sampling=near(old, 0.3),
        ref=near(current, 0.4),
    )


# ------------------------------------------------------------------------------------------------- trainers


def padded(table: list[list[float]], rows: list[int], width: int) -> torch.Tensor:
    """Shape (rows, width), float64; -1 where a row has ended, which every mask must hide."""
    return torch.tensor(
        [table[row] + [-1.0] * (width - len(table[row])) for row in rows], dtype=torch.float64
    )


class Scripted:
    """A trainer whose models know the rollout by heart."""

    rollout: Rollout
    leaf: torch.Tensor
    """Current log-probs, shape (completions, longest)."""

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor | None, None]:
        rows = [int(token) - FIRST for token in input_ids[:, -logits_to_keep]]
        if kwargs.get("compute_entropy"):  # asked by the loss, of the weights being trained
            logprobs = self.leaf[rows, :logits_to_keep]
            return logprobs, torch.ones_like(logprobs), None
        table = self.rollout.ref if model is self.ref_model else self.rollout.old  # type: ignore[attr-defined]
        return padded(table, rows, logits_to_keep), None, None

    def completions(self) -> list[list[int]]:
        return [
            [FIRST + row] + [FILL] * (len(logprobs) - 1) for row, logprobs in enumerate(self.rollout.current)
        ]


class ScriptedGRPO(Scripted, GRPOTrainer):
    pass


class ScriptedRLOO(Scripted, RLOOTrainer):
    def _generate(self, prompts: list[str]) -> tuple[Any, Any, Any]:
        return [[FILL]] * len(prompts), self.completions(), [""] * len(prompts)


@contextlib.contextmanager
def model_folder() -> Iterator[Path]:
    """A Qwen3 that no one asks, and a tokenizer: what a trainer wants to be opened with."""
    words = {"<pad>": PAD, "fill": FILL, **{f"w{row}": FIRST + row for row in range(PROMPTS * SIBLINGS)}}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="fill")), pad_token="<pad>", eos_token="<pad>"
    )
    config = Qwen3Config(
        vocab_size=len(words), hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        Qwen3ForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        yield Path(folder)


def opened(folder: Path, played: Rollout, *, rloo: bool = False, micro: int = 1, **settings: Any) -> Any:
    """A trainer of the rollout's completions, in `micro` micro-batches to one optimiser step."""
    count = PROMPTS * SIBLINGS

    def rewards(completions: list[str], **_: Any) -> list[float | None]:
        return played.rewards

    def play(prompts: list[str], trainer: Any) -> dict[str, Any]:
        return {
            "prompt_ids": [[FILL]] * len(prompts),
            "completion_ids": trainer.completions(),
            "logprobs": played.sampling,
        }

    common: dict[str, Any] = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": count // micro,
        "gradient_accumulation_steps": micro,
        "num_generations": SIBLINGS,
        "max_completion_length": LONGEST,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "report_to": "none",
        "disable_tqdm": True,
        **settings,
    }
    model = Qwen3ForCausalLM.from_pretrained(folder)
    opening: dict[str, Any] = {
        "model": model,
        "processing_class": PreTrainedTokenizerFast.from_pretrained(folder),
        "reward_funcs": rewards,
        "train_dataset": Dataset.from_list([{"prompt": "fill"}] * count),
    }
    if rloo:
        trainer: Any = ScriptedRLOO(args=RLOOConfig(**common), **opening)
    else:
        trainer = ScriptedGRPO(args=GRPOConfig(**common), rollout_func=play, **opening)
    trainer.rollout, trainer.leaf = played, padded(played.current, list(range(count)), LONGEST)
    trainer.leaf.requires_grad_()
    trainer.current_gradient_accumulation_steps = micro  # the training loop's to set
    trainer.model.train()
    return trainer


# -------------------------------------------------------------------------------------------------- records


def scored(trainer: Any) -> dict[str, Any]:
    """The trainer's own inputs to its loss."""
    rollouts: dict[str, Any] = trainer._generate_and_score_completions(
        [{"prompt": "fill"} for _ in trainer.rollout.rewards]
    )
    return rollouts


def advantages(
    folder: Path, name: str, rewards: list[float | None], *, rloo: bool = False, **settings: Any
) -> dict[str, Any]:
    """Of completions with these rewards."""
    inputs = scored(opened(folder, rollout(0, rewards), rloo=rloo, **settings))
    return {
        "name": name,
        "settings": settings,
        "siblings": SIBLINGS,
        "rewards": rewards,
        "advantages": inputs["advantages"].tolist(),
    }


def loss(
    folder: Path,
    played: Rollout,
    name: str,
    *,
    micro: int = 1,
    rloo: bool = False,
    on_policy: bool = False,
    engine: dict[str, Any] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """One optimiser step's loss and its gradient with respect to the current log-probs.

    Args:
        on_policy: the old policy is the current one.
        engine: settings of the correction between the engine's and the trainer's log-probs.
    """
    if not rloo:
        # Two passes over a batch make the trainer ask for the old policy's log-probs.
        settings["num_iterations"] = 1 if on_policy else 2
    trainer = opened(folder, played, rloo=rloo, micro=micro, **settings, **(engine or {}))
    if engine is not None:
        # What is asked of vLLM is to generate and to take the weights: the rollout function does the one,
        # and a step that is marked as loaded spares the other.
        trainer.use_vllm, trainer._last_loaded_step = True, trainer.state.global_step
    inputs = scored(trainer)
    total = sum(trainer._compute_loss(trainer.model, part) for part in split_tensor_dict(inputs, micro))
    total.backward()
    return {
        "name": name,
        "settings": {**settings, **(engine or {})},
        "micro_batches": micro,
        "advantages": inputs["advantages"].tolist(),
        "loss": total.item(),
        "gradient": [
            trainer.leaf.grad[row, : len(logprobs)].tolist() for row, logprobs in enumerate(played.current)
        ],
    }


def all_advantages(folder: Path) -> list[dict[str, Any]]:
    spread: list[float | None] = rollout(1).rewards
    even: list[float | None] = [0.0, 1.0, 0.5, 0.5, 1.0, 0.25, 0.25, 0.5, 0.0, 2.0, 0.0, 0.0]
    flat: list[float | None] = [0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0, 0.0, 2.0, 0.125, 0.125, 1.75]
    return [
        advantages(folder, "group", spread, scale_rewards="group"),
        advantages(folder, "none", spread, scale_rewards="none"),
        advantages(folder, "batch", spread, scale_rewards="batch"),
        advantages(folder, "batch, groups of one mean", even, scale_rewards="batch"),
        advantages(folder, "equal rewards", flat, scale_rewards="group"),
        advantages(folder, "missing", GAPS, scale_rewards="group"),
        advantages(folder, "rloo", spread, rloo=True, beta=0.0),
        advantages(folder, "rloo, normalised", spread, rloo=True, beta=0.0, normalize_advantages=True),
        advantages(folder, "rloo, missing", GAPS, rloo=True, beta=0.0),
    ]


def all_losses(folder: Path, played: dict[str, Rollout]) -> dict[str, list[dict[str, Any]]]:
    """By rollout."""
    plain = functools.partial(loss, folder, played["plain"])
    gaps = functools.partial(loss, folder, played["gaps"])
    on_policy = functools.partial(loss, folder, played["on policy"], on_policy=True)
    clip: dict[str, Any] = {"beta": 0.0, "epsilon": 0.2, "epsilon_high": 0.28}
    kl: dict[str, Any] = {"beta": 0.1, "use_bias_correction_kl": False}
    grpo, dapo = {**clip, "loss_type": "grpo"}, {**clip, "loss_type": "dapo"}
    bnpo, dr_grpo = {**clip, "loss_type": "bnpo"}, {**clip, "loss_type": "dr_grpo", "scale_rewards": "none"}
    sequence = {"beta": 0.0, "importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04}
    gspo, luspo = {**sequence, "loss_type": "grpo"}, {**sequence, "loss_type": "luspo"}
    tokens, sequences = (
        {"vllm_importance_sampling_mode": f"{level}_truncate", "vllm_importance_sampling_clip_max": 1.25}
        for level in ("token", "sequence")
    )
    return {
        "plain": [
            plain("grpo", **grpo),
            plain("bnpo", **bnpo),
            plain("dr_grpo", **dr_grpo),
            plain("dapo", **dapo),
            plain("bnpo, 2 micro-batches", micro=2, **bnpo),
            plain("dapo, 2 micro-batches", micro=2, **dapo),
            plain("grpo, delta", delta=1.5, **grpo),
            plain("grpo, low delta", delta=1.1, **grpo),
            plain("grpo, kl", **{**grpo, **kl}),
            plain("dapo, kl", **{**dapo, **kl}),
            plain("grpo, corrected kl", **{**grpo, **kl, "use_bias_correction_kl": True}),
            plain("cispo", loss_type="cispo", beta=0.0, epsilon_high=1.5),
            plain("gspo", **gspo),
            plain("gspo, kl", **{**gspo, **kl}),
            plain("luspo", **luspo),
            plain("grpo, tokens corrected", engine=tokens, **grpo),
            plain("grpo, sequences corrected", engine=sequences, **grpo),
            plain("grpo, kl, corrected", engine=tokens, **{**grpo, **kl}),
            plain("gspo, tokens corrected", engine=tokens, **gspo),
        ],
        "gaps": [gaps("grpo, missing", **grpo)],
        "on policy": [on_policy("dapo, on policy", **dapo), on_policy("rloo", rloo=True, beta=0.0)],
    }


def main() -> None:
    os.environ.update(
        HF_HUB_OFFLINE="1",
        TRL_EXPERIMENTAL_SILENCE="1",
        WANDB_MODE="disabled",
        CUDA_VISIBLE_DEVICES="",  # a gradient on another device would differ in the last digits
    )
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with contextlib.redirect_stdout(sys.stderr), model_folder() as folder:
        played = {"plain": rollout(1), "gaps": rollout(2, GAPS), "on policy": rollout(3)}
        played["on policy"].old = played["on policy"].current
        recorded = {
            "advantages": all_advantages(folder),
            "rollouts": {name: one.record() for name, one in played.items()},
            "losses": all_losses(folder, played),
        }
    recording.write("trl", recorded)


if __name__ == "__main__":
    main()
