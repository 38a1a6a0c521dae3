"""What docs/viewing.md shows is what the commands print."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from coterie.api.rollouts import write_rollouts
from coterie.viewing import follow
from tests.cli.support import coterie

PAGE = Path(__file__).parents[2] / "docs" / "viewing.md"
BLOCK = re.compile(r"```text\n(.*?)```", re.DOTALL)


def watched(folder):
    """The run of the page's frame: 40 of 60 steps."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"name": "first", "schedule": {"steps": 60}}))
    rows = []
    for step in range(1, 41):
        row = {
            "step": step, "tokens/total": 800 * step, "time/tokens_per_second": 400.0, "time/step": 2.0,
            "time/rollouts": 1.4, "time/update": 0.5, "time/record": 0.1, "time/long_tail": 0.4,
            "reward/planner": 0.02 * step, "reward/executor": 0.01 * step,
        }  # fmt: skip
        for role, empty, length in (("planner", 0.0, 12), ("executor", 0.15, 9)):
            row |= {f"length/{role}": length, f"empty/{role}": empty, f"faults/{role}/policy": empty / 3}
            row |= {f"groups/{role}/zero_variance": 0.25, f"groups/{role}/missing_rows": 0.0}
        if step % 10 == 0:
            row |= {"eval/success": step / 64, "eval/success_ci95": [step / 80, step / 53.3333333333]}
        rows.append(json.dumps(row) + "\n")
    (folder / "metrics.jsonl").write_text("".join(rows))


def test_the_frame_of_the_page_is_drawn(tmp_path, monkeypatch):
    watched(tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setattr(follow, "trained_by", lambda folder: follow.Alive(True, 4711))
    seconds = os.stat("runs/first/metrics.jsonl").st_mtime
    monkeypatch.setattr("coterie.cli.commands.watch.time.time", lambda: seconds)
    monkeypatch.setattr(follow.time, "time", lambda: seconds)
    done = coterie("watch", "runs/first", "--once")
    assert lines(done.stdout) == lines(BLOCK.findall(PAGE.read_text())[0])


def recorded():
    """The rows of one tree: an executor that its parser can't read."""
    place = {"format": 3, "task_id": "train-1", "epoch": 0, "chain": 0}
    prompts = {"planner": "[user]\nWhere is the goal?", "executor": "[user]\nThe planner says: go right"}
    rows = [{"format": 3, "kind": "step", "step": 40}]

    def node(key, role):
        return {**place, "kind": "node", "node": key, "turn": 0, "stage": 0, "role": role, "policy": "shared",
                "prompt": prompts[role]}  # fmt: skip

    def branch(key, role, number, text, reward, scores, fault=None):
        return {**place, "kind": "branch", "node": key, "role": role, "branch": number, "policy": "shared",
                "completion": text, "thought": "", "tool_results": [], "scores": scores, "own_scores": {},
                "calls": [{"token_ids": [1] * len(text.split()), "logprobs": [], "finish": "stop"}],
                "reward": reward, "return": reward, "advantage": reward, "fault": fault}  # fmt: skip

    def joint(key, number, branches, reward, child, **end):
        expanded = number == 1 or child is not None
        return {**place, "kind": "joint", "node": key, "joint": number, "branches": branches, "scores": {},
                "reward": reward, "child": child, "rule": "sampled", "expanded": expanded,
                "terminated": False, "truncated": False, "outcome": None, "fault": None, **end}  # fmt: skip

    first, second = "train-1/e0/c0/n", "train-1/e0/c0/n0"
    fault = {"kind": "policy", "reason": "'right, I guess' is not a move"}
    rows += [
        node(first, "planner"),
        branch(first, "planner", 0, "go right", 0.0, {"format": 1.0}),
        joint(first, 0, {"planner": 0}, {"planner": 0.0}, second),
        node(second, "executor"),
        branch(second, "executor", 0, "right", 0.6, {"format": 1.0, "team.goal": 1.0}),
        branch(second, "executor", 1, "right, I guess", -0.4, {"format": 0.0, "team.goal": 0.0}, fault),
        joint(second, 0, {"executor": 0}, {"executor": 0.6}, None),
        joint(second, 1, {"executor": 1}, {"executor": -0.4}, None, terminated=True, fault=fault,
              outcome={"success": 0.0}),
    ]  # fmt: skip
    return rows


def test_the_episode_of_the_page_is_printed(tmp_path, monkeypatch):
    watched(tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    write_rollouts(Path("runs/first/rollouts/step-000040.jsonl.gz"), recorded())
    (command,) = re.findall(r"^coterie (episodes .*)$", PAGE.read_text(), re.MULTILINE)
    arguments = [part.strip("'") for part in re.findall(r"'[^']*'|\S+", command)]
    done = coterie(*arguments)
    assert done.exit_code == 0, done.output
    assert lines(done.stdout) == lines(BLOCK.findall(PAGE.read_text())[1])


def lines(text):
    return [line.rstrip() for line in text.strip("\n").split("\n")]


@pytest.mark.parametrize("name", ["grpo", "first"])
def test_the_commands_of_the_page_are_commands(name):
    from tests.cli.support import parsed

    commands = re.findall(r"^coterie (\w+ .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        if name in command:
            parsed([part.strip("'") for part in re.findall(r"'[^']*'|\S+", command)])
