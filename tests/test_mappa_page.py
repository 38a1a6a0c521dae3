"""docs/mappa.md and docs/math.md: their commands resolve, their settings, sets and tests exist."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml

from coterie.compose import compose
from coterie.core.types.splits import SPLITS
from coterie.discovery import plugins
from coterie.plugins.envs.math.records import FORMS
from coterie.recipes import load, recipes
from tests.cli.support import coterie, parsed

ROOT = Path(__file__).resolve().parents[1]
MAPPA = (ROOT / "docs" / "mappa.md").read_text(encoding="utf-8")
MATH = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
DOOR = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"(?:^|(?<=`))(coterie [a-z]+ [^`\n]+)", re.MULTILINE)
RECIPES = {info.name for info in recipes()}


def commands(page: str) -> list[list[str]]:
    """The arguments of each command on a page, without comments and the brackets of a usage line."""
    return [shlex.split(line, comments=True)[1:] for line in COMMAND.findall(page)]


def section(page: str, heading: str) -> str:
    """The part of a page below a heading."""
    return page.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def cells(text: str) -> list[list[str]]:
    """The rows of the tables in a text, without their heads."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[2:]]


COMMANDS = [*commands(MAPPA), *commands(MATH), *(row for row in commands(DOOR) if "mathchat" in str(row))]
SETTINGS = [
    setting
    for row in cells(section(MAPPA, "Settings"))
    for setting in re.findall(r"`([a-z]+\.[\w.]+)`", row[2])
    if setting != "metrics.jsonl"
]
FAULTS = re.findall(
    r"^\d+\. .*?(?=^\d+\. |\Z)", section(MAPPA, MAPPA.rpartition("\n## ")[2].split("\n")[0]), re.M | re.S
)
TESTS = [reference for fault in FAULTS for reference in re.findall(r"`(tests/[\w/.]+)::(\w+)`", fault)]
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", MATH, re.DOTALL)]


def test_the_pages_are_read():
    assert len(COMMANDS) >= 14 and len(SETTINGS) >= 20 and len(TESTS) >= 18 and len(BLOCKS) == 4


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_every_command_and_option_exists_and_its_recipe_resolves(arguments):
    source, overrides, overlays, scale = parsed(arguments)
    if arguments[0] in ("run", "plan", "data"):
        assert source in RECIPES or "--resume" in arguments
    if source in RECIPES:
        layers = [word for name in overlays for word in ("--with", name)]
        done = coterie("config", source, *layers, *(["--scale", scale] if scale else []), *overrides)
        assert done.exit_code == 0, done.output


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_one_of_the_recipe(setting):
    """`coterie config` prints each with its origin: the recipe, or a default."""
    text = coterie("config", "mathchat_coach").stdout
    value: object = yaml.safe_load(text)
    *tables, last = setting.split(".")
    for name in tables:
        assert isinstance(value, dict) and name in value, setting
        value = value[name]
    if not isinstance(value, dict) or last not in value:  # a default of a role that stands nowhere
        assert coterie("config", "mathchat_coach", f"{setting}=true").exit_code == 0, setting


def test_the_values_beside_the_settings_are_the_recipes():
    config = yaml.safe_load(coterie("config", "mathchat_coach").stdout)
    rows = {row[0]: row[1] for row in cells(section(MAPPA, "Settings"))}
    prompt, generation = (int(text.replace(",", "")) for text in rows["prompt and generation"].split(" and "))
    assert config["policies"]["problem_solver"]["context"] == prompt + generation
    assert config["sampler"]["sampling"]["max_new_tokens"] == generation
    assert str(config["sampler"]["chains"]) == rows["samples a prompt"]
    assert str(config["schedule"]["tasks_per_step"]) == rows["prompts a batch"]
    assert str(config["trainer"]["minibatch_size"]) == rows["train batch"]
    assert str(config["schedule"]["epochs"]) == rows["episodes"]
    assert str(config["algorithm"]["beta"]) == rows["coefficient of the KL, k1"]
    assert str(config["loss"]["clip_low"]) == str(config["loss"]["clip_high"]) == rows["clip"]
    assert config["chat_models"]["coach"]["model"] == rows["model of the coach"].split(";")[0]
    assert config["rewards"]["coach"]["ground_truth"] == "last"


@cache
def functions_of(path: str) -> frozenset[str]:
    """The names of the functions of a file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_every_test_that_the_page_names_exists():
    assert [fault.split(".")[0] for fault in FAULTS] == [str(number) for number in range(1, 12)]
    for path, name in TESTS:
        assert name in functions_of(path), f"{path}::{name}"


def test_each_of_the_originals_faults_has_a_test():
    for fault in FAULTS:
        assert re.search(r"`tests/[\w/.]+::\w+`", fault), fault


@pytest.mark.parametrize("setting", ["clip_low=0.1", "loss={clip_low: 0.1}", "beta=0.1", "kl=0.1"])
def test_clip_and_kl_of_a_policy_are_refused(setting):
    done = coterie("config", "mathchat_coach", f"policies.verifier.{setting}")
    assert done.exit_code == 2 and "policies.verifier" in done.stderr and "unknown key" in done.stderr


def test_dsbench_has_a_recipe_that_is_on_the_page():
    assert "data_science" in plugins().registry.names("environment")
    assert "dsbench_coach" in plugins().registry.names("recipe")
    assert "recipe `dsbench_coach`" in MAPPA
    config = load("dsbench_coach").config
    assert (config.sampler["chains"], config.schedule.tasks_per_step, config.schedule.epochs) == (2, 16, 30)
    assert config.sampler["sampling"]["max_new_tokens"] == 16_384
    assert {policy.context for policy in config.policies.values()} == {24_576 + 16_384}
    assert config.rewards["coach"]["show_feedback"] is False
    assert load("dsbench_coach", overlays=["coach_feedback"]).config.rewards["coach"]["show_feedback"] is True


# ------------------------------------------------------------------------------------------ docs/math.md


def test_the_sets_and_their_datasets_are_those_of_the_code():
    stated = {
        row[0].split("`")[1]: row[2].strip("`–")
        for row in cells(section(MATH, "Sets").partition("\n\n```")[0])
    }
    assert stated == {name: form.hub for name, form in FORMS.items()}


REST = {
    "policies": {"shared": {"model": {"init": "tabular"}}},
    "engine": "tabular",
    "trainer": {"type": "tabular"},
    "schedule": {"steps": 1, "tasks_per_step": 2},
}


@pytest.mark.parametrize("block", BLOCKS[1:], ids=lambda block: str(block["team"]["order"]))
def test_each_form_of_a_team_composes(block, tmp_path):
    pytest.importorskip("math_verify")
    file = tmp_path / "form.yaml"
    file.write_text(yaml.safe_dump({**block, **REST}), encoding="utf-8")
    assert coterie("config", str(file)).exit_code == 0, "with the sets of a hub"
    compose(load(file, overrides=[f"env.{split}=null" for split in SPLITS]))


def test_the_example_of_sets_is_accepted():
    env = BLOCKS[0]["env"]
    settings = [
        f"env.{split}={yaml.safe_dump(env[split], default_flow_style=True, width=1000).strip()}"
        for split in SPLITS
    ]
    assert coterie("config", "mathchat_coach", "env.val=null", "env.train=null", *settings).exit_code == 0


def test_the_weights_are_the_environments():
    for block, column in ((BLOCKS[2], 2), (BLOCKS[1], 3), (BLOCKS[3], 3)):
        pytest.importorskip("math_verify")
        env = {"type": "math"}
        run = compose(load({**block, **REST, "env": env}))
        stated = {row[0].strip("`"): float(row[column]) for row in cells(section(MATH, "Rewards"))}
        assert run.reward_weights.weights == stated


def test_the_example_of_the_compact_rendering_is_what_is_shown():
    shown = coterie("data", "show", "mathchat_coach", "--scale", "smoke", "--tasks", "1").stdout
    example = section(MATH, "The compact rendering").partition("```text\n")[2].partition("```")[0]
    lines = example.splitlines()
    assert len(lines) == 4
    for line in lines:
        prompt, answer = re.split(r"(?<=:) {2,}", line)
        assert prompt in shown.splitlines() and f"the oracle's: {answer}\n" in shown, line


@pytest.mark.torch
def test_a_run_for_a_newcomer_ends_with_what_the_page_shows(tmp_path):
    done = coterie("run", "mathchat_coach", "--scale", "smoke", "--out", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    report = section(MATH, "For a newcomer").partition("```text\n")[2].partition("```")[0]
    printed = [line.split() for line in done.output.splitlines()]
    for line in filter(None, report.splitlines()):
        words = line.split()
        heads = [words] if words[0] in ("coach", "models", "role") else [words[:1]]
        assert any(row[: len(head)] == head for row in printed for head in heads), line
