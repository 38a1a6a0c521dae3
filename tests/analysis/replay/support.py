"""Small recorded runs, and what of their files is changed by hand."""

from __future__ import annotations

import copy
import logging
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

import coterie
from coterie import Plugin
from coterie.analysis.records import RunRecords
from coterie.analysis.replay.replay import RecordsReplay, Replay
from coterie.api.rollouts import read_rollouts, write_rollouts
from coterie.core.errors import PolicyFault, SystemFault
from coterie.plugins.algos.at_grpo import ATGRPO

TABULAR = Path(__file__).parents[2] / "recipes" / "tabular.yaml"
Rows = list[dict[str, Any]]


def judge(view: Any) -> float:
    """A score of one joint action in [0, 1); a tenth has none, a tenth its floor."""
    text = "|".join(action.text for action in view.actions.values())
    draw = zlib.crc32(f"{view.task.id}/{view.turn}/{text}".encode()) % 1000 / 1000
    if draw < 0.1:
        raise SystemFault("the judge is down")
    if draw < 0.2:
        raise PolicyFault("the judge can't read it")
    return draw


def moves(request: Any, text: str) -> str:
    """A move; a fifth is none."""
    return ("U", "D", "L", "R", "G+0+0")[request.seed % 5]


SCRIPTED = {"type": "scripted", "play": f"{__name__}:moves"}
"""An engine that knows no vocabulary, and whose answers are moves."""


def table(**tables: Any) -> dict[str, Any]:
    """A planner and an executor in tables, whose actions earn something, with a judge that fails."""
    made: dict[str, Any] = yaml.safe_load(TABULAR.read_text())
    made["env"] |= {"team": "potential", "train_tasks": 12}
    made["sampler"] = {"branches": 3, "sampling": {"max_new_tokens": 2}}
    made["trainer"] = {"type": "tabular", "learning_rate": 20}
    made["rewards"] = {
        "environment": {"type": "environment"},
        "judge": {
            "type": "function",
            "function": f"{__name__}:judge",
            "floor": -0.5,
            "weights": {"judge": 1.5},
        },
    }
    made["schedule"] = {"steps": 3, "tasks_per_step": 2, "max_missing": 1, "checkpoint_every": 2}
    return made | tables


def trained(folder: Path, source: Any = None, **options: Any) -> Path:
    """The folder of a run."""
    coterie.train(table() if source is None else source, out=folder, **options)
    return folder


def replayed(records: RunRecords, steps: list[int], again: tuple[str, ...] = ()) -> Replay:
    """A replay with a run that is composed once for many."""
    return RecordsReplay(records, steps, again, None).run(None)


def changed(records: RunRecords, step: int, change: Callable[[Rows], Any], folder: Path) -> Replay:
    """The replay of a step whose file was changed and written again."""
    rows = copy.deepcopy(read_rollouts(records.files[step]))
    change(rows)
    file = folder / f"step-{step:06d}.jsonl.gz"
    write_rollouts(file, rows)
    other = RunRecords(records.folder, records.resolved, None, {**records.files, step: file}, records.runs)
    return replayed(other, [step])


class Counter(Plugin):
    """A tool whose answer is another one each time; now and then it fails, or the call is at fault."""

    name = "counter"
    calls = 0

    def find(self, text: str) -> str | None:
        return text if text == "r0c0" else None

    async def run(self, call: str) -> str:
        Counter.calls += 1
        if Counter.calls % 5 == 0:
            raise SystemFault("the counter is down")
        if Counter.calls % 5 == 1:
            raise PolicyFault("nothing to count")
        return f"r0c{Counter.calls % 3}"


def counting(request: Any, text: str) -> str:
    """A call of the tool, and a move after its result."""
    return "r0c0" if request.key.call == 0 and request.seed % 4 else moves(request, text)


def lossy(request: Any, text: str) -> str:
    """A move; of some calls the engine loses the answer."""
    if request.seed % 7 == 0:
        raise SystemFault("the engine is gone")
    return moves(request, text)


class Counting(ATGRPO):
    """An estimator that keeps its number of calls on itself, and not in its state."""

    calls, paper_loss = 0, "reinforce, sequence_sum"

    def __call__(self, batch: Any, state: Any) -> Any:
        self.calls += 1
        logging.getLogger("coterie").warning("the estimator has %d trees", len(batch.trees))
        credit, after = super().__call__(batch, state)
        credit.advantage.update({key: value * self.calls for key, value in credit.advantage.items()})
        return credit, after
