"""A composed run: everything that `loop.train` calls, in the order it is called."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import Batch
from coterie.core.protocols.trainer import FollowsBudget
from coterie.core.rollout.contracts import check_metric_names, check_scored, check_updated, refuse
from coterie.core.rollout.missing import check_missing, check_parsers
from coterie.core.training.metrics import step_metrics
from coterie.core.training.samples import (
    merge_annotations,
    samples_of,
    staleness,
    staleness_metrics,
)
from coterie.core.training.steps_in_play import (
    Progress as Progress,
    Recorder,
    StepRollouts,
    StepsInPlay,
    Watch,
)
from coterie.core.types import Annotations, Credit, Key, Scores
from coterie.spans import include, of_step, recording, span


@dataclass(frozen=True)
class Run(StepsInPlay):
    """All of one run. Only its `state` changes."""

    evaluate_every: int = 0
    """Steps between evaluations on `val`; 0: none. `auto` is decided by `estimate/val_interval.py`."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Versions and digests of files, for what is written of evaluations."""
    progress: Progress | None = None
    interrupt: Event | None = None
    recorder: Recorder | None = None
    watch: Watch | None = None

    @property
    def interrupted(self) -> bool:
        return self.interrupt is not None and self.interrupt.is_set()

    async def rollouts(self) -> AsyncIterator[tuple[int, StepRollouts]]:
        """(step, rollouts) of every step that is left; `step` counts from 1."""
        schedule, state = self.config.schedule, self.state
        self.unsaved.since = self.unsaved.step_began = time.perf_counter()
        begin = self.unsaved.since - state.seconds
        limit = schedule.stop_after or float("inf")
        await self.lease_again()
        self.engine_client.idle_time.take()  # what came before the first step is no step's
        while not (self.finished or self.interrupted or time.perf_counter() - begin >= limit):
            await self.hand_out()
            step, rollouts = state.step + 1, await self.due(state.step + 1)
            wanted = self.metrics_writer.share is not None
            with recording(of_step(step, rollouts.handed_out) if wanted else None) as trace:
                yield step, rollouts
            if trace is not None:
                self.metrics_writer.spans(step, trace.finished())
            state.seconds = time.perf_counter() - begin
        await self.cancel()

    async def score(self, rollouts: StepRollouts, *, evaluation: bool = False) -> Scores:
        """The scores of all trees, when the last one is known. Missing stays missing.

        Raises:
            TooManyMissing, PluginError: see `check_missing` and `check_parsers`.
        """
        scores = Scores()
        with span("score"):
            scored = [check_scored(self.executor, await rollout.scored) for rollout in rollouts.rollouts]
        for each in scored:
            scores.merge(each.scores)
            include(each.spans)
        for tree in rollouts.trees:
            self.notify("episode_ended", tree=tree, scores=scores, evaluation=evaluation)
        where = "this evaluation" if evaluation else "this step"
        bound = self.config.schedule.max_missing
        check_missing(rollouts.trees, scores, self.reward_sources, bound, where)
        check_parsers([] if evaluation else rollouts.trees, self.team)
        return scores

    async def annotate(self, rollouts: StepRollouts) -> Annotations:
        """Per-token arrays that the estimator or the loss needs: reference log-probs, values."""
        annotations: Annotations = {}
        for name in self.needs:
            keys = (key for tree in rollouts.trees for key, _, _ in tree.actions())
            samples = samples_of(rollouts.trees, Credit(advantage=dict.fromkeys(keys, 0.0)))
            values: dict[Key, Any] = {}
            for rows in samples.values():
                with span("annotate", name), plugin_call(self.trainer, "annotate"):
                    values.update(await self.trainer.annotate(rows, name))
            annotations.update(merge_annotations(samples, name, values))
        return annotations

    async def update(
        self, rollouts: StepRollouts, credit: Credit, annotations: Annotations
    ) -> dict[str, Any]:
        """Update every policy on the samples of the roles it plays; then give the weights to the engine.

        Returns:
            the trainer's metrics, as `policy/<policy>/<name>`.
        """
        samples = samples_of(rollouts.trees, credit, annotations)
        rollouts.lap("credit")
        spent = self.end.spent(self.state.tokens)  # before this step: the first step's rate has not decayed
        if spent is not None and isinstance(self.trainer, FollowsBudget):
            self.trainer.set_progress(spent)
        before = self.versions
        ages = {policy: staleness(rows, before[policy]) for policy, rows in samples.items() if self.ahead}
        self.check_ages(ages, before)
        taken = self.state.optimizer_steps
        stale = {policy: staleness_metrics(of, taken.get(policy, ())) for policy, of in ages.items()}
        with span("update") as about, plugin_call(self.trainer, "update"):
            updated = await self.trainer.update(samples, self.state.step)
        check_updated(self.trainer, updated, self.config.policies)
        about["policies"] = updated
        rollouts.lap("update")
        changed = await self.sync(before)
        for policy, metrics in updated.items():
            if metrics.get("optimizer_steps") and policy not in changed:
                what = f"the version of '{policy}' from before its update"
                fix = "raise the version by 1 where an update changes weights"
                refuse(self.trainer, "weights", what, fix)
        for policy in changed:
            steps = updated.get(policy, {}).get("optimizer_steps")
            taken[policy] = [] if steps is None else [float(steps), *taken.get(policy, ())][: self.ahead]
        rollouts.lap("sync" if self.ahead else "update")
        return {
            f"policy/{policy}/{name}": value
            for policy, metrics in updated.items()
            for name, value in {**metrics, **stale.get(policy, {})}.items()
        }

    def record(self, step: int, batch: Batch, state: Any, credit: Credit) -> None:
        """Record the rollouts, with the estimator's `state` before the step."""
        if self.recorder is not None:
            with span("record"):
                self.recorder(step, batch, state, credit, self.metrics_writer)

    def metrics(
        self, step: int, rollouts: StepRollouts, scores: Scores, credit: Credit, updated: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The step's row of metrics.

        Raises:
            PluginError: the sampler counted a metric under a name of the framework's.
        """
        trees = rollouts.trees
        row = {**step_metrics(trees, scores, credit, self.reward_weights), **updated}
        generated = int(row["tokens/generated"])
        self.end.check(generated)
        row["tokens/total"] = self.state.tokens + generated
        if self.curriculum is not None and self.state.curriculum is not None:
            row |= self.curriculum.metrics(trees, self.state.curriculum, self.pin(step).level)
        counted = rollouts.counted
        check_metric_names(self.sampler, "count", counted.keys() - {"prompts/truncated"})  # ours
        seconds = max(time.perf_counter() - rollouts.started, 1e-9)
        record = seconds - sum(rollouts.laps.values())
        laps = {**rollouts.laps, "record": record, "long_tail": rollouts.long_tail}
        laps |= {"play": rollouts.ended[-1]} if self.ahead else {}
        shares = {name[:-7] + "share": v / seconds for name, v in counted.items() if name[-8:] == "/seconds"}
        row |= {**counted, **shares, **{f"time/{part}": value for part, value in laps.items()}}
        return {**row, "time/step": seconds, "time/tokens_per_second": generated / seconds}

    def finish(self, step: int, rollouts: StepRollouts, row: Mapping[str, Any]) -> dict[str, Any]:
        """Count the step, its tokens and its episodes.

        Returns:
            the row that `metrics.jsonl`, trackers, observers and the progress display got.
        """
        waited = {"time/engine_waited": self.engine_client.idle_time.take()} if self.ahead else {}
        row = {**row, **waited, **(self.watch(step, row) if self.watch is not None else {})}
        row |= self.metrics_writer.lost
        self.state.step, self.state.tokens = step, row["tokens/total"]
        if self.curriculum is not None and self.state.curriculum is not None:
            level = self.pin(step).level
            self.state.curriculum = self.curriculum.after(rollouts.trees, self.state.curriculum, level)
        self.forget(step)
        self.metrics_writer.write(step, row)
        self.notify("step_ended", step=step, metrics=copy.deepcopy(row))
        if self.progress is not None:
            self.progress(step, self.end.expected(step, self.state.tokens), row)
        return row

    def checkpoint_if_due(self, step: int) -> None:
        """Save where schedule or time says so, where the run ends, and where `val` was never better."""
        evaluate = self.evaluate_every or float("inf")
        due = self.unsaved.due(step % evaluate == 0, (step + 1) % evaluate == 0)
        if step == self.state.best_step:
            self.checkpoint(step)
            if self.store is not None:
                self.store.mark("best", step)
        every = self.config.schedule.checkpoint_every
        if self.finished or self.interrupted or (due if every == "auto" else every and step % every == 0):
            self.checkpoint(step)
