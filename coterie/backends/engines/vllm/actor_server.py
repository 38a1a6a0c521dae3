"""vLLM in a Ray actor, as the engine sees it: its calls go to `replica_actor.ReplicaActor`."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.backends.cluster.hosts import Actors
from coterie.backends.cluster.transfer import NoGroup, NotAtHand
from coterie.backends.cluster.wire import own_code, sent_error, unwrapped
from coterie.backends.engines.vllm import direct
from coterie.backends.engines.vllm.arguments import spec_of_actor
from coterie.backends.engines.vllm.direct import Publisher, packed
from coterie.backends.engines.vllm.replica_actor import Beat, Began, ReplicaActor, vllm_version
from coterie.backends.engines.vllm.server import Adapter, Output, Params, ServerLost, ServerSpec, VLLMServer
from coterie.backends.models.merged_weights import Distant
from coterie.backends.models.patience import NoAnswer, Patience
from coterie.core.errors import UserError

log = logging.getLogger("coterie")
BEAT_SECONDS = 5.0
"""Longest time between two questions whether an actor lives."""
END_SECONDS = 10.0
"""Longest wait for an actor that ends."""


def actor_servers(spec: ServerSpec, actors: Actors) -> list[VLLMServer]:
    """The servers of a base, not yet open: an actor for each replica. They share what is sent to them."""
    publisher = Publisher(actors.ray.put)
    return [
        ActorServer(replace(spec, replica=number), actors, publisher)
        for number in range(spec.settings.replicas)
    ]


class ActorServer:
    """One vLLM in an actor, on any node of the cluster.

    Its death or silence is that of its actor: it is killed then, requests in flight raise ServerLost, and
    `restart` starts another one, wherever the cluster has room.

    Args:
        publisher: of the base's replicas.
    """

    def __init__(self, spec: ServerSpec, actors: Actors, publisher: Publisher) -> None:
        self.spec, self.actors, self.publisher = spec, actors, publisher
        self.who = f"{spec.who}, replica {spec.replica}"
        self.name = f"vllm {spec.name}/{spec.replica}"
        """In the placement of the run."""
        self.way = (spec.ways or {}).get(self.name, "")
        """How base weights come that the trainer's process sends itself; "": through the object store."""
        self.version = -1
        self.began: Began | None = None
        """Where it runs, or ran last."""
        self._handle: Any = None
        self._lost: asyncio.Future[BaseException] | None = None
        """Has the reason once the actor is gone."""
        self._open = False
        self._numbers = itertools.count()
        self._in_flight = self._syncing = 0
        self._watching: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        return self._open

    @property
    def output(self) -> str:
        if self.began is None or not self.began.output:
            return "the logs of Ray on its node"
        return f"{self.began.output} on node {self.began.node}"

    async def open(self) -> None:
        try:
            await self._start()
        except ServerLost as lost:
            raise UserError(
                f"{self.who} did not start",
                path="engine",
                why=str(lost),
                fix="see the logs of Ray. Too little memory: lower engine.memory_share or engine.kv_gib",
            ) from lost

    async def generate(self, prompt_ids: tuple[int, ...], params: Params, adapter: Adapter | None) -> Output:
        number, handle = next(self._numbers), self._handle
        self._in_flight += 1
        try:
            output: Output = await self._ask("generate", number, prompt_ids, params, adapter)
            return output
        except asyncio.CancelledError:
            if self._open and handle is self._handle:
                handle.cancel.remote(number)
            raise
        finally:
            self._in_flight -= 1

    async def add_adapter(self, adapter: Adapter) -> None:
        make = lambda: (_files(path) for path in [adapter.path])  # noqa: E731  # read in a thread
        async with self.publisher.taken(adapter, make) as references:
            async for reference in references:
                await self._bounded(self._ask("add_adapter", adapter, reference))

    async def remove_adapter(self, adapter_id: int) -> None:
        if self._open:
            await self._bounded(self._ask("remove_adapter", adapter_id))

    async def sync(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        self._syncing += 1
        distant = getattr(named_tensors, "distant", None)
        if distant is None:
            work = self._sync(named_tensors, version)
        else:
            work = self._sync_from(distant, named_tensors, version)
        try:
            self.version = await self._bounded(work, self.spec.settings.start_seconds)
        except asyncio.CancelledError as cancelled:
            self._lose(cancelled)  # half-way
            raise
        finally:
            self._syncing -= 1

    async def sleep(self) -> None:
        await self._bounded(self._ask("sleep"))

    async def wake(self) -> None:
        await self._bounded(self._ask("wake"))

    async def restart(self) -> None:
        await self._end()
        await self._start()

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()  # it would take a vLLM that has ended for one that died
        if self._open:
            with suppress(Exception):  # it is killed anyway
                async with asyncio.timeout(END_SECONDS):
                    await self._ask("close")
        await self._end()

    # ------------------------------------------------------------------------------------------- the actor

    async def _start(self) -> None:
        """Start an actor, and vLLM in it.

        Raises:
            ServerLost: it died meanwhile.
            UserError: vLLM can't start, or the cluster has no room for it.
        """
        settings, on_gpus = self.spec.settings, self.actors.on_gpus
        self.version, self._lost = -1, asyncio.get_running_loop().create_future()
        self._handle = self.actors.actor(
            ReplicaActor,
            name=self.name,
            cpus=self.actors.settings.replica_cpus,
            gpus=float(settings.tensor_parallel) if on_gpus else 0.0,
        )
        try:
            await self._placed()
            files = None if self.spec.stored else await asyncio.to_thread(_files, self.spec.model)
            shared = self.actors.shared(self.name)
            spec = spec_of_actor(self.spec, on_gpus=on_gpus, shared=shared, way=self.way)
            opening = self._ask("open", own_code(), vllm_version(), spec, files)
            self.began = await self._bounded(opening, settings.start_seconds)
        except BaseException as error:
            self._lose(error)
            raise
        self._open = True
        self._watching = asyncio.ensure_future(self._watch(self._lost))
        self._watching.add_done_callback(_report)

    async def _placed(self) -> None:
        """Wait until the actor has a node.

        Raises:
            UserError: the cluster has no room in `start_seconds`.
        """
        settings, placing = self.spec.settings, asyncio.ensure_future(self._ask("place"))
        try:
            for seconds in (self.actors.settings.timeout, settings.start_seconds):
                await asyncio.wait({placing}, timeout=seconds)
                if placing.done():
                    placing.result()
                    return
                room = await asyncio.to_thread(self.actors.room)
                log.warning("%s has not begun after %.0f s; the cluster has %s free", self.who, seconds, room)
        finally:
            placing.cancel()
        raise UserError(
            f"the cluster has no room for {self.who}",
            path="engine.replicas",
            why=f"it takes {self.actors.settings.replica_cpus:g} CPUs"
            + (f" and {settings.tensor_parallel} GPUs of one node" if self.actors.on_gpus else "")
            + f", and {room} are free",
            fix="add nodes, or lower engine.replicas or cluster.workers",
        )

    async def _ask(self, method: str, *arguments: Any) -> Any:
        """Call a method of the actor.

        Raises:
            ServerLost: the actor is gone, or its vLLM is.
            Exception: what the method raised.
        """
        handle = self._handle
        if handle is None:
            raise ServerLost(f"{self.who} is not running")
        try:
            return unwrapped(await self._unless_lost(getattr(handle, method).remote(*arguments)))
        except self.actors.ray.exceptions.RayError as error:
            reason = ServerLost(f"{self.who} died: {str(error).strip().partition(chr(10))[0]}")
            self._lose(reason, handle)
            raise reason from None
        except ServerLost as error:
            self._lose(error, handle)
            raise

    async def _unless_lost(self, work: Awaitable[Any]) -> Any:
        """The result of what the actor does, or another process with it.

        Raises:
            ServerLost: the actor is gone meanwhile.
        """
        task, lost = asyncio.ensure_future(work), self._lost
        assert lost is not None, "the actor was started"
        try:
            await asyncio.wait({task, lost}, return_when=asyncio.FIRST_COMPLETED)
            if lost.done():
                raise self._loss(lost.result())
            return task.result()
        finally:
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()  # asyncio would print one that nobody asks for

    async def _bounded(self, work: Awaitable[Any], seconds: float = 0.0) -> Any:
        """The result of `work`; an actor without an answer is killed.

        Raises:
            ServerLost: there was none.
        """
        try:
            return await Patience(self.who, seconds or self.spec.settings.patience).wait(work)
        except NoAnswer as silent:
            self._lose(silent)
            raise ServerLost(str(silent)) from silent

    async def _watch(self, lost: asyncio.Future[BaseException]) -> None:
        """Ask the actor whether it lives, until it is gone."""
        seconds, patience = self.actors.settings.timeout, self.spec.settings.patience
        stuck, progress = Patience(self.who, patience), -1
        while not lost.done():
            try:
                beat: Beat = await Patience(self.who, seconds).wait(self._ask("beat"))
            except NoAnswer as silent:
                self._lose(silent)
                return
            except ServerLost:
                return
            if beat.progress != progress or self._syncing or not self._in_flight or beat.progress < 0:
                stuck.seen()
            progress = beat.progress
            if not beat.alive and not self._syncing:
                self._lose(ServerLost(f"{self.who} died"))
            elif not stuck.left:
                self._lose(NoAnswer(str(stuck)))
            await asyncio.wait({lost}, timeout=min(seconds / 4, patience / 4, BEAT_SECONDS))

    def _lose(self, reason: BaseException, handle: Any = None) -> None:
        """Kill the actor, and let requests in flight raise ServerLost.

        Args:
            handle: of the actor that is meant, if another one may have its place.
        """
        if self._handle is None or (handle is not None and handle is not self._handle):
            return
        killed, self._handle, self._open = self._handle, None, False
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(reason)
        self.actors.remove(killed)

    def _loss(self, reason: BaseException) -> ServerLost:
        if isinstance(reason, ServerLost):
            return reason
        lost = ServerLost(str(reason) or f"{self.who} was ended")
        lost.__cause__ = reason
        return lost

    async def _end(self) -> None:
        """Kill the actor, and wait until it is gone: another one may need its place."""
        handle = self._handle
        self._lose(ServerLost(f"{self.who} was ended"))
        if self._watching is not None:
            self._watching.cancel()
        if handle is not None:
            with suppress(TimeoutError, self.actors.ray.exceptions.RayError):
                async with asyncio.timeout(END_SECONDS):
                    await handle.place.remote()

    # ------------------------------------------------------------------------------------------- weights

    async def _sync(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> int:
        failed: Exception | None = None
        make = partial(packed, named_tensors)
        async with self.publisher.taken(named_tensors, make) as references:
            await self._ask("begin_sync", version)
            try:
                async for reference in references:
                    if not await self._ask("take", reference):
                        break
            except ServerLost:
                raise
            except Exception as error:  # of the tensors
                failed = error
        return await self._end_sync(version, failed)

    async def _sync_from(self, distant: Distant, named_tensors: Any, version: int) -> int:
        """Let the process that has the tensors send them."""
        way, failed = self.way, None
        await self._ask("begin_outside" if way else "begin_sync", version)
        receiver = direct.WeightReceiver(
            self.who, self.name, self._handle, way, self.spec.settings.tensor_parallel,
            self.actors.settings.timeout,
        )  # fmt: skip
        send = partial(direct.send, receiver=receiver, layout=named_tensors.layout)
        try:
            await self._unless_lost(distant.send_by(send))
        except NoGroup as none:
            self._lose(none)
            if self.actors.settings.weights != "auto":
                raise direct.refused(receiver, none) from none
            self.way = ""
            log.warning("%s gets its weights through Ray's object store from now on: %s", self.who, none)
            raise ServerLost(str(none)) from None
        except (ServerLost, NotAtHand) as gone:
            self._lose(gone)
            raise
        except Exception as error:
            failed = error
        return await self._end_sync(version, failed)

    async def _end_sync(self, version: int, failed: Exception | None) -> int:
        """End a sync; returns the version that vLLM has."""
        error = b"" if failed is None else sent_error(failed, "in the engine's process")
        reached: int = await self._ask("end_sync", error)
        if reached != version:
            raise ServerLost(f"{self.who} has version {reached} after the sync to {version}")
        return reached


def _report(watching: asyncio.Task[None]) -> None:
    if not watching.cancelled() and (error := watching.exception()) is not None:
        log.error("nobody watches a vLLM any more: %s: %s", type(error).__name__, error)


def _files(folder: str) -> dict[str, bytes]:
    """The files of a folder, which may be on another node than the actor."""
    return {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
