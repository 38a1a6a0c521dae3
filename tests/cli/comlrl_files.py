"""Configurations in the form of CoMLRL's, and the ten command lines that its pages show."""

from __future__ import annotations

import copy
import shlex
from pathlib import Path
from typing import Any

from coterie.core.config import to_yaml

MODEL: dict[str, Any] = {
    "name": "Qwen/Qwen2.5-Coder-3B",
    "type": "qwen",
    "temperature": 0.7,
    "top_p": 0.9,
    "max_length": 2048,
    "tokenizer_kwargs": {"trust_remote_code": True},
    "model_kwargs": {"trust_remote_code": True, "torch_dtype": "bfloat16"},
}
HUMANEVAL = {
    "name": "openai/openai_humaneval",
    "type": "humaneval",
    "train_split": "test[33:163]",
    "eval_split": "test[:32]",
}
COOP = {
    "name": "CoMLRL/CoopHumanEval",
    "type": "coophumaneval",
    "train_split": "test[16:]",
    "eval_split": "test[:16]",
}
TRAINING: dict[str, Any] = {
    "num_train_epochs": 10,
    "per_device_train_batch_size": 1,
    "learning_rate": 2.0e-5,
    "logging_steps": 50,
    "save_steps": 200,
    "num_generations": 4,
    "max_new_tokens": 256,
    "temperature": 0.8,
    "top_p": 0.95,
}


def _config(program: str, dataset: dict[str, str], **training: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "dataset": dataset,
        "output": {"base_dir": "output", "save_final_model": False},
        program: {**TRAINING, **training},
        "wandb": {"project": "mlrl", "name": program, "tags": [program, "code"]},
    }


FILES: dict[str, dict[str, Any]] = {
    "grpo_he": _config("grpo", HUMANEVAL),
    "grpo_che": _config("grpo", COOP, num_train_epochs=15),
    "magrpo_he": _config("magrpo", HUMANEVAL, num_agents=2),
    "magrpo_che": _config("magrpo", COOP, num_agents=2),
    "mt_magrpo_he": _config("magrpo", HUMANEVAL, num_agents=2, num_turns=2, num_train_epochs=7, discount=0.9),
    "mt_magrpo_che": _config("magrpo", COOP, num_agents=2, num_turns=2, num_train_epochs=7, discount=0.9),
}
LINES = (
    "grpo_he",
    "magrpo_che",
    "mt_magrpo_he",
    "magrpo_he --override model_name='bigcode/starcoder2-3b'",
    "grpo_che --override grpo.num_train_epochs=20 grpo.learning_rate=3e-5",
    "mt_magrpo_che --override dataset.train_split='test[:20]' dataset.eval_split='test[20:30]' "
    "magrpo.num_turns=2 magrpo.turn_gradient_weights=[1.5,0.5]",
    "magrpo_he --model_name Qwen/Qwen2.5-Coder-7B",
    "mt_magrpo_he --num_epochs 10 --num_turns 2 --turn_gradient_weights 1.2 0.8",
    "mt_magrpo_he --override magrpo.num_turns=2 magrpo.external_mode='level_feedback'",
    "mt_magrpo_che --override magrpo.num_turns=2 magrpo.external_mode='level_feedback' "
    "magrpo.sandbox_slice=-2",
)
"""A file and what follows it, as the pages write it."""


def write(folder: Path, name: str, **sections: Any) -> Path:
    """A file of the original, with sections merged over it; a section of None is removed."""
    table = copy.deepcopy(FILES[name])
    for section, values in sections.items():
        if values is None:
            del table[section]
        else:
            table[section] = {**table.get(section, {}), **values}
    path = folder / f"{name}_config.yaml"
    path.write_text(to_yaml(table), encoding="utf-8")
    return path


def words(line: str, folder: Path, **sections: Any) -> list[str]:
    """The arguments of a line behind `--from comlrl`, with its file written."""
    name, *rest = shlex.split(line)
    return ["--from", "comlrl", str(write(folder, name, **sections)), *rest]
