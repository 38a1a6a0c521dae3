"""The trainer as the run sees it where each set of weights has one (`cluster.updates: at_once`)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coterie.backends.cluster.connection import Connection
from coterie.backends.cluster.hosts import Actors
from coterie.backends.cluster.processes import sets_of, trainer_name
from coterie.backends.cluster.wire import compact, own_code
from coterie.backends.executors.ray.shipping import Elsewhere, sent_sources
from coterie.backends.executors.ray.trainer_files import FileCall, bring, fetch, marked
from coterie.backends.executors.ray.trainer_host import Opening
from coterie.backends.executors.ray.trainer_hosts import TrainerHandle, TrainerHosts
from coterie.backends.models import device_memory
from coterie.core.config import PolicyConfig
from coterie.core.errors import ConfigError, UserError
from coterie.core.plugins.origin import origin_of, plugin_call, record_origin
from coterie.core.protocols import ChatFormat, Demonstration, Loss, Trainer, TrainerContext
from coterie.core.rollout.contracts import refuse
from coterie.core.types import Key, Metrics, Sample, Weights
from coterie.discovery.members import TrainsApart

TrainerParts = tuple[Trainer, Loss, ChatFormat]
"""A trainer, and what its context has of the configuration."""
OPTIONAL = (
    *("keep", "drop", "weights_at", "set_progress"),
    *("begin_with", "optimizer_steps", "bases", "warm_start"),
)
"""Members that a trainer may lack."""
WORK = (
    *("update", "annotate", "weights", "digest", "save", "export", "load", "close", "set_progress"),
    *("keep", "drop", "weights_at", "bases", "warm_start", "offload"),
)
"""Methods of an open trainer."""


class SettingsApart:
    """The settings of a trainer whose device holds one set of weights."""

    def __init__(self, settings: Any) -> None:
        self._settings = settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settings, name)

    def check_size(self, policies: Mapping[str, PolicyConfig], *more: Any) -> None:
        """Refuse a set that a device can't hold, as the settings do."""
        for names in sets_of(policies, gpus=False).values():
            self._settings.check_size({name: policies[name] for name in names}, *more)


class HostedTrainers:
    """A `Trainer` whose work is done by trainer hosts, one for each set of weights.

    `hosted_trainers` makes one. Where it is opened without a cluster, as by `coterie export`, the trainer of
    this process does the work: its methods hide those of this object.

    Args:
        plain: the trainer of this process.
        make: makes the same in any process. Picklable.
    """

    def __init__(self, plain: Any, make: Callable[[], TrainerParts], connection: Connection) -> None:
        self._plain, self._make, self._connection = plain, make, connection
        self.failed: Callable[[BaseException], None] = lambda error: None
        """Called with the error that ends the run, since a trainer host is lost."""
        self.hosts = TrainerHosts(connection, self.failed)
        self._policies: tuple[str, ...] = ()
        self._starts: dict[str, tuple[str, ...]] = {}
        """The policies with the same initial weights, by the first; they may be in several sets."""
        self._sources: dict[tuple[str, ...], bytes] = {}
        settings = getattr(plain, "config", None)
        self.config = SettingsApart(settings) if hasattr(settings, "check_size") else settings
        record_origin(self, origin_of(plain))

    # --------------------------------------------------------------------------------------------------- life

    def begin_with(self, weights: Mapping[str, Weights]) -> None:
        """Copy the weights of policies with a `from`; `open` sends them to the trainers."""
        self._sources = sent_sources(weights)

    async def open(self, ctx: TrainerContext) -> None:
        """Start a trainer for each set of weights, and open all at once.

        Raises:
            UserError: a process can't be started or is lost.
            Exception: what the first trainer that can't be opened has raised.
        """
        self._policies = tuple(ctx.policies)
        for name in WORK:
            vars(self).pop(name, None)
        if not self._connection.connected:
            await self._plain.open(ctx)
            plain = {name: getattr(self._plain, name) for name in WORK if hasattr(self._plain, name)}
            vars(self).update(plain)
            return
        gpus = bool(self._connection.ray.cluster_resources().get("GPU", 0.0))
        self.hosts = hosts = TrainerHosts(self._connection, self.failed)
        await hosts.start(sets_of(ctx.policies, gpus=gpus))
        secrets = self._connection.secrets(self._connection.settings.variables)
        code = own_code()
        openings = {host: self._opening(host, ctx) for host in hosts.hosts}
        self._sources = {}
        opened = await hosts.all(
            [hosts.raw(host, "open", code, opening, secrets) for host, opening in openings.items()]
        )
        for host, versions in zip(hosts.hosts, opened, strict=True):
            host.versions = versions
        starts = await hosts.all([hosts.trainer(hosts.hosts[0], "same_start", dict(ctx.policies))])
        if not isinstance(starts[0], Mapping):
            fix = "return a mapping: the policies with the same initial weights, by the first of them"
            refuse(self._plain, "same_start", starts[0], fix)
        self._starts = {name: tuple(policies) for name, policies in starts[0].items()}
        device_memory.occupy(self, ())  # so that an engine asks them to leave the GPUs that both have

    def _opening(self, host: TrainerHandle, ctx: TrainerContext) -> bytes:
        planned, number, rooms = self._connection.rooms(), 1, {}
        while (name := trainer_name(host.weights, number)) in planned:
            rooms[f"rank {number}"] = planned[name]
            number += 1
        nothing: Any = None
        policies = {name: ctx.policies[name] for name in host.policies}
        opening = Opening(
            name=host.weights,
            make=self._make,
            ctx=replace(ctx, policies=policies, loss=nothing, chat=nothing),
            actors=Actors(self._connection.settings, rooms),
            sources=[data for names, data in self._sources.items() if {*names} & {*host.policies}],
        )
        try:
            return bytes(self._connection.ray.cloudpickle.dumps(opening))
        except Exception as error:  # what is pickled raises what it likes
            raise ConfigError(
                "the trainer can't be sent elsewhere",
                path="cluster.updates",
                why=f"{type(error).__name__}: {error}",
                fix="keep what can't be pickled out of the configuration, or set cluster.updates=in_turn",
            ) from error

    async def close(self) -> None:
        """Close all trainers, and end their processes."""
        device_memory.vacate(self)
        await self.hosts.close()

    async def offload(self) -> None:
        """Free the memory of all trainers' GPUs until they compute again, if their settings say so."""
        hosts = self.hosts
        if hasattr(self._plain, "offload"):
            await hosts.all([hosts.trainer(host, "offload") for host in hosts.hosts])

    # ------------------------------------------------------------------------------------------------ updates

    async def update(self, samples: Mapping[str, Sequence[Sample]], step: int) -> dict[str, Metrics]:
        """Update all sets of weights at once, each on the samples of its policies."""
        hosts = self.hosts
        await device_memory.reclaim()  # replicas with the GPUs of trainers sleep
        calls = [
            hosts.trainer(
                host, "update", {n: [*rows] for n, rows in samples.items() if n in host.policies}, step
            )
            for host in hosts.hosts
        ]
        metrics = {name: values for part in await hosts.all(calls) for name, values in part.items()}
        return {name: metrics[name] for name in self._policies if name in metrics}

    async def annotate(self, samples: Sequence[Sample], name: str) -> dict[Key, np.ndarray]:
        """The annotations of samples, each by the trainer of its policy, at once."""
        hosts = self.hosts
        await device_memory.reclaim()
        by_host: dict[TrainerHandle, list[Sample]] = {}
        for sample in samples:
            by_host.setdefault(hosts.of(sample.policy), []).append(sample)
        calls = [hosts.trainer(host, "annotate", rows, name) for host, rows in by_host.items()]
        return {key: values for part in await hosts.all(calls) for key, values in part.items()}

    def set_progress(self, share: float) -> None:
        """Tell all trainers the share of the token budget that is spent."""
        self.hosts.trainers_now(self.hosts.hosts, "set_progress", share)

    def optimizer_steps(self, samples: int, siblings: int) -> int:
        """Optimiser steps of one update, for `coterie plan`."""
        return int(self._plain.optimizer_steps(samples, siblings))

    # ------------------------------------------------------------------------------------------------ weights

    def weights(self, policy: str) -> Weights:
        """The version of a policy's weights, and what lets its trainer send them to the engine."""
        return self._elsewhere(policy, self.hosts.of(policy).versions[policy])

    def _elsewhere(self, policy: str, version: int, kept: int | None = None) -> Weights:
        hosts, host = self.hosts, self.hosts.of(policy)

        async def send(ways: Mapping[str, str] | None) -> tuple[Any, bool]:
            answer, stored = host.actor.send.options(num_returns=2).remote(policy, kept, ways)
            introduces = (await hosts.all([hosts.answer(host, answer)]))[0]
            return stored, bool(introduces)

        async def can_send() -> bool:
            return bool(await hosts.raw(host, "can_send"))

        there = Elsewhere(send, partial(hosts.fulfil, host), can_send)
        return Weights(policy=policy, version=version, module=there)

    def keep(self, policy: str) -> None:
        """Keep a policy's present weights, in its trainer."""
        self.hosts.trainers_now([self.hosts.of(policy)], "keep", policy)

    def drop(self, policy: str, version: int) -> None:
        """Forget a kept version."""
        self.hosts.trainers_now([self.hosts.of(policy)], "drop", policy, version)

    @contextmanager
    def weights_at(self, policy: str, version: int) -> Iterator[Weights]:
        """The weights of a kept version."""
        yield self._elsewhere(policy, version, version)

    def digest(self) -> dict[str, str]:
        """sha256 of each policy's weights."""
        digests = self.hosts.trainers_now(self.hosts.hosts, "digest")
        merged = {name: digest for part in digests for name, digest in part.items()}
        return {name: merged[name] for name in self._policies if name in merged}

    # -------------------------------------------------------------------------------------------------- files

    def save(self, folder: Path) -> None:
        """Write the state that one trainer of all policies would write."""
        hosts = self.hosts
        hidden = folder / ".parts"
        folders = {host.weights: hidden / str(number) for number, host in enumerate(hosts.hosts)}
        for host in hosts.hosts:
            self._written(host, "save", (), {}, folders[host.weights])
        with plugin_call(self._plain, "join_states"):
            self._plain.join_states([*folders.values()], folder, self._starts)
        shutil.rmtree(hidden, ignore_errors=True)  # its files were moved
        self._check_joined(folder)

    def _check_joined(self, folder: Path) -> None:
        """Raise PluginError for a state that couldn't be loaded: all work would be lost with it."""
        for host in self.hosts.hosts:
            try:
                files = self._plain.part_of_state(folder, host.policies)
            except UserError as error:
                files = error
            if isinstance(files, UserError) or not files:
                fix = "write a state into the folder, which part_of_state divides for each trainer's policies"
                refuse(self._plain, "join_states", files or None, fix)

    def export(self, policy: str, folder: Path, *, merge: bool = False) -> None:
        """Write a Hugging Face folder or a PEFT adapter."""
        self._written(self.hosts.of(policy), "export", (policy,), {"merge": merge}, Path(folder))

    def _written(self, host: TrainerHandle, method: str, before: Any, named: Any, folder: Path) -> None:
        with marked(folder) as mark:
            arguments = method, compact((before, named)), folder.resolve(), mark
            listed = self.hosts.now({host: ("write", *arguments)})[host]
            fetch(self._files_of(host), listed, folder)

    def _files_of(self, host: TrainerHandle) -> FileCall:
        return lambda method, *arguments: self.hosts.now({host: ("files", method, *arguments)})[host]

    def load(self, folder: Path) -> None:
        """Restore a state, whether one trainer wrote it or several."""
        hosts = self.hosts
        for host in hosts.hosts:
            bring(self._files_of(host), self._plain.part_of_state(folder, host.policies))
        for host, versions in hosts.now({host: ("load",) for host in hosts.hosts}).items():
            host.versions = versions

    # --------------------------------------------------------------------------------------------- warm start

    def bases(self) -> Mapping[str, Sequence[str]]:
        """The policies with the same initial weights, which may be in several sets."""
        return self._starts

    async def warm_start(
        self, policy: str, demonstrations: Callable[[int], Sequence[Demonstration]], config: Any
    ) -> Metrics:
        """Train initial weights in each trainer that has policies with them: all take the same steps.

        The demonstrations of a step are made once all trainers ask for them.
        """
        hosts = self.hosts
        alike = next((group for group in self._starts.values() if policy in group), (policy,))
        firsts = [(host, [name for name in host.policies if name in alike]) for host in hosts.hosts]
        training = {host: names[0] for host, names in firsts if names}
        serving = self._demonstrated([*training], demonstrations)
        warmed = [hosts.raw(host, "warm_start", first, config) for host, first in training.items()]
        _, metrics, *_ = await hosts.all([serving, *warmed])  # its error is the cause of all others
        return metrics  # type: ignore[no-any-return]

    async def _demonstrated(
        self, training: Sequence[TrainerHandle], demonstrations: Callable[[int], Sequence[Demonstration]]
    ) -> None:
        """Answer what trainers ask for, until all have ended."""
        hosts, asking = self.hosts, [*training]
        while asking:
            steps = await asyncio.gather(*(hosts.raw(host, "wanted") for host in asking))
            wanted = {host: step for host, step in zip(asking, steps, strict=True) if step is not None}
            try:
                made = {step: await asyncio.to_thread(demonstrations, step) for step in {*wanted.values()}}
            except BaseException:
                await asyncio.gather(*(hosts.raw(host, "give_up") for host in wanted))
                raise
            sent = {step: compact(rows) for step, rows in made.items()}
            await asyncio.gather(*(hosts.raw(host, "give", sent[step]) for host, step in wanted.items()))
            asking = [*wanted]


def check_apart(trainer: Trainer) -> None:
    """Raise ConfigError for a trainer whose policies can't be divided."""
    if not isinstance(trainer, TrainsApart):
        raise ConfigError(
            f"{origin_of(trainer)} can't train sets of weights at once",
            path="cluster.updates",
            why="it has no same_start, part_of_state and join_states, which divide its state",
            fix="set cluster.updates=in_turn, or choose another trainer (torch, deepspeed, tabular)",
        )


def hosted_trainers(
    plain: Trainer, make: Callable[[], TrainerParts], connection: Connection
) -> HostedTrainers:
    """A `HostedTrainers` with the optional members that the trainer has: `isinstance` asks its class."""
    lacking: dict[str, Any] = {name: None for name in OPTIONAL if getattr(plain, name, None) is None}
    hosted: HostedTrainers = type(HostedTrainers.__name__, (HostedTrainers,), lacking)(
        plain, make, connection
    )
    return hosted
