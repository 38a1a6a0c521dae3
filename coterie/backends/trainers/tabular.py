"""The trainer of tabular policies: the same loss as the torch trainer's, differentiated by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from coterie.backends.models.table import Context, Table, log_softmax, read_rows, table_words, write_rows
from coterie.core.batching import minibatches, token_coefficients
from coterie.core.config import ModelInit, OptimizerSettings, PluginConfig
from coterie.core.draws import seed64
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.plugins import Plugin
from coterie.core.protocols import TokenBatch, TrainerContext
from coterie.core.types import Key, Metrics, Sample, Weights

Rows = dict[Context, np.ndarray]


@dataclass(slots=True)
class _Policy:
    """One policy's table and the state of its optimiser."""

    table: Table
    trained: bool
    version: int = 0
    first: Rows = field(default_factory=dict)
    """Adam's running mean of gradients, by context; shape (V,) each."""
    second: Rows = field(default_factory=dict)
    """... and of their squares."""
    steps: Rows = field(default_factory=dict)
    """How often each row has moved, shape (1,): a row's averages start when it is first seen."""


class TabularTrainer(Plugin):
    """Gradient descent on tables of logits, torch-free and in float64.

    The loss is sum_t coefficient_t * (value_t - entropy * H_t), as everywhere; its gradient with respect to
    a context's logits is coefficient * slope * (onehot - softmax) / temperature. The reference of
    `ref_logprobs` is the table at the start: uniform.
    """

    class Config(PluginConfig):
        learning_rate: float = Field(1.0, gt=0)
        epochs: int = Field(1, ge=1, description="Passes over a step's samples.")
        minibatch_size: int | None = Field(None, ge=1, description="Samples an optimiser step; default: all.")
        optimizer: Literal["sgd", "adam"] = "sgd"

    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self._policies: dict[str, _Policy] = {}

    async def open(self, ctx: TrainerContext) -> None:
        self._ctx = ctx
        words = table_words(ctx.vocabulary)
        for name, policy in ctx.policies.items():
            path = f"policies.{name}"
            if not (isinstance(policy.model, ModelInit) and policy.model.init == "tabular"):
                raise ConfigError(
                    f"the trainer `tabular` can't train the model of policy '{name}'",
                    path=f"{path}.model",
                    mend="set it to {init: tabular}",
                )
            if policy.train == "lora":
                raise ConfigError("a table has no adapters", path=f"{path}.train", mend="set it to `full`")
            if policy.optimizer != OptimizerSettings():
                raise ConfigError(
                    "nothing reads this table",
                    path=f"{path}.optimizer",
                    why="the trainer `tabular` has settings of its own",
                    mend="set trainer.learning_rate and trainer.optimizer",
                )
            self._policies[name] = _Policy(Table(words), trained=policy.train != "none")

    async def close(self) -> None:
        self._policies.clear()

    async def annotate(self, samples: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
        """`ref_logprobs` or `logprobs` (of the present table), by sample key; shape (sampled tokens,)."""
        if what not in ("ref_logprobs", "logprobs"):
            raise ConfigError(f"the trainer `tabular` has no {what}", path="trainer.type")
        found = {}
        for sample in samples:
            table = self._policies[sample.policy].table
            if what == "ref_logprobs":
                table = Table(table.words)
            found[sample.key] = np.array(
                [one.logprobs[one.column] for one in _places(sample, table)], dtype=np.float32
            )
        return found

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """One training step of each trained policy on its samples; metrics per policy."""
        found = {}
        for name, rows in samples.items():
            policy = self._policies[name]
            if policy.trained and rows:
                found[name] = self._update(name, policy, rows, step)
        return found

    def weights(self, policy: str) -> Weights:
        one = self._policies[policy]
        return Weights(policy=policy, version=one.version, module=one.table.snapshot())

    def digest(self) -> dict[str, str]:
        return {name: policy.table.digest() for name, policy in self._policies.items()}

    def save(self, folder: Path) -> None:
        """One .npz per policy, and counters in state.json."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {name: {"version": one.version} for name, one in self._policies.items()}
        (folder / "state.json").write_text(json.dumps(state, indent=1))
        for name, one in self._policies.items():
            write_rows(
                folder / f"{name}.npz",
                one.table.words,
                logits=one.table.rows,
                first=one.first,
                second=one.second,
                steps=one.steps,
            )

    def load(self, folder: Path) -> None:
        """Exactly what `save` wrote.

        Raises:
            RunFolderError: the files are missing, or are of other policies or words.
        """
        try:
            state = json.loads((folder / "state.json").read_text())
            read = {name: read_rows(folder / f"{name}.npz") for name in self._policies}
        except (OSError, ValueError, KeyError) as error:
            raise RunFolderError(
                f"the trainer's state in {folder} can't be read", why=f"{type(error).__name__}: {error}"
            ) from error
        for name, policy in self._policies.items():
            words, tables = read[name]
            if words != policy.table.words or name not in state:
                raise RunFolderError(
                    f"the table of policy '{name}' in {folder} is over other words",
                    why="the environment's or a role's vocabulary has changed",
                )
            policy.table = Table(words, tables["logits"])
            policy.first, policy.second, policy.steps = tables["first"], tables["second"], tables["steps"]
            policy.version = state[name]["version"]

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        """table.npz with arrays `words`, `logits.lengths`, `logits.contexts` and `logits.rows`."""
        folder.mkdir(parents=True, exist_ok=True)
        table = self._policies[policy].table
        write_rows(folder / "table.npz", table.words, logits=table.rows)

    # -------------------------------------------------------------------------------------------- updates

    def _update(self, name: str, policy: _Policy, samples: Sequence[Sample], step: int) -> Metrics:
        totals: dict[str, float] = {}
        tokens = 0
        steps = 0
        for epoch in range(self.config.epochs):
            seed = seed64(self._ctx.seed, f"{name}/{step}/{epoch}", "minibatches")
            for batch in minibatches(samples, self.config.minibatch_size, seed):
                gradient, sums, count = self._gradient(policy.table, batch)
                self._apply(policy, gradient)
                tokens, steps = tokens + count, steps + 1
                for key, value in sums.items():
                    totals[key] = totals.get(key, 0.0) + value
        policy.version += 1
        loss = totals.pop("loss", 0.0)
        return {
            "loss": loss / max(steps, 1),
            "optimizer_steps": float(steps),
            "samples": float(len(samples)),
            **{key: value / max(tokens, 1) for key, value in totals.items()},
        }

    def _gradient(self, table: Table, samples: Sequence[Sample]) -> tuple[Rows, dict[str, float], int]:
        """By context, d loss / d logits; sums over tokens of what is reported; the number of tokens."""
        coefficients = token_coefficients(samples, self._ctx.loss.length)
        places, taken = [], []
        for sample, row in zip(samples, coefficients, strict=True):
            places += _places(sample, table)
            reference = sample.extras.get("ref_logprobs", sample.logprobs)
            columns = np.stack([row, sample.logprobs, sample.advantages, reference])
            taken.append(columns[:, sample.loss_mask])
        coefficient, behaviour, advantages, reference = np.concatenate(taken, axis=1).astype(np.float64)
        has_reference = all("ref_logprobs" in sample.extras for sample in samples)
        surrogate = self._ctx.loss(
            np,
            TokenBatch(
                logprobs=np.array([one.logprobs[one.column] for one in places]),
                behaviour=behaviour,
                advantages=advantages,
                ref_logprobs=reference if has_reference else None,
            ),
        )
        bonus = self._ctx.loss.entropy
        gradient: Rows = {}
        loss = entropies = 0.0
        for index, one in enumerate(places):
            share = np.exp(one.logprobs)
            entropy = -float(share @ one.logprobs)
            slope = coefficient[index] * surrogate.slope[index]
            change = -slope * share
            change[one.column] += slope
            # d entropy / d logit_i = -p_i (log p_i + H)
            change += coefficient[index] * bonus * share * (one.logprobs + entropy)
            gradient[one.context] = gradient.get(one.context, 0.0) + change / one.temperature
            loss += coefficient[index] * (surrogate.value[index] - bonus * entropy)
            entropies += entropy
        sums = {
            "loss": float(loss),
            "entropy": entropies,
            **{name: float(np.sum(values)) for name, values in surrogate.metrics.items()},
        }
        return gradient, sums, len(places)

    def _apply(self, policy: _Policy, gradient: Rows) -> None:
        """Move the rows that have a gradient; the others rest, and so do their averages."""
        rate, rows = self.config.learning_rate, policy.table.rows
        for context, slope in gradient.items():
            if self.config.optimizer == "adam":
                slope = self._adam(policy, context, slope)
            rows[context] = policy.table.logits(context) - rate * slope

    def _adam(self, policy: _Policy, context: Context, slope: np.ndarray) -> np.ndarray:
        """Adam's direction (arXiv 1412.6980) for one row."""
        steps = policy.steps.get(context, np.zeros(1)) + 1
        first = 0.9 * policy.first.get(context, np.zeros_like(slope)) + 0.1 * slope
        second = 0.999 * policy.second.get(context, np.zeros_like(slope)) + 0.001 * slope**2
        policy.steps[context], policy.first[context], policy.second[context] = steps, first, second
        return first / (1 - 0.9**steps) / (np.sqrt(second / (1 - 0.999**steps)) + 1e-8)


@dataclass(slots=True)
class _Place:
    """One sampled token: the context it was drawn in, its column, and the present log-probs (V,)."""

    context: Context
    column: int
    logprobs: np.ndarray
    temperature: float


def _places(sample: Sample, table: Table) -> list[_Place]:
    ids = tuple(sample.token_ids.tolist())
    temperature = sample.temperature or 1.0
    return [
        _Place(
            ids[:at], table.columns[ids[at]], log_softmax(table.logits(ids[:at]) / temperature), temperature
        )
        for at in np.flatnonzero(sample.loss_mask).tolist()
    ]
