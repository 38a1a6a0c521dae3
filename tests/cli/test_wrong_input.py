"""Wrong input: a message that says what, why and how to fix it; exit code 2; no traceback."""

from __future__ import annotations

import json
import sys

import pytest
from ruamel.yaml import YAML

from coterie import SystemFault
from tests.cli.support import TABULAR, coterie, process
from tests.cli.test_listings import WITHOUT_TORCH


def refused(done, *messages):
    """Exit code 2, all of `messages` on stderr, and no traceback."""
    code = getattr(done, "exit_code", None)
    code = done.returncode if code is None else code
    assert code == 2, (code, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    # Warnings precede an error, and one of the start-up follows what it began with.
    lines = (line for line in done.stderr.split("\n") if not line.startswith(("writing to ", "warning: ")))
    first = next(lines)
    assert first.startswith("Error: "), done.stderr
    for message in messages:
        assert message in done.stderr, f"{message!r} is not in:\n{done.stderr}"


@pytest.fixture
def run(tmp_path):
    """`coterie run` of the tabular recipe with overrides, into a fresh folder."""

    def run(*settings, source=TABULAR):
        return coterie("run", source, *settings, "--out", tmp_path / "run")

    return run


@pytest.fixture
def changed(tmp_path):
    """A copy of the tabular recipe, after `change(table)`."""

    def changed(change):
        yaml = YAML(typ="safe", pure=True)
        table = yaml.load(TABULAR.read_text())
        change(table)
        file = tmp_path / "changed.yaml"
        with file.open("w") as out:
            yaml.dump(table, out)
        return file

    return changed


# ------------------------------------------------------------------------------------- which run, which file


def test_a_library_that_exits_does_not_end_a_run_silently(run, monkeypatch):
    def leave(*args, **kwargs):
        sys.exit(0)

    monkeypatch.setattr("coterie.plugins.envs.plan_path.PlanPath.step", leave)
    done = run()
    assert done.exit_code == 1
    assert "environment 'plan_path' of coterie: step raised SystemExit: 0" in done.stderr
    monkeypatch.setattr("coterie.api.train.train", leave)
    refused(run("seed=1"), "sys.exit(0) was called", "why: ", "test_wrong_input.py", "in leave", "--resume")

    def exit(code):  # as W&B does for the time of the process
        raise SystemExit(code)

    monkeypatch.setattr(sys, "exit", exit)
    refused(run("seed=1"), "sys.exit(0) was called", "why: ", "test_wrong_input.py", "in leave", "--resume")


def test_nothing_to_run_names_the_recipes():
    refused(coterie("run"), "nothing to run", "--resume", "plan_path")


def test_unknown_recipe(run):
    refused(run(source="plan_pth"), "unknown recipe 'plan_pth'", "did you mean 'plan_path'?")


def test_recipe_file_that_is_not_there(run, tmp_path):
    refused(run(source=tmp_path / "no.yaml"), "no such recipe file", "no.yaml")


def test_file_that_is_no_yaml(run, tmp_path):
    (tmp_path / "bad.yaml").write_text("env: {type: plan_path\nteam: ]")
    refused(run(source=tmp_path / "bad.yaml"), "bad.yaml:2 is not valid YAML")


def test_unknown_scale(run):
    refused(run("--scale", "cpuu", source="plan_path"), "--scale", "did you mean 'cpu'?")


def test_a_word_that_is_no_override(run):
    refused(run("schedule.steps"), "'schedule.steps' is no override", "key=value")


# ------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("override", "messages"),
    [
        ("schedule.stepps=3", ("schedule.stepps", "did you mean 'steps'?")),
        ("shedule.steps=3", ("shedule", "did you mean 'schedule'?")),
        ("algorithm.alhpa=1", ("algorithm.alhpa", "did you mean 'alpha'?")),
        ("env.sise=4", ("env.sise", "did you mean 'size'?")),
        ("sampler.branchs=4", ("sampler.branchs", "did you mean 'branches'?")),
        ("policies.shared.modle=x", ("policies.shared.modle", "did you mean 'model'?")),
        ("team.roles.planner.polcy=shared", ("team.roles.planner.polcy", "policy")),
    ],
)
def test_misspelt_key_names_the_nearest_and_its_path(run, override, messages):
    refused(run(override), *messages)


@pytest.mark.parametrize(
    ("override", "messages"),
    [
        ("schedule.steps=many", ("schedule.steps", "integer", "'many'")),
        ("algorithm.alpha=high", ("algorithm.alpha", "number", "'high'")),
        ("env.size=[3]", ("env.size", "integer")),
        ("schedule=3", ("schedule", "3")),
        ("team.roles.planner=3", ("team.roles.planner", "3")),
        ("rewards.environment.weights=3", ("rewards.environment.weights",)),
        ("schedule.steps=[", ("schedule.steps", "YAML")),
    ],
)
def test_wrong_type_names_the_path_and_what_was_given(run, override, messages):
    refused(run(override), *messages)


@pytest.mark.parametrize(
    ("override", "messages"),
    [
        (
            "algorithm.type=at_grppo",
            ("algorithm.type", "unknown estimator 'at_grppo'", "did you mean 'at_grpo'?"),
        ),
        ("engine=tabullar", ("engine", "did you mean 'tabular'?")),
        ("env.type=plan_pth", ("env.type", "did you mean 'plan_path'?")),
        ("team.roles.planner.type=plan_path_planer", ("team.roles.planner.type", "'plan_path_planner'")),
        ("trackers.mine=jsnl", ("trackers.mine", "did you mean 'jsonl'?")),
        ("algorithm=no_module:Thing", ("algorithm", "no_module")),
    ],
)
def test_unknown_plugin_names_the_nearest(run, override, messages):
    refused(run(override), *messages)


def test_role_without_policy(run, changed):
    file = changed(lambda table: table["team"]["roles"]["planner"].pop("policy"))
    refused(run(source=file), "role 'planner' has no policy", "team.roles.planner.policy", "shared")


def test_role_with_an_unknown_policy(run):
    refused(run("team.roles.planner.policy=sharde"), "team.roles.planner.policy", "did you mean 'shared'?")


def test_policy_without_model(run, changed):
    file = changed(lambda table: table["policies"]["shared"].pop("model"))
    refused(run(source=file), "policies.shared", "'model' is missing")


def test_policy_that_no_role_plays(run):
    refused(run("policies.idle.model={init: tabular}"), "policies.idle", "no role plays it")


def test_order_that_names_an_unknown_role(run):
    refused(run("team.order=[plannr, executor]"), "team.order", "unknown role 'plannr'", "'planner'")


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("sampler.branches=1",), "branches"),
        (("algorithm=grpo", "sampler.branches=1", "sampler.chains=1"), "chains"),
    ],
)
def test_groups_that_would_have_one_member(run, overrides, key):
    refused(run(*overrides), f"sampler.{key}", "fix:")


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("schedule.tasks_per_step=0", "schedule.tasks_per_step"),
        ("env.train_tasks=0", "env.train_tasks"),
        ("schedule.evaluate_tasks=0", "schedule.evaluate_tasks"),
    ],
)
def test_zero_tasks(run, override, path):
    refused(run(override), path, "greater than or equal to 1")


def test_evaluating_zero_tasks():
    done = coterie("eval", TABULAR, "--tasks", "0")
    assert done.exit_code == 2 and "--tasks" in done.stderr and "Traceback" not in done.stderr


def test_what_is_wrong_is_said_before_a_folder_is_made(run, tmp_path):
    refused(run("algorithm.alhpa=1"))
    assert not (tmp_path / "run").exists()


# -------------------------------------------------------------------------------------------------- folders


def test_unwritable_folder(tmp_path):
    (tmp_path / "file").write_text("")
    refused(
        coterie("run", TABULAR, "--out", "/proc/coterie-run"), "can't be written", "/proc/coterie-run", "fix:"
    )


def test_folder_that_holds_a_run_already(run, tmp_path):
    assert run("schedule.steps=1").exit_code == 0
    refused(run("schedule.steps=1"), "holds a run already", "--resume")


def test_resume_from_a_folder_that_is_no_run(tmp_path):
    refused(coterie("run", "--resume", tmp_path), "is not a run folder", "config.yaml")
    refused(coterie("run", "--resume", tmp_path / "none"), "is not a run folder", "no such folder")


def test_evaluate_or_export_a_folder_that_is_no_run(tmp_path):
    refused(coterie("eval", tmp_path), "is not a run folder")
    refused(coterie("export", tmp_path, "--policy", "shared", "-o", tmp_path / "out"), "is not a run folder")


def test_resume_with_a_changed_config_says_what_changed(run, tmp_path):
    assert run("schedule.steps=1").exit_code == 0
    refused(
        coterie("run", "--resume", tmp_path / "run", "algorithm.alpha=0.25", "env.size=4"),
        "algorithm.alpha",
        "0.25",
        "env.size: 3 -> 4",
        "schedule.steps may grow",
    )


def down(view):
    raise SystemFault("503 from the judge")


def test_a_run_whose_judge_is_down_for_good_says_how_to_go_on_and_does(run, tmp_path):
    judge = f"rewards.judge={{type: function, function: '{__name__}:down', concurrency: 2}}"
    stopped = run("schedule.steps=2", judge)
    assert stopped.exit_code == 1 and "Traceback" not in stopped.stderr
    for text in ("503 from the judge", "schedule.max_missing=0.2", "fix: repair the cause and resume"):
        assert text in stopped.stderr
    limits = ["rewards.judge.concurrency=3", "schedule.max_missing=0.5"]
    resumed = coterie("run", "--resume", tmp_path / "run", "rewards.judge.max_missing=1.0", *limits)
    assert resumed.exit_code == 0, resumed.stderr
    assert "rewards.judge: a score is missing: " in resumed.stderr
    assert "score raised SystemFault: 503 from the judge" in resumed.stderr


def test_out_and_resume_exclude_each_other(tmp_path):
    refused(coterie("run", "--resume", tmp_path, "--out", tmp_path), "--out and --resume")


def test_checkpoint_that_is_not_there(run, tmp_path):
    assert run("schedule.steps=1").exit_code == 0
    refused(coterie("eval", tmp_path / "run", "--checkpoint", "7"), "step 7", "fix:")


def test_swaps_that_make_no_sense(run, tmp_path):
    refused(coterie("eval", TABULAR, "--swap", "planner"), "--swap", "planner=executor")
    refused(coterie("eval", TABULAR, "--swap", "planer=executor", "--tasks", "2"), "did you mean 'planner'?")
    refused(
        coterie("eval", TABULAR, "--swap", "planner=executor", "--tasks", "2"),
        "one policy",
        "changes nothing",
    )


def test_exporting_an_unknown_policy(run, tmp_path):
    assert run("schedule.steps=1").exit_code == 0
    refused(
        coterie("export", tmp_path / "run", "--policy", "sharde", "-o", tmp_path / "out"),
        "unknown policy 'sharde'",
        "did you mean 'shared'?",
    )


# ------------------------------------------------------------------------------------------ models and data


@pytest.mark.torch
def test_model_folder_without_weights(run, tmp_path):
    pytest.importorskip("torch")
    tokenizers = pytest.importorskip("tokenizers")
    (tmp_path / "model").mkdir()
    tokenizer = tokenizers.models.WordLevel({"[UNK]": 0, "U": 1}, unk_token="[UNK]")
    tokenizers.Tokenizer(tokenizer).save(str(tmp_path / "model" / "tokenizer.json"))
    config = {
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": 32,
        "num_hidden_layers": 1,
    }
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    done = run("--scale", "smoke", f"policies.shared.model={tmp_path / 'model'}", source="plan_path")
    refused(done, "policies.shared.model", "no weights", str(tmp_path / "model"))


@pytest.mark.torch
def test_model_folder_that_is_not_there(run, tmp_path):
    pytest.importorskip("torch")
    done = run("--scale", "smoke", f"policies.shared.model={tmp_path / 'none'}", source="plan_path")
    refused(done, "policies.shared.model", str(tmp_path / "none"))


@pytest.mark.torch
def test_first_prompt_longer_than_the_context(run):
    pytest.importorskip("torch")
    done = run("--scale", "smoke", "policies.shared.model.context=4", source="plan_path")
    refused(done, "policies.shared", "context", "4")


def test_missing_extra_says_what_to_install(tmp_path):
    done = process("run", "plan_path", "--scale", "smoke", "--out", tmp_path / "run", code=WITHOUT_TORCH)
    refused(done, "not installed", "pip install 'coterie[torch]'")


def test_a_config_is_checked_without_torch():
    done = process("config", "plan_path", "--scale", "smoke", code=WITHOUT_TORCH)
    assert done.returncode == 0 and "tasks_per_step: 4" in done.stdout and not done.stderr
    done = process("config", "plan_path", "trainer.epoch=2", code=WITHOUT_TORCH)
    refused(done, "trainer.epoch", "did you mean 'epochs'")


def test_missing_extra_does_not_keep_a_config_from_being_shown(tmp_path):
    (tmp_path / "needs_torch.py").write_text("import torch\n")
    tracker = "trackers.big={type: 'needs_torch:Big'}"
    done = process(
        "config", "plan_path", "--scale", "smoke", tracker, code=WITHOUT_TORCH, PYTHONPATH=str(tmp_path)
    )
    assert done.returncode == 0 and "tasks_per_step: 4" in done.stdout
    assert "warning: not checked in full" in done.stderr and "coterie[torch]" in done.stderr


def records(*lines):
    def change(table):
        table["env"] = {"type": "team_task", "train": "train.jsonl", "fields": ["question"]}
        table["team"] = {
            "order": ["solver"],
            "roles": {"solver": {"type": "template", "policy": "shared", "prompt": "{{ question }}"}},
        }
        table["schedule"] = {"steps": 1, "tasks_per_step": 2}

    return change, "".join(line + "\n" for line in lines)


GOOD = '{"question": "1 + 1", "answer": "2"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "1 + 2"}', "'answer'"),
        ('{"answer": "3"}', "'question'"),
        ('{"question": "1 + 2", "answer":', "not JSON"),
        ("[1, 2]", "not an object"),
    ],
)
def test_task_file_with_a_bad_line_names_file_line_and_field(
    run, changed, tmp_path, monkeypatch, line, message
):
    change, text = records(GOOD, line)
    (tmp_path / "train.jsonl").write_text(text)
    monkeypatch.chdir(tmp_path)
    refused(run(source=changed(change)), "train.jsonl, line 2", message)


def test_task_file_without_a_task(run, changed, tmp_path, monkeypatch):
    change, text = records()
    (tmp_path / "train.jsonl").write_text(text)
    monkeypatch.chdir(tmp_path)
    refused(run(source=changed(change)), "env")


def test_a_tokenizer_of_words_without_words_is_refused_before_torch_is_imported(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"question": "1 + 1", "answer": 2}\n' * 3)
    (tmp_path / "words.yaml").write_text(
        "env: {type: team_task, path: records.jsonl, fields: [question]}\n"
        "team: {order: [solver], roles: {solver: {type: template, policy: p, prompt: '{{ question }}'}}}\n"
        "policies: {p: {model: {init: qwen3, hidden_size: 16}}}\n"
        "algorithm: grpo\nsampler: {chains: 2}\nschedule: {steps: 1}\n"
    )
    for command in ("config", "plan", "run"):
        done = process(
            command, tmp_path / "words.yaml", code=f"import os; os.chdir({str(tmp_path)!r})\n{WITHOUT_TORCH}"
        )
        refused(done, "policies.p.model.tokenizer", "`tokenizer: words`", "tokenizer=bytes")


def test_an_answer_longer_than_the_context_is_told(tmp_path):
    done = coterie("config", "quickstart", "sampler.sampling.max_new_tokens=64")
    assert "may have 64 tokens (max_new_tokens)" in done.stderr, done.stderr
    assert "the context of policies.shared is 64" in done.stderr
    assert "context" not in coterie("config", "quickstart").stderr


def test_a_file_in_the_place_of_a_runs_folder_is_told_before_anything_is_read(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        refused(
            coterie("run", "no_such_recipe", "--out", out), f"{tmp_path / 'file'} is a file", "another folder"
        )


@pytest.mark.parametrize("command", ["config", "plan"])
def test_a_run_without_a_length_is_refused_before_it_runs(command):
    refused(
        coterie(command, TABULAR, "schedule.steps=null"), "schedule.steps: the schedule has no end", "fix: "
    )
