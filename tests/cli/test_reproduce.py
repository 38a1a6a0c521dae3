"""`coterie reproduce`: every study from one command to its table, in one folder."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from coterie.api.rows import read_metrics
from coterie.studies.runner import Runner
from tests.cli.support import coterie
from tests.studies.support import InProcess

ROOT = Path(__file__).parents[2]
COLUMN = ROOT / "tests" / "studies" / "column.yaml"
pytestmark = pytest.mark.xdist_group("studies")


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    """(folder, {study: its JSON}): all studies on the test column, one after the other in one folder.

    Jobs are done in this process; `tests/studies/test_jobs.py` is about theirs.
    """
    out, tables = tmp_path_factory.mktemp("studies"), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Runner, "launch", lambda runner, folder: InProcess(folder))
        for name in ("at-grpo-table1", "at-grpo-table3", "sampling", "cooperation"):
            done = coterie("reproduce", name, "--columns", COLUMN, "--seeds", 1, "--out", out, "--json")
            assert done.exit_code == 0, done.output
            tables[name] = json.loads(done.stdout)
    return out, tables


def rows(table):
    return {row["id"]: row for row in table["columns"]["column"]["rows"]}


def ran(table):
    return {job["label"].partition(": ")[2] for job in table["jobs"] if not job["reused"]}


def test_table_1_has_all_rows_and_the_papers_figures_beside_them(studies):
    table = studies[1]["at-grpo-table1"]
    by_id = rows(table)
    assert list(by_id) == ["single", "single_grpo", "team", "shared", "per_role"]
    # One of a, b, c and nothing wins, so the untrained succeed in a quarter; the trained know the word.
    assert by_id["team"]["success"]["mean"] < 0.6 < 0.9 < by_id["shared"]["success"]["mean"]
    assert by_id["team"]["tokens"] == 0 and 500 <= by_id["shared"]["tokens"] < 600
    assert (by_id["single"]["paper"], by_id["shared"]["paper"], by_id["team"]["paper"]) == (5, 96, None)
    gains = {id_: (row["gain"], row["paper_gain"]) for id_, row in by_id.items()}
    difference = by_id["shared"]["success"]["mean"] - by_id["single"]["success"]["mean"]
    assert gains["shared"] == (difference, 91) and gains["single"] == (None, None)
    claims = table["columns"]["column"]["claims"]
    assert [claim["seeds"][0]["holds"] for claim in claims] == [True, True, None, None]
    assert table["complete"] and table["command"] and table["versions"]["coterie"]
    assert table["wall_seconds"] > 0 and table["alone_seconds"] > 0 and table["seeds"] == [0]


def test_table_3_trains_only_what_table_1_did_not(studies):
    table = studies[1]["at-grpo-table3"]
    assert ran(table) == {
        "train alone.giver", "train alone.taker", "evaluate alone_giver", "evaluate alone_taker",
        "evaluate put_together", "evaluate swapped",
    }  # fmt: skip
    assert len(table["jobs"]) == 9, "reused ones are counted in the seconds it would take alone"
    assert 500 <= rows(table)["put_together"]["tokens"] < 600, "roles trained alone share the budget"
    assert table["alone_seconds"] == pytest.approx(sum(job["seconds"] for job in table["jobs"]))


def test_swapped_roles_do_what_the_untrained_do_and_those_put_together_succeed(studies):
    table_1, table_3 = (rows(studies[1][name]) for name in ("at-grpo-table1", "at-grpo-table3"))
    # The taker's table has never seen the giver's prompt: on the same draws it is the untrained giver.
    assert table_3["swapped"]["success"] == table_1["team"]["success"]
    # Only the giver's word matters, and alone it has learnt it.
    assert table_3["put_together"]["success"]["mean"] == table_3["alone_giver"]["success"]["mean"] > 0.9
    claims = studies[1]["at-grpo-table3"]["columns"]["column"]["claims"]
    assert [claim["seeds"][0]["holds"] for claim in claims] == [False, True]


def test_sampling_trains_chains_and_sampled_trees_at_the_same_tokens(studies):
    table = studies[1]["sampling"]
    assert ran(table) == {"train sampled", "train chains", "evaluate sampled", "evaluate chains"}
    assert all(500 <= rows(table)[row]["tokens"] < 600 for row in ("tree", "sampled", "chains"))


def test_cooperation_reads_the_curves_of_the_run_that_is_there(studies):
    out, tables = studies
    assert ran(tables["cooperation"]) == {"evaluate team"}
    read = tables["cooperation"]["columns"]["column"]["analysis"]["0"]
    assert read["tokens"][-1] == rows(tables["at-grpo-table1"])["per_role"]["tokens"]
    assert set(read["rewards"]) == {"giver", "taker"} and len(read["val"]["turns"]) >= 5
    assert "Pearson" in (out / "cooperation" / "table.md").read_text()
    assert "| gain | paper | paper's gain |" in (out / "table.md").read_text()


def test_a_result_tells_what_was_done_and_by_what(studies):
    out, _ = studies
    file = next(out.glob("jobs/*-train-shared-*/result.json"))
    result = json.loads(file.read_text())
    # A step of 4 tasks x 2 roles x 4 branches is 32 tokens: the budget is passed in the step that reaches it.
    assert (result["tokens"], result["steps"], result["budget"]) == (512, 16, 500)
    assert result["versions"]["python"] and result["seconds"] > 0 and len(result["config_digest"]) == 64
    assert result["command"].startswith("coterie run ") and "schedule.tokens=500" in result["command"]
    evaluated = json.loads(next(out.glob("jobs/*-evaluate-shared-*/result.json")).read_text())
    assert len(evaluated["per_task"]) == 48 and evaluated["split"] == "test"


KINDS = {
    "trained": "train shared",
    "untrained": "evaluate team",
    "of a run": "evaluate per_role",
    "swapped": "evaluate swapped",
    "put together": "evaluate put_together",
}


@pytest.mark.parametrize("label", KINDS.values(), ids=KINDS)
def test_the_command_of_a_job_does_the_same_by_hand(label, studies, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    every = [job for table in studies[1].values() for job in table["jobs"]]
    job = next(job for job in every if job["label"].endswith(": " + label))
    arguments = shlex.split(job["command"])[1:]
    done = coterie(*arguments) if label.startswith("train") else coterie(*arguments, "--json")
    assert done.exit_code == 0, done.output
    folder = Path(job["folder"])
    if label.startswith("train"):
        [run] = (tmp_path / "runs").iterdir()
        pairs = zip(
            *(read_metrics(metrics_row / "metrics.jsonl") for metrics_row in (run, folder / "run")),
            strict=True,
        )
        assert all(timeless(metrics_row) == timeless(by_hand) for metrics_row, by_hand in pairs)
    else:
        result, printed = json.loads((folder / "result.json").read_text()), json.loads(done.stdout)
        ours, theirs = printed.pop("versions"), result["versions"]  # a job's are of its worker
        assert {name: ours[name] for name in ours.keys() & theirs} == {
            name: theirs[name] for name in ours.keys() & theirs
        }
        assert printed == {name: result[name] for name in printed}


def timeless(row):
    return {name: value for name, value in row.items() if not name.startswith("time/")}


def test_the_first_study_of_a_folder_has_its_files_there_and_the_next_in_folders(studies):
    out, _ = studies
    assert json.loads((out / "table.json").read_text())["study"] == "at-grpo-table1"
    for folder in (out, out / "at-grpo-table3", out / "sampling"):
        assert {"table.md", "table.csv", "table.json"} <= {path.name for path in folder.iterdir()}


def test_the_table_is_printed_with_its_files_and_exit_code_1_where_something_failed(
    studies, tmp_path, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    out, _ = studies
    before = {path: path.stat().st_mtime_ns for path in out.glob("jobs/*/*")}
    done = coterie("reproduce", "at-grpo-table1", "--columns", COLUMN, "--seeds", 1, "--out", out)
    assert {path: path.stat().st_mtime_ns for path in out.glob("jobs/*/*")} == before, "done is done"
    assert done.exit_code == 0 and "| Team + AT-GRPO, shared policy |" in done.stdout
    assert str(out / "table.md") in done.stdout and "started" not in done.stderr
    bad = tmp_path / "bad.yaml"
    recipe = f"{{recipe: {COLUMN.parent / 'hand_over.yaml'}, overrides: ['env.tsks=1']}}"
    bad.write_text(
        f"title: Bad\nroles: [giver, taker]\nforms: {{per_role: {recipe}}}\n"
        "scales: {cpu: {tokens: 9, tasks: 2}}\n"
    )
    done = coterie("reproduce", "cooperation", "--columns", bad, "--seeds", 1, "--out", tmp_path / "out")
    assert done.exit_code == 1 and "| failed |" in done.stdout
    assert (
        "did you mean 'tasks'?" in done.stderr and "log.txt" in done.stderr and "Traceback" not in done.stderr
    )


def test_studies_and_columns_are_listed():
    done = coterie("reproduce")
    assert done.exit_code == 0 and "at-grpo-table1" in done.stdout and "plan_path" in done.stdout
    listed = json.loads(coterie("reproduce", "--list", "--json").stdout)
    assert {study["name"] for study in listed["studies"]} >= {"at-grpo-table2", "cooperation", "sampling"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["at-grpo-tabel1"], "did you mean 'at-grpo-table"),
        (["at-grpo-table2"], "--scale gpu"),
        (["at-grpo-table1", "--columns", "plan_pth"], "did you mean 'plan_path'"),
        (["at-grpo-table1", "--columns", f"{COLUMN},{COLUMN}"], "named twice"),
        (["at-grpo-table1", "--columns", COLUMN, "--scale", "gpu"], "no scale 'gpu'"),
    ],
)
def test_wrong_input_is_told_before_anything_starts(arguments, message, tmp_path):
    done = coterie("reproduce", *arguments, "--out", tmp_path / "out")
    assert done.exit_code == 2 and message in done.stderr and not (tmp_path / "out").exists()
