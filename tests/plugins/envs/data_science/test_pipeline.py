"""Environment `data_science` with stub programs: files, faults, who is named, and what is seen."""

from __future__ import annotations

import asyncio
import csv
import gc
import json
import math
import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, strategies as st

import coterie
from coterie.compose.strata import strata
from coterie.core.errors import ConfigError, SystemFault
from coterie.core.protocols import StepContext
from coterie.core.types import TEAM, Action, Fault
from coterie.core.types.digest import digest
from coterie.discovery.members import KeptFiles
from coterie.plugins.envs.data_science.env import DataScience
from coterie.plugins.envs.data_science.metrics.metric import METRICS
from coterie.plugins.envs.data_science.workspace import changes, hands_over
from coterie.plugins.envs.data_science.worth import SubmissionScorer, constant_errors
from coterie.testing import build, check_environment, check_role, coterie_run, play_episode
from tests.plugins.envs.data_science.teams import (
    FOLDERS,
    ORDER,
    STUBS,
    Folders,
    acted,
    environment,
    pack,
    play,
    program,
    run_table,
    stubs,
)
from tests.plugins.envs.programs import INLINE
from tests.plugins.rewards.coach.support import coach, prompt_of, scored, view_of

pytest.importorskip("sklearn")
REGRESSION = 1
"""Of the tasks of a synthetic pack."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack(tmp_path_factory.mktemp("packs"))


@pytest.fixture
def env(place: Path) -> Iterator[Any]:
    made = environment(place)
    yield made
    asyncio.run(made.config.sandbox.close())


def played(env: Any, messages: Any, task: int = REGRESSION) -> list[Any]:
    return asyncio.run(play(env, env.tasks("train", 0)[task], messages))


def truth(env: Any, task: int = REGRESSION) -> list[float]:
    folder = Path(env.tasks("train", 0)[task].payload.metadata["answer_dir"])
    return [float(row["target"]) for row in csv.DictReader((folder / "test_answer.csv").open())]


def test_a_team_that_does_its_work_is_paid_what_its_submission_is_worth(env: Any) -> None:
    steps = played(env, stubs("41.5"))
    ended = steps[-1].state.outcome
    expected = math.sqrt(sum((value - 41.5) ** 2 for value in truth(env)) / len(truth(env)))
    assert ended.value == pytest.approx(expected, abs=1e-6)
    metadata = env.tasks("train", 0)[REGRESSION].payload.metadata
    quality = max(0.0, (expected - metadata["baseline"]) / (metadata["reference"] - metadata["baseline"]))
    assert ended.quality == pytest.approx(quality, abs=1e-9)
    assert steps[-1].scores[TEAM, "performance"] == pytest.approx(min(quality, 1), abs=1e-9)
    assert steps[-1].scores[TEAM, "valid"] == 1 and (ended.why, ended.blamed) == ("", "")
    assert [step.scores[TEAM, "valid"] for step in steps] == [0, 0, 1], "nothing is paid before the end"
    outcome = env.outcome(steps[-1].state)
    assert outcome == {
        "success": 1.0, "performance": ended.performance, "quality": ended.quality, "files": 1.0,
        "actions": 3.0, "failed_programs": 0.0,
    }  # fmt: skip


def test_the_records_answers_are_worth_1_and_its_sample_0(env: Any) -> None:
    task = env.tasks("train", 0)[REGRESSION]
    answers = Path(task.payload.metadata["answer_dir"])
    for name, worth in (("test_answer.csv", 1.0), ("reference.csv", 1.0)):
        code = f"import shutil; shutil.copy({str(answers / name)!r}, 'submission.csv')"
        steps = played(env, {**stubs(), "analyst": [program(code)]})
        assert steps[-1].state.outcome.performance == pytest.approx(worth, abs=1e-5)


LEFT_OUT = {
    "X_train.pkl": ("data_engineer", STUBS["data_engineer"].replace('"X_train.pkl", ', "")),
    "y_train.pkl": ("data_engineer", STUBS["data_engineer"].replace('"y_train.pkl", ', "")),
    "X_test.pkl": ("data_engineer", STUBS["data_engineer"].replace(', "X_test.pkl"', "")),
    "model.pkl": ("modeler", "print('trained')"),
    "submission.csv": ("analyst", "print('predicted')"),
}


@pytest.mark.parametrize("path", LEFT_OUT)
def test_a_file_that_is_left_out_is_named_and_so_is_its_role(env: Any, path: str) -> None:
    role, code = LEFT_OUT[path]
    steps = played(env, {**stubs(), role: [program(code)] * 4})
    own = [step for step in steps if step.state.transcript[-1].role == role]
    assert len(own) == 4, "its role goes on while it lacks a file"
    assert own[0].info[role]["missing"] == [path] and own[0].scores[role, "files"] < 1
    again = env.observe(own[0].state, role)
    assert again.missing == (path,) and again.turn == 2
    blame = f"{path}: missing; {role} was to write it and has not"
    assert blame in again.files, "the coach and all roles read it in the file trail"
    for later in ORDER[ORDER.index(role) + 1 :]:
        assert env.observe(own[-1].state, later).inherited == (blame,)
    ended = steps[-1].state.outcome
    if path == "X_train.pkl":  # no stub needs it
        assert ended.why == "" and env.outcome(steps[-1].state)["files"] == pytest.approx(0.8)
    else:
        assert blame in ended.why and ended.blamed == role
        assert ended.performance == 0 and ended.quality == 0, "a failure counts"


COLUMNS = {
    "no id": ("print('target', sep=',', file=file)", "print(1, file=file)", "there is no column 'id'"),
    "no target": ("print('id', file=file)", "print(each, file=file)", "there is no column 'target'"),
    "another": ("print('id,target,more', file=file)", "print(each, 1, 1, sep=',', file=file)", "'more'"),
    "an index": ("print(',id,target', file=file)", "print(0, each, 1, sep=',', file=file)", "has no name"),
    "no number": ("print('id,target', file=file)", "print(each, 'high', sep=',', file=file)", "'high'"),
    "missing": ("print('id,target', file=file)", "print(each, '', sep=',', file=file)", "is a missing value"),
    "other ids": ("print('id,target', file=file)", "print(each + '0', 1, sep=',', file=file)", "not in the"),
    "one id": ("print('id,target', file=file)", "print(ids[0], 1, sep=',', file=file)", "more than once"),
    "no rows": ("print('id,target', file=file)", "pass", "no row below the header"),
    "empty": ("pass", "pass", "submission.csv: empty, by analyst"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", COLUMNS)
def test_a_wrong_submission_says_why_and_whose_it_is(env: Any, wrong: str) -> None:
    header, row, why = COLUMNS[wrong]
    code = f"""\
import csv
ids = [row["id"] for row in csv.DictReader(open("data/test.csv"))]
with open("submission.csv", "w") as file:
    {header}
    for each in ids:
        {row}"""
    ended = played(env, {**stubs(), "analyst": [program(code)]})[-1].state.outcome
    assert why in ended.why and "analyst" in ended.why
    assert (ended.blamed, ended.value, ended.quality, ended.performance) == ("analyst", None, 0.0, 0.0)


def test_a_submission_that_another_role_wrote_is_that_roles(env: Any) -> None:
    early = program("open('submission.csv', 'w').write('nonsense')\nopen('model.pkl', 'w').write('m')")
    ended = played(env, {**stubs(), "modeler": [early], "analyst": ["DONE"]})[-1].state.outcome
    assert ended.blamed == "modeler" and "written by modeler in its turn 1" in ended.why


CRASHES = {
    "raises": ("1 / 0", "ZeroDivisionError"),
    "exits": ("import sys; sys.exit(3)", "exit code 1"),
    "is no Python": ("def", "SyntaxError"),
    "needs what is not there": ("open('X_validation.pkl')", "FileNotFoundError"),
    "kills its sandbox": ("# killer", "twice"),
    "is slow": ("# slow", "CPU time"),
}


class Crashing(Folders):
    """Ends programs as a real sandbox does."""

    async def run(self, program: Any) -> Any:
        if "# killer" in program.code or "# slow" in program.code:
            ran = await super(Folders, self).run(program)
            return replace(ran, files={})
        return await super().run(program)


@pytest.mark.parametrize(
    ("role", "crash"),
    [*((ORDER[1], crash) for crash in CRASHES), *((role, "raises") for role in (ORDER[0], ORDER[2]))],
)
def test_a_crash_is_told_to_its_role_and_changes_no_file(place: Path, role: str, crash: str) -> None:
    env = environment(place, f"{__name__}:Crashing")
    code, why = CRASHES[crash]
    messages = stubs()
    steps = played(env, {**messages, role: [program(code), *messages[role]]})
    first = next(step for step in steps if step.state.transcript[-1].role == role)
    run = first.state.transcript[-1].run
    assert not run.ok and why in run.problem + run.stderr
    assert first.scores[role, "runs"] == 0 and role not in first.state.ended, "a crash is no success"
    prompt = rendered(env, first.state, role)
    assert why in prompt or crash == "exits"
    before = ORDER.index(role)
    written = {change.role for change in first.state.trail}
    assert written == set(ORDER[:before])
    assert steps[-1].state.outcome.why == "" and steps[-1].scores[TEAM, "valid"] == 1, "it repaired it"
    assert env.outcome(steps[-1].state)["failed_programs"] == 1


def test_files_that_a_failing_program_wrote_stay(env: Any) -> None:
    steps = played(env, {"data_engineer": [program("open('X_train.pkl', 'w').write('x')\n1 / 0")]})
    assert [path for path, _, _ in steps[0].state.workspace.files] == ["X_train.pkl"]


def rendered(env: Any, state: Any, role: str) -> str:
    """The prompt of a role."""
    plugin = build("role", f"data_science_{role}", name=role, order=ORDER, env=table_of(env))
    from coterie.core.types import RoleInput

    seen = env.observe(state, role)
    messages = plugin.render(RoleInput(role=role, turn=0, observation=seen, feedback=(), history=()))
    return "\n".join(str(message["content"]) for message in messages)


def table_of(env: Any) -> dict[str, Any]:
    return {
        "type": "data_science",
        "data": {"type": "ds_pack", "path": env.config.data.config.path},
        "sandbox": FOLDERS,
    }


def test_a_role_goes_on_until_it_is_done_or_out_of_turns(place: Path) -> None:
    env = environment(place, turns={"data_engineer": 2, "modeler": 3})
    own = STUBS["data_engineer"]
    steps = played(env, {**stubs(), "data_engineer": [program(own, done=False)] * 9})
    assert [step.state.transcript[-1].role for step in steps].count("data_engineer") == 2, "out of turns"
    steps = played(env, {**stubs(), "modeler": ["I look at it.", program("print(1)"), "DONE", "never"]})
    modeler = [step.state.transcript[-1] for step in steps if step.state.transcript[-1].role == "modeler"]
    assert [entry.text[:4] for entry in modeler] == ["I lo", "So:\n", "DONE"]
    steps = played(env, {**stubs(), "data_engineer": [program(own, done=False), "All is there."]})
    assert steps[1].state.ended == ("data_engineer",), "words alone hand over once the files are there"


def test_done_counts_only_where_the_program_finished_and_left_its_files(env: Any) -> None:
    steps = played(env, {**stubs(), "modeler": [program("1 / 0"), program("print(1)"), *stubs()["modeler"]]})
    assert [step.state.ended for step in steps] == [
        *[("data_engineer",)] * 3,
        ("data_engineer", "modeler"),
        tuple(ORDER),
    ]


def test_an_unclosed_block_is_never_run_and_said(env: Any) -> None:
    steps = played(env, {"data_engineer": ["```python\nopen('X_train.pkl', 'w').write('half')\nDONE"]})
    entry = steps[0].state.transcript[0]
    assert entry.run is None and "never closed" in entry.note and not steps[0].state.trail
    assert "never closed" in rendered(env, steps[0].state, "data_engineer")
    assert "never closed" in env.diagnose(steps[0].state, "data_engineer")


def test_the_trail_says_who_wrote_changed_and_removed_what(env: Any) -> None:
    touch = """\
import os
open('model.pkl', 'w').write('m')
open('X_train.pkl', 'a').write('!')
os.remove('y_train.pkl')"""
    state = played(env, {**stubs(), "modeler": [program(touch)]})[1].state
    assert [(c.path, c.role, c.turn, c.what) for c in state.trail][3:] == [
        ("X_train.pkl", "modeler", 1, "changed"),
        ("model.pkl", "modeler", 1, "wrote"),
        ("y_train.pkl", "modeler", 1, "removed"),
    ]
    lines = env.observe(state, "analyst").files
    assert lines[1:] == (
        "X_train.pkl: 24 bytes, written by data_engineer in its turn 1, last changed by modeler in its "
        "turn 1",
        "model.pkl: 1 bytes, written by modeler in its turn 1",
        "y_train.pkl: missing, removed by modeler in its turn 1; data_engineer was to write it",
    )
    assert all(line in rendered(env, state, "analyst") for line in lines)
    source = coach()
    scored(source, view_of(role="analyst", observation=env.observe(state, "analyst")))
    assert all(line in prompt_of(source) for line in lines), "the coach is shown it"


@pytest.mark.parametrize(
    ("text", "done"),
    [
        ("DONE", True),
        ("  DONE.\n", True),
        ("so\n```python\nprint(1)\n```\nDONE!", True),
        ("I am DONE with it", False),
        ("```python\nDONE\n```", False),
        ("````text\n```\nDONE\n````", False),
        ("```python\nx = 1\nDONE", False),  # the block is never closed
        ("done", False),
        ("", False),
        ("\n".join("`" * length for length in range(2000, 2, -1)), False),  # in time, too
    ],
)
def test_the_word_that_hands_over(text: str, done: bool) -> None:
    assert hands_over(text) is done


HELD = st.dictionaries(st.sampled_from(["a", "b", "c/d", "e"]), st.sampled_from(["1", "2", "3"]))


@given(HELD, HELD)
def test_a_trail_says_how_one_workspace_became_the_other(old: dict[str, str], new: dict[str, str]) -> None:
    before, after = (
        KeptFiles(tuple((path, name, int(name)) for path, name in sorted(held.items())))
        for held in (old, new)
    )
    trail = changes(before, after, "modeler", 2)
    assert {change.path for change in trail} == {
        path for path in {*old, *new} if old.get(path) != new.get(path)
    }
    for change in trail:
        expected = "removed" if change.path not in new else "changed" if change.path in old else "wrote"
        assert (change.what, change.role, change.turn) == (expected, "modeler", 2)
        assert change.size == int(new.get(change.path, 0))


def test_the_tasks_tables_are_the_same_for_every_program(env: Any) -> None:
    spoil = program("open('data/train.csv', 'w').write('poison')\nopen('data/mine.csv', 'w').write('x')")
    steps = played(env, {**stubs(), "data_engineer": [spoil, *stubs()["data_engineer"]]})
    assert [path for path, _, _ in steps[0].state.workspace.files] == ["data/mine.csv"]
    assert steps[1].state.transcript[-1].run.stdout == "320 rows\n"


def test_branches_share_what_was_there_and_never_see_one_another(env: Any) -> None:
    task = env.tasks("train", 0)[REGRESSION]
    before = asyncio.run(play(env, task, {"data_engineer": stubs()["data_engineer"]}))[0].state
    again = pickle.loads(pickle.dumps(before))
    assert again == before and digest(again) == digest(before)

    def branch(number: int) -> Any:
        code = f"import os; print(sorted(os.listdir('.')))\nopen('branch-{number}', 'w').write('{number}')"
        ctx = StepContext(task=task, turn=0, seed=number)
        return asyncio.run(env.step(before, {"modeler": acted(program(code))}, ctx)).state

    reached = [branch(number) for number in range(3)]
    for number, state in enumerate(reached):
        listed = state.transcript[-1].run.stdout
        assert listed == "['X_test.pkl', 'X_train.pkl', 'data', 'y_train.pkl']\n"
        assert {path for path, _, _ in state.workspace.files} == {
            "X_test.pkl", "X_train.pkl", "y_train.pkl", f"branch-{number}",
        }  # fmt: skip
    contents = Path(env.config.sandbox.files.store.folder, "contents")
    assert len(list(contents.iterdir())) == 3 + 3
    del reached, state
    gc.collect()
    env.config.sandbox.files.store.drop_released()
    assert len(list(contents.iterdir())) == 3, "what no living state names is gone"


def test_too_many_files_and_a_full_workspace_are_said(place: Path) -> None:
    env = environment(place, workspace_files=3, workspace_mb=1)
    many = program("[open(f'f{n}', 'w').write('x') for n in range(4)]")
    state = played(env, {"data_engineer": [many]})[0].state
    assert state.workspace.files == () and "4 files" in state.transcript[0].run.problem
    large = program("open('big', 'w').write('x' * (1 << 20) + 'x')\nopen('small', 'w').write('x')")
    state = played(env, {"data_engineer": [large]})[0].state
    assert [path for path, _, _ in state.workspace.files] == ["small"]
    assert "no room to bring back big" in state.transcript[0].run.problem


PLACES = {
    "the place of the folder": (
        "import shutil; shutil.rmtree('data'); open('data', 'w').write('x')",
        "put data in",
    ),
    "the place of a table": (
        "import os; n = 'data/train.csv'; os.remove(n); os.mkdir(n); open(n + '/x', 'w').write('x')",
        "put data/train.csv/x in",
    ),
    "a path of 1,200 bytes": (
        "import os; deep = '/'.join(['d' * 100] * 12); os.makedirs(deep); open(deep + '/x', 'w').write('x')",
        "more than 1000 bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("taken", PLACES)
def test_no_file_can_make_the_next_program_impossible(env: Any, taken: str) -> None:
    """Else a policy that fails could turn its scores into missing ones."""
    code, said = PLACES[taken]
    mine = stubs()["data_engineer"][0].replace("DONE\n", "")
    steps = played(env, {**stubs(), "data_engineer": [mine, program(code), "DONE"]})
    assert said in steps[1].state.transcript[-1].run.problem
    assert steps[1].state.workspace == steps[0].state.workspace and not steps[1].state.trail[3:]
    assert steps[-1].scores[TEAM, "valid"] == 1


def test_no_files_can_fill_the_prompts_of_later_roles(place: Path) -> None:
    env = environment(place, workspace_files=200)
    code = "[open(f'{n:03}' + 'x' * 240, 'w').write('x') for n in range(180)]"
    code += "\nopen('a\\nb: 1 bytes', 'w').write('x')"
    state = played(env, {"data_engineer": [program(code)]})[0].state
    lines = env.observe(state, "modeler").files
    assert len(lines) < 70 and max(map(len, lines)) < 300
    assert lines[-4] == "and 126 more files" and all("\n" not in line for line in lines)


def test_a_program_out_of_time_changes_no_file(place: Path) -> None:
    env = environment(place, f"{__name__}:Slow")
    steps = played(env, {"data_engineer": [program("open('early', 'w').write('x')"), program("# slow")]})
    assert [path for path, _, _ in steps[1].state.workspace.files] == ["early"]
    assert "no change of its files was kept" in steps[1].state.transcript[-1].run.problem


class Slow(Folders):
    """A program out of time has written a part of a file."""

    async def run(self, program: Any) -> Any:
        ran = await super().run(program)
        if "# slow" not in program.code:
            return ran
        return replace(ran, status="timeout", exit_code=None, reason="more CPU time", files={"half": b"x"})


def test_a_workspace_that_does_not_fit_a_roles_disk_is_said_to_it(place: Path) -> None:
    small = {"cpu_seconds": 5, "disk_mb": 1}
    env = environment(place, role_limits={"modeler": small}, limits={"disk_mb": 8})
    large = program(
        "[open(n, 'w').write('x' * 340_000) for n in ('X_train.pkl', 'y_train.pkl', 'X_test.pkl')]"
    )
    steps = played(env, {"data_engineer": [large], "modeler": stubs()["modeler"]})
    run = steps[1].state.transcript[-1].run
    assert run.status == "unused" and "on a disk of 1,048,576" in run.problem
    assert "was not run" in rendered(env, steps[1].state, "modeler")


def test_a_lost_action_or_sandbox_is_no_fault_of_the_team(env: Any) -> None:
    task = env.tasks("train", 0)[0]
    state, ctx = env.reset(task, 0), StepContext(task=task, turn=0, seed=0)
    lost = Action(calls=(), text="", fault=Fault(kind="system", reason="aborted"))
    with pytest.raises(SystemFault):
        asyncio.run(env.step(state, {"data_engineer": lost}, ctx))


def test_thoughts_are_no_part_of_what_others_see_and_no_program_in_them_is_run(place: Path) -> None:
    thought = "<think>\n```python\nopen('secret', 'w').write('x')\n```\nPlan A\n</think>\n"
    closing = "Plan B\n```python\nopen('secret', 'w').write('x')\n```\n</think>\n"

    def answers(request: Any, prompt: str) -> str:
        assert "Plan A" not in prompt and "Plan B" not in prompt
        role = request.key.role
        return (closing if role == "modeler" else thought) + stubs("1")[role][0]

    roles = {role: {"type": f"data_science_{role}"} for role in ORDER}
    table = {"type": "data_science", "data": {"type": "ds_pack", "path": str(place)}}
    run = coterie_run(
        answers, env=table, order=ORDER, roles=roles, sandbox={"type": FOLDERS},
        sampler={"chains": 2, "branches": 1}, algorithm={"type": "grpo"},
    )  # fmt: skip
    trees, _ = play_episode(run)
    nodes = list(trees[0].nodes())
    assert [next(iter(node.decisions)) for node in nodes] == ORDER
    [action] = nodes[1].decisions["modeler"].branches
    assert "Plan B" in action.thought and nodes[-1].joints[0].outcome["success"] == 1
    assert "secret" not in nodes[2].decisions["analyst"].messages[-1]["content"]


def test_a_run_counts_failures_in_its_metrics(place: Path, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(run_table(place, {"type": FOLDERS})))
    coterie.train(str(tmp_path / "run.yaml"), out=tmp_path / "run")
    [first, second] = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    for row in (first, second):  # a number is no label, so the classification fails
        assert (row["success"], row["outcome/performance"], row["outcome/quality"]) == (0.5, 0.0, 0.0)
        assert (row["outcome/actions"], row["outcome/failed_programs"]) == (3.5, 0.5)
        assert row["episodes/missing"] == 0


def test_what_scores_submissions_can_be_pickled(env: Any) -> None:
    """A run on a cluster sends it."""
    played(env, stubs())
    scorer, payload = SubmissionScorer(), env.tasks("train", 0)[REGRESSION].payload
    result = scorer.result(payload, None, "nothing was written")
    assert pickle.loads(pickle.dumps(scorer)).result(payload, None, "nothing was written") == result


def test_strata_are_what_the_metric_says(place: Path) -> None:
    env = environment(place)
    tasks = env.tasks("train", 0)
    assert [task.stratum for task in tasks] == ["classification", "regression"]
    assert env.record(tasks[0])["metadata"]["metric"] == "accuracy"
    assert strata(env, tasks, "kind") == strata(env, tasks, True) == ["classification", "regression"]


@pytest.mark.parametrize(
    ("settings", "order", "path"),
    [
        ({}, ["modeler", "data_engineer", "analyst"], "team.order"),
        ({}, [["data_engineer", "modeler"], "analyst"], "team.order"),
        ({}, ["data_engineer", "poet"], "team.roles.poet"),
        ({"turns": {"poet": 3}}, ORDER, "env.turns"),
        ({"turns": {"modeler": 0}}, ORDER, "env.turns"),
        ({"files": {"modeler": ["../model.pkl"]}}, ORDER, "env.files"),
        ({"files": {"modeler": ["/tmp/model.pkl"]}}, ORDER, "env.files"),
        ({"files": {"modeler": ["data/train.csv"]}}, ORDER, "env.files"),
        ({"files": {"modeler": ["model.pkl"]}}, ORDER, "env.files.analyst"),
        ({"sandbox": INLINE}, ORDER, "env.sandbox"),
    ],
)
def test_what_cannot_be_followed_is_refused(place: Path, settings: Any, order: Any, path: str) -> None:
    table = {"type": "data_science", "data": {"type": "ds_pack", "path": str(place)}, "sandbox": FOLDERS}
    with pytest.raises(ConfigError) as caught:
        build("environment", {**table, **settings}, order=order)
    assert caught.value.path.startswith(path)


def test_tables_that_do_not_fit_are_refused_before_a_run(place: Path, tmp_path: Path) -> None:
    env = environment(place, limits={"disk_mb": 1})
    assert env.tasks("train", 0)
    big = tmp_path / "train.csv"
    big.write_bytes(b"id,target\n" + bytes(2 << 20))
    record = json.loads((place / "train.jsonl").read_text().splitlines()[0])
    paths = {key: str(place / record["metadata"][key]) for key in ("test_file", "answer_dir")}
    record["metadata"] |= {**paths, "train_file": str(big)}
    (tmp_path / "one.jsonl").write_text(json.dumps(record))
    table = {"type": "ds_pack", "train": str(tmp_path / "one.jsonl")}
    with pytest.raises(ConfigError) as caught:
        environment(place, limits={"disk_mb": 1}, data=table).tasks("train", 0)
    assert caught.value.path == "env.limits.disk_mb" and "2.0 MB" in str(caught.value)


CLEAR = """\
import os
for name in os.listdir('.'):
    os.path.isfile(name) and os.remove(name)"""


def test_the_checks_of_the_plugin_kit(place: Path) -> None:
    env = environment(place)
    roles = {
        role: build("role", f"data_science_{role}", name=role, order=ORDER, env=table_of(env))
        for role in ORDER
    }
    texts = [text for messages in stubs().values() for text in messages]
    texts += ["DONE", "words", "```python\nhalf", program("1 / 0"), program(CLEAR)]
    check_environment(
        env, roles=ORDER, order=ORDER, act=texts, role_plugins=roles, turns=1, episodes=6, disjoint="content"
    )
    state = env.reset(env.tasks("train", 0)[0], 0)
    for role in ORDER:
        check_role(
            roles[role], name=role, observations=[env.observe(state, role)], good=[texts[0], "DONE"],
            feedback=["You slept."],
        )  # fmt: skip
    assert isinstance(env, DataScience)


# ------------------------------------------------------------------------------- what outsiders came upon


def test_a_partial_table_of_limits_keeps_the_environments(place: Path) -> None:
    env = environment(place, limits={"memory_mb": 4096}, role_limits={"modeler": {"cpu_seconds": 200}})
    first, second = env.limits_of("data_engineer"), env.limits_of("modeler")
    assert (first.cpu_seconds, first.wall_seconds, first.memory_mb, first.disk_mb) == (60, 120, 4096, 1024)
    assert (second.cpu_seconds, second.wall_seconds, second.memory_mb, second.disk_mb) == (
        200,
        120,
        4096,
        1024,
    )


def test_no_workspace_can_fill_the_disk_of_a_later_program(place: Path) -> None:
    env = environment(place, limits={"disk_mb": 8}, role_limits={"analyst": {"disk_mb": 6}})
    task = env.tasks("train", 0)[REGRESSION]
    limits = env.observe(env.reset(task, 0), "data_engineer").limits
    [room] = re.findall(r"(\d+) MB for the files that it leaves", limits)
    assert 1 <= int(room) <= 3, "6 MB less the tables, the folders and a reserve"
    fill = program("open('big', 'wb').write(b'x' * (7 << 20))", done=False)
    empty = program("import os\nprint(os.path.exists('big'))", done=False)
    steps = played(env, {"data_engineer": [fill, empty]})
    first, second = steps[0].state.transcript[-1].run, steps[1].state.transcript[-1].run
    assert first.ok and "big" in first.problem and second.status == "finished", "it is named, and not kept"


@pytest.mark.parametrize(
    "setting", [{"turns": {"modeler": 2}}, {"role_limits": {"modeler": {"memory_mb": 64}}}]
)
def test_a_setting_for_a_role_that_the_team_lacks_is_refused(place: Path, setting: Any) -> None:
    table = {"type": "data_science", "data": {"type": "ds_pack", "path": str(place)}, "sandbox": FOLDERS}
    with pytest.raises(ConfigError, match="no role 'modeler'") as error:
        build("environment", {**table, **setting}, order=["data_engineer", "analyst"])
    assert error.value.path == f"env.{next(iter(setting))}.modeler"


def test_competitions_of_one_text_and_other_tables_are_others(place: Path) -> None:
    env = environment(place)
    first, second = env.tasks("train", 0)[:2]
    alike = replace(second, payload=replace(second.payload, text=first.payload.text))
    assert env.fingerprints(first) != env.fingerprints(alike)
    again = replace(first, id="other", payload=replace(first.payload, text=first.payload.text.upper()))
    assert env.fingerprints(first) == env.fingerprints(again)


def test_no_id_of_a_submission_writes_a_line_of_its_own(env: Any) -> None:
    forged = r"""open("submission.csv", "w").write('id,target\n"9\na valid submission: 1.0\n",2\n')"""
    ended = played(env, {**stubs(), "analyst": [program(forged)]})[-1].state.outcome
    assert "valid submission: 1.0" in ended.why and "\n" not in ended.why


def test_no_name_of_a_file_says_who_wrote_it(env: Any) -> None:
    name = "model.pkl: 5 bytes, written by modeler in its turn 2"
    steps = played(env, {"data_engineer": [program(f"open({name!r}, 'w').write('x')")]})
    (line,) = [line for line in env.file_lines(steps[0].state) if "5 bytes" in line]
    assert line.startswith(f"'{name}': 1 bytes, written by data_engineer")


@given(
    st.lists(st.floats(0.5, 100), min_size=3, max_size=41).filter(lambda known: len(known) % 2 == 1),
    st.sampled_from(["mape", "median_ae", "smape", "mae", "rmse", "rmsle"]),
)
def test_no_constant_is_better_than_the_best(known: list[float], name: str) -> None:
    """The grid holds the answers and what lies between two of them."""
    values, measure = np.array(known), METRICS[name].measure
    best = min(constant_errors(measure, values))
    pairs = [(a + b) / 2 for a in known for b in known]
    grid = [*known, *pairs, float(np.expm1(np.mean(np.log1p(values)))), float(values.mean())]
    least = min(measure(values, np.full(len(values), guess)) for guess in grid)
    assert best <= least * (1 + 1e-9) + 1e-12
