"""`coterie eval --policy / --swap / --null`: a changed team beside the team, with external policies."""

from __future__ import annotations

import json
import shutil

import pytest

from coterie.core.config import to_yaml
from tests.api.test_compare import signals
from tests.cli.support import TABULAR, coterie
from tests.cli.test_wrong_input import refused

MATRIX = TABULAR.parent / "matrix.yaml"
TASKS = ("--tasks", "32", "--samples", "2")


def trained(folder, *settings, recipe=MATRIX):
    """A finished run: by default of `row` and `column`, who play the matrix game with a policy each."""
    done = coterie("run", recipe, *settings, "--out", folder)
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs that learnt different things from the same seed."""
    folder = tmp_path_factory.mktemp("runs")
    a = trained(folder / "a", "env.tasks=32", "trainer.learning_rate=0.5")
    return a, trained(folder / "b", "env.tasks=32", "schedule.steps=8", "schedule.keep_checkpoints=9")


def evaluated(*arguments):
    done = coterie("eval", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def per_task(file, *arguments):
    """(the team's successes by task, those of the changed team), by way of --out."""
    evaluated(*arguments, *TASKS, "--out", file, "--overwrite")
    result = json.loads(file.read_text())
    return result["per_task"], result.get("comparison", {}).get("changed_per_task")


# ----------------------------------------------------------------------------------- external policies


def test_a_team_of_another_runs_policies_plays_as_that_run_bit_for_bit(runs, tmp_path):
    a, b = runs
    of_a, _ = per_task(tmp_path / "a.json", a)
    of_b, _ = per_task(tmp_path / "b.json", b)
    base, changed = per_task(tmp_path / "c.json", a, "--policy", f"row={b}", "--policy", f"column={b}")
    assert base == of_a and changed == of_b and of_a != of_b
    assert len(of_a) == 32 and all(len(samples) == 2 for samples in of_a.values())


def test_two_halves_make_the_same_team_whichever_run_loads_the_other_half(runs, tmp_path):
    a, b = runs
    _, from_a = per_task(tmp_path / "one.json", a, "--policy", f"column={b}")
    _, from_b = per_task(tmp_path / "other.json", b, "--policy", f"row={a}")
    both = [per_task(tmp_path / "x.json", run)[0] for run in runs]
    assert from_a == from_b and from_a not in both


def test_a_run_beside_itself_differs_in_nothing(runs):
    comparison = evaluated(runs[0], "--policy", f"row={runs[0]}", *TASKS)["comparison"]
    assert comparison["difference"]["mean"] == 0 and not any(comparison["per_task"].values())


def test_a_policy_and_a_checkpoint_may_be_named(runs, tmp_path):
    a, b = runs
    comparison = evaluated(a, "--policy", f"row={b}@4:column", "--tasks", "4")["comparison"]
    assert comparison["changes"] == [{"change": "policy", "role": "row", "policy": f"{b}@4:column"}]
    assert comparison["team"] == {"row": f"{b}@4:column", "column": "column"}
    latest = evaluated(a, "--policy", f"row={b}@latest", "--tasks", "4")["comparison"]
    assert latest["team"]["row"] == f"{b}@8:row", "who plays the role there"
    four = evaluated(a, "--policy", f"row={b}", "--checkpoint", "4", "--tasks", "4")["comparison"]
    assert four["team"]["row"] == f"{b}@4:row", "without @ it is the one that --checkpoint names"
    moved = tmp_path / "at@best"
    shutil.copytree(b, moved)
    for text, step in ((f"{moved}", _best(b)), (f"{moved}@8", 8)):
        moved_run = evaluated(a, "--policy", f"row={text}", "--tasks", "4")["comparison"]
        assert moved_run["team"]["row"] == f"{moved}@{step}:row", "a folder's own name goes first"


def test_an_exported_table_plays_as_its_run_whatever_its_folder_is_called(runs, tmp_path, monkeypatch):
    a, b = runs
    monkeypatch.chdir(tmp_path)
    done = coterie("export", b, "--policy", "row", "-o", "row")
    assert done.exit_code == 0, done.output
    _, folder = per_task(tmp_path / "1.json", a, "--policy", "row=row")
    _, run = per_task(tmp_path / "2.json", a, "--policy", f"row={b}")
    assert folder == run
    comparison = json.loads((tmp_path / "1.json").read_text())["comparison"]
    assert comparison["team"]["row"] == "./row", "not the team's own policy of that name"


def test_a_team_of_external_policies_that_is_swapped_is_the_other_run_swapped(runs, tmp_path):
    a, b = runs
    swap = ("--swap", "row=column")
    _, in_its_run = per_task(tmp_path / "1.json", b, *swap)
    _, in_another = per_task(tmp_path / "2.json", a, "--policy", f"row={b}", "--policy", f"column={b}", *swap)
    assert in_its_run == in_another


def test_a_silent_role_by_the_command(tmp_path):
    """What is said and why is in tests/api/test_compare.py."""
    recipe = tmp_path / "signals.yaml"
    recipe.write_text(to_yaml(signals()))
    comparison = evaluated(recipe, "--null", "speaker")["comparison"]
    assert (
        comparison["changes"] == [{"change": "null", "role": "speaker"}]
        and comparison["team"]["speaker"] is None
    )
    assert (comparison["base"]["mean"], comparison["changed"]["mean"]) == (1.0, pytest.approx(1 / 3))


def test_for_people(runs):
    a, b = runs
    done = coterie("eval", a, "--policy", f"row={b}", "--null", "column", "--tasks", "8")
    assert done.exit_code == 0, done.output
    line = next(line for line in done.stdout.splitlines() if "paired by task" in line)
    assert line == f"row played by {b}@{_best(b)}:row; column silent: paired by task"
    for text in ("  base  ", "  changed  ", "  difference ", "  p ", "of 8 tasks differ"):
        assert text in done.stdout


def _best(run):
    return json.loads((run / "checkpoints" / "best.json").read_text())["step"]


def test_out_is_strict_json_also_without_a_change(runs, tmp_path):
    def refuse(constant):
        raise AssertionError(constant)

    base, changed = per_task(tmp_path / "out.json", runs[0])
    result = json.loads((tmp_path / "out.json").read_text(), parse_constant=refuse)
    assert changed is None and result["per_task"] == base and result["success"]["n"] == 32


# ------------------------------------------------------------------------------------------- what is refused


def test_roles_and_folders_that_are_not_there(runs, tmp_path):
    a, b = runs
    refused(coterie("eval", a, "--policy", f"roww={b}"), "unknown role 'roww'", "did you mean 'row'?")
    refused(coterie("eval", a, "--null", "roww"), "unknown role 'roww'", "did you mean 'row'?")
    refused(coterie("eval", a, "--policy", "row"), "names no role and checkpoint", "--policy planner=")
    refused(coterie("eval", a, "--policy", f"row={tmp_path / 'no'}"), "there is no folder", "@latest")
    refused(coterie("eval", a, "--policy", f"row={b}@newest"), "'newest' is no checkpoint of", "@latest")
    refused(coterie("eval", a, "--policy", f"row={tmp_path}"), "neither a run's folder nor a model's")
    refused(coterie("eval", a, "--policy", f"row={b}@7"), "no checkpoint of step 7")
    refused(coterie("eval", a, "--policy", f"row={b}:rom"), "has no policy 'rom'", "did you mean 'row'?")
    refused(coterie("eval", a, "--out", tmp_path / "no" / "file.json"), "--out", "there is no folder")
    (tmp_path / "file.json").write_text("of yesterday")
    refused(coterie("eval", a, "--out", tmp_path / "file.json"), "file.json exists", "--overwrite")
    assert (tmp_path / "file.json").read_text() == "of yesterday"


def test_changes_without_sense(runs, tmp_path):
    a, b = runs
    silent = coterie("eval", a, "--null", "row", "--null", "column")
    refused(silent, "--null", "all roles are silenced")
    refused(
        coterie("eval", a, "--policy", f"row={b}", "--null", "row"),
        "'row', which would be played by it, is silent",
    )
    twice = coterie("eval", a, "--policy", f"row={a}", "--policy", f"row={b}")
    refused(twice, "'row' is given two policies")
    assert coterie("export", b, "--policy", "row", "-o", tmp_path / "t").exit_code == 0
    refused(coterie("eval", a, "--policy", f"row={tmp_path / 't'}:row"), "nothing reads 'row'")


def test_which_policy_of_another_team_must_be_said(runs):
    done = coterie("eval", TABULAR, "--policy", f"planner={runs[0]}")
    refused(done, "which policy", "has no role 'planner'", ":row, :column")


def test_a_table_over_other_words(runs, tmp_path):
    other = trained(tmp_path / "other", "schedule.steps=1", recipe=TABULAR)
    done = coterie("eval", runs[0], "--policy", f"row={other}", "--tasks", "2")
    refused(done, f"{other}@1:shared", "other words", "such as", "the environment that it was trained in")


def test_weights_of_another_kind(tmp_path, runs):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    done = coterie("eval", runs[0], "--policy", f"row={tmp_path / 'model'}", "--tasks", "2")
    refused(done, "can't play beside 'row'", "it has tensors, and the engine here plays tables")
    (tmp_path / "signals.yaml").write_text(to_yaml(signals()))
    done = coterie("eval", tmp_path / "signals.yaml", "--policy", f"speaker={runs[0]}:row")
    refused(done, "can't play beside 'mouth'", "it has tables, and the engine here plays no weights")


# ---------------------------------------------------------------------------------------------- transformers


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny transformers: weights of its own for each role, and two adapters on one base."""
    pytest.importorskip("torch")
    pytest.importorskip("peft")
    folder = tmp_path_factory.mktemp("models")
    model = "{init: qwen3, hidden_size: 32, layers: 1, heads: 2, head_dim: 16, mlp_size: 64}"
    table = "{{model: {}, train: {}, optimizer: {{learning_rate: 0.03}}}}"
    runs = []
    for train in ("full", "lora"):
        policy = table.format(model, train)
        recipe = folder / f"{train}.yaml"
        recipe.write_text(
            f"extends: {MATRIX}\nenv: {{tasks: 32}}\npolicies: {{row: {policy}, column: {policy}}}\n"
            "engine: hf\ntrainer: {type: torch}\nschedule: {steps: 3, evaluate_every: 0}\n"
        )
        runs.append(trained(folder / train, recipe=recipe))
    return runs


@pytest.mark.torch
@pytest.mark.parametrize("external", [0, 1])
def test_external_transformers_play_as_their_run(models, external, tmp_path):
    team, external = models[1 - external], models[external]
    external_result, _ = per_task(tmp_path / "own.json", external)
    arguments = (team, "--policy", f"row={external}", "--policy", f"column={external}")
    base, changed = per_task(tmp_path / "changed.json", *arguments)
    assert changed == external_result != base


@pytest.mark.torch
@pytest.mark.parametrize("merge", [True, False])
def test_exported_models_and_adapters_play_as_their_run(models, merge, tmp_path):
    """A model with the words as its tokenizer, or an adapter beside the base that was made with it."""
    full, lora = models
    done = coterie("export", lora, "--policy", "row", "-o", tmp_path / "m", *(["--merge"] if merge else []))
    assert done.exit_code == 0, done.output
    _, folder = per_task(tmp_path / "1.json", full, "--policy", f"row={tmp_path / 'm'}")
    _, run = per_task(tmp_path / "2.json", full, "--policy", f"row={lora}")
    assert folder == run


@pytest.mark.torch
def test_a_model_with_other_words_or_broken_weights(models, tmp_path):
    full, model = models[0], tmp_path / "model"
    done = coterie("export", full, "--policy", "row", "-o", model)
    assert done.exit_code == 0, done.output
    arguments = ("eval", full, "--policy", f"row={model}", "--tasks", "2")
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"]
    ids["a"], ids["b"] = ids["b"], ids["a"]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    done = coterie(*arguments)
    assert done.exit_code == 2 and "was made for other tokens than 'row'" in done.stderr
    assert "2 tokens have other ids, such as 'a'" in done.stderr
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "hidden_size": 16}))
    done = coterie(*arguments)
    assert done.exit_code == 2 and "can't be loaded" in done.stderr, done.stderr
    shutil.copyfile(full / "config.yaml", model / "model.safetensors")
    done = coterie(*arguments)
    assert done.exit_code == 2 and "can't be loaded" in done.stderr, done.stderr
