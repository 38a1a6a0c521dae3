"""Recipes and overlays of plugins: a fault is told with the plugin's name, and stops no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.compose import compose
from coterie.core.errors import ConfigError, PluginError
from coterie.discovery import plugins
from coterie.recipes import list_overlays, load, recipes
from tests.cli.support import anew, plugin_package

RECIPE = "tests/recipes/tabular.yaml"


@pytest.fixture
def register():
    """Registers a recipe or an overlay of `coterie-lab`, until the test ends."""
    registry, added = plugins().registry, []

    def add(kind: str, name: str, target: str) -> None:
        registry.add(kind, name, target, "coterie-lab")
        added.append(registry.find(kind, name))

    yield add
    for entry in added:
        registry.discard(entry)


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("labb:x.yaml", "No module named 'labb'"),
        ("colorsys:x.yaml", "'colorsys' is not a package"),
        ("json:x.yaml", "there is no file"),
        ("/nowhere/x.yaml", "there is no file /nowhere/x.yaml"),
    ],
)
def test_a_file_that_is_not_there_is_told_with_its_plugin(register, target, why):
    register("recipe", "lab_recipe", target)
    register("overlay", "lab_overlay", target)
    with pytest.raises(PluginError, match="recipe 'lab_recipe' of coterie-lab has no file") as caught:
        load("lab_recipe")
    assert why in caught.value.why and "__init__.py" in caught.value.fix
    with pytest.raises(PluginError, match="overlay 'lab_overlay' of coterie-lab has no file"):
        load("plan_path_split", overlays=["lab_overlay"])


@pytest.mark.parametrize("target", ["labb:x.yaml", "colorsys:x.yaml", "json:x.yaml"])
def test_the_other_recipes_and_overlays_are_listed(register, target, caplog):
    register("recipe", "lab_recipe", target)
    register("overlay", "lab_overlay", target)
    known = {info.name: info for info in recipes()}
    assert "recipe 'lab_recipe' of coterie-lab has no file" in known["lab_recipe"].error
    assert known["plan_path_split"].path and not known["plan_path_split"].error
    listed = [info.name for info in list_overlays()]
    assert "lab_overlay" not in listed and "per_role" in listed
    assert "overlay 'lab_overlay' of coterie-lab is left out" in caplog.text


def test_the_list_of_plugins_tells_of_broken_files(tmp_path):
    path = plugin_package(
        tmp_path,
        "acme-files",
        """
        from coterie import hookimpl

        @hookimpl
        def register_recipes(register):
            register("acme_recipe", "acme_nothing:x.yaml")

        @hookimpl
        def register_overlays(register):
            register("acme_overlay", "acme_files:x.yaml")
        """,
    )
    reports = json.loads(anew("plugins", "--json", path=path).stdout)
    (report,) = [report for report in reports if report["distribution"] == "acme-files"]
    assert not report["ok"] and len(report["errors"]) == 2


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("trainr: {learning_rate: 0.5}", "trainr"),
        ("trainr: 3", "trainr"),
        ("schedule: {stpes: 3}", "schedule.stpes"),
        ("trainer: {learning_rte: 0.5}", "trainer.learning_rte"),
        ("trainer: {learning_rate: fast}", "trainer.learning_rate"),
    ],
)
@pytest.mark.parametrize("kind", ["recipe", "overlay"])
def test_a_wrong_key_is_told_with_the_file_and_its_plugin(register, tmp_path, kind, text, key):
    file = tmp_path / "wrong.yaml"
    head = f"extends: {Path(RECIPE).resolve()}\n" if kind == "recipe" else ""
    file.write_text(head + text + "\n")
    register(kind, "lab_file", str(file))
    with pytest.raises(ConfigError) as caught:
        compose(load("lab_file") if kind == "recipe" else load(Path(RECIPE), overlays=["lab_file"]))
    assert caught.value.path == key
    assert caught.value.__notes__ == [f"in {kind} 'lab_file' of coterie-lab: {file}"]


def test_a_wrong_override_is_not_laid_at_the_plugins_door(register, tmp_path):
    file = tmp_path / "right.yaml"
    file.write_text("trainer: {learning_rate: 0.5}\n")
    register("overlay", "lab_file", str(file))
    with pytest.raises(ConfigError) as caught:
        compose(load(Path(RECIPE), overlays=["lab_file"], overrides=["trainer.learning_rate=fast"]))
    assert not getattr(caught.value, "__notes__", [])
