"""What a coach was asked in a run and what came of it, from the rows of its rollouts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coterie.api.episodes import TreeId, is_lost, tree_id
from coterie.core.storage.run_folder import RunFolder

ANSWERS = re.compile(r"\((.*); answers: (\d+)\)\Z")
"""The last line of a coach's comment: the model's version, and the number of answers that the score took."""
ASKED = re.compile(r"\(asked: (\d+), answered: (\d+)\)\Z")
"""The end of the reason of a missing score: questions to the coach, and its answers."""
CUT = " by max_tokens="
"""In the reason of a score that is missing for an answer that its limit cut."""
EXAMPLE = 300
"""Most characters of the reason that stands for its kind."""


@dataclass(slots=True)
class CoachedAction:
    """One action that the coach was asked about."""

    step: int
    task: str
    episode: TreeId
    role: str
    stratum: str
    score: float | None
    """0 to 10; None: missing."""
    others: dict[str, float | None]
    """Scores beside the coach's; the team's as `team.<component>`."""
    asked: int
    """Questions to the coach; all actions of a trajectory have those of its one call."""
    answers: int
    version: str
    reason: str
    """Why the score is missing."""
    success: float | None = None
    """Of the episode."""
    quality: float | None = None
    """Verified; the report chooses the component."""

    @property
    def kind(self) -> str:
        """What kept the score away."""
        if not ASKED.search(self.reason):
            return "other"
        if self.answers < self.asked:
            return "no answer to the second question" if self.answers else "no answer"
        return "cut by max_tokens" if CUT in self.reason else "malformed twice"


def actions_of(rows: list[dict[str, Any]], component: str, scale: float) -> Iterator[CoachedAction]:
    """The actions in the rows of a step that the coach was asked about.

    Args:
        component: the coach's.
        scale: value of a score of 10.
    """
    step = next((int(row["step"]) for row in rows if row["kind"] == "step"), 0)
    success: dict[TreeId, list[float]] = {}
    for row in rows:
        if row["kind"] == "joint" and row["outcome"] is not None:
            success.setdefault(tree_id(row), []).append(float(row["outcome"]["success"]))
    for row in rows:
        if row["kind"] != "branch" or component not in row["scores"]:
            continue
        if is_lost(row):
            continue  # nobody asked the coach
        others = dict(row["scores"])
        value = others.pop(component)
        reason = row["reasons"].get(component, "") if value is None else ""
        taken = ANSWERS.search(row.get("comments", {}).get(component, ""))
        lost = ASKED.search(reason)
        asked, answers = (int(lost[1]), int(lost[2])) if lost else (1, 0 if value is None else 1)
        if taken:
            asked = answers = int(taken[2])
        outcomes = success.get(tree_id(row), [])
        yield CoachedAction(
            step=step,
            task=row["task_id"],
            episode=tree_id(row),
            role=row["role"],
            stratum=row.get("stratum", ""),
            score=None if value is None else 10 * value / scale,
            others=others,
            asked=asked,
            answers=answers,
            version=taken[1] if taken else "",
            reason=reason,
            success=outcomes[0] if len(outcomes) == 1 else None,
        )


def calls_of(actions: Iterable[CoachedAction], trajectory: bool) -> dict[str, int]:
    """Questions to the coach by what came of them.

    `asked` = `answers` + `unanswered`; `asked_again` are those after a malformed answer.

    Args:
        trajectory: one call has scored all actions of an episode.
    """
    calls = list(actions)
    if trajectory:
        calls = list({(action.step, action.episode): action for action in calls}.values())
    asked, answers = sum(call.asked for call in calls), sum(call.answers for call in calls)
    again = sum(call.asked - 1 for call in calls)
    return {"asked": asked, "answers": answers, "unanswered": asked - answers, "asked_again": again}


def missing_kinds(actions: Iterable[CoachedAction]) -> dict[str, dict[str, Any]]:
    """By what kept scores away: how many, and the reason of the first; the most frequent first."""
    kinds: dict[str, dict[str, Any]] = {}
    for action in actions:
        if action.score is None:
            entry = kinds.setdefault(action.kind, {"scores": 0, "example": action.reason[:EXAMPLE]})
            entry["scores"] += 1
    return dict(sorted(kinds.items(), key=lambda item: (-item[1]["scores"], item[0])))


def spent_in(folder: RunFolder) -> dict[str, Any]:
    """What the remote models of a run have spent, by component."""
    spent = {}
    for file in sorted((folder.path / "remote").glob("usage-*.json")):
        table = json.loads(file.read_text(encoding="utf-8"))
        spent[file.stem.removeprefix("usage-")] = table["total"]
    return spent
