"""A coach by rule that reads what the environment tells it: it names the fault, and the role whose it is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coterie import Action, ActionView
from coterie.testing import build
from tests.plugins.envs.data_science.teams import (
    FOLDERS,
    ORDER,
    STUBS,
    environment,
    pack,
    play,
    program,
    stubs,
)
from tests.plugins.envs.data_science.test_pipeline import COLUMNS, LEFT_OUT, REGRESSION

RULES = [
    *(
        {"check": "pattern", "part": "files", "roles": [role], "score": 3, "reason": f"{path} is missing.",
         "pattern": rf"(?m)^{path}: (missing|empty).*{role} was to write it"}
        for path, (role, _) in LEFT_OUT.items()
    ),
    {"check": "pattern", "part": "outcome", "roles": ["analyst"], "score": 2, "reason": "It is invalid.",
     "pattern": "no valid submission: submission.csv, written by analyst"},
    {"check": "pattern", "part": "tool_output", "score": 1, "reason": "It crashed.",
     "pattern": "^status: failed"},
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("coach"), tasks=REGRESSION + 1)


def coached(place: Path, messages: Any) -> list[tuple[str, float, str]]:
    """(role, score of 10, reason) of each action of an episode."""
    env = environment(place)
    task = env.tasks("train", 0)[REGRESSION]
    table = {"type": "data_science", "data": {"type": "ds_pack", "path": str(place)}, "sandbox": FOLDERS}
    model = {"type": "heuristic", "otherwise": 9.0, "rules": RULES}
    settings = {"type": "coach", "model": model, "outcome": "last", "guidance": {"analyst": "Is it valid?"}}
    source = build("reward", settings, name="coach", order=ORDER, env=table)

    async def go() -> list[tuple[str, float, str]]:
        told = []
        for step in await play(env, task, messages):
            entry = step.state.transcript[-1]
            view = ActionView(
                task=task, turn=0, role=entry.role, observation=None, state=None, info=step.info,
                messages=({"role": "user", "content": "seen"},), action=Action(calls=(), text=entry.text),
            )  # fmt: skip
            (score,) = (await source.score(view)).values()
            told.append((entry.role, 10 * score.value, score.comment.partition("\n")[0]))
        return told

    return asyncio.run(go())


def test_a_team_without_a_fault_is_blamed_for_nothing(place: Path) -> None:
    assert coached(place, stubs()) == [(role, 9.0, "No rule applies.") for role in ORDER]


@pytest.mark.parametrize("path", LEFT_OUT)
def test_a_missing_file_is_its_own_roles_and_no_other_ones(place: Path, path: str) -> None:
    role, code = LEFT_OUT[path]
    told = coached(place, {**stubs(), role: [program(code)] * 4})
    blamed = {(who, reason) for who, score, reason in told if score == 3}
    assert blamed == {(role, f"{path} is missing.")} | (
        {("modeler", "model.pkl is missing.")} if path == "y_train.pkl" else set()
    ) | (
        {("analyst", "submission.csv is missing.")}
        if path in ("X_test.pkl", "model.pkl", "y_train.pkl")
        else set()
    )


@pytest.mark.parametrize("wrong", [name for name in COLUMNS if name != "empty"])
def test_a_wrong_submission_is_the_analysts(place: Path, wrong: str) -> None:
    header, row, _ = COLUMNS[wrong]
    code = f"""\
import csv
ids = [row["id"] for row in csv.DictReader(open("data/test.csv"))]
with open("submission.csv", "w") as file:
    {header}
    for each in ids:
        {row}"""
    told = coached(place, {**stubs(), "analyst": [program(code)]})
    assert [(who, score) for who, score, _ in told] == [
        ("data_engineer", 9.0), ("modeler", 9.0), ("analyst", 2.0)
    ]  # fmt: skip


@pytest.mark.parametrize("role", ORDER)
def test_a_crash_is_named_with_the_role_that_caused_it(place: Path, role: str) -> None:
    """It wrote its files first, so nothing is missing."""
    told = coached(place, {**stubs(), role: [program(f"{STUBS[role].replace('{guess!r}', '1')}\n1 / 0")] * 4})
    assert {who for who, score, reason in told if reason == "It crashed."} == {role}


def test_the_files_that_are_shown_are_those_after_the_action(place: Path) -> None:
    env = environment(place)
    steps = asyncio.run(play(env, env.tasks("train", 0)[REGRESSION], stubs("41.5")))
    shown = [env.work(role, step.info).files for role, step in zip(ORDER, steps, strict=True)]
    for files, path in zip(shown, ("X_train.pkl", "model.pkl", "submission.csv"), strict=True):
        assert f"{path}: " in files and "missing" not in files
    assert env.work("analyst", steps[-1].info).outcome.startswith("a valid submission: ")
    assert env.work("analyst", {}).files == ""
