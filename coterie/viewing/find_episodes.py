"""The recorded episodes of a run that match a condition, in an order; files are read one at a time."""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.api.episodes import RecordedEpisode, action_rows, trees_of
from coterie.api.rollouts import read_rollouts
from coterie.api.rows import readable, run_folders
from coterie.core.errors import RunFolderError, UserError, did_you_mean
from coterie.core.storage.run_folder import RunFolder
from coterie.recipes import read_yaml
from coterie.viewing.episode_fields import FIELDS, OF_ROLES, fields_of
from coterie.viewing.where import Expression, SortKey, Value, check_names, place

log = logging.getLogger("coterie")


@dataclass(frozen=True, slots=True)
class Match:
    """An episode, and what it is searched by."""

    episode: RecordedEpisode
    fields: dict[str, Value]
    run: str = ""
    """The folder's name where several runs are searched."""

    def as_dict(self, role: str | None = None) -> dict[str, Any]:
        """Fields, outcome and actions (of one role, if one is named), as JSON."""
        actions = [row for row in action_rows(self.episode) if role in (None, row["role"])]
        end = self.episode.end
        return {
            **({"run": self.run} if self.run else {}),
            "key": self.episode.key,
            "fields": self.fields,
            "outcome": dict(self.episode.outcome),
            "fault": end["fault"] if end is not None else None,
            "actions": actions,
        }


@dataclass(slots=True)
class Search:
    """What a search found."""

    matches: list[Match] = field(default_factory=list)
    matching: int = 0
    """Episodes that match, of those that were looked at."""
    episodes: int = 0
    """Episodes that were looked at."""
    steps: list[int] = field(default_factory=list)
    """Steps whose files were read."""
    whole: bool = True
    """Whether all files were read that could have a match."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for."""

    steps: tuple[int, ...] = ()
    """Empty: every recorded step."""
    role: str | None = None
    """Only episodes in which the role acted."""
    where: Expression | None = None
    sort: tuple[SortKey, ...] = ()
    """Empty: the newest step first, within a step as they were played."""
    most: int = 5

    @property
    def names(self) -> tuple[str, ...]:
        """The fields that it reads."""
        sources = [self.where] if self.where else []
        return tuple(
            name for source in [*sources, *(key.expression for key in self.sort)] for name in source.names
        )


def recorded(folder: RunFolder) -> dict[int, Path]:
    """Step -> its rollout file, the newest step first.

    Raises:
        RunFolderError: it has none, or can't be read.
    """
    with readable(folder.path):
        files = {step_of(path): path for path in reversed(folder.rollout_files())}
        every = (read_yaml(folder.config).get("schedule") or {}).get("record_every")
    if not files:
        why = (
            "schedule.record_every is 0" if every == 0 else f"every {every}th step is (schedule.record_every)"
        )
        fix = "set schedule.record_every=1 in a new run, or resume this one with it"
        raise RunFolderError(f"{folder.path} has no recorded episodes yet", why=why, fix=fix)
    return dict(sorted(files.items(), reverse=True))


def step_of(path: Path) -> int:
    """The step of a rollout file."""
    number = re.match(r"step-(\d+)", path.name)
    return int(number[1]) if number else 0


def chosen(files: dict[int, Path], steps: Sequence[int]) -> dict[int, Path]:
    """The files of some steps, or all.

    Raises:
        UserError: a step has none.
    """
    for step in steps:
        if step not in files:
            why = "schedule.record_every decides which steps are; evaluations are never recorded"
            near = ", ".join(map(str, sorted(sorted(files, key=lambda other: abs(other - step))[:6])))
            raise UserError(
                f"the episodes of step {step} were not recorded", why=why, fix=f"recorded are {near}"
            )
    return {step: path for step, path in files.items() if not steps or step in steps}


def find(run: Path, query: Query) -> Search:
    """Search the recorded episodes of a run, or of the runs in a folder (such as that of `run --seeds`).

    One file is in memory at a time, besides the `most` episodes that are kept. Without an order the search
    ends once these are found.

    Raises:
        RunFolderError: it is no run, nothing is recorded, or a file is damaged or can't be read.
        UserError: a step was not recorded; no episode has a field or a role; a condition computes with texts.
    """
    files, search = _files(run_folders(run) or [run], query), Search()
    known: set[str] = {name for name in FIELDS if "<" not in name}
    roles: set[str] = set()
    best: list[tuple[Any, int, Match]] = []
    for number, (step, path, name) in enumerate(files, 1):
        search.steps += [step] if step not in search.steps else []
        for match in episodes_of(path, step, name):
            search.episodes += 1
            known |= match.fields.keys()
            roles |= {action.role for action in match.episode.actions}
            acted = query.role is None or query.role in (each.role for each in match.episode.actions)
            if not acted or (query.where is not None and not query.where.holds(match.fields)):
                continue
            search.matching += 1
            best.append((place(query.sort, match.fields), search.episodes, match))
        best = heapq.nsmallest(query.most, best, key=lambda entry: entry[:2])
        _check(query, known, roles, whole=False)
        if not query.sort and len(best) >= query.most:
            search.whole = number == len(files)
            break
    _check(query, known, roles, whole=True)
    search.matches = [match for _, _, match in best]
    return search


def _files(runs: Sequence[Path], query: Query) -> list[tuple[int, Path, str]]:
    """(step, rollout file, the run's name if there are several), the newest step first.

    Of several runs, those that have none of the steps are left out with a warning.
    """
    files: list[tuple[int, Path, str]] = []
    errors: list[UserError] = []
    for run in runs:
        name = run.name if len(runs) > 1 else ""
        try:
            with readable(run):
                folder = RunFolder.open(run)
            files += [(step, path, name) for step, path in chosen(recorded(folder), query.steps).items()]
        except UserError as error:
            errors.append(error)
    if not files:
        raise errors[0]
    for problem in errors:
        log.warning("left out: %s", problem.what)
    return sorted(files, key=lambda of: -of[0])


def episodes_of(path: Path, step: int, run: str = "") -> Iterator[Match]:
    """The episodes of a rollout file, in the order of play."""
    with readable(path):
        rows = read_rollouts(path)
    for tree in trees_of(rows, step):
        for episode in tree.episodes():
            yield Match(episode, fields_of(episode), run)


def _check(query: Query, known: set[str], roles: set[str], *, whole: bool) -> None:
    """Refuse what no episode has; but for the whole, not what another step may have."""
    if query.role is not None and query.role not in roles and whole:
        raise UserError(f"no episode has a role '{query.role}'", fix=did_you_mean(query.role, roles))
    kept = known | {f"{name}.{role}" for name in OF_ROLES for role in roles}
    late = ("outcome.", "score.")
    names = [name for name in query.names if whole or not name.startswith(late)]
    check_names(names, kept, "; a role has those of " + ", ".join(OF_ROLES))
