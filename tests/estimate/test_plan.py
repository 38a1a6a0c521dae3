"""`coterie.plan`: the values that the page shows, and that `coterie plan --json` prints."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path

import pytest

import coterie
from tests.cli.support import TABULAR, coterie as command

PAGE = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")


@pytest.mark.torch
def test_the_example_of_the_page_prints_the_commands_numbers(capsys):
    pytest.importorskip("torch")
    (example,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(example, {})
    words = ("quickstart", "sampler.branches=8", "--gpus", "1", "--gpu-memory", "24", "--json")
    shown = json.loads(command("plan", *words).stdout)
    shared, memory = shown["policies"]["shared"], shown["memory"]
    assert capsys.readouterr().out.split() == [
        str(shown["step"]["generations"]),
        str(shared["generated_tokens"]),
        str(shared["memory"]["weights"]),
        *(str(memory["peak"]), str(shown["fit"]["one"])),
    ]


def test_it_is_the_commands_value_and_frozen():
    plan = coterie.plan(TABULAR, overlays=["ray"], nodes=2, node_cpus=4, node_gpus=0)
    assert isinstance(plan, coterie.RunEstimate)
    nodes = ("--with", "ray", "--nodes", "2", "--node-cpus", "4", "--node-gpus", "0")
    assert plan.as_dict() == json.loads(command("plan", TABULAR, *nodes, "--json").stdout)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.name = "other"
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.memory.cache = 0


def test_it_refuses_what_the_command_refuses():
    with pytest.raises(coterie.ConfigError, match="20,000 are the bound"):
        coterie.plan(TABULAR, overrides=["schedule.tasks_per_step=9000"])
    large = coterie.plan(TABULAR, overrides=["schedule.tasks_per_step=9000"], any_size=True)
    assert large.step.generations > 20_000 and large.loads[0].part == "generations"
    with pytest.raises(coterie.UserError, match="this option has no effect"):
        coterie.plan(TABULAR, node_gpus=2)


@pytest.mark.parametrize(("option", "value"), [
    *(("gpus", value) for value in (0, -1)), *(("nodes", value) for value in (0, -2)), ("node_gpus", -1),
    *((name, value) for name in ("gpu_memory", "node_cpus") for value in (0, -1.0, math.nan, math.inf)),
])  # fmt: skip
def test_it_refuses_numbers_that_no_machine_has(option, value):
    nodes = {"nodes": 1, "overlays": ["ray"]} if option.startswith("node") else {}
    with pytest.raises(coterie.ConfigError, match="give a number") as caught:
        coterie.plan(TABULAR, **{**nodes, option: value})
    assert caught.value.path == f"--{option.replace('_', '-')}"


def test_what_was_resolved_can_be_planned():
    resolved = coterie.load(TABULAR, overrides=["schedule.tasks_per_step=3"])
    assert coterie.plan(resolved).step == coterie.plan(TABULAR, overrides=["schedule.tasks_per_step=3"]).step
    assert coterie.load(resolved).table == resolved.table


def test_the_command_tells_a_memory_that_is_no_number():
    done = command("plan", TABULAR, "--gpu-memory", "nan")
    assert done.exit_code == 2 and "gpu-memory is nan" in done.stderr
