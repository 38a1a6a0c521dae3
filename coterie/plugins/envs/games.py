"""What the games (Plan-Path, Sudoku, Sokoban) share: splits by content, frozen tasks, programs, who may move.

A game's seats: `planner` and `executor` (the light form: no code, different languages or information),
`tool` and `plan` (the paper's form: the tool's program runs in the sandbox and what it prints is its
proposal; the plan role adopts or overrides it and moves), and `solver` (alone, same turns and feedback).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from coterie.core.config import Composed, PluginConfig
from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.protocols import Split
from coterie.core.sandbox import Program
from coterie.core.types import Task

SHARES: dict[Split, tuple[float, float]] = {"train": (0.0, 0.8), "val": (0.8, 0.9), "test": (0.9, 1.0)}
"""Which part of the hash range belongs to a split."""


class GameConfig(PluginConfig):
    """Settings that every game has."""

    train_tasks: int = Field(1_000_000, ge=1)
    val_tasks: int = Field(1000, ge=1)
    test_tasks: int = Field(1000, ge=1)
    sandbox: Annotated[Any, Composed("sandbox")] = Field(
        None, description="Runs the program of the role `tool`. Default: the run's table `sandbox`."
    )
    data: Annotated[Any, Composed("data")] = Field(
        None,
        description="Tasks that `coterie data make` wrote, instead of generated ones. Default: the run's "
        "table `data`.",
    )

    def vouched(self, split: Split) -> int:
        """Generated tasks of a split."""
        return {"train": self.train_tasks, "val": self.val_tasks, "test": self.test_tasks}[split]


def split_of(content: str) -> Split:
    """The split that a content belongs to: a function of it alone, never of a seed."""
    digest = hashlib.blake2b(content.encode(), digest_size=8).digest()
    share = int.from_bytes(digest, "little") / 2.0**64
    return "train" if share < SHARES["train"][1] else "val" if share < SHARES["val"][1] else "test"


@dataclass(frozen=True, slots=True)
class FrozenTasks:
    """Tasks of a split from records, whose order is the file's."""

    records: Sequence[Mapping[str, Any]]
    read: Callable[[Mapping[str, Any], str], Task]
    """(record, id) -> Task; raises ValueError, KeyError or TypeError on a record of another game."""
    split: Split

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < len(self.records):
            raise IndexError(index)
        try:
            return self.read(self.records[index], f"{self.split}-{index}")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"record {index} of the {self.split} split is no task of this game",
                path="env.data",
                why=f"{type(error).__name__}: {error}",
                mend="make the file with `coterie data make` for the same environment",
            ) from error


# ------------------------------------------------------------------------------------------------- programs


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRun:
    """What a role's program did."""

    code: str
    output: str = ""
    """What it printed: its proposal."""
    problem: str = ""
    """In words, where it did not finish; empty: it did."""


async def run_tool(sandbox: Any, code: str, path: str = "sandbox") -> ToolRun:
    """Run the program of a tool role.

    Raises:
        ConfigError: there is no sandbox.
        SystemFault: the sandbox failed; the action's scores are missing.
    """
    if sandbox is None:
        raise ConfigError(
            "the role 'tool' writes programs, and there is no sandbox to run them in",
            path=path,
            mend="add `sandbox: local`",
        )
    try:
        ran = await sandbox.run(Program(code=code))
    except PolicyFault as fault:  # it killed its sandbox twice
        return ToolRun(code=code, problem=str(fault))
    if ran.status in ("timeout", "killed"):  # what it had printed by then depends on the machine's speed
        return ToolRun(code=code, problem=ran.reason or ran.status)
    said = [] if ran.ok else [ran.reason, *ran.stderr.strip().splitlines()[-1:]]
    problem = ": ".join(filter(None, said)) or ("" if ran.ok else ran.status)
    return ToolRun(code=code, output=ran.stdout, problem=problem)


_FENCE = re.compile(r"(`{3,})[ \t]*([\w+-]*)$")


def read_program(text: str) -> str:
    """The program of an answer: its last closed block of ```python, else its last one without a language.

    A block that the end of the text cuts is none: half a program is never run. "" of an empty message.

    Raises:
        PolicyFault: there is no such block, or it is blank.
    """
    named, plain, fence, language, lines = "", "", "", "", list[str]()
    for line in text.split("\n"):
        match = _FENCE.match(line.strip())
        if not fence:
            if match is not None:
                fence, language, lines = match[1], match[2].lower(), []
        elif match is not None and not match[2] and len(match[1]) >= len(fence):
            block = "".join(one + "\n" for one in lines)
            if language in ("python", "py", "python3"):
                named = block
            elif not language:
                plain = block
            fence = ""
        else:
            lines.append(line)
    found = named or plain
    if text.strip() and not found.strip():
        raise PolicyFault("no closed block of Python in the answer")
    return found


# ---------------------------------------------------------------------------------------------------- seats


def check_movers(order: Sequence[Sequence[str]], movers: Sequence[str], path: str) -> None:
    """Somebody must move, and no two at once.

    Raises:
        ConfigError: `team.order` has no mover, or two in one stage.
    """
    moving = [[role for role in stage if role in movers] for stage in order]
    if not any(moving):
        raise ConfigError(
            "nobody in team.order moves",
            path=path,
            why="the messages of the others only advise",
            mend=f"add one of: {', '.join(movers)}; or set env.plan_moves: true for a planner that plays "
            "alone",
        )
    for stage in moving:
        if len(stage) > 1:
            raise ConfigError(
                f"{' and '.join(stage)} can't move at once",
                path=path,
                mend="give them stages of their own in team.order, or keep one",
            )
