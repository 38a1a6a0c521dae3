"""The run configuration: one table per component, strict everywhere.

`RunConfig` knows the tables and who needs whom; what is *inside* a component's table is validated by
the chosen plugin's own `Config` when the run is composed (`core/training/assemble.py`). How recipes,
scales and overrides become one configuration is in `core/config/layers.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coterie.core.plugins import Component, Table


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class ModelInit(Strict):
    """A model made on the spot, where no pretrained weights are wanted."""

    init: Literal["qwen3", "tabular", "none"] = Field(
        description="Architecture; `none` for engines that need no weights."
    )
    hidden_size: int = Field(128, ge=1)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int | None = Field(None, description="Default: as many as `heads`.")
    head_dim: int = Field(32, ge=2)
    mlp_size: int = Field(384, ge=1)
    context: int = Field(512, ge=2, description="Longest prompt plus completion, in tokens.")
    tie_embeddings: bool = True
    tokenizer: str = Field(
        "words", description="`words`: one id a word of the environment; or a tokenizer's hub id or folder."
    )


class LoraSettings(Strict):
    """PEFT LoRA, see arXiv 2106.09685."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"


class OptimizerSettings(Strict):
    """AdamW and its schedule; one optimiser per policy."""

    learning_rate: float = Field(1e-5, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    clip: float = Field(1.0, gt=0, description="Largest global gradient norm.")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0, description="In optimiser steps.")
    final_share: float = Field(
        0.1, ge=0, le=1, description="Of the learning rate, at the end of `linear` and `cosine`."
    )
    horizon: Annotated[int, Field(ge=1)] | Literal["budget"] | None = Field(
        None,
        description="Optimiser steps over which `linear` and `cosine` decay, or `budget`: they decay with "
        "the share of `schedule.tokens` that was spent before the step. Required for them, since a schedule "
        "that depends on `schedule.steps` would change when a resumed run is made longer.",
    )


class WarmStart(Strict):
    """Supervised steps before RL, on demonstrations of the environment's oracle."""

    demonstrations: Literal["oracle"] = "oracle"
    noise: float = Field(
        0.0, ge=0, le=1, description="Probability that a demonstrated move is random instead."
    )
    steps: int = Field(80, ge=1)
    batch: int = Field(256, ge=1, description="Demonstrations a step, shared equally by the policy's roles.")
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    warmup_steps: int = Field(30, ge=0)
    final_share: float = Field(0.1, ge=0, le=1)
    clip: float = Field(1.0, gt=0)


class PolicyConfig(Strict):
    """Weights with a version, played by one role or several."""

    model: str | ModelInit = Field(description="Hub id, folder, or a table for a model made on the spot.")
    train: Literal["full", "lora", "none"] = "full"
    lora: LoraSettings | None = None
    optimizer: OptimizerSettings = OptimizerSettings()
    warm_start: WarmStart | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    revision: str | None = Field(None, description="Of a hub id.")


class TeamConfig(Strict):
    order: list[str | list[str]] = Field(
        min_length=1, description="Stages of a turn; a nested list acts at once."
    )
    max_turns: int = Field(1, ge=1)
    max_tool_turns: int = Field(4, ge=0, description="Rounds of tool results inside one action.")
    roles: dict[str, Table] = Field(
        description="By role: `policy`, `tools`, `max_tool_turns`, `show_thoughts`, and `type` with its "
        "settings."
    )


class RoleConfig(Strict):
    """What a role's table says besides its plugin's settings."""

    policy: str
    tools: list[str] = Field(default_factory=list, description="Names in the table `tools`.")
    max_tool_turns: int | None = Field(None, ge=0, description="Default: team.max_tool_turns.")
    show_thoughts: bool = Field(
        False, description="Others, the parser and rewards read the thought as part of the text."
    )


class ScheduleConfig(Strict):
    steps: int | None = Field(None, ge=0)
    epochs: int | None = Field(None, ge=1, description="Passes over the train split, instead of `steps`.")
    tokens: int | None = Field(
        None,
        ge=1,
        description="The run ends after the step in which the tokens generated in training, over all roles "
        "and branches, reach this many; `steps` or `epochs`, where given, bound it besides.",
    )
    tasks_per_step: int = Field(16, ge=1)
    evaluate_every: int = Field(0, ge=0, description="In steps; 0: never inside the run.")
    evaluate_tasks: int = Field(64, ge=1)
    checkpoint_every: int = Field(0, ge=0, description="In steps; 0: at the end only.")
    keep_checkpoints: int = Field(2, ge=1, description="Besides the best on `val`.")
    record_every: int = Field(1, ge=0, description="Rollouts of every n-th step are written; 0: none.")
    stratify: bool = Field(False, description="Keep the strata's shares of the tasks in every step.")
    stop_after: float | None = Field(
        None, gt=0, description="Seconds; the run ends after the step that passes it."
    )
    max_missing: float = Field(
        0.2, ge=0, le=1, description="Share of missing scores in a step that stops the run."
    )


class RunConfig(Strict):
    """Everything that a run is made from."""

    summary: str = Field("", description="One line, shown by `coterie recipes`.")
    seed: int = 0
    deterministic: bool = Field(
        True, description="Batches form when all live episodes wait, rows in key order."
    )
    env: Component
    team: TeamConfig
    policies: dict[str, PolicyConfig]
    rewards: dict[str, Component] = Field(
        default_factory=lambda: {"environment": {"type": "environment"}},
        description="By name: `type`, `weights`, and the source's settings.",
    )
    sampler: Component
    algorithm: Component
    loss: Component
    transition: Component
    engine: Component
    trainer: Component
    executor: Component
    sandbox: Component | None = None
    tools: dict[str, Component] = Field(default_factory=dict)
    chat: Component
    data: Component | None = None
    trackers: dict[str, Component] = Field(default_factory=lambda: {"jsonl": {"type": "jsonl"}})
    schedule: ScheduleConfig = ScheduleConfig()


DEFAULT_TYPES: Table = {
    "sampler": {"type": "tree"},
    "loss": {"type": "ppo_clip"},
    "transition": {"type": "plain"},
    "engine": {"type": "hf"},
    "trainer": {"type": "torch"},
    "executor": {"type": "local"},
    "chat": {"type": "auto"},
}
"""The lowest layer of every configuration: which plugin a table means that names none."""

TABLES: dict[str, str] = {
    "env": "environment",
    "sampler": "sampler",
    "algorithm": "estimator",
    "loss": "loss",
    "transition": "transition",
    "engine": "engine",
    "trainer": "trainer",
    "executor": "executor",
    "sandbox": "sandbox",
    "chat": "chat_format",
    "data": "data_source",
}
"""Top-level tables that hold one component, and its kind."""

MAPS: dict[str, str] = {"rewards": "reward", "tools": "tool", "trackers": "tracker"}
"""Top-level tables that hold components by name."""
