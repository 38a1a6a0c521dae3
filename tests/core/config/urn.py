"""A plugin: a trainer with a policy schema that no other trainer has.

It adds `pace` times the advantage to the logit of each sampled word, and forgets a share of what it learned.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from coterie import Plugin, PolicyConfig, hookimpl
from coterie.backends.models.table import LogitTable, table_words
from coterie.core.config import RunConfig, Strict
from coterie.core.errors import ConfigError
from coterie.core.protocols import TrainerContext
from coterie.core.types import Key, Metrics, Sample, Weights


class Memory(Strict):
    """What an update leaves of earlier ones."""

    kept: float = Field(1.0, gt=0, le=1, description="Share of every logit that an update keeps.")


class UrnPolicy(PolicyConfig):
    """A policy of the trainer `urn`."""

    pace: float = Field(0.5, gt=0, description="Change of a logit per unit of advantage.")
    memory: Memory = Memory()

    def check(self, path: str, run: RunConfig) -> None:
        if self.train == "lora":
            raise ConfigError("an urn has no adapters", path=f"{path}.train", fix="set it to `full`")
        super().check(path, run)


class UrnTrainer(Plugin):
    """Trains tables of logits by the words that were drawn."""

    Policy = UrnPolicy

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        self.tables: dict[str, LogitTable] = {}
        self.versions: dict[str, int] = {}
        self.policies: Mapping[str, Any] = {}

    async def open(self, ctx: TrainerContext) -> None:
        self.policies = ctx.policies
        for name in ctx.policies:
            self.tables[name], self.versions[name] = LogitTable(table_words(ctx.vocabulary)), 0

    async def annotate(self, samples: Sequence[Sample], name: str) -> dict[Key, np.ndarray]:
        raise ConfigError(f"the trainer `urn` has no {name}", path="trainer.type")

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        return {name: self._update(name, rows) for name, rows in samples.items()}

    def _update(self, name: str, samples: Sequence[Sample]) -> Metrics:
        policy, table = self.policies[name], self.tables[name]
        for context, row in table.rows.items():
            table.rows[context] = policy.memory.kept * row
        for sample in samples:
            ids = sample.token_ids.tolist()
            for place in np.flatnonzero(sample.loss_mask).tolist():
                context = tuple(ids[:place])
                row = table.logits(context).copy()
                row[table.columns[ids[place]]] += policy.pace * float(sample.advantages[place])
                table.rows[context] = row
        self.versions[name] += 1
        return {"samples": float(len(samples))}

    def weights(self, policy: str) -> Weights:
        return Weights(policy=policy, version=self.versions[policy], module=self.tables[policy].snapshot())

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        saved = {
            name: {
                "version": self.versions[name],
                "rows": [[list(context), row.tolist()] for context, row in table.rows.items()],
            }
            for name, table in self.tables.items()
        }
        (folder / "urns.json").write_text(json.dumps(saved))

    def load(self, folder: Path) -> None:
        for name, saved in json.loads((folder / "urns.json").read_text()).items():
            rows = {tuple(context): np.array(row) for context, row in saved["rows"]}
            self.tables[name] = LogitTable(self.tables[name].words, rows)
            self.versions[name] = saved["version"]

    def digest(self) -> dict[str, str]:
        return {name: table.digest() for name, table in self.tables.items()}

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        raise ConfigError("the trainer `urn` exports nothing", path="trainer.type")

    async def close(self) -> None:
        self.tables.clear()


@hookimpl
def register_trainers(register: Any) -> None:
    register("urn", "tests.core.config.urn:UrnTrainer")
