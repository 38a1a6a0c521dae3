"""Opening of a run: its weights and connections, a warm start of fresh weights, external policies."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from coterie.api.external_policies import ExternalPolicy, load_policies
from coterie.api.starting_weights import begin_from
from coterie.compose import check_hosts, check_packages
from coterie.compose.strata import mix_lines
from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Demonstration, PromptRequest, RolloutJob, StepContext
from coterie.core.rollout.context import JobContext
from coterie.core.rollout.turns import History, Stage, extended, first_stage, named_roles, next_stage
from coterie.core.training.curriculum import trained_on
from coterie.core.training.run import Run
from coterie.core.types import Action, Call, Key, Message
from coterie.core.types.seeding import generator, seed64
from coterie.core.types.splits import Split
from coterie.discovery.members import UsesRunFolder, WarmStarts
from coterie.discovery.optional import ExecutorDefaults, PolicyDefaults, with_defaults
from coterie.estimate.prompt_checks import check_prompts
from coterie.watchdog import watch_loop

log = logging.getLogger("coterie")
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


# ------------------------------------------------------------------------------------ a warm start


async def warm_start(run: Run) -> None:
    """Warm-start every group of policies with the same initial weights, as configured.

    It replaces pretraining where no pretrained weights exist: the oracle plays the roles, with noise so that
    RL has something left to learn, and the policy imitates its messages.

    Raises:
        ConfigError: the trainer has no supervised steps.
    """
    configured = {
        name: with_defaults(policy, PolicyDefaults).warm_start
        for name, policy in run.config.policies.items()
        if policy.warm_started
    }
    if not configured:
        return
    first = next(iter(configured))
    if not isinstance(run.trainer, WarmStarts):
        raise ConfigError(
            "the trainer has no supervised steps", path=f"policies.{first}.warm_start", fix="remove it"
        )
    for group in run.trainer.bases().values():
        settings = configured.get(group[0])
        if settings is None:
            continue
        source = Oracle(run, group, settings.noise, asyncio.get_running_loop())
        log.info(
            "warm start of %s: %d steps of %d demonstrations",
            ", ".join(group),
            settings.steps,
            settings.batch,
        )
        metrics = await run.trainer.warm_start(
            group[0], partial(source.batch, count=settings.batch), settings
        )
        log.info("warm start of %s: loss %.3f", ", ".join(group), metrics.get("loss", float("nan")))


class Oracle:
    """Plays train tasks with the environment's oracle and collects its messages as demonstrations.

    Roles get the prompts that they get in play: with the transition mode's feedback, their history and their
    tools. Each level of a curriculum gives the same number of demonstrations.

    Args:
        policies: the policies whose roles are demonstrated.
        noise: the oracle's rate of errors, as `demonstrate` takes it.
        loop: the event loop that opened the run, whose sandbox serves no other. None: games need none.
    """

    def __init__(
        self,
        run: Run,
        policies: Sequence[str],
        noise: float,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._run, self._noise, self._loop = run, noise, loop
        self._roles = [
            role for stage in run.team.order for role in stage if run.team.policies[role] in policies
        ]
        self._overflow = ""
        """Why a game was broken off, the last one."""
        self._played = trained_on(run.environment, run.curriculum, run.config.seed)

    def batch(self, step: int, count: int) -> list[Demonstration]:
        """`count` demonstrations, in equal shares of the roles. Runs in the trainer's thread."""
        games = self._batch(step, count)
        if self._loop is None:
            return asyncio.run(games)
        return asyncio.run_coroutine_threadsafe(games, self._loop).result()

    async def _batch(self, step: int, count: int) -> list[Demonstration]:
        demonstrations, parts = [], len(self._played)
        for part in range(parts):
            # Where `count` is no multiple of the parts, the parts with one more change from step to step.
            demonstrations += await self._part(step, part, (count + (part + step) % parts) // parts)
        return demonstrations

    async def _part(self, step: int, part: int, count: int) -> list[Demonstration]:
        """`count` demonstrations of one part: the environment, or a level of its curriculum."""
        share = -(-count // len(self._roles))
        by_role: dict[str, list[Demonstration]] = {role: [] for role in self._roles}
        game = 0
        while any(len(rows) < share for rows in by_role.values()):
            for role, demonstration in await self.play_game(step, part, game):
                if role in by_role and len(by_role[role]) < share:
                    by_role[role].append(demonstration)
            game += 1
            if game > 20 * count + 20:
                raise ConfigError(
                    "some roles act too rarely in the oracle's games for a warm start",
                    path="policies",
                    why=f"after {game} games: { {role: len(rows) for role, rows in by_role.items()} }"
                    + (f"; {self._overflow}" if self._overflow else ""),
                )
        return [demonstration for rows in by_role.values() for demonstration in rows][:count]

    async def play_game(self, step: int, part: int, game: int) -> list[tuple[str, Demonstration]]:
        """Play one game; (role, demonstration) of every message."""
        run, (env, tasks) = self._run, self._played[part]
        suffix = f" level {part}" if part else ""
        rng = generator(run.config.seed, f"warm start {step}", f"game {game}{suffix}")
        task = tasks[int(rng.integers(len(tasks)))]
        level = part if run.curriculum is not None else None
        context = run.rollout_side.context(RolloutJob(task=task, level=level), run.engine_client)
        state = env.reset(task, seed64(run.config.seed, Key(task.id), "reset"))
        demonstrations: list[tuple[str, Demonstration]] = []
        history: History = {}
        stage = first_stage(env, run.team.order, state)
        while stage is not None:
            prompts: dict[str, tuple[Any, Sequence[Message]]] = {}
            actions: dict[str, Action] = {}
            for role in stage.roles:
                request = await context.ask(
                    role, state, stage.turn, history.get(role, ()), run.sampler.sampling(role)
                )
                prompts[role] = request.observation, request.messages
                actions[role] = self._act(env, state, request, context, rng)
                overflow = request.lost or request.overflow
                if overflow := overflow or self._too_long(request, actions[role], context):
                    self._overflow = overflow  # the game is over, as an episode would be
                    return demonstrations
                demonstration = Demonstration(
                    policy=request.policy,
                    messages=request.messages,
                    completion=actions[role].text,
                    prompt_ids=request.prompt.ids,
                )
                demonstrations.append((role, demonstration))
            if self._is_last(env, state, stage):
                break
            after = await env.step(
                state, actions, StepContext(task=task, turn=stage.turn, seed=int(rng.integers(2**63)))
            )
            history = extended(history, stage.turn, prompts, actions, after.info)
            state = after.state
            team = run.team
            stage, _ = next_stage(env, team.order, team.max_turns, stage, after, team.max_stages)
        return demonstrations

    def _is_last(self, env: Any, state: Any, stage: Stage) -> bool:
        """Whether no prompt depends on what comes of a stage, whose step may wait for the sandbox."""
        team = self._run.team
        fixed = named_roles(env, team.order, state) is None
        return fixed and stage.stage + 1 >= len(team.order) and stage.turn + 1 >= team.max_turns

    def _too_long(self, request: PromptRequest, action: Action, context: JobContext) -> str:
        """Why a demonstration doesn't fit the context; empty where it does, or where that stops the run."""
        limit = context.codec(request.policy, request.role).context
        length = len(request.prompt.ids) + len(action.calls[0].token_ids)
        if limit is None or length <= limit or self._run.team.overflow == "stop":
            return ""
        return f"a demonstration of role '{request.role}' has {length} tokens, and the context is {limit}"

    def _act(self, env: Any, state: Any, request: PromptRequest, context: JobContext, rng: Any) -> Action:
        """The oracle's message as an action whose call has the tokens that a policy would have sampled."""
        role = request.role
        text = env.demonstrate(state, role, self._noise, rng)
        try:
            parsed = context.team.members[role].role.parse(text, request.observation)
        except PolicyFault as fault:
            raise ConfigError(
                f"role '{role}' can't read the oracle's own message {text!r}",
                path=f"team.roles.{role}",
                why=str(fault),
            ) from None
        tokens = tuple(context.codec(request.policy, role).encode_completion(text))
        call = Call(
            prompt_ids=request.prompt.ids,
            token_ids=tokens,
            logprobs=(0.0,) * len(tokens),
            version=0,
            finish="stop",
            continues=request.prompt.continues,
        )
        return Action(calls=(call,), text=text, parsed=parsed)
