"""Opening of a run: its weights and connections, a warm start of fresh weights, external policies."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from coterie.api.external_policies import ExternalPolicy, load_policies
from coterie.api.starting_weights import begin_from
from coterie.api.warm_start import warm_start
from coterie.compose import check_hosts, check_packages
from coterie.compose.strata import mix_lines
from coterie.core.plugins.origin import plugin_call
from coterie.core.training.curriculum import trained_on
from coterie.core.training.run import Run
from coterie.core.types.splits import Split
from coterie.discovery.members import UsesRunFolder
from coterie.discovery.optional import ExecutorDefaults, with_defaults
from coterie.estimate.prompt_checks import check_prompts
from coterie.watchdog import watch_loop

T = TypeVar("T")


def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine; where a loop runs in this thread already, as in a notebook, in a thread of its own."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)
    outcome: Future[T] = Future()
    thread = threading.Thread(target=_run_and_close, args=(loop, task, outcome), name="coterie-run")
    try:
        thread.start()  # an interrupt may come while it starts, too
        return outcome.result()
    except BaseException:  # the cell is interrupted: else the thread would train on, and be waited for
        if not loop.is_closed():
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        if thread.ident is not None:
            thread.join()


def _run_and_close(loop: asyncio.AbstractEventLoop, task: asyncio.Task[T], outcome: Future[T]) -> None:
    try:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            result = runner.run(_awaited(task))
    except BaseException as error:
        outcome.set_exception(error)
    else:
        outcome.set_result(result)


async def _awaited(task: asyncio.Task[T]) -> T:
    return await task


async def open_run(
    run: Run,
    restore: Path | None = None,
    external: Sequence[ExternalPolicy] = (),
    split: Split = "train",
) -> None:
    """Open a run; afterwards the engine has all weights, and the run can play.

    Args:
        restore: a checkpoint's folder; None: the weights that `from` names, or fresh ones, with a warm start
            where a policy has one.
        external: policies of other runs or folders, which the engine plays beside those of the team.
        split: the tasks that will be played; the prompts of the user's records are checked.

    Raises:
        ConfigError: the weights of a `from` can't be taken, a warm start is impossible, or an external policy
            can't be loaded; or no first prompt of a role fits its context.
    """
    check_packages(run.config)
    check_hosts(run)
    run.closing.callback(watch_loop(run.config.schedule.patience))  # closing is watched, too
    begin = time.perf_counter()
    _say(run, _loading(run))
    if run.folder is not None:
        with_defaults(run.interrupt, InterruptDefaults).runs_in(run.folder.path)
        sources = (source.plugin for source in run.reward_sources)
        for plugin in (run.engine, *run.rollout_side.resources, *sources):
            if isinstance(plugin, UsesRunFolder):
                with plugin_call(plugin, "use_run_folder"):
                    plugin.use_run_folder(run.folder.path)
    if restore is None:
        await begin_from(run)
    await run.open(restore, extra_policies={policy.name: policy.config for policy in external})
    if (processes := with_defaults(run.executor, ExecutorDefaults).processes) is not None:
        with_defaults(run.progress, ProgressDefaults).follow(processes)
    if restore is None:
        await warm_start(run)
    await run.sync()
    await load_policies(run, external)
    await check_prompts(run, split)
    schedule = run.config.schedule
    seconds = time.perf_counter() - begin
    if run.ahead and split == "train":
        how = (
            "pinned: one version of the weights plays each"
            if run.pinned
            else "in flight: the newest weights play"
        )
        steps = "1 step is" if run.ahead == 1 else f"up to {run.ahead} steps are"
        _say(run, f"{steps} played ahead, {how} (schedule.play)")
    if split == "train":
        _say_mix(run)
    _say(run, f"loaded in {seconds:.0f}s; step {run.state.step + 1} plays {schedule.tasks_per_step} tasks")


class InterruptDefaults:
    """An interrupt that doesn't say how to go on where it stops the run at once."""

    def runs_in(self, folder: Path) -> None:
        """Take the folder of the run that begins."""


class ProgressDefaults:
    """A display of progress that shows ended steps alone."""

    def say(self, text: str) -> None:
        """Show a line at once, also before the first step."""

    def follow(self, processes: Callable[[], Mapping[str, int]]) -> None:
        """Take what says, while a step lasts, what the run's processes do."""


def _say(run: Run, text: str) -> None:
    if run.folder is not None and not run.finished:
        with_defaults(run.progress, ProgressDefaults).say(text)


def _say_mix(run: Run) -> None:
    """Say how many train tasks there are of each class."""
    if run.folder is not None and run.progress is not None:
        with plugin_call(run.environment, "tasks"):
            played = trained_on(run.environment, run.curriculum, run.config.seed)[run.level or 0]
        for line in mix_lines(*played, run.config.schedule.stratify):
            _say(run, line)


def _loading(run: Run) -> str:
    names = ", ".join(f"'{name}'" + (f" from {policy.from_}" if policy.from_ else "")
                      for name, policy in run.config.policies.items())  # fmt: skip
    place = run.folder.path if run.folder is not None else ""
    return f"writing to {place}; loading {names} for the engine {run.config.engine['type']}"
