"""Reads a report's data back, and compares all of it with the run's folder."""

from __future__ import annotations

import base64
import gzip
import json
import re

import pytest

from coterie.api.coach_report import coach_report, coaches
from coterie.api.rollouts import read_rollouts
from coterie.recipes import read_yaml
from coterie.viewing.report import blocks
from coterie.viewing.report.trees import DEFAULTS, LEFT_OUT, PLACE
from tests.viewing.runs import rows_of


def embedded(path):
    """The data of a report, by name."""
    text = path.read_text(encoding="utf-8")
    parts = re.findall(r'<script type="text/plain" id="data-([\w-]+)">([^<]*)</script>', text)
    return {name: json.loads(gzip.decompress(base64.b64decode(of))) for name, of in parts}


def check_numbers(folder, path):
    """Every number of metrics, rollouts, evaluations and the coach's report that a report of one run has."""
    config = read_yaml(folder / "config.yaml")
    data = embedded(path)
    main, index = data["main"]["runs"][0], data["episodes"]["runs"][0]
    rows = rows_of(folder)
    assert main["steps"] == [row["step"] for row in rows]
    for place, row in enumerate(rows):
        columns = {name: of[place] for name, of in main["columns"].items()}
        assert {**dict.fromkeys(columns), **row} == {"step": row["step"], **columns}
    of_rows = {row["step"]: row for row in rows}
    written = {
        int(file.stem[5:11]): json.loads(file.read_text()) for file in (folder / "eval").glob("*.json")
    }
    assert {of["step"] for of in main["evaluations"]} == set(written)
    for of in main["evaluations"]:
        of = {key: value for key, value in of.items() if key not in ("step", "set")}
        assert of == {key: value for key, value in written[main_step(of)].items() if key != "per_task"}
    for step, of in main["roles"].items():
        for entry in of["roles"]:
            role, row = entry["role"], of_rows[int(step)]
            assert entry["zero_variance"] == row.get(f"groups/{role}/zero_variance")
            assert entry["reward"] == pytest.approx(row[f"reward/{role}"])
    every = compared(folder, data, index)
    assert every["branch"] and every["joint"] and every["node"]
    assert every == counted(folder)
    reports = [coach_report(folder, name).as_dict() for name in coaches(config)]
    assert main["coaches"] == json.loads(blocks.dumps(reports))


def main_step(evaluation):
    return evaluation["checkpoint"]


def counted(folder):
    counts = {"node": 0, "branch": 0, "joint": 0}
    for file in (folder / "rollouts").iterdir():
        for row in read_rollouts(file):
            if row["kind"] in counts:
                counts[row["kind"]] += 1
    return counts


def compared(folder, data, index):
    """Compare all rows of the rollout files with the blocks; how many of each kind are equal."""
    rows = {}
    for file in (folder / "rollouts").iterdir():
        of = [*read_rollouts(file)]
        step = next(row["step"] for row in of if row["kind"] == "step")
        for row in of:
            if row["kind"] != "step":
                which = row.get("role"), row.get("branch", row.get("joint"))
                rows[step, row["kind"], row["node"], which] = row
    counts = {"node": 0, "branch": 0, "joint": 0}
    assert len(set(zip(index["columns"]["block"], index["columns"]["tree"], strict=True))) == index["trees"]
    for name in [name for name in data if name.startswith("block-")]:
        for tree in data[name]["trees"]:
            for node in tree["nodes"]:
                for decision in node["decisions"]:
                    row = rows[tree["step"], "node", node["key"], (decision["role"], None)]
                    assert data[name]["prompts"][decision["prompt"]] == row["prompt"]
                    assert (decision["policy"], decision["prompt_tokens"]) == (
                        row["policy"],
                        len(row["prompt_ids"]),
                    )
                    assert (node["turn"], node["stage"]) == (row["turn"], row["stage"])
                    counts["node"] += 1
                    for branch in decision["branches"]:
                        row = rows[tree["step"], "branch", node["key"], (decision["role"], branch["branch"])]
                        same(branch, row, {"calls", "policy"})
                        for call, of in zip(branch["calls"], row["calls"], strict=True):
                            assert call["logprobs"] == of["logprobs"] and call["tokens"] == len(
                                of["token_ids"]
                            )
                        counts["branch"] += 1
                for joint in node["joints"]:
                    row = rows[tree["step"], "joint", node["key"], (None, joint["joint"])]
                    same(joint, row, {"child"})
                    child = joint["child"]
                    assert (None if child is None else tree["nodes"][child]["key"]) == row["child"]
                    counts["joint"] += 1
    return counts


def same(short, row, apart):
    """What the page has of a row, with what it leaves out put in, is the row."""
    for key in row.keys() - PLACE - LEFT_OUT - apart:
        assert short.get(key, DEFAULTS.get(key)) == row[key], key
