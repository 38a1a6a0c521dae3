"""The trainer of tabular policies: the torch trainer's loss, differentiated by hand."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from coterie.backends.models.minibatches import (
    count_minibatches,
    minibatches,
    repeats,
    span_ids,
    token_coefficients,
    token_values,
    trained_values,
)
from coterie.backends.models.policy import (
    TABLE_FILE,
    Rate,
    TabularPolicy,
    check_trained_table,
    declared,
    diverged,
)
from coterie.backends.models.table import (
    Context,
    LogitTable,
    log_softmax,
    read_rows,
    rows_digest,
    source_table,
    table_words,
    words_differ,
    write_rows,
)
from coterie.backends.trainers.surrogates import check_finite, surrogate_of
from coterie.backends.trainers.tables import (
    MOMENTS,
    Moments,
    Rows,
    Tables,
    TablesApart,
    read_state,
    rows_file,
)
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.plugins.origin import origin_of
from coterie.core.protocols import Surrogate, TokenBatch, TrainerContext
from coterie.core.types import Key, Metrics, Sample, Weights
from coterie.core.types.seeding import seed64
from coterie.discovery.members import HasLengthConstant

log = logging.getLogger("coterie")
UNUSUAL_RATE = 1e4
"""A larger learning rate of logits is warned about: one step makes the policy deterministic."""


class TabularTrainer(TablesApart, Plugin):
    """Gradient descent on tables of logits, torch-free and in float64.

    The loss is sum_t coefficient_t * (value_t - entropy * H_t), as in every trainer. Its gradient with
    respect to a context's logits is coefficient * grad * (onehot - softmax) / temperature. The reference of
    `ref_logprobs` is the initial table: uniform, or that of a `from`.

    If an estimator needs `values`, every context has a separate value. Values descend the sum of
    coefficient_t * (V_t - target_t)^2 / 2 over samples with `targets`. They share no parameters with the
    logits, so `value_learning_rate` alone sets their weight.
    """

    class Config(PluginConfig):
        learning_rate: Rate = 1.0
        value_learning_rate: Rate = Field(
            1.0, description="Learning rate of the values, if the algorithm needs them (gae)."
        )
        epochs: int = Field(1, ge=1, description="Passes over a step's samples.")
        minibatch_size: int | None = Field(
            None, ge=1, description="Samples of one optimiser step; null: all."
        )
        optimizer: Literal["sgd", "adam"] = "sgd"

        @property
        def repeats(self) -> str:
            """The setting by which an update has several optimiser steps; empty: it has one."""
            return repeats(self.minibatch_size, self.epochs)

    Policy = TabularPolicy
    config: Config

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.policies: dict[str, Tables] = {}
        """Empty before `open`."""
        self._sources: dict[str, LogitTable] = {}

    def begin_with(self, weights: Mapping[str, Weights]) -> None:
        """Keep the tables of policies with a `from`; `open` gives them to the policies.

        Raises:
            ConfigError: a policy that is no table, or a folder's table that can't be read.
        """
        self._sources = {policy: source_table(policy, source) for policy, source in weights.items()}

    async def open(self, ctx: TrainerContext) -> None:
        self.ctx = ctx
        if "value_learning_rate" in self.config.model_fields_set and "values" not in ctx.needs:
            raise ConfigError(
                "this setting has no effect",
                path="trainer.value_learning_rate",
                why="neither the algorithm nor the loss needs values",
                fix="leave it out, or choose an algorithm that needs values (gae)",
            )
        if self.config.learning_rate > UNUSUAL_RATE:
            log.warning(
                "trainer.learning_rate: %g is far above the rates at which tables learn (0.1 to 200): a step "
                "makes every trained context deterministic", self.config.learning_rate,
            )  # fmt: skip
        words = table_words(ctx.vocabulary)
        for name, policy in declared(ctx.policies, TabularPolicy).items():
            check_trained_table(policy, f"policies.{name}")
            initial = self._sources.get(name, LogitTable(words))
            if initial.words != words:
                raise ConfigError(
                    "its table is over other words than this policy's",
                    path=f"policies.{name}.from",
                    why=words_differ(initial.words, words),
                    fix="train with the environment and the roles of that run, or from another one",
                )
            self.policies[name] = Tables(
                initial.snapshot(), trained=policy.train != "none", initial=dict(initial.rows)
            )

    async def close(self) -> None:
        self.policies.clear()

    async def annotate(self, samples: Sequence[Sample], what: str) -> dict[Key, np.ndarray]:
        """One number for every sampled token.

        - `ref_logprobs`: log-probs under the initial table.
        - `old_logprobs`, `logprobs`: log-probs under the present table.
        - `values`: the values of contexts; 0 for a policy that is not trained.

        Returns:
            by sample key: float32, shape (sampled tokens,).
        """
        if what not in ("ref_logprobs", "old_logprobs", "logprobs", "values"):
            raise ConfigError(f"the trainer `tabular` has no {what}", path="trainer.type")
        by_key = {}
        for sample in samples:
            policy = self.policies[sample.policy]
            table = LogitTable(policy.table.words, policy.initial) if what == "ref_logprobs" else policy.table
            numbers = [
                policy.value(token.context)[0] if what == "values" else token.logprobs[token.column]
                for token in _sampled_tokens(sample, table)
            ]
            by_key[sample.key] = np.array(numbers, dtype=np.float32)
        return by_key

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """Run one training step of each trained policy on its samples; metrics per policy.

        Raises:
            UserError: a policy's logits or values are not finite after its update.
        """
        metrics = {}
        for name, rows in samples.items():
            policy = self.policies[name]
            if policy.trained and rows:
                metrics[name] = self._update(name, policy, rows, step)
        return metrics

    def weights(self, policy: str) -> Weights:
        tabular = self.policies[policy]
        return Weights(policy=policy, version=tabular.version, module=tabular.table.snapshot())

    def keep(self, policy: str) -> None:
        tabular = self.policies[policy]
        tabular.kept[tabular.version] = tabular.table.snapshot()

    def drop(self, policy: str, version: int) -> None:
        self.policies[policy].kept.pop(version, None)

    @contextmanager
    def weights_at(self, policy: str, version: int) -> Iterator[Weights]:
        yield Weights(policy=policy, version=version, module=self.policies[policy].kept[version])

    def digest(self) -> dict[str, str]:
        return {
            name: rows_digest(policy.table.words, logits=policy.table.rows, values=policy.values)
            for name, policy in self.policies.items()
        }

    def save(self, folder: Path) -> None:
        """Write one .npz per policy, and counters in state.json."""
        folder.mkdir(parents=True, exist_ok=True)
        state = {
            name: {"version": policy.version, **({"kept": sorted(policy.kept)} if policy.kept else {})}
            for name, policy in self.policies.items()
        }
        (folder / "state.json").write_text(json.dumps(state, indent=1))
        for name, policy in self.policies.items():
            write_rows(rows_file(folder, name), policy.table.words, **policy.tables())
            for version, table in policy.kept.items():
                write_rows(rows_file(folder, name, version), table.words, logits=table.rows)

    def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote.

        Raises:
            RunFolderError: the files are missing, or belong to other policies or words.
        """
        state = read_state(folder)
        try:
            read = {name: read_rows(rows_file(folder, name)) for name in self.policies}
        except (OSError, ValueError, KeyError) as error:
            raise RunFolderError(
                f"the trainer's state in {folder} can't be read", why=f"{type(error).__name__}: {error}"
            ) from error
        for name, policy in self.policies.items():
            words, tables = read[name]
            if words != policy.table.words or name not in state:
                raise RunFolderError(
                    f"the table of policy '{name}' in {folder} is over other words",
                    why="the environment's or a role's vocabulary has changed",
                )
            missing = policy.tables().keys() - tables.keys() - {"initial"}
            if missing:
                raise RunFolderError(
                    f"the tables of policy '{name}' in {folder} lack {', '.join(sorted(missing))}",
                    why="they were written by another version of coterie",
                )
            policy.table, policy.values = LogitTable(words, tables["logits"]), tables["values"]
            policy.initial = tables.get("initial", {})
            policy.moments = Moments(**{part: tables[part] for part in MOMENTS})
            policy.value_moments = Moments(**{part: tables[f"value_{part}"] for part in MOMENTS})
            policy.version = state[name]["version"]
            policy.kept = {}
            for version in state[name].get("kept", ()):
                words, tables = read_rows(rows_file(folder, name, version))
                policy.kept[version] = LogitTable(words, tables["logits"])

    def optimizer_steps(self, samples: int, siblings: int) -> int:
        """Optimiser steps of one update, for `coterie plan`."""
        return count_minibatches(samples, siblings, self.config.minibatch_size, self.config.epochs)

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        """Write table.npz with arrays `words`, `logits.lengths`, `logits.contexts` and `logits.rows`."""
        folder.mkdir(parents=True, exist_ok=True)
        table = self.policies[policy].table
        write_rows(folder / TABLE_FILE, table.words, logits=table.rows)

    # -------------------------------------------------------------------------------------------- updates

    def _update(self, name: str, policy: Tables, samples: Sequence[Sample], step: int) -> Metrics:
        per_step: dict[str, float] = {}
        per_token: dict[str, float] = {}
        tokens = steps = 0
        for epoch in range(self.config.epochs):
            seed = seed64(self.ctx.seed, f"{name}/{step}/{epoch}", "minibatches")
            for batch in minibatches(samples, self.config.minibatch_size, seed):
                losses, sums, count = self._optimiser_step(policy, batch)
                tokens, steps = tokens + count, steps + 1
                for totals, sums_of_step in ((per_step, losses), (per_token, sums)):
                    for key, value in sums_of_step.items():
                        totals[key] = totals.get(key, 0.0) + value
        policy.version += steps > 0  # an update without samples leaves the weights as they are
        loss = per_step.get("loss", 0.0) / max(steps, 1)
        for setting, rows in (("learning_rate", policy.table.rows), ("value_learning_rate", policy.values)):
            if rows and not np.isfinite(np.concatenate(list(rows.values()))).all():
                raise diverged(name, step, f"trainer.{setting}", loss)
        if not math.isfinite(loss):
            log.warning(
                "policy '%s', step %d: the loss is %g, by %s", name, step + 1, loss, origin_of(self.ctx.loss)
            )
        return {
            "optimizer_steps": float(steps),
            "samples": float(len(samples)),
            **{key: value / max(steps, 1) for key, value in per_step.items()},
            **{key: value / max(tokens, 1) for key, value in per_token.items()},
        }

    def _optimiser_step(
        self, policy: Tables, samples: Sequence[Sample]
    ) -> tuple[dict[str, float], dict[str, float], int]:
        """The losses, sums over tokens of the other metrics, and the number of tokens."""
        loss, table = self.ctx.loss, policy.table
        constant = loss.length_constant if isinstance(loss, HasLengthConstant) else None
        shares = trained_values(samples, token_coefficients(samples, loss.length, constant)).astype(float)
        tokens = [token for sample in samples for token in _sampled_tokens(sample, table)]
        batch = _tokens(samples, tokens)
        surrogate = surrogate_of(loss, np, batch)
        check_finite(loss, np, batch, surrogate)
        gradient, entropies = self._gradient(tokens, shares, surrogate)
        losses = {
            "loss": float(shares @ surrogate.value - loss.entropy * (shares @ entropies)),
            "grad_norm": math.sqrt(math.fsum(float(row @ row) for row in gradient.values())),
        }
        self._descend(gradient, table.rows, table.logits, self.config.learning_rate, policy.moments)
        if any("targets" in sample.extras for sample in samples):
            gradient, losses["value_loss"] = _value_gradient(policy, samples, tokens, shares)
            rate = self.config.value_learning_rate
            self._descend(gradient, policy.values, policy.value, rate, policy.value_moments)
        sums = {name: float(np.sum(values)) for name, values in surrogate.metrics.items()}
        return losses, {"entropy": float(entropies.sum()), **sums}, len(tokens)

    def _gradient(
        self, tokens: Sequence[_SampledToken], shares: np.ndarray, surrogate: Surrogate
    ) -> tuple[Rows, np.ndarray]:
        """d loss / d logits by context, and the entropy at every token, shape (N,)."""
        bonus = self.ctx.loss.entropy
        gradient: Rows = {}
        entropies = np.zeros(len(tokens))
        for index, token in enumerate(tokens):
            probabilities = np.exp(token.logprobs)
            entropies[index] = -float(probabilities @ token.logprobs)
            grad = shares[index] * surrogate.grad[index]
            change = -grad * probabilities
            change[token.column] += grad
            # d entropy / d logit_i = -p_i (log p_i + H)
            change += shares[index] * bonus * probabilities * (token.logprobs + entropies[index])
            gradient[token.context] = gradient.get(token.context, 0.0) + change / token.temperature
        return gradient, entropies

    def _descend(
        self,
        gradient: Rows,
        rows: Rows,
        present: Callable[[Context], np.ndarray],
        rate: float,
        moments: Moments,
    ) -> None:
        """Update the rows that have a gradient; other rows and their moments don't change."""
        for context, grad in gradient.items():
            if self.config.optimizer == "adam":
                grad = moments.direction(context, grad)
            rows[context] = present(context) - rate * grad


def _tokens(samples: Sequence[Sample], tokens: Sequence[_SampledToken]) -> TokenBatch:
    """The loss's view of the samples."""
    sequence, sequences = span_ids(samples)
    values: dict[str, Any] = {
        name: None if array is None else array.astype(np.float64)
        for name, array in token_values(samples).items()
    }
    logprobs = np.array([token.logprobs[token.column] for token in tokens])
    return TokenBatch(logprobs=logprobs, sequence=sequence, sequences=sequences, **values)


def _value_gradient(
    policy: Tables, samples: Sequence[Sample], tokens: Sequence[_SampledToken], shares: np.ndarray
) -> tuple[Rows, float]:
    """d value loss / d value by context, shape (1,) each, and the loss, both over samples with targets."""
    targets = [
        sample.extras["targets"] if "targets" in sample.extras else np.full(len(sample.token_ids), np.nan)
        for sample in samples
    ]
    gradient: Rows = {}
    loss = 0.0
    for token, share, target in zip(
        tokens, shares, trained_values(samples, targets).astype(float), strict=True
    ):
        if not np.isnan(target):
            error = policy.value(token.context) - target
            gradient[token.context] = gradient.get(token.context, 0.0) + share * error
            loss += 0.5 * share * float(error[0]) ** 2
    return gradient, float(loss)


@dataclass(slots=True)
class _SampledToken:
    """One sampled token: its context, its column, and the present log-probs (V,)."""

    context: Context
    column: int
    logprobs: np.ndarray
    temperature: float


def _sampled_tokens(sample: Sample, table: LogitTable) -> list[_SampledToken]:
    ids = tuple(sample.token_ids.tolist())
    temperature = sample.temperature or 1.0
    return [
        _SampledToken(
            ids[:at], table.columns[ids[at]], log_softmax(table.logits(ids[:at]) / temperature), temperature
        )
        for at in np.flatnonzero(sample.loss_mask).tolist()
    ]
