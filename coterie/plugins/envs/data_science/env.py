"""The environment `data_science`: competitions with tables, worked on by a pipeline of roles."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.plugins import Plugin
from coterie.core.protocols import Limits, StepContext, TaskSource
from coterie.core.rollout.thoughts import split as without_thought
from coterie.core.types import TEAM, Action, ComponentKind, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.discovery.members import Brief, KeepsFiles, Work
from coterie.plugins.envs.common.code import read_program
from coterie.plugins.envs.common.teams import check_not_lost, check_sandbox
from coterie.plugins.envs.data_science import tasks, workspace
from coterie.plugins.envs.data_science.config import DUTIES, ROLES, TURNS, DataScienceConfig, check_order
from coterie.plugins.envs.data_science.state import (
    PipelineObservation,
    PipelineState,
    ProgramRun,
    SubmissionOutcome,
    TranscriptEntry,
)
from coterie.plugins.envs.data_science.worth import SubmissionScorer

log = logging.getLogger("coterie")


class DataScience(Plugin):
    """Hand in a valid submission to a competition; the hidden answers and its metric decide what it is worth.

    Sources: the tasks of DSBench (arXiv 2409.07703), the roles of MAPPA (arXiv 2601.23228). What differs from
    MAPPA: the metric is computed, and never a coach's word; each program is an action of its own, so a fork
    shares the workspace that was there before it; the workspace reaches the next role whatever the sandbox.
    """

    Config = DataScienceConfig
    config: DataScienceConfig
    roles = ROLES
    components: Mapping[str, ComponentKind] = {
        # Potentials: a role that writes its file in its first turn earns no less than one that needs four.
        "performance": "potential",
        "valid": "potential",
        "files": "potential",
        "runs": "potential",
    }
    """`performance`: what the submission is worth, from 0 to 1, once the last role has ended; `valid`:
    whether it could be scored. By role: `files`: the share of its required files that are there; `runs`: its
    last program finished."""
    per_role = ("files", "runs")
    weights: Mapping[str, float] = {"performance": 0.8, "valid": 0.2, "files": 0.0, "runs": 0.0}
    fields = tuple(field.name for field in fields(PipelineObservation))
    concurrent = True

    def __init__(self, config: DataScienceConfig, build: Any) -> None:
        super().__init__(config, build)
        order = as_tuple(build.run.team.order)
        self._team = check_order(order)
        check_sandbox(order, config.sandbox, build.run, build.path, self._team)
        self._check_sandbox()
        self._check_named()
        self._turns = {role: config.turns.get(role, TURNS) for role in self._team}
        self._files = {role: config.files.get(role, ()) for role in self._team}
        self._required = tuple(path for paths in self._files.values() for path in paths)
        self._submission = self._check_files()
        self.actions_per_turn = dict(self._turns)
        """For `coterie plan`."""
        self._runner = workspace.ProgramRunner(
            config.sandbox,
            config.workspace_mb,
            min(self.limits_of(role).disk_mb for role in self._team),
            config.workspace_files,
            config.result_chars,
        )
        self._scorer = SubmissionScorer()
        self._tasks = tasks.Competitions(config.data, self.limits_of, build.path)

    # ---- tasks ---------------------------------------------------------------------------------------------

    def tasks(self, split: Split, seed: int) -> TaskSource:
        """The competitions of a split, in the order of the records.

        Raises:
            DataError: nothing says how one is scored, or what says it is wrong.
            ConfigError: there is no such split, files are missing, or tables don't fit into `limits.disk_mb`.
        """
        return self._tasks.tasks(split, seed)

    def record(self, task: Task) -> dict[str, Any]:
        """The task's record; its `metadata` has `metric` and `kind` too, for `schedule.stratify`."""
        return {"prompt": task.payload.text, "answer": task.answer, "metadata": dict(task.payload.metadata)}

    def task_of(self, record: Mapping[str, Any], id: str) -> Task:
        """The task of a record.

        Raises:
            ValueError: it is no record of a task pack, or nothing says how it is scored.
        """
        return tasks.task_of(record, id)

    def fingerprints(self, task: Task) -> dict[str, str]:
        """`content`: the task's description without what changes only its look."""
        return {"content": tasks.content(task)}

    def place(self, task: Task) -> str:
        """The record's file and line."""
        return self._tasks.places.get(task.id, "")

    # ---- the game ------------------------------------------------------------------------------------------

    def reset(self, task: Task, seed: int) -> PipelineState:
        return PipelineState(task=task.payload)

    def acting_roles(self, state: PipelineState) -> tuple[str, ...]:
        """The first role that has not ended: it goes on until it hands over or is out of turns."""
        role = self._acting(state)
        return (role,) if role else ()

    def observe(self, state: PipelineState, role: str) -> PipelineObservation:
        lacking = self._lacking(state)
        earlier = self._team[: self._team.index(role)]
        return PipelineObservation(
            role=role,
            task=state.task.text,
            data=tasks.data_lines(state.task),
            transcript=state.transcript,
            files=self.file_lines(state),
            required=self._files[role],
            missing=workspace.missing(state.workspace, self._files[role]),
            inherited=tuple(
                workspace.missing_line(state.workspace, state.trail, each, path)
                for each in earlier
                for path in lacking.get(each, ())
            ),
            limits=_limits_text(self.limits_of(role), self._runner.room_mb(state.task)),
            turn=_turn(state, role),
            turns=self._turns[role],
        )

    async def step(self, state: PipelineState, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state after one role's action: its program was run, and its files are in the workspace.

        Raises:
            SystemFault: the action was lost, or the sandbox failed.
            WriteError: the disk is full.
        """
        [(role, action)] = actions.items()
        check_not_lost(actions)
        turn = _turn(state, role)
        text = without_thought(action.text).text
        code, note = _program(text)
        run, files = None, state.workspace
        if code:
            run, files = await self._runner.run(code, state.task, files, self.limits_of(role))
        after = replace(
            state,
            workspace=files,
            trail=(*state.trail, *workspace.changes(state.workspace, files, role, turn)),
            transcript=(
                *state.transcript,
                TranscriptEntry(role=role, turn=turn, text=action.text, run=run, note=note),
            ),
        )
        if turn >= self._turns[role] or self._hands_over(after, role, text, run, note):
            after = replace(after, ended=(*state.ended, role))
        if not self._acting(after):
            after = replace(after, outcome=await self._outcome(after))
        return Step(state=after, scores=self._scores(after, role), info=self._info(state, after, role, run))

    def outcome(self, state: PipelineState) -> dict[str, float]:
        """`success`: the submission is valid. `performance`, and `quality` of tasks with a baseline and a
        reference, count failures as 0; `quality` is NaN for other tasks. `files`: the share of all required
        files that are there; the numbers of actions and of programs that failed."""
        lacking = sum(map(len, self._lacking(state).values()))
        runs = [entry.run for entry in state.transcript if entry.run is not None]
        ended = state.outcome
        return {
            "success": float(ended is not None and not ended.why),
            "performance": 0.0 if ended is None else ended.performance,
            "quality": math.nan if ended is None or ended.quality is None else ended.quality,
            "files": 1.0 - lacking / len(self._required),
            "actions": float(len(state.transcript)),
            "failed_programs": float(sum(not run.ok for run in runs)),
        }

    def diagnose(self, state: PipelineState, role: str) -> str:
        """Feedback on the role's last action, without a word on the hidden answers."""
        return workspace.last_action(state, role, workspace.missing(state.workspace, self._files[role]))

    def brief(self, task: Task) -> Brief:
        """The competition, and for each role its duty, limits and required files."""
        turns = {role: f"at most {most} turns" for role, most in self._turns.items()}
        return Brief(
            problem=task.payload.text,
            duties={role: DUTIES[role] for role in self._team},
            limits={
                role: f"{turns[role]}; a program may take "
                + _limits_text(self.limits_of(role), self._runner.room_mb(task.payload))
                for role in self._team
            },
            required=self._files,
            available=tasks.data_lines(task.payload),
        )

    def work(self, role: str, info: Mapping[str, Any]) -> Work:
        """The program's output, the files after the action as they were checked, the submission's worth."""
        return workspace.work_of(role, info)

    # ---- inside --------------------------------------------------------------------------------------------

    def _check_sandbox(self) -> None:
        sandbox, path = self.config.sandbox, self.build.path
        if not isinstance(sandbox, KeepsFiles):
            raise ConfigError(
                "this sandbox can't hand files on from one program to the next",
                path=f"{path}.sandbox",
                why="it has no run_on and no kept (coterie.KeepsFiles)",
                fix="use sandbox: local or sandbox_fusion",
            )
        packages = getattr(getattr(sandbox, "config", None), "packages", None)
        if packages is not None and not packages:
            log.warning(
                "%s: programs can't import pandas: set sandbox.packages: [pandas, scikit-learn]", path
            )

    def _check_named(self) -> None:
        """Refuse settings for roles that the team leaves out."""
        for name in sorted({"turns", "files", "role_limits"} & self.config.model_fields_set):
            stray = [role for role in getattr(self.config, name) if role not in self._team]
            if stray:
                raise ConfigError(
                    f"the team has no role '{stray[0]}'",
                    path=f"{self.build.path}.{name}.{stray[0]}",
                    why=f"team.order has {', '.join(self._team)}",
                    fix="remove it, or add the role to team.order",
                )

    def _check_files(self) -> str:
        """The path of the submission."""
        last = self._team[-1]
        if not self._files[last]:
            raise ConfigError(
                f"the last role, {last}, has to leave no file, so there is no submission",
                path=f"{self.build.path}.files.{last}",
                fix=f"name one: files: {{{last}: [submission.csv]}}",
            )
        return self._files[last][-1]

    def limits_of(self, role: str) -> Limits:
        """The limits of a role's programs."""
        return self.config.role_limits.get(role, self.config.limits)

    def _acting(self, state: PipelineState) -> str:
        """The role that acts; "" at the end."""
        return next((role for role in self._team if role not in state.ended), "")

    def _lacking(self, state: PipelineState) -> dict[str, tuple[str, ...]]:
        """The missing files of each role that has acted, in the order of the roles."""
        acted = {entry.role for entry in state.transcript}
        lacking = {role: workspace.missing(state.workspace, self._files[role]) for role in self._team}
        over = state.outcome is not None
        return {role: paths for role, paths in lacking.items() if paths and (role in acted or over)}

    def _hands_over(
        self, state: PipelineState, role: str, text: str, run: ProgramRun | None, note: str
    ) -> bool:
        """Whether a role has done its part with this action, so that it needs no other turn."""
        done = workspace.hands_over(text)
        lacks = bool(workspace.missing(state.workspace, self._files[role]))
        if run is None:
            return not note and (done or not lacks)
        return done and run.ok and not lacks

    async def _outcome(self, state: PipelineState) -> SubmissionOutcome:
        """Score the submission, or say what is missing and whose fault it is."""
        path, last = self._submission, self._team[-1]
        wrote = workspace.writer(state.trail, path)
        file: Path | None = None
        if path not in workspace.missing(state.workspace, (path,)):
            file = self.config.sandbox.kept(state.workspace, path)
        lacking = self._lacking(state)
        reasons = [
            workspace.missing_line(state.workspace, state.trail, role, each)
            for role, paths in lacking.items()
            for each in paths
        ]
        first = next(iter(lacking), last)
        why = f"there is no {path}. " + "; ".join(reasons)
        result, performance = await asyncio.to_thread(self._scorer.result, state.task, file, why)
        blamed = "" if result.valid else first if file is None or wrote is None else wrote.role
        if result.why and file is not None and wrote is not None:
            why = f"{path}, written by {wrote.role} in its turn {wrote.turn}: {result.why}"
        return SubmissionOutcome(
            metric=result.metric,
            direction=result.direction,
            value=result.value,
            quality=result.quality,
            performance=performance,
            why=why if result.why else "",
            blamed=blamed,
        )

    def _scores(self, after: PipelineState, role: str) -> dict[tuple[str, str], float | None]:
        outcome, required = after.outcome, self._files[role]
        there = len(required) - len(workspace.missing(after.workspace, required))
        runs = [entry.run for entry in after.transcript if entry.role == role and entry.run is not None]
        return {
            (TEAM, "performance"): 0.0 if outcome is None else outcome.performance,
            (TEAM, "valid"): float(outcome is not None and not outcome.why),
            (role, "files"): there / len(required) if required else 1.0,
            (role, "runs"): float(bool(runs) and runs[-1].ok),
        }

    def file_lines(self, state: PipelineState) -> tuple[str, ...]:
        """The file trail in words, and the missing files of roles that have acted."""
        return workspace.file_lines(state.workspace, state.trail, self._required, self._lacking(state))

    def _info(
        self, before: PipelineState, after: PipelineState, role: str, run: ProgramRun | None
    ) -> dict[str, Any]:
        """What came of the action, for coaches and records."""
        made = after.trail[len(before.trail) :]
        info: dict[str, Any] = {
            role: {
                "turn": _turn(before, role),
                "run": None if run is None else asdict(run),
                "trail": [asdict(change) for change in made],
                "missing": list(workspace.missing(after.workspace, self._files[role])),
                "files": list(self.file_lines(after)),
                "ended": role in after.ended,
            }
        }
        if after.outcome is not None:
            info["outcome"] = asdict(after.outcome)
        return info


def _turn(state: PipelineState, role: str) -> int:
    """The number of the role's next action, from 1."""
    return 1 + sum(entry.role == role for entry in state.transcript)


def _program(text: str) -> tuple[str, str]:
    """The program of a message, "" without one; and what is wrong with the message."""
    if not text.strip():
        return "", "the message was empty"
    try:
        return read_program(text), ""
    except PolicyFault:
        opened = any(line.strip().lower().startswith("```py") for line in text.splitlines())
        return "", "the block of Python is empty or never closed, so nothing was run" if opened else ""


def _limits_text(limits: Limits, workspace_mb: int) -> str:
    return (
        f"{limits.cpu_seconds:g} s of CPU time, {limits.memory_mb:,} MB of memory, and {workspace_mb:,} MB "
        "for the files that it leaves"
    )
