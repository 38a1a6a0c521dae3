"""Starting vLLM's processes: the environment they get, their signals, and how a failed start is reported."""

from __future__ import annotations

import itertools
import multiprocessing.util
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from multiprocessing import resource_tracker
from typing import Any

from coterie import logs
from coterie.backends.cluster.wire import replace_variables
from coterie.backends.engines.vllm import reaper
from coterie.backends.engines.vllm.arguments import (
    ServerPlacement,
    check_options,
    check_platform,
    engine_arguments,
)
from coterie.backends.engines.vllm.server import ServerSpec
from coterie.backends.models.patience import Patience
from coterie.core.errors import ConfigError, UserError

_environment = threading.Lock()
"""Held while `os.environ` is another server's."""
_starts = itertools.count(1)


@dataclass(frozen=True, slots=True)
class VLLMProcesses:
    """A vLLM that runs, and the account of its processes: the engine's and its workers'."""

    llm: Any
    """vLLM's `AsyncLLM`, in this process."""
    mark: str
    """What its processes have in their environment (see `reaper.owned`)."""
    segments: set[str]
    """Their shared memory and semaphores: a process that died names its own no more."""

    @property
    def pids(self) -> list[int]:
        """Ids of those that run: the engine, then its workers."""
        return sorted(reaper.owned(self.mark))

    def stop(self) -> None:
        """End them; blocks. They have nothing to save, and one that hangs obeys SIGKILL alone."""
        segments = self.segments | reaper.segments(self.mark)
        reaper.kill(self.mark)
        self.llm.shutdown(timeout=1.0)
        # `AsyncLLM.__del__` shuts it down again, at the interpreter's end without vLLM's modules.
        self.llm.shutdown = lambda timeout=None: None
        remove_segments(segments)


def launch(spec: ServerSpec, placement: ServerPlacement, backend: str) -> VLLMProcesses:
    """Start vLLM; blocks until it is ready, which takes from 10 seconds to minutes.

    Args:
        backend: of the weight transfer, as vLLM knows it.

    Raises:
        ConfigError: vLLM refuses the settings.
        UserError: its processes don't start.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # its warnings are many, and not about the run
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    on_cpu = current_platform.is_cpu()
    arguments = engine_arguments(spec, inside=False, on_cpu=on_cpu, backend=backend, shared=placement.shared)
    check_options(spec.settings.options, {field.name for field in fields(AsyncEngineArgs)})
    mark = f"{reaper.reaper().token}.{next(_starts)}."
    patience = Patience(spec.who, spec.settings.start_seconds)
    with _variables(spec, placement, mark), _without_signals(), bounded_start(patience, mark) as hangs:
        try:
            config = AsyncEngineArgs(**arguments).create_engine_config()
        except ValueError as error:
            raise ConfigError("vLLM refuses its settings", path="engine", why=str(error)) from error
        check_platform(config, spec, on_cpu)
        try:
            llm = AsyncLLM.from_vllm_config(config, enable_log_requests=False, disable_log_stats=True)
            made = VLLMProcesses(llm, mark, reaper.segments(mark))
            reaper.reaper().keep(made.segments)
            return made
        except (RuntimeError, TimeoutError) as error:
            reaper.kill(mark)
            raise UserError(
                f"vLLM's process for policy '{spec.name}' did not start",
                path="engine",
                why=str(patience if hangs.is_set() else error),
                fix=f"see {logs.where(spec.log)}. Too little memory: lower engine.memory_share or "
                "engine.kv_gib. A script that trains needs `if __name__ == '__main__':`, since vLLM's "
                "processes import it",
            ) from error


def remove_segments(segments: set[str]) -> None:
    """Remove shared memory and semaphores of killed processes; else Python's tracker warns at the end."""
    for name in segments:
        kind = "semaphore" if name.startswith(reaper.SEMAPHORE) else "shared_memory"
        with suppress(FileNotFoundError):
            os.unlink(f"{reaper.SEGMENTS}{name}")
            resource_tracker.unregister(f"/{name.removeprefix('sem.')}", kind)


@contextmanager
def _variables(spec: ServerSpec, placement: ServerPlacement, mark: str) -> Iterator[None]:
    """Set the environment of vLLM's processes until the first of them has started."""
    wanted: dict[str, str | None] = {
        reaper.VARIABLE: mark,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",  # a vLLM inside this process may have switched it off
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # a fork would copy the run's threads' locks, and no mark
        "VLLM_ENGINE_READY_TIMEOUT_S": str(int(spec.settings.start_seconds)),
        **placement.variables,
    }
    if spec.settings.kv_gib is not None:
        wanted["VLLM_CPU_KVCACHE_SPACE"] = None  # it would override the setting
    if placement.pickled:
        # For good, and for all servers: both ends of vLLM's sockets, which are local, must agree on it.
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    _environment.acquire()
    before, undivert = replace_variables(wanted), divert(spec.log)
    restored = threading.Event()

    def restore() -> None:
        if not restored.is_set():
            restored.set()
            undivert()
            replace_variables(before)
            _environment.release()

    ended = threading.Event()

    def watch() -> None:
        # The next replica may start as soon as this one's first process has its environment.
        while not ended.wait(0.1) and not reaper.spawned(mark):
            pass
        time.sleep(0.1)
        restore()

    watcher = threading.Thread(target=watch, daemon=True, name="coterie-launch")
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def divert(who: str) -> Callable[[], None]:
    """Send the output of the process that this thread spawns next to a log; returns what undoes it.

    multiprocessing gives a new process the descriptors of this one, which may be a user's own. So the process
    itself takes the log's, before it imports anything; its workers have them from it.
    """
    log, util, thread = logs.opened(who), vars(multiprocessing.util), threading.get_ident()
    if log is None:
        return lambda: None
    spawn, number = util["spawnv_passfds"], log.fileno()

    def spawn_with_log(path: bytes, arguments: list[Any], descriptors: list[int]) -> int:
        words = list(arguments)
        if threading.get_ident() == thread and "--multiprocessing-fork" in words and "-c" in words:
            program = words.index("-c") + 1
            words[program] = f"import os; os.dup2({number}, 1); os.dup2({number}, 2); {words[program]}"
            descriptors = [*descriptors, number]
        return int(spawn(path, words, descriptors))

    def undo() -> None:
        util["spawnv_passfds"] = spawn
        log.close()

    util["spawnv_passfds"] = spawn_with_log
    return undo


@contextmanager
def bounded_start(patience: Patience, mark: str) -> Iterator[threading.Event]:
    """A context in which processes that are not ready in time are killed; yields whether they were.

    vLLM waits without end for one that hangs before its first message.
    """
    ready, hangs = threading.Event(), threading.Event()

    def watch() -> None:
        if not ready.wait(patience.seconds):
            hangs.set()
            reaper.kill(mark)

    threading.Thread(target=watch, daemon=True, name="coterie-start").start()
    try:
        yield hangs
    finally:
        ready.set()


@contextmanager
def _without_signals() -> Iterator[None]:
    """Block SIGINT and SIGTERM in this thread: processes that it starts inherit that.

    A terminal sends Ctrl-C to all of its processes, and a scheduler SIGTERM to all of the job's. The run then
    ends its step, for which it needs vLLM, and kills vLLM's processes at the end.
    """
    resource_tracker.ensure_running()  # else its start, within vLLM's, would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
