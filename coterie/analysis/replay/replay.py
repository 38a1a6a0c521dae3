"""`coterie.replay`: recorded steps played again without a model, compared with the record bit for bit."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.analysis.records import Row, RunRecords, check_rows, step_row_of
from coterie.analysis.replay.credit_again import CreditAgain, OtherCredit
from coterie.analysis.replay.differences import Mismatch, differing_state
from coterie.analysis.replay.play import PlayedStep, play_step
from coterie.api.checkpoints import state_saved_at
from coterie.api.episodes import tree_id
from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.storage.jsonl import read_lines
from coterie.watchdog import Watchdog

log = logging.getLogger("coterie")

AGAIN = ("sandbox", "coach")
"""What may be asked again."""
Progress = Callable[[int, int], None]
"""(steps done, steps in all)."""


@dataclass(slots=True)
class Replay:
    """What a replay compared, what it took from the record, and what was different."""

    folder: Path
    steps: list[int]
    """The steps that were played again."""
    equal: dict[str, int]
    """By kind of value (`trees`, `prompts`, `actions`, `digests`, `scores`, `missing`, `rewards`,
    `advantages`, ...): how many the record and the replay have alike."""
    taken: list[str]
    """What was taken from the record, and so not compared, in words."""
    differences: list[Mismatch]
    """The first one first: what caused others comes before them."""
    changed: list[str]
    """Files and packages that are others than the run had."""
    lacking: list[int] = field(default_factory=list)
    """Steps that were recorded and have no file any more."""
    again: Sequence[str] = ()
    other: OtherCredit | None = None
    """Credit by another estimator, other rewards or other weights, where that was asked for."""

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return not self.differences

    @property
    def first(self) -> Mismatch | None:
        """The first difference; None: there is none."""
        return self.differences[0] if self.differences else None

    def as_dict(self) -> dict[str, Any]:
        """The JSON of `coterie replay --json`."""
        return {
            "folder": str(self.folder),
            "same": self.same,
            "steps": self.steps,
            "equal": dict(self.equal),
            "taken": list(self.taken),
            "changed": list(self.changed),
            "lacking": list(self.lacking),
            "again": list(self.again),
            "first": None if self.first is None else self.first.as_dict(),
            "differences": len(self.differences),
            "by_field": dict(Counter(each.field.partition(".")[0] for each in self.differences)),
            **({} if self.other is None else {"other": self.other.as_dict()}),
        }


def replay(
    folder: Path | str,
    *,
    step: int | None = None,
    every: bool = False,
    again: Sequence[str] = (),
    estimator: str | None = None,
    rewards: Sequence[str] = (),
    weights: Mapping[str, float] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Play recorded steps of a run again, without a model, and compare every value with the record.

    Args:
        step: which; default: the last recorded one.
        every: all recorded steps in place of one.
        again: what is asked again in place of taken from the record: `sandbox`, `coach`.
        estimator: type of an algorithm, and settings after commas (`grpo,normalise.eps=0`), that gives credit
            on the same data.
        rewards: settings of reward sources, `NAME.key=value`, that score the same data.
        weights: reward weights by component, for the same data; `team` is `RewardWeights.team_weight`.
        progress: called after each step.

    Raises:
        RunFolderError: the folder is no run's, it has no rollout files, or one is damaged.
        UserError: the step was not recorded, a plugin or a file of the run is gone, or the record lacks
            results of programs.
    """
    unknown = [name for name in again if name not in AGAIN]
    if unknown or isinstance(again, str):
        name = again if isinstance(again, str) else unknown[0]
        what = f"nothing that can be asked again is called '{name}'"
        raise ConfigError(what, path="--again", fix=did_you_mean(name, AGAIN))
    records = RunRecords.open(folder)
    chosen = records.chosen(step, every)
    other = CreditAgain.asked(records, estimator, rewards, weights or {})
    with _told_once():
        return RecordsReplay(records, chosen, tuple(dict.fromkeys(again)), other).run(progress)


@contextmanager
def _told_once() -> Iterator[None]:
    """A context in which no warning is repeated, also with other whole numbers; but for the watchdog's."""
    logged: set[str] = set()

    def new(record: logging.LogRecord) -> bool:
        text = re.sub(r"\b\d[\d,]*\b", "#", record.getMessage())
        known = text in logged and not isinstance(threading.current_thread(), Watchdog)
        logged.add(text)
        return not known

    log.addFilter(new)
    try:
        yield
    finally:
        log.removeFilter(new)


@dataclass(slots=True)
class RecordsReplay:
    """A replay of recorded steps while it is made; `run` makes it."""

    records: RunRecords
    chosen: Sequence[int]
    again: Sequence[str]
    other: CreditAgain | None
    equal: Counter[str] = field(default_factory=Counter)
    taken: Counter[str] = field(default_factory=Counter)
    differences: list[Mismatch] = field(default_factory=list)
    after: dict[int, Any] = field(default_factory=dict)
    """By step that was played: the estimator's state after it."""

    def run(self, progress: Progress | None) -> Replay:
        changed, lacking = self._changed(), self._lacking()
        for number, step in enumerate(self.chosen, 1):
            rows = self._rows(step)
            beside = [] if self.other is None else self.other.sources(step)
            played = play_step(self.records.run(step), step, rows, self.again, beside)
            self.after[step] = played.after
            differences = [*self._states(step, rows), *played.differences, *self._saved(step, played)]
            self._count(played, rows, differences)
            self.differences += differences
            if self.other is not None:
                self.other.add(played)
            if progress is not None:
                progress(number, len(self.chosen))
        return Replay(
            folder=self.records.folder.path,
            steps=list(self.chosen),
            equal=dict(self.equal),
            taken=[f"{text}: {count}" if count else text for text, count in sorted(self.taken.items())],
            differences=self.differences,
            changed=changed,
            lacking=lacking,
            again=self.again,
            other=None if self.other is None else self.other.result(),
        )

    def _rows(self, step: int) -> list[Row]:
        """The rows of a step, whose shape is checked."""
        rows, path = self.records.rows(step), self.records.files[step]
        step_row_of(rows, path)
        check_rows(rows, path)
        return rows

    def _lacking(self) -> list[int]:
        """The steps that were trained and that the schedule records, without a file."""
        every, began = self.records.config.schedule.record_every, 0
        for change in self.records.record.changes if self.records.record is not None else ():
            if "schedule.record_every" in change["settings"]:
                began = change["step"]
        path = self.records.folder.metrics
        trained = [row["step"] for _, row in read_lines(path) if row is not None] if path.is_file() else []
        lacking = sorted({at for at in trained if every and at >= max(began, 1) and at % every == 0})
        lacking = [at for at in lacking if at not in self.records.files]
        if lacking:
            log.warning(
                "%d steps were recorded and have no rollout file any more, so they aren't played: %s",
                *(len(lacking), ", ".join(map(str, lacking[:10])) + (", ..." if len(lacking) > 10 else "")),
            )
        return lacking

    def _changed(self) -> list[str]:
        """Files and packages that differ, which a warning names."""
        record, last = self.records.record, self.chosen[-1]
        if record is None:
            log.warning(
                "%s has no record of versions and files (resolved.yaml): whether they changed is unknown",
                self.records.folder.path,
            )
            return []
        changed = self.records.changed(self.records.run(last), last)
        if changed:
            log.warning("the replay uses other files or packages than the run: %s", "; ".join(changed))
        return changed

    def _states(self, step: int, rows: Sequence[Row]) -> list[Mismatch]:
        """Whether the estimator's recorded state before a step is that after the step before it."""
        state = rows[0]["state"]
        if step - 1 in self.after:
            before = self.after[step - 1]
        elif step == 1:
            before = None
        elif (saved := state_saved_at(self.records.folder, step - 1)[0]) is not None:
            before = saved["credit_state"]
        elif state is not None and step - 1 in self.records.files:
            earlier = self._rows(step - 1)
            before = play_step(self.records.run(step - 1), step - 1, earlier, self.again).after
        else:
            if state is not None:
                self.taken[
                    "the estimator's state before the first step: the step before it isn't recorded"
                ] = 0
            return []
        self.equal["states"] += before == state
        return differing_state(step, "state", state, before)

    def _saved(self, step: int, played: PlayedStep) -> list[Mismatch]:
        """Whether the state after a step is that of its checkpoint, or of the next step's file."""
        differences: list[Mismatch] = []
        saved, damage = state_saved_at(self.records.folder, step)
        if damage:
            whole = "an intact manifest"
            differences.append(Mismatch(step=step, field="checkpoint", recorded=damage, replayed=whole))
        elif saved is not None:
            differences += differing_state(
                step, "state in the checkpoint", saved["credit_state"], played.after
            )
            self.equal["states"] += not differences
        if step + 1 in self.records.files and step + 1 not in self.chosen and not differences:
            state = self._rows(step + 1)[0]["state"]
            differences += differing_state(step + 1, "state", state, played.after)
            self.equal["states"] += not differences
        return differences

    def _count(self, played: PlayedStep, rows: Sequence[Row], differences: Sequence[Mismatch]) -> None:
        """Count what is alike, and what was taken from the record."""
        counts = _counted(rows[1:])
        for mismatch in differences:
            name = mismatch.field.partition(".")[0].partition("[")[0]
            if name in _KINDS:
                counts[_KINDS[name]] -= 1
        self.equal.update({kind: max(count, 0) for kind, count in counts.items()})
        self.equal["steps"] += not differences
        for source in played.sources:
            self.taken[f"scores of rewards.{source}"] += sum(
                1 for tree in played.batch.scores if tree[3].source == source
            )
        answers = len(rows[0].get("answers", {})) if "sandbox" not in self.again else 0
        for text, count in (
            ("results of tools", played.tool_results),
            ("results of programs that the environment ran", answers),
            ("joint actions that a fault of the system lost", played.lost),
            ("annotations (reference log-probs, values), by branch", played.annotated),
        ):
            if count:
                self.taken[text] += count
        if played.feedback:
            self.taken[
                "prompts of later turns: the feedback of the transition mode is an outside model's"
            ] = 0
        for policy in played.unread:
            self.taken[f"prompts of policy '{policy}' to the id: no tokenizer here, texts are compared"] = 0
        self.taken[
            "sampled tokens, with their log-probs, the ends of calls and the versions of weights, by action"
        ] += counts["actions"]


def _counted(rows: Sequence[Row]) -> Counter[str]:
    counts: Counter[str] = Counter()
    counts["trees"] = len(set(map(tree_id, rows)))
    for row in rows:
        if row["kind"] == "node":
            counts.update(("prompts", "digests"))
        elif row["kind"] == "branch":
            counts["actions"] += 1
            counts["scores"] += sum(value is not None for value in row["own_scores"].values())
            counts["missing"] += sum(value is None for value in row["own_scores"].values())
            counts["returns"] += row["return"] is not None
            counts["advantages"] += row["advantage"] is not None
        elif row["kind"] == "joint":
            counts["joints"] += 1
            counts["digests"] += bool(row["state_digest"])
            counts["scores"] += sum(value is not None for value in row["scores"].values())
            counts["missing"] += sum(value is None for value in row["scores"].values())
            counts["rewards"] += len(row["reward"])
            counts["outcomes"] += row["outcome"] is not None
    return counts


_KINDS = {
    "advantage": "advantages", "return": "returns", "own_scores": "scores", "scores": "scores",
    "reward": "rewards", "outcome": "outcomes", "state_digest": "digests", "completion": "actions",
    "calls": "actions", "prompt": "prompts", "prompt_ids": "prompts", "task": "trees", "play": "trees",
}  # fmt: skip
