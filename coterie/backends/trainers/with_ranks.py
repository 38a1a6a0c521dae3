"""The other ranks of a trainer, on this host or on the cluster of the run's executor, and their equality."""

from __future__ import annotations

from functools import partial
from typing import Any

from coterie.backends.cluster.connection import Connection
from coterie.backends.trainers.devices import check_ranks, on_gpu
from coterie.backends.trainers.policies import PolicyWeights
from coterie.backends.trainers.ranks.actors import RanksOnCluster
from coterie.backends.trainers.ranks.commands import Commands
from coterie.backends.trainers.replicas import check_same


class WithRanks:
    """The part of a trainer that starts its other ranks, and compares their weights."""

    config: Any
    _commands: Commands
    _policies: dict[str, PolicyWeights]
    _cluster: RanksOnCluster | None = None

    def use_cluster(self, cluster: Connection) -> None:
        """Start the other ranks on a cluster, once the trainer is opened."""
        if self.config.ranks > 1:
            self._cluster = RanksOnCluster(cluster, partial(on_gpu, self.config.device))

    def _check_ranks(self) -> None:
        """Refuse more ranks than can run, before any of them starts; on a cluster its connection does."""
        if self._cluster is None:
            check_ranks(self.config.ranks, self.config.device)

    def _start_ranks(self) -> Commands:
        from coterie.backends.trainers.ranks.collectives import start

        return start(self, self.config.ranks, self.config, self._cluster)

    def digest(self) -> dict[str, str]:
        digests: list[dict[str, str]] = self._commands.run("rank_digest")
        for name in digests[0]:
            check_same(name, [theirs[name] for theirs in digests])
        return digests[0]

    def rank_digest(self) -> dict[str, str]:
        """`digest` on one rank."""
        return {name: policy.digest() for name, policy in self._policies.items()}
