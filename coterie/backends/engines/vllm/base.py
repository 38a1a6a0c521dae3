"""One base model in vLLM: its servers and their recovery, its adapters, and the policies that it serves."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.backends.engines.vllm.replicas import Replicas
from coterie.backends.engines.vllm.server import Adapter, Output, Params, ServerLost, ServerSpec, VLLMServer
from coterie.backends.engines.vllm.settings import VLLMConfig, VLLMPolicy, may_be_inside
from coterie.backends.engines.vllm.transfer import AdapterVersions, remove
from coterie.backends.models import device_memory
from coterie.backends.models.compute_threads import compute
from coterie.backends.models.loading import context_of, load_folder, load_model
from coterie.backends.models.precision import dtype_of
from coterie.backends.models.sources import bases_of
from coterie.core.errors import SystemFault, UserError
from coterie.core.types import Key, Weights

if TYPE_CHECKING:
    from coterie.backends.cluster.hosts import Actors
    from coterie.backends.engines.vllm.sync import BaseWeights

log = logging.getLogger("coterie")


class BaseServers:
    """The servers of one base model, and what they must have: the newest weights and adapters.

    Args:
        weights: the base weights that are sent; None: the servers read them from `spec.model` themselves.
    """

    def __init__(self, spec: ServerSpec, servers: list[VLLMServer], weights: BaseWeights | None) -> None:
        self.spec, self.weights = spec, weights
        self.adapters = AdapterVersions(self._discard)
        self._version = -1
        self._syncs = 0
        """Syncs so far; a version may come twice, e.g. of a frozen base that was read again."""
        self._synced: dict[int, int] = {}
        """By the server's `id`: the newest sync that it has."""
        self._fingerprint: int | None = None
        """Of the weights that the servers have."""
        self._fresh = False
        """Whether the trainer has just handed the weights over, so that they are the newest."""
        self.replicas = Replicas(
            servers,
            name=spec.name,
            restarts=3 if spec.settings is None else spec.settings.restarts,
            refill=self.refill,
            current=self.has_newest,
            permit=self._check_at_hand,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        await device_memory.make_room()
        await self.replicas.open()
        if not self.spec.beside_updates:
            device_memory.lend(self.replicas)  # while the trainer computes

    async def close(self) -> None:
        device_memory.withdraw(self.replicas)
        for task in tuple(self._tasks):
            task.cancel()
        await self.replicas.close()
        self.adapters.close()

    @property
    def current(self) -> bool:
        """Whether the servers have the present values of the base weights."""
        return self.weights is None or self._fingerprint == self.weights.fingerprint() is not None

    # --------------------------------------------------------------------------------------------- weights

    async def sync(self, weights: BaseWeights, version: int) -> None:
        """Send base weights to all servers; a server whose sync failed is restarted with them.

        Raises:
            UserError: a name or a shape is wrong, or the weights can't be written; the second failure.
        """
        weights.check()
        self.weights, self._version = weights, version
        self._syncs += 1
        self._fingerprint = weights.fingerprint()
        self.replicas.forgive()
        self._fresh = True
        try:
            await self.replicas.each(self._send, refilled=True)
        finally:
            self._fresh = False

    async def add(self, policy: str, adapter: Adapter, version: int) -> None:
        """Load an adapter into all servers, then make it the policy's newest one.

        Raises:
            UserError: vLLM refuses it.
        """
        self.replicas.forgive()
        try:
            await self.replicas.each(lambda server: server.add_adapter(adapter), refilled=False)
        except SystemFault as fault:
            remove(Path(adapter.path))
            raise UserError(
                "vLLM can't load the adapter", path=f"policies.{policy}", why=str(fault)
            ) from fault
        self.adapters.versions.put(policy, version, adapter)

    # -------------------------------------------------------------------------------------------- requests

    async def generate(
        self,
        prompt_ids: tuple[int, ...],
        params: Params,
        policy: str | None,
        key: Key | None = None,
        version: int | None = None,
    ) -> tuple[Output, int | None]:
        """Draw for one request, again on another or a restarted server if its server died.

        Args:
            policy: whose adapter computes it; None: the base.
            key: of the request: its episode's requests go to one server.
            version: of the adapter; None: the newest.

        Returns:
            The output, and the adapter's version (None: the base).

        Raises:
            SystemFault: the request failed, its servers died too often, or the version is gone.
        """

        async def send(server: VLLMServer) -> tuple[Output, int | None]:
            if policy is None:
                return await server.generate(prompt_ids, params, None), None
            with self.adapters.use(policy, version) as (adapter, used):
                return await server.generate(prompt_ids, params, adapter), used

        return await self.replicas.run(key, send)

    # -------------------------------------------------------------------------------------------- recovery

    def _check_at_hand(self) -> None:
        """Raise SystemFault unless the trainer's tensors are those of the version that a server would get."""
        if self.weights is not None and not (self._fresh or self.current):
            raise SystemFault(f"vLLM died, and the weights of version {self._version} are no longer at hand")

    async def refill(self, server: VLLMServer) -> None:
        """Give a restarted server the newest weights, and all adapters that requests may name."""
        await self._send(server)
        loaded: set[int] = set()
        # Where steps are played ahead, versions come and go meanwhile.
        while adapter := next((each for each in self.adapters.held if each.id not in loaded), None):
            loaded.add(adapter.id)
            try:
                await server.add_adapter(adapter)
            except ServerLost:
                raise
            except SystemFault:
                if adapter in self.adapters.held:
                    raise
                log.debug("the adapter %s went while vLLM was restarted", adapter.name)
            else:
                if adapter not in self.adapters.held:
                    await server.remove_adapter(adapter.id)

    async def _send(self, server: VLLMServer) -> None:
        """Send the newest weights to one server.

        Raises:
            SystemFault: the trainer changed them while they were read.
        """
        number = self._syncs
        self._synced.pop(id(server), None)  # until it has all of them, also where it is given the same again
        if self.weights is not None:
            await server.sync(self.weights, self._version)
            if self.spec.beside_updates and not self.spec.adapters and number == self._syncs:
                # The trainer updates in the compute thread: there no update is half done.
                await compute(self._check_at_hand)
        self._synced[id(server)] = number

    def has_newest(self, server: VLLMServer) -> bool:
        """Whether a server has the newest base weights."""
        return self.weights is None or (
            server.version == self._version and self._synced.get(id(server)) == self._syncs
        )

    def _discard(self, adapter: Adapter) -> None:
        task = asyncio.ensure_future(self._remove(adapter))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def _remove(self, adapter: Adapter) -> None:
        for server in self.replicas.servers:
            if server.alive:
                with suppress(ServerLost):  # it is restarted without old adapters
                    await server.remove_adapter(adapter.id)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("vLLM of '%s' keeps an adapter that nobody uses: %s", self.spec.name, error)


@dataclass(slots=True)
class Served:
    """Where a policy's requests are computed."""

    base: BaseServers
    adapted: bool
    """Whether the policy is an adapter of the base."""
    version: int
    context: int
    vocabulary: int
    """Rows of the embedding."""
    trained: bool
    """Whether the base weights are the policy's own, so that a sync changes its version in flight."""


def with_module(weights: Weights, config: VLLMPolicy, vocabulary: tuple[str, ...]) -> Weights:
    """The handle with the module that its folder or its policy's `model` describes, loaded here."""
    policy = weights.policy
    if weights.folder is not None:
        module, tokenizer = load_folder(weights.folder, policy=policy)
    else:
        config = config.model_copy(update={"dtype": dtype_of(config)})
        loaded = load_model(config, policy=policy, seed=0, vocabulary=vocabulary)
        module, tokenizer = loaded.module, loaded.tokenizer
    return Weights(
        policy=policy, version=weights.version, module=module, tokenizer=weights.tokenizer or tokenizer
    )


def longest(configs: Mapping[str, VLLMPolicy], policy: str, config: Any, tokenizer: Any) -> int:
    """The longest context of the policies with the policy's model."""
    same = {name: other for name, other in configs.items() if other.model == configs[policy].model}
    return max(context_of(config, tokenizer, policy=name, limit=each.context) for name, each in same.items())


def share(configs: Mapping[str, VLLMPolicy]) -> float:
    """The share of the memory that one base may take: the number of bases follows from the policies."""
    resolved = {
        name: config.model_copy(update={"dtype": dtype_of(config)}) for name, config in configs.items()
    }
    return 1 / max(1, len(bases_of(resolved)))


def runs_inside(settings: VLLMConfig) -> bool:
    """Whether vLLM runs in the run's process, beside what is in it now.

    Raises:
        ConfigError: `process: inside` with what needs other processes.
    """
    return may_be_inside(settings) and (settings.process == "inside" or not _group_of_ranks())


def _group_of_ranks() -> bool:
    """Whether torch's default process group has several ranks: vLLM makes a group of its own there."""
    torch = sys.modules.get("torch")  # a trainer that made a group has imported it
    group = None if torch is None else torch.distributed
    return (
        group is not None and group.is_available() and group.is_initialized() and group.get_world_size() > 1
    )


def make_servers(spec: ServerSpec, actors: Actors | None = None) -> list[VLLMServer]:
    """The servers of a base, not yet open: one for each replica.

    Args:
        actors: starts an actor for each, on any node of a cluster; None: they run on this machine.
    """
    settings: VLLMConfig = spec.settings
    if actors is not None:
        if not spec.ways:
            log.info(
                "engine vllm: base weights go to the replicas of '%s' through Ray's object store", spec.name
            )
        from coterie.backends.engines.vllm.actor_server import actor_servers

        return actor_servers(spec, actors)
    if runs_inside(settings):
        from coterie.backends.engines.vllm.in_process import InProcessServer

        return [InProcessServer(spec)]
    from coterie.backends.engines.vllm.own_process import OwnProcessServer

    return [OwnProcessServer(replace(spec, replica=index)) for index in range(settings.replicas)]
