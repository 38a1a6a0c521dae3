"""The schema of a run's configuration: one table per component. Unknown keys are errors.

The settings inside a component's table are validated by its plugin's own `Config` when the run is assembled
(`core/training/assemble.py`). Recipes, scales and overrides are merged in `recipes/layers.py`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from coterie.core.plugins import Component, Table


class Strict(BaseModel):
    """A table that is immutable and refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class ModelInit(Strict):
    """A model with random initial weights."""

    init: Literal["qwen3", "tabular", "none"] = Field(description="Architecture; `none`: no weights.")
    hidden_size: int = Field(128, ge=1)
    layers: int = Field(3, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int | None = Field(None, description="Default: as many as `heads`.")
    head_dim: int = Field(32, ge=2)
    mlp_size: int = Field(384, ge=1)
    context: int = Field(512, ge=2, description="Longest prompt plus completion, in tokens.")
    tie_embeddings: bool = True
    tokenizer: str = Field(
        "words", description="`words` (one id per word), or a tokenizer's hub id or folder."
    )


class LoraSettings(Strict):
    """LoRA (arXiv 2106.09685), as in PEFT."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"


class OptimizerSettings(Strict):
    """AdamW and its learning-rate schedule. Each policy has its own optimiser."""

    learning_rate: float = Field(1e-5, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(1e-8, gt=0)
    clip: float = Field(1.0, gt=0, description="Largest global gradient norm.")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: int = Field(0, ge=0, description="In optimiser steps.")
    final_share: float = Field(0.1, ge=0, le=1, description="Share of the learning rate after the decay.")
    horizon: Annotated[int, Field(ge=1)] | Literal["budget"] | None = Field(
        None,
        description="Optimiser steps over which `linear` and `cosine` decay; `budget`: with the share of "
        "`schedule.tokens` spent before the step. They require it: a default of `schedule.steps` would "
        "change the rate when a resumed run is made longer.",
    )


class WarmStart(Strict):
    """Supervised training before RL, on demonstrations of the environment's oracle."""

    demonstrations: Literal["oracle"] = "oracle"
    noise: float = Field(0.0, ge=0, le=1, description="Probability that a demonstrated move is random.")
    steps: int = Field(80, ge=1)
    batch: int = Field(256, ge=1, description="Demonstrations per step, the same number for each role.")
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    warmup_steps: int = Field(30, ge=0)
    final_share: float = Field(0.1, ge=0, le=1)
    clip: float = Field(1.0, gt=0)


class PolicyConfig(Strict):
    """A policy: the model of one or more roles."""

    model: str | ModelInit = Field(description="Hub id, folder, or a table for random initial weights.")
    train: Literal["full", "lora", "none"] = "full"
    lora: LoraSettings | None = None
    optimizer: OptimizerSettings = OptimizerSettings()
    warm_start: WarmStart | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"
    revision: str | None = Field(None, description="Revision of a hub id.")


class TeamConfig(Strict):
    """The roles and their order."""

    order: list[str | list[str]] = Field(min_length=1, description="Stages; a nested list acts at once.")
    max_turns: int = Field(1, ge=1)
    max_tool_turns: int = Field(4, ge=0, description="Rounds of tool results within one action.")
    roles: dict[str, Table] = Field(description="By role: the keys of `RoleConfig`, `type` and its settings.")


class RoleConfig(Strict):
    """The keys of a role's table that the team reads; the others are its plugin's settings."""

    policy: str
    tools: list[str] = Field(default_factory=list, description="Names in the table `tools`.")
    max_tool_turns: int | None = Field(None, ge=0, description="Default: team.max_tool_turns.")
    show_thoughts: bool = Field(False, description="Keep thoughts in the text that others and rewards read.")


class ScheduleConfig(Strict):
    """The length of a run, and its regular evaluations, checkpoints and records."""

    steps: int | None = Field(None, ge=0)
    epochs: int | None = Field(None, ge=1, description="Passes over the train split, instead of `steps`.")
    tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens generated in training, over all roles and branches. The run ends after the step "
        "that reaches them, or earlier by `steps` or `epochs`.",
    )
    tasks_per_step: int = Field(16, ge=1)
    evaluate_every: int = Field(0, ge=0, description="In steps; 0: not during training.")
    evaluate_tasks: int = Field(64, ge=1)
    checkpoint_every: int = Field(0, ge=0, description="In steps; 0: only at the end.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest ones, besides the best on `val`.")
    record_every: int = Field(1, ge=0, description="Write the rollouts of every n-th step; 0: none.")
    stratify: bool = Field(False, description="Keep each stratum's share of tasks in every step.")
    stop_after: float | None = Field(None, gt=0, description="Seconds; the step under way is completed.")
    max_missing: float = Field(0.2, ge=0, le=1, description="Largest share of missing scores in a step.")


class RunConfig(Strict):
    """The configuration of a run."""

    summary: str = Field("", description="One line for `coterie recipes`.")
    seed: int = 0
    deterministic: bool = Field(True, description="Batch when all active rollouts wait, in key order.")
    env: Component
    team: TeamConfig
    policies: dict[str, PolicyConfig]
    rewards: dict[str, Component] = Field(
        default_factory=lambda: {"environment": {"type": "environment"}},
        description="By name: `type`, `weights` and the source's settings.",
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
"""The lowest layer of every configuration: the plugins of tables that name none."""

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
"""Kind of component, by top-level table that holds one component."""

MAPS: dict[str, str] = {"rewards": "reward", "tools": "tool", "trackers": "tracker"}
"""Kind of component, by top-level table that holds components by name."""
