"""recipes, plugins, config, schema, runs: for people and for machines."""

from __future__ import annotations

import json
import sys

import click
import pytest
from ruamel.yaml import YAML

from coterie.cli.commands.config import flow
from coterie.cli.commands.schema import plugin_schema
from coterie.cli.output import table
from coterie.core.config import RunConfig
from coterie.discovery import Entry, plugins
from coterie.recipes import load
from tests.cli.support import TABULAR, anew, coterie, process


def as_json(*arguments):
    done = coterie(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_recipes_are_listed_with_summary_and_path():
    recipes = as_json("recipes")
    keys = "name summary path distribution environment order scales overlays error"
    assert all(set(recipe) == set(keys.split()) for recipe in recipes)
    by_name = {recipe["name"]: recipe for recipe in recipes}
    assert by_name["plan_path"]["path"].endswith("plan_path.yaml")
    assert by_name["plan_path"]["summary"] == load("plan_path").config.summary


def test_plugins_are_listed_by_kind():
    builtin = next(plugin for plugin in as_json("plugins") if plugin["distribution"] == "coterie")
    assert builtin["ok"] and not builtin["errors"] and builtin["version"]
    assert "at_grpo" in builtin["provides"]["estimator"]
    assert "at_grpo" in coterie("plugins").stdout


def test_a_plugin_file_is_loaded_first(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from coterie import hookimpl\n\n\n"
        "@hookimpl\ndef register_roles(register):\n    register('mine', 'x:Y')\n"
    )
    listed = json.loads(anew("plugins", "--json", "-p", file).stdout)
    assert listed[-1]["provides"] == {"role": ["mine"]} and listed[-1]["distribution"] == str(file)


@pytest.mark.parametrize(
    ("code", "message"),
    [("1 / 0", "ZeroDivisionError"), ("", "implements no hook"), (None, "no such plugin file")],
)
def test_a_plugin_file_that_is_broken_is_an_error(tmp_path, code, message):
    file = tmp_path / "mine.py"
    if code is not None:
        file.write_text(code)
    done = anew("plugins", "-p", file)
    assert done.exit_code == 2 and message in done.stderr and "Traceback" not in done.stderr


def test_config_shows_each_value_with_where_it_came_from():
    shown = as_json("config", TABULAR, "algorithm.alpha=0.5")
    assert shown["name"] == "tabular"
    assert shown["config"]["algorithm"]["alpha"] == 0.5 and shown["origins"]["algorithm.alpha"] == "override"
    assert shown["origins"]["env.size"] == f"file {TABULAR}"
    assert shown["origins"]["seed"] == "default"
    assert shown["config"]["env"]["walk"] == "stop" and shown["origins"]["env.walk"] == "default"


def test_config_names_the_recipe_that_a_value_is_inherited_from():
    origins = as_json("config", "magrpo", "--scale", "smoke", "--with", "l2,one_gpu", "policies.*.model=m")[
        "origins"
    ]
    assert origins["env.type"] == "recipe plan_path" and origins["env.team"] == "recipe magrpo"
    assert origins["team.roles.planner.policy"] == "overlay per_role"
    assert origins["schedule.steps"] == "scale smoke"
    assert origins["policies.planner.train"] == "overlay l2"
    assert origins["policies.executor.model"] == "override policies.*.model"
    shown = coterie("config", "plan_path", "--with", "one_gpu", "--with", "per_role").stdout
    assert "max_batch: 128" in shown and "# overlay one_gpu" in shown and "# overlay per_role" in shown


def test_what_config_prints_is_a_configuration_again(tmp_path):
    printed = coterie("config", TABULAR, "schedule.steps=7").stdout
    assert "steps: 7 " in printed and "# override" in printed
    file = tmp_path / "again.yaml"
    file.write_text(printed)
    again = as_json("config", file)["config"]
    assert again == as_json("config", TABULAR, "schedule.steps=7")["config"]


def test_config_refuses_what_run_would_refuse():
    done = coterie("config", TABULAR, "algorithm.alhpa=0.5")
    assert done.exit_code == 2 and "algorithm.alhpa" in done.stderr and "'alpha'" in done.stderr


@pytest.mark.parametrize(
    "value",
    [
        "plain",
        "no",
        "1e-5",
        "",
        "a: b",
        "null",
        1e-05,
        3,
        None,
        True,
        ["a", ["b", "c"]],
        {"a": [1, "x y"]},
        "#",
    ],
)
def test_one_line_values_read_back_as_they_were(value):
    assert YAML(typ="safe", pure=True).load(f"key: {flow(value)}") == {"key": value}


def test_the_schema_covers_the_configuration_and_every_plugin():
    done = coterie("schema")
    schema = json.loads(done.stdout)
    assert set(schema["properties"]) == set(RunConfig.model_fields)
    assert schema["components"]["environment"]["plan_path"]["properties"]["size"]["type"] == "integer"
    assert schema["components"]["environment"]["plan_path"]["additionalProperties"] is False
    assert "at_grpo" in schema["components"]["estimator"]


def test_the_schema_of_the_torch_trainer_needs_no_torch():
    done = process("schema", code=WITHOUT_TORCH)
    trainer = json.loads(done.stdout)["components"]["trainer"]["torch"]
    assert "micro_tokens" in trainer["properties"] and "optimizer" in trainer["policy"]["properties"]


def test_the_schema_lists_what_an_absent_extra_hides(tmp_path, monkeypatch):
    (tmp_path / "needs_torch.py").write_text("import torch\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # as if it were not installed
    unavailable = plugin_schema(Entry("trainer", "big", "needs_torch:Big", "bigs"))
    assert "torch" in unavailable["unavailable"] and "coterie[torch]" in unavailable["fix"]


WITHOUT_TORCH = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers", "peft"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
"""


def run_folder(path, text, rows=()):
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(text)
    if rows:
        (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_runs_say_how_far_each_is(tmp_path):
    steps = "name: plan_path\nschedule: {steps: 2}\n"
    run_folder(tmp_path / "a", steps)
    run_folder(tmp_path / "b", steps, [{"step": 1, "eval/success": 0.25}, {"step": 2, "success": 0.5}])
    run_folder(tmp_path / "c", steps, [{"step": 1, "success_committed": 0.75}])
    run_folder(tmp_path / "d", "name: x\nschedule: {epochs: 1}\n", [{"step": 1, "success": 0.5}])
    run_folder(tmp_path / "e", "nonsense: [")
    (tmp_path / "no-run").mkdir()
    runs = {run["name"]: run for run in as_json("runs", tmp_path)}
    assert list(runs) == ["a", "b", "c", "d", "e"]
    status = {
        name: (run["recipe"], run["step"], run["steps"], run["success"], run["finished"])
        for name, run in runs.items()
    }
    assert status["a"] == ("plan_path", 0, 2, None, False)
    assert status["b"] == ("plan_path", 2, 2, 0.25, True)
    assert status["c"] == ("plan_path", 1, 2, None, False), "the best of K is not success"
    assert status["d"] == ("x", 1, None, 0.5, None)
    assert "YAML" in runs["e"]["problem"]
    text = coterie("runs", tmp_path).stdout
    assert "2/2" in text and ".25" in text and "yes" in text


def test_a_run_whose_rows_are_lost_is_as_far_as_its_checkpoints(tmp_path):
    for name, rows in (("all", []), ("end", [{"step": 1, "success": 0.5}]), ("middle", [{"step": 3}])):
        run_folder(tmp_path / name, "schedule: {steps: 3}\n", rows)
        (tmp_path / name / "checkpoints" / "step-000003").mkdir(parents=True)
    done = coterie("runs", tmp_path)
    assert done.exit_code == 0 and done.stdout.count("3/3") == done.stdout.count("yes") == 3, done.stdout
    for name, lost in (
        ("all", "3 of 3 steps: 1-3"),
        ("end", "2 of 3 steps: 2-3"),
        ("middle", "2 of 3 steps: 1-2"),
    ):
        assert f"{tmp_path / name / 'metrics.jsonl'} lacks the rows of {lost}" in done.stderr
    assert done.stderr.count("lacks the rows") == 3


def test_no_runs_is_no_error(tmp_path):
    done = coterie("runs", tmp_path / "none")
    assert done.exit_code == 0 and "no runs in" in done.stderr
    assert as_json("runs", tmp_path / "none") == []


def test_no_line_of_a_table_ends_in_spaces():
    text = table(["a", "summary"], [["long", "b"], ["x", "text " * 9]])
    lines = click.unstyle(text).splitlines()
    assert lines[0] == "a     summary" and not [line for line in lines if line != line.rstrip()]


def test_recipes_are_grouped_by_environment_and_broken_ones_are_told(tmp_path):
    (tmp_path / "wrong.yaml").write_text("env: {type: plan_path}\nteam: 3\n")
    (tmp_path / "mine.py").write_text(
        "from coterie import hookimpl\n@hookimpl\ndef register_recipes(register):\n"
        f"    register('wrong_one', {str(tmp_path / 'wrong.yaml')!r})\n"
        "    register('no_file', 'acme_nothing:x.yaml')\n"
        "@hookimpl\ndef register_overlays(register):\n    register('no_overlay', 'mine:x.yaml')\n"
    )
    done = anew("recipes", "-p", tmp_path / "mine.py")
    assert done.exit_code == 0 and "Traceback" not in done.stderr, done.output
    assert f"overlay 'no_overlay' of {tmp_path / 'mine.py'} is left out" in done.stderr
    assert f"'no_file' of {tmp_path / 'mine.py'} has no file" in done.stdout
    heads = [line for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    code = ["code_collab:", "code_game:", "code_tests:"]
    games = [*code, "data_science:", "math:", "plan_path:", "sokoban:", "sudoku:", "team_task:", "writing:"]
    assert heads[:12] == [*games, "wrong recipes:", "overlays:"]
    [wrong] = [line for line in done.stdout.splitlines() if "wrong_one" in line]
    assert "team: " in wrong
    [split] = [line for line in done.stdout.splitlines() if "sudoku_split" in line and "--with" not in line]
    assert load("sudoku_split").config.summary in split
    assert (
        split.endswith("gpu_24gb, gpu_80gb, l0, l1, l2, one_gpu, per_role, ray, sudoku_9x9")
        and "planner > executor" in split
    )
    assert "sudoku_split_per_role" not in done.stdout


def test_the_schema_has_the_defaults_that_an_algorithm_trains_with():
    """`$ref` alone shows the normaliser's own defaults, which are not those of every algorithm."""
    registry = plugins().registry
    schemas = {entry.name: plugin_schema(entry) for entry in registry.entries("estimator")}
    for name, schema in schemas.items():
        shown = schema["properties"]["normalise"]["default"]
        needed = {"group": "task", "return": "episode"} if name == "compose" else {}
        assert shown == registry.config_of("estimator", name)(**needed).normalise.model_dump(), name
    assert schemas["dr_grpo"]["properties"]["normalise"]["default"]["type"] == "none"
