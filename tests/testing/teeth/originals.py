"""The original of each kind, which is its one-file example of `coterie new`; and the checks of its kind."""

from __future__ import annotations

import itertools
import shutil
import sqlite3
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import coterie.scaffold
from coterie.core.errors import UserError
from coterie.testing import (
    ConformanceError,
    ConformanceWarning,
    build,
    check_chat_format,
    check_chat_model,
    check_data_source,
    check_engine,
    check_environment,
    check_estimator,
    check_executor,
    check_loss,
    check_plugin,
    check_reward,
    check_role,
    check_sampler,
    check_sandbox,
    check_tool,
    check_tracker,
    check_trainer,
    check_transition,
)
from coterie.testing.support.time_limit import call_limit
from coterie.testing.support.toys import GAME

KINDS = Path(coterie.scaffold.__path__[0]) / "templates" / "kinds"
RECIPE = """\
summary: A small game.
env: {type: plan_path, size: 3, max_moves: 2, train_tasks: 8, val_tasks: 4, test_tasks: 4}
team: {order: [solver], max_turns: 2, roles: {solver: {type: plan_path_solver, policy: table}}}
policies: {table: {model: {init: tabular}}}
rewards: {environment: {type: environment}}
sampler: {branches: 4, sampling: {max_new_tokens: 3}}
algorithm: at_grpo
engine: tabular
trainer: {type: tabular, learning_rate: 5.0}
schedule: {steps: 2, tasks_per_step: 2}
"""
BESIDE = {"column": ("study", "recipe")}
"""Kinds that a kind's example needs beside it, in the same module."""
COLUMN = "example_name_column.yaml"
"""Names its recipe by a word that `coterie new` replaces."""
NAMES = itertools.count()
Edits = Sequence[tuple[str, str]]


def load(kind: str, folder: Path, edits: Edits = (), file: str = "", without: str = "") -> ModuleType:
    """The example of a kind as a module in a folder, with texts replaced.

    Args:
        edits: (old, new) of the module, or of `file`; each old text is in it.
        without: a file that is removed from the folder.
    """
    for path in KINDS.iterdir():
        if path.is_file():
            shutil.copy(path, folder / path.name)
    (folder / COLUMN).write_text(edited("column", (), COLUMN))
    (folder / "example-name-smoke.yaml").write_text(RECIPE)
    (folder / (file or f"{kind}.py")).write_text(edited(kind, edits, file))
    if without:
        (folder / without).unlink()
    module = ModuleType(f"teeth_{kind}_{next(NAMES)}")
    sys.modules[module.__name__] = module
    for name in (*BESIDE.get(kind, ()), kind):
        path = folder / f"{name}.py"
        module.__file__ = str(path)
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def edited(kind: str, edits: Edits, file: str = "") -> str:
    """The text of an example's file with texts replaced; each old one must be in it."""
    name = file or f"{kind}.py"
    text = RECIPE if name == "example-name-smoke.yaml" else (KINDS / name).read_text()
    text = text.replace("example_recipe", "example-name-smoke.yaml") if name == COLUMN else text
    for old, new in edits:
        assert old in text, f"{name} has no {old!r}: write the mutant anew for the example as it is now"
        text = text.replace(old, new)
    return text


def component(module: ModuleType, kind: str, order: Any = None, **settings: Any) -> Any:
    """The module's component, made as a run makes it."""
    suffix = "".join(word.title() for word in kind.split("_"))
    table = {"type": f"{module.__name__}:ExampleName{suffix}", **settings}
    name = "example_name" if kind in ("tool", "reward") else ""
    try:
        return build(kind, table, name=name, order=order)
    except UserError as error:  # the kit's `build` refuses it, as a run does
        raise ConformanceError(str(error), where="build") from error


def counts_down(role: str, seen: Any, rng: Any) -> tuple[str, ...]:
    """A player of the example's countdown: right three times of four."""
    return (str(max(int(seen) - 1, 0)),) if rng.random() < 0.75 else ("what",)


def steps(folder: Path) -> list[int]:
    """The steps that the example's tracker has kept, in order."""
    database = sqlite3.connect(folder / "metrics.sqlite")
    try:
        rows = database.execute("SELECT step FROM metrics WHERE name = 'loss' ORDER BY rowid").fetchall()
    finally:
        database.close()
    return [step for (step,) in rows]


def _trainer(module: ModuleType) -> None:
    for train in ("full", "none"):
        check_trainer(
            lambda: component(module, "trainer"),
            model={"init": "tabular"},
            token_ids=[0, *(module.word_id(word) for word in ("left", "right", "up", "down"))],
            train=train,
            annotates=("ref_logprobs", "old_logprobs"),
        )


def _sandbox(module: ModuleType, folder: Path) -> None:
    check_sandbox(component(module, "sandbox", inside={"type": "local"}))


CHECKS: dict[str, Callable[[ModuleType, Path], None]] = {
    "environment": lambda module, folder: check_environment(
        component(module, "environment", order=["counter"]), roles=["counter"], act=counts_down, episodes=6
    ),
    "reward": lambda module, folder: check_reward(
        component(module, "reward", order=["one"]),
        environment=build("environment", GAME, order=["one"]),
        roles=["one"],
        act=["1", "two words", "", "stop"],
    ),
    "role": lambda module, folder: check_role(
        component(module, "role"), name="solver", observations=[3], good=["2"], feedback=["You slept."]
    ),
    "estimator": lambda module, folder: check_estimator(component(module, "estimator"), seeds=1),
    "loss": lambda module, folder: check_loss(component(module, "loss")),
    "transition": lambda module, folder: check_transition(
        component(module, "transition"),
        build("environment", GAME, order=["one", "two"]),
        roles=["one", "two"],
        act=["1", "2"],
        episodes=2,
    ),
    "sampler": lambda module, folder: check_sampler(component(module, "sampler", branches=2), tasks=1),
    "engine": lambda module, folder: check_engine(component(module, "engine"), model={"init": "tabular"}),
    "trainer": lambda module, folder: _trainer(module),
    "executor": lambda module, folder: check_executor(component(module, "executor")),
    "tool": lambda module, folder: check_tool(
        component(module, "tool"), calls=["<add>1 2</add>", "<add>one</add>"], texts=50
    ),
    "chat_format": lambda module, folder: check_chat_format(component(module, "chat_format")),
    "chat_model": lambda module, folder: check_chat_model(component(module, "chat_model")),
    "data_source": lambda module, folder: check_data_source(component(module, "data_source")),
    "tracker": lambda module, folder: check_tracker(component(module, "tracker"), folder=folder, read=steps),
}
"""The check of a kind, after that of the module. What is registered of the other kinds, that one checks."""
SLOW: dict[str, Callable[[ModuleType, Path], None]] = {"sandbox": _sandbox}
"""Checks that run programs."""


def complaint(module: ModuleType, kind: str, folder: Path, seconds: float = 60.0) -> str:
    """What the kit says of a module and its component; empty: nothing.

    Raises:
        Exception: a check raised something else than a ConformanceError.
    """
    said, runs = "", folder / "run"
    runs.mkdir()
    with warnings.catch_warnings(), call_limit(seconds):
        warnings.simplefilter("error", ConformanceWarning)
        warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # a mutant may leave one
        try:
            check_plugin(module)
            if kind in CHECKS:
                CHECKS[kind](module, runs)
        except (ConformanceError, ConformanceWarning) as error:
            said = str(error)
    return said
