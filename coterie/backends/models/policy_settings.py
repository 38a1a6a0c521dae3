"""The tables inside a policy's: a model with random weights, an adapter, an optimiser, a warm start."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from coterie.core.config import Strict


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
    tokenizer: Literal["words", "bytes"] | str = Field(
        "words",
        description="`words` (an id per word), `bytes` (an id per byte), or a tokenizer's hub id or folder.",
        json_schema_extra={"format": "model-path"},
    )


class LoraSettings(Strict):
    """LoRA (arXiv 2106.09685), as in PEFT."""

    rank: int = Field(16, ge=1)
    alpha: float = Field(32, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: str | list[str] = "all-linear"


LARGEST_RATE = 1e19
"""Largest learning rate: about the square root of fp32's largest number. A step of AdamW moves a weight by
about the rate, and the product of two weights of this size overflows."""
UNUSUAL_RATE = 1.0
"""A larger learning rate of a model of tensors is warned about: no such model learns at it."""


def _trains(rate: float) -> float:
    if rate > LARGEST_RATE:
        what = "no policy trains at this learning rate: after one step, products of its weights overflow"
        raise PydanticCustomError("learning_rate", what)
    return rate


Rate = Annotated[float, Field(gt=0), AfterValidator(_trains)]
"""A learning rate; one at which nothing trains is refused."""


class OptimizerSettings(Strict):
    """AdamW and its learning-rate schedule. Each policy has its own optimiser."""

    learning_rate: Rate = 1e-5
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
    learning_rate: Rate = 1e-3
    weight_decay: float = Field(0.01, ge=0)
    warmup_steps: int = Field(30, ge=0)
    final_share: float = Field(0.1, ge=0, le=1)
    clip: float = Field(1.0, gt=0)
