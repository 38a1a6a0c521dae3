"""Training of a team: `coterie.train`, which `coterie run` calls too."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from threading import Event
from typing import Any

from coterie import logs
from coterie.api.checkpoints import CheckpointStore
from coterie.api.discarded import Cancelled, Discarded
from coterie.api.episodes import action_row, paths_of
from coterie.api.open_run import open_run, to_its_end
from coterie.api.resume import Resumption, resumption
from coterie.api.rollouts import rollout_recorder, rows_on_path
from coterie.api.rows import read_metrics
from coterie.api.run_files import check_out, claimed, new_run, resumable
from coterie.api.run_record import RunRecord, read_record
from coterie.api.signals import Signals
from coterie.api.starting_weights import find_sources
from coterie.compose import check_hosts, check_packages, compose, prepare, trained_splits
from coterie.core.config import Resolved, RunConfig
from coterie.core.errors import ConfigError, RunFolderError
from coterie.core.loop import train as train_loop
from coterie.core.protocols import Batch
from coterie.core.storage.jsonl import read_lines
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.metrics_writer import MetricsWriter
from coterie.core.training.run import Progress, Run
from coterie.core.training.steps_in_play import Recorder
from coterie.core.types import Credit
from coterie.core.types.messages import encodable
from coterie.core.types.seeding import generator
from coterie.estimate.cost import warn_of_tasks
from coterie.estimate.least import (
    acceptable,
    check_size,
    check_trees,
    warn_of_size,
    warn_of_trees,
)
from coterie.estimate.val_interval import evaluating
from coterie.recipes import load

log = logging.getLogger("coterie")
Source = str | Path | Mapping[str, Any] | RunConfig


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The state of a run when `train` returns."""

    folder: Path
    step: int
    steps: int | None
    """Steps of the schedule; None where only a token budget ends the run."""
    metrics: Mapping[str, Any]
    finished: bool
    seconds: float
    """Seconds of training in this call."""
    tokens: int = 0
    """Tokens generated in training, over all calls."""
    signals: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Signs that nothing was learned, by name as in the metrics `signal/<name>`: first and last step."""
    cancelled: Cancelled = field(default_factory=Cancelled)
    """The steps that were played ahead when the call ended."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """What the run was made with: versions of packages, and the beginning of each plugin file's digest."""


def train(
    source: Source | None = None,
    *,
    overrides: Sequence[str] = (),
    scale: str | None = None,
    overlays: Sequence[str] = (),
    out: Path | str | None = None,
    resume: Path | str | None = None,
    progress: Progress | None = None,
    interrupt: Event | None = None,
    allow_change: bool = False,
    accept_changes: Sequence[str] = (),
    any_size: bool = False,
) -> TrainResult:
    """Train a team.

    Args:
        source: a recipe's name, a YAML file, a table or a RunConfig; None with `resume`.
        overrides: settings as `key=value`.
        scale: a block of the recipe's `scales`.
        overlays: names of overlays or their YAML files, applied over the recipe from left to right.
        out: the run's folder; default `runs/<recipe>-<time>`.
        resume: a run's folder; training continues from its last undamaged checkpoint.
        progress: called after each step.
        interrupt: once it is set, the current step is finished and saved, and the call returns.
        allow_change: with `resume`, accept changes of what the run does from then on, as of a learning rate.
        accept_changes: with `resume`, files, or the settings that name them, whose contents may have changed.
        any_size: start although a step takes more than the machine's memory, or than an hour.

    Raises:
        UserError: something in the input is wrong, or the disk is full.
        TooManyMissing: a step has more missing scores than `schedule.max_missing` allows.
    """
    resumed: Resumption | None = None
    if resume is not None:
        resumed = resumption(source, Path(resume), overrides, scale, overlays, allow_change, accept_changes)
        run, folder = resumed.run, resumed.folder
        warn_of_trees(run)
    elif source is None:
        raise ConfigError("nothing to train", fix="give a recipe, a file, or a run folder to resume")
    else:
        _check_new(out, {"--allow-change": allow_change, "--accept-changes": accept_changes})
        run = _composed(load(source, overrides=overrides, scale=scale, overlays=overlays), any_size)
        folder = Path(out or f"runs/{run.resolved.name}-{time.strftime('%Y%m%d-%H%M%S')}")
    run = _checked(run, any_size or resumed is not None)  # a run that ran before is warned of its size
    record = RunRecord.of(run)
    if resumed is None:
        find_sources(run)
        claim = new_run(folder, run.resolved.text(), record)
    else:
        claim = claimed(RunFolder.open(folder))
    with claim as run_folder:
        store = CheckpointStore(run_folder.checkpoints, run.config.schedule.keep_checkpoints)
        run = replace(run, folder=run_folder, store=store, recorder=step_recorder(run_folder, run.config),
                      progress=progress, interrupt=interrupt, facts=record.facts)  # fmt: skip
        with resumable(run_folder, store), logs.kept_in(run_folder.logs):
            result = to_its_end(_train(run, store, resumed))
        recorded = read_record(folder)
        return replace(result, versions=recorded.used if recorded is not None else {})


def _check_new(out: Path | str | None, of_resumes: Mapping[str, Any]) -> None:
    """Raise what is wrong with the arguments of a new run, before a configuration is read."""
    check_out(out)
    for option, value in of_resumes.items():
        if value:
            what, why = f"{option} is for a resumed run", "a new run has nothing to change"
            raise ConfigError(what, why=why, fix="leave it out, or add --resume DIR")


def _composed(resolved: Resolved, any_size: bool) -> Run:
    """Compose a new run; what its trees take is checked before the engine and the trainer are imported."""
    splits = trained_splits(resolved.config.schedule)
    prepared = prepare(resolved, splits)
    with acceptable(any_size):
        check_trees(prepared.side, prepared.config, splits)
    return prepared.make()


def _checked(run: Run, any_size: bool) -> Run:
    """Raise errors of schedule, packages, tasks or size before a folder is made; warn of what looks odd.

    Returns:
        the run, with its number of steps between evaluations.
    """
    warn_of_size(run)
    _ = run.end, run.order
    check_packages(run.config)
    check_hosts(run)
    with acceptable(any_size):
        check_size(run)
    warn_of_tasks(run)
    if all(policy.train == "none" for policy in run.config.policies.values()):
        log.warning(
            "nothing is trained: every policy has train: none; the run plays and records its games "
            "(`coterie eval` with the run's folder measures the team)",
        )
    return evaluating(run)


async def _train(run: Run, store: CheckpointStore, resumed: Resumption | None) -> TrainResult:
    signals = Signals()
    run = replace(run, watch=signals)
    assert run.folder is not None
    resuming = resumed is not None
    checkpoint = store.latest() if resuming else None
    if resuming and checkpoint is None and store.steps():
        raise RunFolderError(
            f"every checkpoint in {run.folder.path} is damaged",
            why="see the warnings above",
            fix="start a new run in another folder",
        )
    try:
        reached = checkpoint.step if checkpoint is not None else -1
        if checkpoint is not None:
            run.restore(checkpoint)
            limit = run.config.schedule.stop_after
            if run.finished or (limit is not None and run.state.seconds >= limit):  # no step is left
                state = run.state
                why = "finished" if run.finished else "at its end (schedule.stop_after)"
                log.info("the run is %s: %d steps, %d tokens", why, state.step, state.tokens)
                if resumed is not None and resumed.changes:
                    fix = "make the run longer (schedule.steps, schedule.stop_after) if they should have one"
                    what = "the changed settings have no effect, and the folder doesn't keep them"
                    log.warning("%s: %s", what, fix)
                return TrainResult(
                    run.folder.path, state.step, run.end.steps, {}, run.finished, 0.0, state.tokens
                )
        elif resuming:
            log.warning("%s was stopped before its first checkpoint: starting over", run.folder.path)
        later = Discarded.after(run.folder, store, checkpoint) if resuming else None
        if later is not None:
            later.say()
        run.metrics_writer.open(run.folder, run.state.step)
        await open_run(run, checkpoint.path if checkpoint is not None else None)
        if resumed is not None and later is not None:  # what can't be opened changes nothing
            later.keep()
            run.metrics_writer.truncate_after(reached)
            signals.recall(read_metrics(run.folder.metrics))  # which warns of the rows that are lost
            resumed.begin(max(reached, 0) + 1)
        if checkpoint is None:
            run.checkpoint(0)
        begin = time.perf_counter()
        row = await train_loop(run)
        run.checkpoint(run.state.step)  # where it stopped, for whatever reason
        cancelled = Cancelled.kept(run)
        _warn_of_unscored(run)
        return TrainResult(
            run.folder.path,
            run.state.step,
            run.end.steps,
            row,
            run.finished,
            time.perf_counter() - begin,
            run.state.tokens,
            signals.signs,
            cancelled,
        )
    finally:
        await run.close()


def _warn_of_unscored(run: Run) -> None:
    """Warn of components with a weight that no step has scored: what a source leaves out adds nothing."""
    assert run.folder is not None
    rows = [row for _, row in read_lines(run.folder.metrics) if row is not None]
    scored = {key.split("/", 2)[2] for row in rows for key in row if key.startswith("score/")}
    never = [name for name, weight in run.reward_weights.weights.items() if weight and name not in scored]
    if rows and never:
        log.warning(
            "no step of this run has a score of: %s. Their sources gave none, not even a missing one, so "
            "they added nothing to any reward",
            ", ".join(sorted(never)),
        )


def vocabulary(
    source: Source, *, overrides: Sequence[str] = (), scale: str | None = None, overlays: Sequence[str] = ()
) -> tuple[str, ...]:
    """The words that a recipe's environment, roles and transition write, in alphabetical order, each once.

    A tokenizer of whole words must know them. Words of plugins that name none are not among them.

    Args:
        source: as of `train`, and so are `overrides`, `scale` and `overlays`; or a run's folder.

    Raises:
        UserError: something in the input is wrong.
    """
    return compose(load(source, overrides=overrides, scale=scale, overlays=overlays)).vocabulary


# ------------------------------------------------------------------------ what a run keeps of its episodes


def step_recorder(folder: RunFolder, config: RunConfig) -> Recorder:
    """Write the rollout files that `schedule.record_every` asks for, and hand episodes to the trackers."""
    write, every = rollout_recorder(folder), config.schedule.record_every

    def record(step: int, batch: Batch, state: Any, credit: Credit, trackers: MetricsWriter) -> None:
        if every and step % every == 0:
            write(step, batch, state, credit)
        made = cache(lambda number: episode_rows(batch, credit, step, config.seed, number))
        trackers.episodes(step, lambda number: [_copied(row) for row in made(number)])

    return record


def episode_rows(batch: Batch, credit: Credit, step: int, seed: int, number: int) -> list[dict[str, Any]]:
    """Some episodes of a step as rows, one an action (`api/episodes.action_rows`), in the order of the trees.

    Every episode of the step is as likely as another, whatever it earned and whenever it ended. The draw is
    keyed by the run's seed and the step. A smaller number's episodes are among those of a larger one.
    """
    walks = (paths_of(tree.root, lambda node, at: node.joints[at].child) for tree in batch.trees)
    paths = [[path for path, _ in walk] for walk in walks]
    rows = []
    for place, wanted in drawn([len(of) for of in paths], step, seed, number).items():
        for index in sorted(wanted):
            path, tree = paths[place][index], batch.trees[place]
            node, joint = path[-1]
            outcome = node.joints[joint].outcome if joint is not None else None
            of = {"step": step, "episode": index, "success": (outcome or {}).get("success")}
            for node, joint in path:
                if joint is not None:
                    weights = batch.reward_weights
                    row, committed = rows_on_path(tree, node, joint, batch.scores, credit, weights)
                    rows += [action_row(row, role, *of_role) | of for role, of_role in committed.items()]
    return [{name: _encodable(value) for name, value in row.items()} for row in rows]


def _copied(row: dict[str, Any]) -> dict[str, Any]:
    """A tracker's own copy; `copy.deepcopy` takes as long as making the row."""
    return {**row, "scores": {**row["scores"]}, "tool_results": [*row["tool_results"]]}


def _encodable(value: Any) -> Any:
    """Half a surrogate pair in a model's text would make a library refuse the whole table."""
    if isinstance(value, str):
        return encodable(value)
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def drawn(counts: Sequence[int], step: int, seed: int, number: int) -> dict[int, set[int]]:
    """Place of a tree -> its episodes that were drawn, in the order of the trees.

    Args:
        counts: episodes of each tree.
    """
    every = [(place, index) for place, count in enumerate(counts) for index in range(count)]
    order = generator(seed, f"step {step}", "logged episodes").permutation(len(every))[:number]
    chosen: dict[int, set[int]] = {}
    for place, index in sorted(every[at] for at in order):
        chosen.setdefault(place, set()).add(index)
    return chosen
