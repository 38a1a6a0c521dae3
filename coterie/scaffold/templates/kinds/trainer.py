"""A trainer: the owner of the weights, which updates them on the samples of a step.

A table of logits, and gradient descent by hand: for a context with the probabilities p, a token k and the
derivative g of the loss by the log-prob of k, the derivative by the logits is g (onehot(k) - p).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from zlib import crc32

import numpy as np
from pydantic import Field

from coterie import (
    ConfigError,
    HasLengthConstant,
    Key,
    Metrics,
    Plugin,
    PluginConfig,
    Register,
    Sample,
    TokenBatch,
    TrainerContext,
    Weights,
    hookimpl,
    span_ids,
    token_coefficients,
)

Table = dict[tuple[int, ...], np.ndarray]
"""Logits by context, which is all tokens so far; a context without a row has zeros."""


def word_id(word: str) -> int:
    """The token of a word. 0 is `<eos>`, which ends an answer."""
    return crc32(word.encode()) if word != "<eos>" else 0


class ExampleNameTrainer(Plugin):
    """Gradient descent on tables of logits, one table a policy."""

    class Config(PluginConfig):
        learning_rate: float = Field(5.0, gt=0, description="Of logits.")

    config: Config

    async def open(self, ctx: TrainerContext) -> None:
        if ctx.loss.entropy:
            raise ConfigError("this trainer has no entropy bonus", path="loss.entropy", fix="set it to 0")
        if "values" in ctx.needs:
            raise ConfigError("this trainer has no values", path="trainer.type", fix="choose another one")
        self.loss, self.policies = ctx.loss, ctx.policies
        words = {word for text in ctx.vocabulary for word in text.split()}
        self.tokens = [0, *sorted({word_id(word) for word in words})]
        self.tables: dict[str, Table] = {name: {} for name in ctx.policies}
        self.versions = dict.fromkeys(ctx.policies, 0)

    def drawn(self, sample: Sample, table: Table) -> Iterator[tuple[tuple[int, ...], int, np.ndarray]]:
        """Of every sampled token: its context, its column, and the log-probs of all tokens."""
        ids = sample.token_ids.tolist()
        for place in np.flatnonzero(sample.loss_mask).tolist():
            row = table.get(tuple(ids[:place]), np.zeros(len(self.tokens))) / sample.temperature
            yield tuple(ids[:place]), self.tokens.index(ids[place]), row - np.log(np.exp(row).sum())

    # What an estimator or a loss needs beside the samples; the reference are the initial weights.
    async def annotate(self, samples: Sequence[Sample], name: str) -> dict[Key, np.ndarray]:
        by_key = {}
        for sample in samples:
            table = {} if name == "ref_logprobs" else self.tables[sample.policy]
            logprobs = [row[column] for _, column, row in self.drawn(sample, table)]
            by_key[sample.key] = np.array(logprobs, dtype=np.float32)
        return by_key

    # Samples of one step, by policy. A policy that isn't trained stays as it is, and so does its version.
    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        trained = [name for name, rows in samples.items() if rows and self.policies[name].train != "none"]
        return {name: self.descend(name, samples[name]) for name in trained}

    def descend(self, name: str, samples: Sequence[Sample]) -> Metrics:
        """One step of gradient descent."""

        def column(values: Sequence[np.ndarray]) -> np.ndarray:
            """The entries of all sampled tokens, in one array."""
            return np.concatenate([row[s.loss_mask] for row, s in zip(values, samples, strict=True)])

        loss, table = self.loss, dict(self.tables[name])  # a new table: the engine still reads the old one
        constant = loss.length_constant if isinstance(loss, HasLengthConstant) else None
        shares = column(token_coefficients(samples, loss.length, constant))
        tokens = [token for sample in samples for token in self.drawn(sample, table)]
        sequence, sequences = span_ids(samples)
        annotations = {
            field: column([sample.extras[extra] for sample in samples])
            for field, extra in (("ref_logprobs", "ref_logprobs"), ("old", "old_logprobs"))
            if all(extra in sample.extras for sample in samples)
        }
        batch = TokenBatch(
            logprobs=np.array([row[at] for _, at, row in tokens]),
            behaviour=column([sample.logprobs for sample in samples]),
            advantages=column([sample.advantages for sample in samples]),
            sequence=sequence,
            sequences=sequences,
            **annotations,
        )
        surrogate = loss(np, batch)
        temperatures = np.concatenate([[s.temperature] * int(s.loss_mask.sum()) for s in samples])
        pulls = -self.config.learning_rate * shares * surrogate.grad / temperatures
        for pull, (context, at, row) in zip(pulls, tokens, strict=True):
            onehot = np.arange(len(row)) == at
            table[context] = table.get(context, np.zeros(len(row))) + pull * (onehot - np.exp(row))
        self.tables[name] = table
        self.versions[name] += 1
        return {"loss": float(shares @ surrogate.value), "samples": float(len(samples))}

    def weights(self, policy: str) -> Weights:
        return Weights(policy=policy, version=self.versions[policy], module=self.tables[policy])

    # A checkpoint: a run that is resumed goes on bit for bit, so everything that updates read is in it.
    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        tables = {
            name: [[context, row.tolist()] for context, row in table.items()]
            for name, table in self.tables.items()
        }
        (folder / "tables.json").write_text(json.dumps({"versions": self.versions, "tables": tables}))

    def load(self, folder: Path) -> None:
        saved = json.loads((folder / "tables.json").read_text())
        self.versions = saved["versions"]
        for name, rows in saved["tables"].items():
            self.tables[name] = {tuple(context): np.array(row) for context, row in rows}

    def digest(self) -> dict[str, str]:
        """A text that differs where the weights do."""
        digests = {}
        for name, table in self.tables.items():
            rows = sorted((context, row.tolist()) for context, row in table.items())
            digests[name] = hashlib.sha256(repr(rows).encode()).hexdigest()
        return digests

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        raise ConfigError("a table of logits is no model of a hub", path="trainer.type")

    async def close(self) -> None:
        pass


@hookimpl
def register_trainers(register: Register) -> None:
    register("example_name", ExampleNameTrainer)
