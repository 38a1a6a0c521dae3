"""docs/transitions.md: its modes, settings, defaults, vendors and metrics are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from coterie.backends.remote.vendors import VENDORS, vendor_of
from coterie.discovery import plugins
from coterie.plugins.transitions.expert_edits import COUNTED, NO_EDIT, ExpertEditsConfig
from coterie.plugins.transitions.levels import ALL, FAILED, NOT_ALL, PASSED, LevelPassed
from coterie.plugins.transitions.revision import OFFLINE, Plain
from coterie.testing import coterie_run

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "transitions.md").read_text(encoding="utf-8")
BLOCKS = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)]


def column(head: str, number: int = 0) -> list[str]:
    """The cells of a column of the table that begins with a head."""
    lines = PAGE[PAGE.index(f"| {head} |") :].split("\n\n")[0].splitlines()[2:]
    return [line.strip("| ").split(" | ")[number].strip() for line in lines]


def test_every_mode_is_on_the_page():
    modes = [re.findall(r"`(\w+)`", cell)[0] for cell in column("`type`")]
    assert set(modes) == set(plugins().registry.names("transition"))
    assert f"The error names the variable, and the modes that ask nobody: {', '.join(OFFLINE)}." in " ".join(
        PAGE.split()
    )


def test_every_setting_is_on_the_page_with_its_default():
    names = {name for cell in column("setting") for name in re.findall(r"`(\w+)`", cell)}
    fields = {**ExpertEditsConfig.model_fields, **LevelPassed.Config.model_fields}
    assert names == set(fields)
    defaults = (fields["max_tokens"].default, fields["temperature"].default, fields["sandbox_slice"].default)
    assert defaults == (2048, 0.0, 0)
    assert Plain.Config.model_fields["original_prompt"].default is True


@pytest.mark.parametrize("table", BLOCKS, ids=str)
def test_every_configuration_composes(table):
    run = coterie_run(
        "x",
        env={"type": "tests.plugins.transitions.toys:CodeTeam"},
        order=["solver"],
        max_turns=2,
        transition=table["transition"],
        **({"chat_models": table["chat_models"]} if "chat_models" in table else {}),
    )
    assert run.config.transition["type"] == table["transition"]["type"]


def test_every_vendor_of_a_name_is_on_the_page():
    for cell, vendor in zip(column("names that begin with"), column("names that begin with", 1), strict=True):
        names, _, excluded = cell.partition(" (not ")
        assert {vendor_of(f"{name}x") for name in re.findall(r"`([^`]+)`", names)} == {vendor}
        assert all(vendor_of(f"{name}x") is None for name in re.findall(r"`([^`]+)`", excluded))
        assert vendor in VENDORS
    from coterie.backends.remote import vendors

    assert set(column("names that begin with", 1)) == set(vendors.MODEL_NAMES)


def test_the_metrics_and_sentences_are_those_of_the_code():
    assert column("metric of a step") == [f"`expert/{name}`" for name in COUNTED]
    page = " ".join(PAGE.split())
    for sentence in (ALL, NOT_ALL, PASSED, FAILED, NO_EDIT):
        assert f'"{sentence}"' in page
