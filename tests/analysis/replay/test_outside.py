"""Runs whose environment runs programs, or whose reward is a coach's: their answers are on record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.analysis.records import RunRecords
from tests.analysis.replay.support import changed, trained

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(("name", "text"), [
    ("code_at_grpo", "results of programs that the environment ran"),
    ("mt_magrpo_humaneval", "results of programs that the environment ran"),
    ("mathchat_coach", "scores of rewards.coach"),
])  # fmt: skip
def test_a_recipe(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coder and a tester; MAGRPO's tree in two turns with feedback; MathChat with a coach."""
    folder = trained(tmp_path / "run", name, scale="smoke")
    from coterie.backends.sandboxes.local import LocalSandbox

    async def refused(*arguments: Any) -> Any:
        raise AssertionError("a program was run")

    with monkeypatch.context() as patch:  # no program runs, and no model is loaded
        for method in ("run", "judge", "open"):
            patch.setattr(LocalSandbox, method, refused)
        patch.setattr("coterie.backends.models.loading.load_model", refused)
        result = coterie.replay(folder, every=True)
    assert result.same, result.first
    assert result.equal["steps"] == 2 and result.equal["advantages"] > 5
    assert any(line.startswith(text) for line in result.taken), result.taken
    again = coterie.replay(folder, again=["sandbox", "coach"])
    assert again.same, again.first
    assert not any(line.startswith(text) for line in again.taken), again.taken
    if name == "code_at_grpo":
        _change_answers(folder, tmp_path)


def _change_answers(folder: Path, tmp_path: Path) -> None:
    """Another verdict pays another score; without the verdicts the step can't be played."""
    records = RunRecords.open(folder)

    def fail(rows: list[dict[str, Any]]) -> None:
        verdict = next(each for each in rows[0]["answers"].values() if each.get("passed"))
        verdict["passed"] -= 1

    first = changed(records, 2, fail, tmp_path).first
    assert first is not None and first.field.startswith("scores.") and first.joint is not None
    with pytest.raises(coterie.UserError, match="its record has no results of"):
        changed(records, 2, lambda rows: rows[0].pop("answers"), tmp_path)
