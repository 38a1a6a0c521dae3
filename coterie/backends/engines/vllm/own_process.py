"""vLLM in processes of its own: `AsyncLLM` here, its engine and its workers apart."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coterie import logs
from coterie.backends.engines.requests import on_gpus
from coterie.backends.engines.vllm.arguments import place
from coterie.backends.engines.vllm.launch import VLLMProcesses, launch
from coterie.backends.engines.vllm.server import (
    Adapter,
    Output,
    Outside,
    Params,
    ServerLost,
    ServerSpec,
    WeightClient,
    lora_request,
    output,
    prompt,
    sampling_params,
    version_number,
    weight_call,
)
from coterie.backends.engines.vllm.transfer import TensorFiles, made_ahead
from coterie.backends.models.device_memory import trainer_gpus
from coterie.backends.models.patience import NoAnswer, Patience
from coterie.core.errors import SystemFault, UserError

log = logging.getLogger("coterie")
T = TypeVar("T")

_DEAD_SECONDS = 0.1
"""How often a call looks whether the server died: vLLM leaves its callers waiting."""
_FILE = "coterie_file"
"""The backend of `worker.FileTransfer`."""
_FILE_BYTES = 2**27
"""Most bytes of one of its files: small beside a model, so that vLLM reads one while the next is written."""


class OwnProcessServer:
    """One vLLM in processes of its own.

    The version of its weights is known at every moment: vLLM is asked for it after each sync, and each output
    says which version drew which of its tokens. An output of an older version than its request's start is a
    fault of the server.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.llm: Any = None
        """vLLM's `AsyncLLM`; None: it is not running."""
        self._processes: VLLMProcesses | None = None
        """Those that were started last."""
        self._versions = [-1]
        """Of the weights, in order; -1 before the first sync."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._open = asyncio.Event()
        """Unset while weights are replaced: no request is sent then."""
        self._open.set()
        self.adapters: dict[int, Adapter] = {}
        """Those that are loaded, by id."""
        self.files = TensorFiles(_FILE_BYTES, at_once=2)
        self._sender: Any = None
        self.placement: Any = None
        self._sleeps = False
        self._half_way = False
        """Whether a sync has begun to replace weights."""
        self.patience = Patience(spec.who, spec.settings.patience)
        """With its requests; each token of any of them is a sign of life."""

    @property
    def alive(self) -> bool:
        return self.llm is not None and not self.llm.errored

    @property
    def output(self) -> str:
        return logs.where(self.spec.log)

    @property
    def version(self) -> int:
        """Of the weights that it has; -1: no sync sent them."""
        return self._versions[-1]

    @property
    def pids(self) -> list[int]:
        """Ids of its processes."""
        return [] if self._processes is None else self._processes.pids

    async def open(self) -> None:
        import torch

        first = self.placement is None
        self.placement = place(
            self.spec.settings,
            self.spec.replica,
            torch.cuda.device_count(),
            trainer_gpus(),
            self.spec.outside,
        )
        if first and self.placement.shared and self.spec.beside_updates:
            log.warning("engine vllm: %s", on_gpus(self.placement.gpus))
        backend = _FILE if self.placement.transfer == "file" else self.placement.transfer
        starting = asyncio.ensure_future(asyncio.to_thread(launch, self.spec, self.placement, backend))
        try:
            self._processes = await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.add_done_callback(_stop_late)
            raise
        self.llm = self._processes.llm
        # vLLM starts it with the first request otherwise, and hears of no failure before.
        self._hear(self.llm.engine_core)
        self.llm._run_output_handler()
        self._versions = [-1]
        self._sleeps = self.llm.model_config.enable_sleep_mode
        if backend == _FILE:
            await self.weight_call("init", {})

    async def generate(self, prompt_ids: tuple[int, ...], params: Params, adapter: Adapter | None) -> Output:
        await self._open.wait()
        self._check_alive()
        if not self._tasks:
            self.patience.seen()
        task = asyncio.ensure_future(self._generate(prompt_ids, params, adapter))
        self._tasks.add(task)
        try:
            return await self.patience.wait(task)
        except NoAnswer as silent:
            await self._end()
            raise ServerLost(str(silent)) from silent
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self.alive or (caller is not None and caller.cancelling()):
                raise  # the caller was cancelled; vLLM has aborted the request
            raise ServerLost(f"{self.spec.who} was lost") from None
        finally:
            self._tasks.discard(task)

    async def add_adapter(self, adapter: Adapter) -> None:
        self._check_alive()
        try:
            await self._call(self.llm.add_lora(lora_request(adapter)))
        except ServerLost:
            raise
        except Exception as error:
            raise SystemFault(f"vLLM refused the adapter {adapter.name}: {error}") from error
        self.adapters[adapter.id] = adapter

    async def remove_adapter(self, adapter_id: int) -> None:
        if self.adapters.pop(adapter_id, None) is not None and self.alive:
            await self._call(self.llm.remove_lora(adapter_id))

    async def sync(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        self._check_alive()
        self._half_way = False
        patience = Patience(f"the sync of '{self.spec.name}'", self.spec.settings.start_seconds)
        try:
            await asyncio.wait_for(self._sync(named_tensors, version), patience.seconds)
        except UserError as error:
            if not self._half_way:
                raise  # there was no room for the first file, and vLLM still has its old weights
            await self._end()
            raise ServerLost(f"the sync of '{self.spec.name}' to version {version} failed") from error
        except BaseException as error:
            await self._end()
            if isinstance(error, asyncio.CancelledError):
                raise
            cause = NoAnswer(str(patience)) if isinstance(error, TimeoutError) else error
            raise ServerLost(f"the sync of '{self.spec.name}' to version {version} failed") from cause
        finally:
            self._open.set()

    async def weight_call(self, call: str, argument: Any) -> None:
        """Make one of vLLM's calls (`server.weight_call`) for whoever sends weights, in a `sync`."""
        self._check_alive()
        await self._call(weight_call(self.llm, call, argument))

    async def sleep(self) -> None:
        """Free the GPU's memory: weights go to the host's, the KV cache is forgotten."""
        self._check_alive()
        if self._sleeps:
            await self._call(self.llm.sleep(level=1, mode="wait"))

    async def wake(self) -> None:
        """Undo `sleep`."""
        self._check_alive()
        if self._sleeps:
            await self._call(self.llm.wake_up())

    async def restart(self) -> None:
        await self._end()
        self.adapters.clear()
        await self.open()

    async def close(self) -> None:
        await self._end()
        self.files.close()

    # ------------------------------------------------------------------------------------------- requests

    async def _generate(self, prompt_ids: tuple[int, ...], params: Params, adapter: Adapter | None) -> Output:
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError

        llm, sampling, known = self.llm, sampling_params(params), len(self._versions) - 1
        try:
            async for result in llm.generate(
                prompt(prompt_ids, known if self.spec.settings.kv == "keep" else None),
                sampling,
                uuid.uuid4().hex,
                lora_request=lora_request(adapter),
            ):
                final = result
        except EngineDeadError as error:
            raise ServerLost(f"{self.spec.who} died") from error
        except (VLLMClientError, ValueError) as error:
            raise SystemFault(f"vLLM refused a request: {error}") from error
        except Exception as error:
            if llm.errored:
                raise ServerLost(f"{self.spec.who} died: {error}") from error
            raise SystemFault(f"vLLM failed in a request: {error.__cause__ or error}") from error
        drawn = output(final)
        if drawn.finish == "abort":  # its tokens are a part of an answer, and nobody asked for that
            if not self.alive:
                raise ServerLost(f"{self.spec.who} was lost")
            raise SystemFault("vLLM aborted a request that nobody cancelled")
        stale = {span.version for span in drawn.spans} - set(self._versions[known:])
        if stale:
            raise SystemFault(
                f"vLLM answered with weights of version {min(stale)}, and it had been given {self.version}"
            )
        return drawn

    # -------------------------------------------------------------------------------------------- weights

    async def _sync(self, named_tensors: Iterable[tuple[str, Any]], version: int) -> None:
        if isinstance(named_tensors, Outside):
            await self._replace(named_tensors.sent, version)
            return
        if self.placement.transfer != "file":
            await self._replace(partial(self._send, named_tensors), version)
            return
        # The first file is written while requests go on.
        async with made_ahead(self.files.written(named_tensors)) as paths:
            await self._replace(partial(self._send_files, paths), version)

    async def _replace(self, send: Callable[[], Awaitable[None]], version: int) -> None:
        """Hold requests in flight, let `send` replace the weights, and go on with them."""
        llm = self.llm
        self._open.clear()
        held = bool(self._tasks)
        if held:
            await self._call(llm.pause_generation(mode="keep", clear_cache=False))
        self._half_way = True
        await send()
        await self._call(llm.update_weight_version(str(version)))
        reached = version_number(await self._call(llm.get_weight_version()))
        if reached != version:
            raise RuntimeError(f"vLLM has version {reached} after the sync to {version}")
        # vLLM keeps the keys and values of the old weights, and would continue prompts with them. It can't
        # forget those of running requests without computing them again; `prompt` hides them from others.
        kept = held and self.spec.settings.kv == "keep"
        if not kept and not await self._call(llm.reset_prefix_cache(reset_running_requests=held)):
            raise RuntimeError("vLLM did not reset its prefix cache")
        self._versions.append(version)
        for adapter in list(self.adapters.values()):  # vLLM forgets them when the base changes
            await self.add_adapter(adapter)
        if held:
            await self._call(llm.resume_generation())

    async def _send(self, named_tensors: Iterable[tuple[str, Any]]) -> None:
        if self._sender is None:
            from coterie.backends.engines.vllm.sender import WeightSender, info_of

            loop = asyncio.get_running_loop()

            def make(call: str, argument: Any) -> None:
                asyncio.run_coroutine_threadsafe(self.weight_call(call, argument), loop).result()

            info = info_of(self.placement.transfer, "127.0.0.1", self.spec.settings.tensor_parallel)
            self._sender = WeightSender(info, WeightClient(make))
        await self._sender.send(named_tensors)

    async def _send_files(self, paths: AsyncIterator[Path]) -> None:
        await self.weight_call("start", None)
        async for path in paths:
            await self.weight_call("update", {"path": str(path)})
        await self.weight_call("finish", None)

    # --------------------------------------------------------------------------------------------- the end

    def _check_alive(self) -> None:
        if not self.alive:
            raise ServerLost(f"{self.spec.who} is not running")

    def _hear(self, core: Any) -> None:
        """Take what the engine's process sends for a sign of life; a request tells its end alone."""
        received = core.get_output_async

        async def heard() -> Any:
            outputs = await received()
            self.patience.seen()
            return outputs

        core.get_output_async = heard

    async def _call(self, work: Awaitable[T]) -> T:
        """Await a call to vLLM; vLLM never ends one whose process died or hangs.

        Raises:
            ServerLost: the server died, or doesn't answer.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        task, patience = asyncio.ensure_future(work), Patience(self.patience.who, self.patience.seconds)
        try:
            for seconds in patience.ticks(_DEAD_SECONDS):
                await asyncio.wait({task}, timeout=seconds)
                if task.done():
                    self.patience.seen()
                    return task.result()
                if not self.alive:
                    raise ServerLost(f"{self.spec.who} died")
            silent = NoAnswer(str(patience))
            await self._end()
            raise ServerLost(str(silent)) from silent
        except EngineDeadError as error:
            raise ServerLost(f"{self.spec.who} died") from error
        finally:
            task.cancel()

    async def _end(self) -> None:
        """Stop the processes; requests in flight raise ServerLost."""
        llm, self.llm = self.llm, None
        if llm is None:
            return
        for task in (*self._tasks, llm.output_handler):  # the latter would report the end as a fault
            task.cancel()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
        assert self._processes is not None, "it was launched"
        await asyncio.shield(asyncio.to_thread(self._processes.stop))


def _stop_late(starting: asyncio.Future[VLLMProcesses]) -> None:
    """Stop a server whose start nobody waits for any more."""
    if not starting.cancelled() and starting.exception() is None:
        starting.result().stop()
