"""What a run recorded of its steps, and the run that it was, composed again without weights."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any

from coterie.api.changed_files import changed_files
from coterie.api.episodes import RecordedTree, trees_of
from coterie.api.rollout_lines import damaged
from coterie.api.rollouts import read_rollouts
from coterie.api.rows import readable
from coterie.api.run_record import RunRecord, changed_versions, compose_recorded, recall
from coterie.core.config import Resolved, RunConfig
from coterie.core.errors import RunFolderError, UserError
from coterie.core.storage.run_folder import RunFolder
from coterie.core.training.run import Run
from coterie.recipes import load, read_yaml

log = logging.getLogger("coterie")

Row = dict[str, Any]


@dataclass(slots=True)
class RunRecords:
    """A run's rollout files by step, its configuration, and what it was made of."""

    folder: RunFolder
    resolved: Resolved
    record: RunRecord | None
    """The content of `resolved.yaml`; None where that file is missing or damaged."""
    files: dict[int, Path]
    """By step, in order."""
    runs: dict[tuple[str, ...], Run] = field(default_factory=dict)
    """By overrides, the runs that were composed so far."""

    @classmethod
    def open(cls, folder: Path | str) -> RunRecords:
        """The records of the run in a folder. Its plugin files are loaded; nothing else of it is made.

        Raises:
            RunFolderError: the folder is no run's, or none of its steps was recorded.
            UserError: whatever is wrong with its configuration.
        """
        path = Path(folder)
        run_folder = RunFolder.open(path)
        with readable(path):
            files = {step_of(file): file for file in run_folder.rollout_files()}
            every = (read_yaml(run_folder.config).get("schedule") or {}).get("record_every")
        if not files:
            why = "no step is finished yet, or its rollout files were removed"
            fix = "restore them from a copy, or name another run"
            if isinstance(every, int) and every > 1:
                why = f"schedule.record_every is {every}: no such step is finished, or its files were removed"
            if every == 0:
                why = "schedule.record_every is 0, so it recorded none of its steps"
                fix = "set schedule.record_every=1 in a new run, or resume this one with it"
            raise RunFolderError(f"{path} has no rollout files", why=why, fix=fix)
        record = recall(path)
        return cls(run_folder, load(path), record, dict(sorted(files.items())))

    @property
    def config(self) -> RunConfig:
        """The configuration as the run has it now."""
        return self.resolved.config

    @property
    def steps(self) -> list[int]:
        """The recorded steps."""
        return list(self.files)

    def chosen(self, step: int | None = None, every: bool = False) -> list[int]:
        """The steps that a caller wants: one, all, or the last.

        Raises:
            UserError: the step was not recorded.
        """
        if every:
            return self.steps
        step = self.steps[-1] if step is None else step
        if step not in self.files:
            near = sorted(sorted(self.files, key=lambda other: abs(other - step))[:6])
            why = "schedule.record_every decides which steps are; evaluations are never recorded"
            fix = f"recorded are {', '.join(map(str, near))}"
            raise UserError(f"step {step} of {self.folder.path} was not recorded", why=why, fix=fix)
        return [step]

    def rows(self, step: int) -> list[Row]:
        """The rows of a step, in the order of its file.

        Raises:
            RunFolderError: the file is missing or damaged, or it is of another format.
        """
        path = self.files.get(step, self.folder.rollout_file(step))
        try:
            return read_rollouts(path)
        except OSError as error:
            fix = "restore it from a copy"
            raise RunFolderError(f"{path} can't be read", why=str(error), fix=fix) from error

    def trees(self, step: int) -> list[RecordedTree]:
        """The trees of a step; errors as of `rows`."""
        return trees_of(self.rows(step), step)

    def run(self, step: int | None = None, extra: Sequence[str] = ()) -> Run:
        """The run, composed without weights: what is opened, if anything, is the caller's business.

        Args:
            step: with the settings that it had then: those that resumes changed later have their old values.
            extra: further settings as `key=value`.

        Raises:
            UserError: whatever is wrong with the configuration, with its path.
        """
        overrides = (*self.settings_at(step), *extra)
        if overrides not in self.runs:
            resolved = load(self.folder.path, overrides=overrides) if overrides else self.resolved
            self.runs[overrides] = compose_recorded(resolved, self.record)
        return self.runs[overrides]

    def settings_at(self, step: int | None) -> tuple[str, ...]:
        """The settings that later resumes changed, as `key=value` with the values of a step."""
        if step is None or self.record is None:
            return ()
        before: dict[str, Any] = {}
        for change in reversed(self.record.changes):
            if change["step"] > step:
                before |= {path: values[0] for path, values in change["settings"].items()}
        ours = ("schedule.", "trackers", "executor", "sandbox")
        return tuple(
            f"{path}={json.dumps(value)}"
            for path, value in sorted(before.items())
            if not path.startswith(ours)
        )

    def changed(self, run: Run, step: int) -> list[str]:
        """Files (data, prompts, plugin files) and packages that are others than the run had at a step."""
        if self.record is None:
            return []
        before, now = self.record.at(step), RunRecord.of(run)
        files = [str(change) for change in changed_files(before, now)]
        for name, (old, new) in changed_versions(before, now).items():
            if name not in before.plugin_files:  # those are among the files
                files.append(f"{name} {old} -> {new}")
        return files


def step_of(path: Path) -> int:
    """The step of a rollout file, by its name; 0: the name has none."""
    number = re.match(r"step-(\d+)", path.name)
    return int(number[1]) if number else 0


def step_row_of(rows: Sequence[Row], path: Path) -> Row:
    """The first row of a step's file.

    Raises:
        RunFolderError: it is of another kind.
    """
    if rows and rows[0]["kind"] == "step":
        return rows[0]
    what = f"{path} doesn't begin with a row of kind 'step'"
    why = "the first row has the reward weights and the estimator's state; it was removed or moved"
    raise RunFolderError(what, why=why, fix="restore the file from a copy")


# -------------------------------------------------------------------------------- the shape of rows

_PLACE: dict[str, tuple[type, ...]] = {"task_id": (str,), "epoch": (int,), "chain": (int,), "node": (str,)}
_FAULT = (dict, NoneType)
_NUMBER = (int, float, NoneType)
SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "step": {
        "step": (int,), "weights": (dict,), "team_weight": (int, float), "kinds": (dict,), "state": (object,),
    },
    "node": {
        **_PLACE, "turn": (int,), "stage": (int,), "role": (str,), "policy": (str,), "prompt": (str,),
        "prompt_ids": (list,), "prompt_sha256": (str,), "temperature": (int, float), "trainable": (bool,),
        "state_digest": (str,),
    },
    "branch": {
        **_PLACE, "role": (str,), "branch": (int,), "policy": (str,), "version": (int, NoneType),
        "completion": (str,), "thought": (str,), "calls": (list,), "tool_results": (list,),
        "tool_limit": (bool,), "fault": _FAULT, "scores": (dict,), "reasons": (dict,), "own_scores": (dict,),
        "annotations": (dict,), "reward": _NUMBER, "return": _NUMBER, "advantage": (*_NUMBER, list),
        "weight": _NUMBER,
    },
    "joint": {
        **_PLACE, "joint": (int,), "branches": (dict,), "scores": (dict,), "reasons": (dict,),
        "whole": (list,), "reward": (dict,), "state_digest": (str,), "fault": _FAULT, "rule": (str,),
        "expanded": (bool,), "recombined": (bool,), "terminated": (bool,), "truncated": (bool,),
        "outcome": (dict, NoneType), "child": (str, NoneType),
    },
}  # fmt: skip
"""By kind of row: the types of the fields that a replay reads."""
_CALL: dict[str, tuple[type, ...]] = {"token_ids": (list,), "logprobs": (list,), "finish": (str,)}
_LATER_CALL = {**_CALL, "prompt_ids": (list,), "continues": (bool,), "version": (int,)}
_REASON: dict[str, tuple[type, ...]] = {"kind": (str,), "reason": (str,)}


def check_rows(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Refuse rows that lack a field, or have one of another type.

    Raises:
        RunFolderError: it names the line and the field.
    """
    for line, row in enumerate(rows, 1):
        where = f"line {line}"
        shape = SHAPES.get(row["kind"])
        if shape is None:
            raise damaged(path, f"{where} is of the unknown kind {row['kind']!r}")
        if row["kind"] == "step" and line > 1:
            raise damaged(path, f"{where} is a second row of kind 'step'")
        _check(row, shape, path, where)
        if row.get("fault") is not None:
            _check(row["fault"], _REASON, path, f"{where}, fault")
        for index, call in enumerate(row.get("calls", ())):
            inner = f"{where}, calls[{index}]"
            if not isinstance(call, dict):
                raise damaged(path, f"{inner} is {call!r:.60}")
            _check(call, _LATER_CALL if index else _CALL, path, inner)
            _check_tokens(call, path, inner)


def _check(row: Mapping[str, Any], shape: Mapping[str, tuple[type, ...]], path: Path, where: str) -> None:
    for name, types in shape.items():
        if name not in row:
            raise damaged(path, f"{where} has no field '{name}'")
        if not isinstance(row[name], types):
            raise damaged(path, f"{where}: the field '{name}' is {row[name]!r:.60}")


def _check_tokens(call: Mapping[str, Any], path: Path, where: str) -> None:
    tokens, logprobs = call["token_ids"], call["logprobs"]
    if len(tokens) != len(logprobs):
        raise damaged(path, f"{where} has {len(tokens)} tokens and {len(logprobs)} log-probs")
    for name in ("token_ids", "prompt_ids"):
        if any(type(token) is not int for token in call.get(name, ())):
            raise damaged(path, f"{where}: an entry of '{name}' is no token id")
    if any(not isinstance(value, _NUMBER) for value in logprobs):
        raise damaged(path, f"{where}: an entry of 'logprobs' is no number")
