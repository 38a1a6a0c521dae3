"""docs/pettingllms.md: its coterie commands run, its settings exist, its recipes resolve."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from coterie.compose import compose
from coterie.recipes import flatten, load, recipes
from tests.cli.support import coterie, parsed

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "pettingllms.md").read_text(encoding="utf-8")
LEVELS = (ROOT / "docs" / "levels.md").read_text(encoding="utf-8")
NOT_RUN = re.compile(r"_tool|one_gpu|math|Polaris|gsm8k|code_contests|live_code_bench|prepare apps")
"""Recipes with programs, for a GPU, or with data from a hub: the tests resolve them and don't run them."""
GENERATED = ("env.train=null", "env.val=null", "env.test=null")
"""Problems that are made instead of those of a hub."""
COMMAND = re.compile(r"(?:^|(?<=`))coterie [a-z]+ [^`\n]+", re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """The arguments of each command on a page, in the page's order, without comments."""
    return [shlex.split(line, comments=True)[1:] for line in COMMAND.findall(page)]


OURS = commands(PAGE)
RECIPES = {info.name for info in recipes()}
SETTINGS = [
    setting
    for row in PAGE.partition("## Settings")[2].partition("\n## ")[0].splitlines()[4:]
    for setting in re.findall(r"`([\w.]+)`", row.split("|")[2] if row.startswith("|") else "")
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty working folder for commands."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_is_read():
    assert len(OURS) >= 24 and len(SETTINGS) >= 14


@pytest.mark.parametrize("arguments", [*OURS, *commands(LEVELS)], ids=" ".join)
def test_every_command_and_option_exists_and_its_recipe_resolves(arguments, folder):
    source, overrides, overlays, scale = parsed(arguments)
    if arguments[0] == "run":
        assert source in RECIPES or "--resume" in arguments
    if source in RECIPES:
        load(source, overlays=overlays, scale=scale, overrides=overrides)
        if NOT_RUN.search(source):  # the test below runs the others
            if "math" in source:
                pytest.importorskip("math_verify")
                overrides = [*overrides, *GENERATED]
            compose(load(source, overlays=overlays, scale=scale, overrides=overrides))


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_exists(setting):
    """An override with the recipe's value is accepted; settings that the recipe omits get a valid value."""
    omitted = {"schedule.tokens": 100, "sampler.roles.plan.temperature": 0.7, "sampler.chains": 1}
    recipe = load("plan_path_tool")
    value = omitted.get(setting, dict(flatten(recipe.table)).get(setting))
    assert value is not None, setting
    changed = load("plan_path_tool", overrides=[f"{setting}={value}"])
    compose(changed)
    assert changed.origins[setting] == "override"


# --------------------------------------------------------------------------------------------- the commands

TINY = ("schedule.steps=1", "schedule.tasks_per_step=2", "sampler.sampling.max_new_tokens=3")


def small(arguments: list[str]) -> list[str]:
    """The command with a tiny model and few tasks."""
    arguments = [text for text in arguments if ".model=" not in text and "tasks_per_step" not in text]
    match arguments:
        case ["run", *_]:
            out = [] if "--out" in arguments else ["--out", f"runs/{abs(hash(tuple(arguments)))}"]
            return [*arguments, *out, "--scale", "smoke", *TINY]
        case ["eval", source, *_] if not source.startswith("runs/"):
            return [*arguments, "--scale", "smoke", "--tasks", "2"]
        case ["eval", *_]:
            return [*arguments, "--tasks", "2"]
        case ["data", "make", *_]:
            return [*arguments, "--tasks", "20"]
    return arguments


@pytest.mark.torch
def test_the_commands_run_from_top_to_bottom(folder):
    pytest.importorskip("peft")
    ran = 0
    for arguments in OURS:
        if not NOT_RUN.search(" ".join(arguments)):
            done = coterie(*small(arguments))
            assert done.exit_code == 0, f"{arguments}\n{done.output}"
            ran += 1
    assert ran >= 12
    assert (folder / "planner" / "adapter_config.json").is_file() and (folder / "comparison.json").is_file()


def test_its_links_name_existing_files():
    for page in (PAGE, LEVELS):
        for path in re.findall(r"\]\(([^)#:]+)\)", page):
            assert (ROOT / "docs" / path).exists(), path
