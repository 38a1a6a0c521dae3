"""The settings of environment `math`, and the forms of a team, by the roles in `team.order`.

- `reasoner` and `tool` (AT-GRPO, arXiv 2510.11062): both act at once, see both histories in later turns, and
  end when their answers agree. The reasoner's answer is the team's.
- `problem_solver`, `code_executor`, `verifier` (MathChat of MAPPA, arXiv 2601.23228): one after another, each
  sees all before it. The executor acts twice: it writes a program, and goes on from its output, or repairs a
  program that did not finish. The last role's answer is the team's.
- `solver`: alone, with the same turns; it ends when it gives the same answer twice in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Composed, PluginConfig
from coterie.core.protocols import DataSource
from coterie.core.types.splits import Split
from coterie.plugins.envs.common.teams import Rendering
from coterie.plugins.envs.math import generated
from coterie.plugins.envs.math.records import MathSetConfig, SetName

PAIR = ("reasoner", "tool")
CHAIN = ("problem_solver", "code_executor", "verifier")
SOLO = ("solver",)
ROLES = (*PAIR, *CHAIN, *SOLO)
COMPACT_ROLES = (*CHAIN, "solver", "reasoner")
"""Roles that the compact rendering can prompt: it can't show a program."""
_TEAMS = "reasoner and tool; or problem_solver, code_executor and verifier; or solver"


def form_of(order: Sequence[Sequence[str]], path: str) -> tuple[str, ...]:
    """The form that the roles of a team belong to.

    Raises:
        ConfigError: there is no such role, they belong to two forms, or act in another order.
    """
    roles = list(chain.from_iterable(order))
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise ConfigError(
            f"the environment 'math' has no role '{unknown[0]}'",
            path=f"team.roles.{unknown[0]}",
            fix=f"{did_you_mean(unknown[0], ROLES)} A team has {_TEAMS}",
        )
    form = next(form for form in (PAIR, CHAIN, SOLO) if (roles and roles[0] in form) or form == SOLO)
    strange = [role for role in roles if role not in form]
    if strange:
        raise ConfigError(
            f"{roles[0]} and {strange[0]} can't be in one team",
            path="team.order",
            why="they don't see each other's messages",
            fix=f"keep {_TEAMS}",
        )
    if form == CHAIN and (sorted(roles, key=CHAIN.index) != roles or len(order) < len(roles)):
        raise ConfigError(
            f"the order {', '.join(roles)} is not that of their work",
            path="team.order",
            why="each role goes on from the one before it",
            fix=f"team.order: [{', '.join(role for role in CHAIN if role in roles)}]",
        )
    if len(set(roles)) < len(roles):
        raise ConfigError("a role is named twice", path="team.order", fix="name each role once")
    return form


Set = Annotated[
    MathSetConfig, BeforeValidator(lambda value: {"set": value} if isinstance(value, str) else value)
]
"""A table, or the name of a set."""


class MathConfig(PluginConfig):
    train: Set | None = Field(None, description="Problems: a set's name, or {set, file, draw, ...}.")
    val: Set | None = Field(None, description="As `train`; its problems are left out of train.")
    test: Set | None = Field(None, description="As `val`.")
    apart: list[Set] = Field(
        default_factory=list,
        description="More sets whose problems are left out of train, such as those of later tests.",
    )
    data: Annotated[DataSource | None, Composed("data_source")] = Field(
        None,
        description="One source of all splits. Default: the run's table `data`; else generated problems.",
    )
    set: SetName = Field("auto", description="The form of the records of `data`.")
    level: int = Field(1, ge=1, le=generated.LEVELS, description="Difficulty of generated problems.")
    train_tasks: int = Field(1_000_000, ge=1, description="Generated problems.")
    val_tasks: int = Field(1000, ge=1)
    test_tasks: int = Field(1000, ge=1)
    rendering: Rendering = Field(
        "prose", description="`compact`: generated problems in a few words, for the smallest models."
    )
    executor_turns: int = Field(2, ge=1, le=8, description="Actions of the code executor, each its own.")
    executor_loop: bool = Field(
        False,
        description="The executor's programs run inside one action, by the role's `tools`, instead.",
    )
    verify: Literal["math_verify", "numbers"] | None = Field(
        None,
        description="`numbers` compares plain numbers without the extra `math`. Default: `numbers` in the "
        "compact rendering, else `math_verify`.",
    )
    verify_seconds: float = Field(5.0, gt=0, le=3600, description="Processor time of one comparison.")
    verify_workers: int = Field(2, ge=1, le=256, description="Comparisons at once.")
    sandbox: Annotated[Any, Composed("sandbox")] = Field(
        None, description="Runs the roles' programs. Default: the run's table `sandbox`."
    )

    exclusive = (("data", "train val test"),)
    only_with = {"set": "data", **dict.fromkeys(("train_tasks", "level", "val_tasks", "test_tasks"), "")}

    @model_validator(mode="after")
    def _one_origin(self) -> MathConfig:
        named = self.train or self.val or self.test
        if named and self.data is not None:
            raise ValueError("give either data (one source), or train, val and test")
        if self.set != "auto" and self.data is None:
            raise ValueError("`set` is the form of `data`; without it: train: {set: ...}")
        real = named or self.data is not None
        if real and self.model_fields_set & {"train_tasks", "level", "val_tasks", "test_tasks"}:
            raise ValueError("level and the numbers of tasks are for generated problems")
        if self.rendering == "compact" and (real or self.level > generated.COMPACT_LEVELS):
            raise ValueError(
                f"rendering: compact is for generated problems up to level {generated.COMPACT_LEVELS}"
            )
        return self

    def task_count(self, split: Split) -> int:
        """The number of generated problems of a split."""
        return {"train": self.train_tasks, "val": self.val_tasks, "test": self.test_tasks}[split]
