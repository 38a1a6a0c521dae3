"""vLLM in the run's process: an asyncio facade over its synchronous engine."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import os
import random
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from coterie import logs
from coterie.backends.cluster.wire import environment
from coterie.backends.engines.vllm.arguments import check_options, check_platform, engine_arguments
from coterie.backends.engines.vllm.server import (
    Adapter,
    Output,
    Params,
    ServerLost,
    ServerSpec,
    lora_request,
    output,
    prompt,
    sampling_params,
)
from coterie.backends.engines.vllm.transfer import TensorFiles
from coterie.backends.models.compute_threads import compute
from coterie.core.errors import ConfigError, SystemFault

log = logging.getLogger("coterie")

_TURN_SECONDS = 0.02
"""Longest stay in the compute thread: a turn ends with the first result, arrival or cancellation, or now."""


@dataclass(slots=True)
class _Arrival:
    """A request that vLLM hasn't seen yet."""

    id: str
    prompt_ids: tuple[int, ...]
    params: Params
    adapter: Adapter | None


class InProcessServer:
    """One vLLM in this process; its steps run in the compute thread, one task drives them.

    A request joins the batch between two steps. A sync comes between two steps as well.
    """

    _engines = 0
    """vLLM engines of this process; they share its distributed state."""
    _foreign_group = False
    """Whether the process group was there before them: a trainer's."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        settings = spec.settings
        self.transfer = "memory" if settings.transfer == "auto" else settings.transfer
        self.engine: Any = None
        """vLLM's `LLMEngine`; None: it is not running."""
        self._lost_engine: Any = None
        """An engine that can't go on, until `_stop` frees it."""
        self._ids = itertools.count()
        self._arrivals: deque[_Arrival] = deque()
        self._cancelled: deque[str] = deque()
        self._futures: dict[str, asyncio.Future[Output]] = {}
        self.adapters: dict[int, Adapter] = {}
        """Those that are loaded, by id."""
        self._driver: asyncio.Task[None] | None = None
        self.files = TensorFiles()
        self.version = -1
        self.steps = 0
        """Steps of vLLM so far: they go on as long as it computes."""
        self._syncs = 0
        self._sleeps = False

    @property
    def alive(self) -> bool:
        return self.engine is not None

    @property
    def output(self) -> str:
        return logs.where(logs.LIBRARIES)

    async def open(self) -> None:
        await compute(self._start)

    async def generate(self, prompt_ids: tuple[int, ...], params: Params, adapter: Adapter | None) -> Output:
        self._running()
        request = _Arrival(str(next(self._ids)), prompt_ids, params, adapter)
        future: asyncio.Future[Output] = asyncio.get_running_loop().create_future()
        self._futures[request.id] = future
        self._arrivals.append(request)
        if self._driver is None or self._driver.done():
            self._driver = asyncio.ensure_future(self._drive())
        try:
            return await future
        finally:
            if self._futures.pop(request.id, None) is not None and self.alive:
                self._cancelled.append(request.id)  # the caller is gone, not the request

    async def add_adapter(self, adapter: Adapter) -> None:
        await compute(self._add_adapter, adapter)

    async def remove_adapter(self, adapter_id: int) -> None:
        await compute(self._remove_adapter, adapter_id)

    async def sync(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        try:
            await compute(self._sync, named_tensors, version)
        except BaseException as error:
            self._lose(f"a sync of '{self.spec.name}' failed half-way: {error}")
            raise ServerLost(f"the sync of '{self.spec.name}' to version {version} failed") from error

    async def sleep(self) -> None:
        if self._sleeps:
            await compute(lambda: self.engine.sleep(1))

    async def wake(self) -> None:
        if self._sleeps:
            await compute(lambda: self.engine.wake_up())

    async def restart(self) -> None:
        self._lose(f"{self.spec.who} restarts")
        self.adapters.clear()
        self.version = -1
        await compute(self._stop)
        await compute(self._start)

    async def close(self) -> None:
        self._lose(f"{self.spec.who} was closed")
        await compute(self._stop)
        self.files.close()

    # ------------------------------------------------------------------------------------------- requests

    async def _drive(self) -> None:
        """Step while there are requests; the only task that does."""
        while self._futures or self._arrivals or self._cancelled:
            if not self.alive:
                return
            try:
                results = await compute(self._turn)
            except Exception as error:
                reason = f"{self.spec.who} failed: {type(error).__name__}: {error}"
                log.exception("%s; see %s", reason, self.output)
                self._lose(reason)
                return
            for request_id, result in results:
                future = self._futures.pop(request_id, None)
                if future is None or future.done():
                    continue
                if isinstance(result, Output):
                    future.set_result(result)
                else:
                    future.set_exception(result)

    def _turn(self) -> list[tuple[str, Output | Exception]]:
        """Take in what arrived, and step; the results of requests that ended."""
        from vllm.exceptions import VLLMClientError

        engine, results = self.engine, list[tuple[str, Output | Exception]]()
        if engine is None:
            return results  # lost since the turn was asked for
        end = time.monotonic() + _TURN_SECONDS
        while True:
            while self._arrivals:
                request = self._arrivals.popleft()
                try:
                    self._add(request)
                except (VLLMClientError, ValueError) as error:  # of this request; the engine is unaffected
                    results.append((request.id, SystemFault(f"vLLM refused a request: {error}")))
            while self._cancelled:
                engine.abort_request([self._cancelled.popleft()])
            if engine.has_unfinished_requests():
                results += [(o.request_id, output(o)) for o in engine.step() if o.finished]
                self.steps += 1
            if results or not engine.has_unfinished_requests() or time.monotonic() > end:
                return results

    def _add(self, request: _Arrival) -> None:
        self.engine.add_request(
            request.id,
            prompt(request.prompt_ids, self._syncs if self.spec.settings.kv == "keep" else None),
            sampling_params(request.params),
            lora_request=lora_request(request.adapter),
        )

    def _running(self) -> Any:
        if self.engine is None:
            raise ServerLost(f"{self.spec.who} is not running")
        return self.engine

    def _lose(self, reason: str) -> None:
        """Fail the requests in flight; the engine object is freed by the next `_stop`."""
        self.engine, self._lost_engine = None, self.engine or self._lost_engine
        self._arrivals.clear()
        self._cancelled.clear()
        futures, self._futures = self._futures, {}
        for future in futures.values():
            if not future.done():
                future.set_exception(ServerLost(reason))

    # ------------------------------------------------------------------------------------------- the engine

    def _start(self) -> None:
        import torch

        with _environment(spec=self.spec):
            from vllm.engine.arg_utils import EngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.llm_engine import LLMEngine
            from vllm.v1.executor import Executor

            from coterie.backends.engines.vllm import worker

            if self.transfer in ("nccl", "ipc"):
                raise ConfigError(
                    f"`transfer: {self.transfer}` is for a vLLM in processes of its own",
                    path="engine.transfer",
                    fix="set engine.transfer: auto, or engine.process: own",
                )
            if not InProcessServer._engines:
                InProcessServer._foreign_group = torch.distributed.is_initialized()
            if InProcessServer._foreign_group and torch.distributed.get_world_size() > 1:
                raise ConfigError(
                    "vLLM can't share a process with a trainer of several ranks",
                    path="engine.process",
                    why=f"the trainer's process group has {torch.distributed.get_world_size()} ranks",
                    fix="set engine.process: own",
                )
            on_cpu = current_platform.is_cpu()
            backend = worker.MEMORY if self.transfer == "memory" else worker.FILE
            arguments = engine_arguments(self.spec, inside=True, on_cpu=on_cpu, backend=backend)
            check_options(self.spec.settings.options, {field.name for field in fields(EngineArgs)})
            worker.forget_shared_layers()
            config = EngineArgs(**arguments).create_engine_config()
            check_platform(config, self.spec, on_cpu)
            self._sleeps = config.model_config.enable_sleep_mode
            self.engine = LLMEngine(
                vllm_config=config,
                executor_class=Executor.get_class(config),
                log_stats=False,
                multiprocess_mode=False,
            )
            InProcessServer._engines += 1
            self.engine.collective_rpc("init_weight_transfer_engine", args=({},))

    def _stop(self) -> None:
        engine, self._lost_engine = self._lost_engine, None
        if engine is None:
            return
        from vllm.v1.engine import core

        # vLLM's shutdown would also end the groups of the process's other vLLMs, or of the trainer.
        last = InProcessServer._engines == 1
        cleanup = core.cleanup_dist_env_and_memory
        if not last:
            core.cleanup_dist_env_and_memory = lambda: None
        elif InProcessServer._foreign_group:
            core.cleanup_dist_env_and_memory = _end_groups
        try:
            engine.engine_core.shutdown()
        finally:
            core.cleanup_dist_env_and_memory = cleanup
        del engine
        gc.collect()
        InProcessServer._engines -= 1

    def _add_adapter(self, adapter: Adapter) -> None:
        engine = self._running()
        try:
            engine.add_lora(lora_request(adapter))
        except Exception as error:
            raise SystemFault(f"vLLM refused the adapter {adapter.name}: {error}") from error
        self.adapters[adapter.id] = adapter

    def _remove_adapter(self, adapter_id: int) -> None:
        if self.adapters.pop(adapter_id, None) is not None and self.engine is not None:
            self.engine.remove_lora(adapter_id)

    def _sync(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        engine = self._running()
        engine.collective_rpc("start_weight_update")
        for update_info in self._updates(named_tensors):
            engine.collective_rpc("update_weights", args=(update_info,))
        engine.collective_rpc("finish_weight_update")
        engine.set_weight_version(str(version))
        self.version = version
        self._syncs += 1
        self.reset_prefix_cache()
        for adapter in list(self.adapters.values()):  # vLLM forgets them when the base changes
            if Path(adapter.path).is_dir():  # else it is about to be removed
                self._add_adapter(adapter)

    def _updates(self, named_tensors: Iterable[tuple[str, Any]]) -> Iterator[dict[str, Any]]:
        if self.transfer == "memory":
            yield {"tensors": iter(named_tensors)}
            return
        for path in self.files.written(named_tensors):
            yield {"path": str(path)}

    def reset_prefix_cache(self) -> None:
        """Forget the keys and values of the old weights; running requests compute theirs again.

        With `kv: keep` they go on with them, and `prompt` hides them from later requests.
        """
        if self.spec.settings.kv == "recompute" or not self.engine.has_unfinished_requests():
            self.engine.reset_prefix_cache(reset_running_requests=True)


def _end_groups() -> None:
    """End vLLM's process groups, and leave the trainer's; a trainer that closed first has ended them all."""
    import torch
    from vllm.distributed import parallel_state

    if torch.distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        return
    for name, value in list(vars(parallel_state).items()):
        if isinstance(value, parallel_state.GroupCoordinator):
            setattr(parallel_state, name, None)


@contextmanager
def _environment(spec: ServerSpec) -> Iterator[None]:
    """What an engine that starts inside this process needs around it, and what it must leave as it was."""
    import numpy as np
    import torch

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are many, and not about the run
    wanted: dict[str, str | None] = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if spec.settings.kv_gib is not None:
        wanted["VLLM_CPU_KVCACHE_SPACE"] = None  # it would override the setting
    states = random.getstate(), np.random.get_state()
    try:
        with environment(wanted), torch.random.fork_rng():  # vLLM seeds all generators of the process
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
