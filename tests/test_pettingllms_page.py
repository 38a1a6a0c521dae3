"""docs/pettingllms.md: every command of ours on it runs, every setting is one, every recipe is there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from coterie.cli.main import cli
from coterie.core.config import flatten, load, recipes
from coterie.core.training.assemble import compose
from tests.cli.support import coterie

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "pettingllms.md").read_text(encoding="utf-8")
LEVELS = (ROOT / "docs" / "levels.md").read_text(encoding="utf-8")
NOT_HERE = re.compile(r"_tool|_one_gpu|Polaris|gsm8k|code_contests")
"""What programs are written for, sized for a GPU, or fetched from a hub: resolved above, not run."""
COMMAND = re.compile(r"(?:^|(?<=`))coterie [a-z]+ [^`\n]+", re.MULTILINE)


def commands(page: str) -> list[list[str]]:
    """Those in tables and blocks, in the order of the page, without `coterie` and comments."""
    return [shlex.split(found, comments=True)[1:] for found in COMMAND.findall(page)]


OURS = commands(PAGE)
SETTINGS = [
    word
    for row in PAGE.partition("## Settings")[2].partition("\n## ")[0].splitlines()[4:]
    for word in re.findall(r"`([\w.]+)`", row.split("|")[2] if row.startswith("|") else "")
]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An empty folder, in which commands are run."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_is_read():
    assert len(OURS) >= 24 and len(SETTINGS) >= 14


@pytest.mark.parametrize("words", [*OURS, *commands(LEVELS)], ids=" ".join)
def test_every_command_and_option_exists_and_its_recipe_resolves(words, place):
    command: click.Command = cli
    rest = list(words)
    context = cli.make_context("coterie", [], resilient_parsing=True)
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, words
        command, rest = found, rest[1:]
    params = command.make_context(words[0], rest, parent=context).params
    source = params.get("source") or ""
    if source in {info.name for info in recipes()}:
        resolved = load(source, overrides=params["settings"], scale=params.get("scale"))
        if NOT_HERE.search(source):
            compose(resolved)  # the others are when they run, below


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_setting_is_one(setting):
    """Where a recipe of the paper's form says nothing of it, a value of its kind is taken."""
    unsaid = {"schedule.tokens": 100, "sampler.roles.plan.temperature": 0.7, "sampler.chains": 1}
    recipe = load("plan_path_tool")
    value = unsaid.get(setting, dict(flatten(recipe.table)).get(setting))
    assert value is not None, setting
    changed = load("plan_path_tool", overrides=[f"{setting}={value}"])
    compose(changed)
    assert changed.origins[setting] == "override"


# ------------------------------------------------------------------------------------------ and they do run

TINY = ("schedule.steps=1", "schedule.tasks_per_step=2", "sampler.sampling.max_new_tokens=3")


def small(words: list[str]) -> list[str]:
    """The command with a model that is made on the spot, and little to do."""
    words = [word for word in words if ".model=" not in word and "tasks_per_step" not in word]
    match words:
        case ["run", *_]:
            out = [] if "--out" in words else ["--out", f"runs/{abs(hash(tuple(words)))}"]
            return [*words, *out, "--scale", "smoke", *TINY]
        case ["eval", source, *_] if not source.startswith("runs/"):
            return [*words, "--scale", "smoke", "--tasks", "2"]
        case ["eval", *_]:
            return [*words, "--tasks", "2"]
        case ["data", "make", *_]:
            return [*words, "--tasks", "20"]
    return words


@pytest.mark.torch
def test_the_commands_run_from_top_to_bottom(place):
    pytest.importorskip("peft")
    ran = 0
    for words in OURS:
        if not NOT_HERE.search(" ".join(words)):
            done = coterie(*small(words))
            assert done.exit_code == 0, f"{words}\n{done.output}"
            ran += 1
    assert ran >= 12
    assert (place / "planner" / "adapter_config.json").is_file() and (place / "comparison.json").is_file()


def test_its_links_lead_somewhere():
    for page in (PAGE, LEVELS):
        for path in re.findall(r"\]\(([^)#:]+)\)", page):
            assert (ROOT / "docs" / path).exists(), path
