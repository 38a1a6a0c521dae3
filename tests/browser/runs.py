"""The runs that `make test-browser` and docs/screenshots.py look at; build/report keeps them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from coterie.api.rollouts import read_rollouts, write_rollouts
from coterie.api.train import train
from coterie.core.config import to_yaml
from coterie.core.storage.atomic import locked
from coterie.recipes import read_yaml
from tests.viewing.planted import SINCE, make

KEPT = Path(__file__).resolve().parents[2] / "build" / "report"
WORDS = 400
BRANCHES = 5_000
HOSTILE = (
    '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2">&lt;b&gt;</pre></script><!--\n'
    "{{ 7 * 7 }} \x00\x07\x1b[31mred\x1b[0m\x7f\x85 left\u202eright\u2066 zero\u200bwidth \u2028line"
    "</textarea><svg onload='window.hacked = 3'> <a href='javascript:window.hacked=4'>x</a> '"
    ' " ` & 😀 \u200d'
)
"""Markup, scripts, templates, and characters that hide or reorder text."""


def quickstart() -> Path:
    """60 steps of the quickstart: a team of two that learns by AT-GRPO (a minute)."""
    settings = ("schedule.steps=60", "schedule.record_every=5", "schedule.evaluate_every=10")
    return _kept("quickstart", lambda out: train("quickstart", overrides=settings, out=out))


def mathchat() -> Path:
    """Three roles and a coach, of rules."""
    settings = ("schedule.steps=4", "schedule.record_every=1")
    return _kept("mathchat", lambda out: train("mathchat_coach", scale="smoke", overrides=settings, out=out))


def magrpo() -> Path:
    """Two turns of two roles that act at once, all of four joint actions expanded."""
    settings = ("team.max_turns=2", "schedule.record_every=1", "schedule.steps=3")
    return _kept("magrpo", lambda out: train("magrpo_code_game", scale="smoke", overrides=settings, out=out))


def large() -> Path:
    """5,000 branches of 400 words and their log-probs: trees of `magrpo` with other texts and numbers."""
    return _kept("large", partial(_large, magrpo()))


def hostile() -> Path:
    """The run `magrpo`, in whose first step a model wrote markup, scripts and control characters."""
    return _kept("hostile", partial(_hostile, magrpo()))


def planted(failure: str) -> Path:
    """45 steps in which a role fails in a known way."""
    return _kept(failure, lambda out: make(failure, out))


def _kept(name: str, train_in: Callable[[Path], Any]) -> Path:
    """A run of build/report; one process makes it, in a folder of its own until it is whole."""
    folder, done = KEPT / name, KEPT / f"{name}.done"
    made_by = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
    making = KEPT / "making" / name
    making.parent.mkdir(parents=True, exist_ok=True)
    with locked(making.parent):
        if not done.is_file() or done.read_text() != made_by:
            shutil.rmtree(making, ignore_errors=True)
            train_in(making)
            shutil.rmtree(folder, ignore_errors=True)
            making.rename(folder)
            done.write_text(made_by)
    return folder


def _copied(source: Path, folder: Path) -> None:
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("checkpoints"))


def _large(source: Path, folder: Path) -> None:
    _copied(source, folder)
    first, *rows = read_rollouts(folder / "rollouts" / "step-000001.jsonl.gz")
    shutil.rmtree(folder / "rollouts")
    (folder / "rollouts").mkdir()
    task = rows[0]["task_id"]
    tree = [json.dumps(row) for row in rows if row["task_id"] == task]
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"etaoinshrdlu"], rng.integers(2, 10))) for _ in range(4_000)]
    often = 1 / np.arange(1, len(words) + 1)
    made = 0
    for step in range(1, 11):
        out = [{**first, "step": step}]
        while made < BRANCHES * step // 10:
            name = f"train-{step}-{made}"
            for text in tree:
                row = json.loads(text.replace(task, name))
                if row["kind"] == "branch":
                    made += 1
                    _write(row, words, often / often.sum(), rng)
                out.append(row)
        write_rollouts(folder / "rollouts" / f"step-{step:06d}.jsonl.gz", out)


def _write(row: dict[str, Any], words: list[str], often: Any, rng: np.random.Generator) -> None:
    ids = rng.choice(len(words), WORDS, p=often)
    logprobs = (-(rng.exponential(1.0, WORDS) ** 1.5)).astype(np.float32).astype(float).tolist()
    row["completion"] = " ".join(words[index] for index in ids)
    call = {**row["calls"][0], "token_ids": ids.tolist(), "logprobs": logprobs, "finish": "length"}
    row |= {"calls": [call], "fault": None, "reward": rng.random(), "advantage": rng.normal()}


def _hostile(source: Path, folder: Path) -> None:
    _copied(source, folder)
    path = folder / "rollouts" / "step-000001.jsonl.gz"
    rows = read_rollouts(path)
    for row in rows:
        if row["kind"] == "branch":
            row["completion"] = row["thought"] = HOSTILE
            row["fault"] = {"kind": "policy", "reason": HOSTILE}
            row["tool_results"] = [HOSTILE]
            row["comments"] = {"code_structure": HOSTILE}
        elif row["kind"] == "node":
            row["prompt"] = HOSTILE
    write_rollouts(path, rows)
    config = folder / "config.yaml"
    table = {**read_yaml(config), "summary": "</title><script>window.hacked = 5</script>"}
    config.write_text(to_yaml(table), encoding="utf-8")


if __name__ == "__main__":
    for run in (quickstart, mathchat, magrpo, large, hostile):
        print(run())
    for failure in SINCE:
        print(planted(failure))
