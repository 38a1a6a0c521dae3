"""Training levels L0, L1 and L2: overlays that differ in one line, at every scale."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from coterie.backends.models.policy import LoraSettings
from coterie.compose import compose
from coterie.core.errors import ConfigError
from coterie.recipes import flatten, list_overlays, load

GAMES = ("plan_path", "sokoban", "sudoku")
LEVELS = {"l0": ("none", None), "l1": ("lora", {"rank": 16, "alpha": 32}), "l2": ("full", None)}
"""`train` and `lora` of every policy, by level; rank and scale of L1 are the paper's."""
PATHS = {info.name: Path(info.path) for info in list_overlays()}


@pytest.mark.parametrize(("first", "second"), itertools.combinations(LEVELS, 2))
def test_two_levels_differ_in_one_line_of_their_files(first, second):
    texts = [PATHS[level].read_text().splitlines() for level in (first, second)]
    assert len(texts[0]) == len(texts[1])
    differing = [pair for pair in zip(*texts, strict=True) if pair[0] != pair[1]]
    assert all(line.startswith("summary: ") for line in differing.pop(0))
    assert len(differing) == 1 and all("train:" in line for line in differing[0])


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("scale", [None, "gpu", "cpu", "smoke"])
def test_the_line_holds_at_every_scale_and_changes_nothing_else(game, scale):
    tables = {}
    for level, (train, lora) in LEVELS.items():
        resolved = load(f"{game}_split", overlays=["per_role", level], scale=scale)
        compose(resolved)
        assert list(resolved.config.policies) == ["planner", "executor"]
        for policy in resolved.config.policies.values():
            assert policy.train == train
            assert (policy.lora.model_dump(include={"rank", "alpha"}) if policy.lora else None) == lora
        tables[level] = dict(flatten(resolved.table))
    base = dict(flatten(load(f"{game}_split", overlays=["per_role"], scale=scale).table))
    for table in tables.values():
        changed = {path for path in {*table, *base} if table.get(path) != base.get(path)} - {"summary"}
        assert all(path.split(".")[2] in ("train", "lora") for path in changed), changed


def test_an_override_takes_precedence_over_the_level():
    changed = load(
        "plan_path_split",
        overlays=["per_role", "l1"],
        scale="cpu",
        overrides=["policies.planner.lora.rank=4"],
    )
    assert [policy.lora.rank for policy in changed.config.policies.values()] == [4, 16]
    assert changed.origins["policies.planner.lora.rank"] == "override"
    assert changed.origins["policies.executor.lora.rank"] == "overlay l1"


def test_an_adapters_settings_default_to_the_papers_and_are_refused_where_nothing_reads_them():
    assert (LoraSettings().rank, LoraSettings().alpha) == (16, 32)
    per_role = {"overlays": ["per_role", "l1"]}
    compose(load("plan_path_split", **per_role, overrides=["policies.planner.lora=null"]))
    for level in ("l0", "l2"):
        with pytest.raises(ConfigError, match="nothing reads these settings") as refused:
            compose(
                load(
                    "plan_path_split",
                    overlays=["per_role", level],
                    overrides=["policies.planner.lora={rank: 8}"],
                )
            )
        assert refused.value.path == "policies.planner.lora"
