"""The settings of environment `data_science`, its roles, and the files that each has to leave.

Source: the pipeline of MAPPA (arXiv 2601.23228) for DSBench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from coterie.core.errors import ConfigError, did_you_mean
from coterie.core.plugins import Composed, PluginConfig
from coterie.core.protocols import DataSource, Limits

ROLES = ("data_engineer", "modeler", "analyst")
FILES: Mapping[str, tuple[str, ...]] = {
    "data_engineer": ("X_train.pkl", "y_train.pkl", "X_test.pkl"),
    "modeler": ("model.pkl",),
    "analyst": ("submission.csv",),
}
DUTIES: Mapping[str, str] = {
    "data_engineer": "make numeric features of the train and test tables, and save them",
    "modeler": "train a model on the features, and save it",
    "analyst": "predict the test table, and write the submission",
}
TURNS = 4
DATA = "data"
TRAIN_DATA, TEST_DATA = f"{DATA}/train.csv", f"{DATA}/test.csv"
"""Where programs find the task's tables."""


def in_workspace(path: str) -> bool:
    """Whether a path names a place in the workspace."""
    return bool(path) and not {"", ".", ".."} & {*path.split("/")} and "\0" not in path


def check_order(order: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The roles of a team, in the order of their work.

    Raises:
        ConfigError: there is no such role, or they act at once or in another order.
    """
    roles = tuple(chain.from_iterable(order))
    for role in roles:
        if role not in ROLES:
            raise ConfigError(
                f"the environment 'data_science' has no role '{role}'",
                path=f"team.roles.{role}",
                fix=did_you_mean(role, ROLES),
            )
    wanted = [role for role in ROLES if role in roles]
    if list(roles) != wanted or len(order) < len(roles):
        raise ConfigError(
            f"the order {', '.join(roles)} is not that of their work",
            path="team.order",
            why="each role goes on from the files of the one before it",
            fix=f"team.order: [{', '.join(wanted)}]",
        )
    return roles


LIMITS = Limits(cpu_seconds=60, wall_seconds=120, memory_mb=2048, disk_mb=1024)
"""Of a role's program: what work with tables of 100 MB takes."""


class DataScienceConfig(PluginConfig):
    data: Annotated[DataSource, Composed("data_source")] = Field(
        description="The tasks, such as {type: ds_pack, path: ...}. Default: the run's table `data`."
    )
    turns: dict[str, int] = Field(
        default_factory=dict, description="Most actions of a role, by role; 4 where it names none."
    )
    files: dict[str, tuple[str, ...]] = Field(
        default_factory=lambda: dict(FILES),
        description="The files that a role has to leave in the workspace, by role. The last file of the last "
        "role is the submission.",
    )
    limits: Limits = Field(LIMITS, description="Of a role's program.")
    role_limits: dict[str, Limits] = Field(default_factory=dict, description="In place of `limits`, by role.")
    workspace_mb: int = Field(
        512, ge=1, le=2**20, description="Most of all files that a program leaves, in 2^20 bytes."
    )
    workspace_files: int = Field(256, ge=1, le=900, description="Most files that a program leaves.")
    result_chars: int = Field(
        4000, ge=100, description="Last characters kept of a program's stdout and of its stderr."
    )
    sandbox: Annotated[Any, Composed("sandbox")] = Field(
        None, description="Runs the roles' programs. Default: the run's table `sandbox`."
    )

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, table: Any) -> Any:
        """Limits that a table leaves out are those above it, and not those of every sandbox."""
        if not isinstance(table, Mapping):
            return table
        limits = _over(LIMITS.model_dump(), table.get("limits"))
        by_role = table.get("role_limits")
        if isinstance(by_role, Mapping):
            by_role = {role: _over(limits, given) for role, given in by_role.items()}
            table = {**table, "role_limits": by_role}
        return {**table, "limits": limits} if "limits" in table else table

    @field_validator("turns", "files", "role_limits")
    @classmethod
    def _of_roles(cls, by_role: Mapping[str, Any]) -> Mapping[str, Any]:
        unknown = [role for role in by_role if role not in ROLES]
        if unknown:
            raise ValueError(f"there is no role '{unknown[0]}'; known: {', '.join(ROLES)}")
        return by_role

    @field_validator("turns")
    @classmethod
    def _some(cls, turns: Mapping[str, int]) -> Mapping[str, int]:
        wrong = [f"{role}: {count}" for role, count in turns.items() if not 1 <= count <= 32]
        if wrong:
            raise ValueError(f"a role has 1 to 32 turns, and not {wrong[0]}")
        return turns

    @field_validator("files")
    @classmethod
    def _paths(cls, files: Mapping[str, tuple[str, ...]]) -> Mapping[str, tuple[str, ...]]:
        for role, paths in files.items():
            for path in paths:
                if not in_workspace(path) or path == DATA or path.startswith(f"{DATA}/"):
                    raise ValueError(
                        f"{role}: '{path}' is no file of the workspace: a path relative to it, without `.` "
                        "and `..`, and not in its folder `data`, whose files are the task's"
                    )
        return files


def _over(limits: Any, given: Any) -> Any:
    """Limits with those of a table over them; anything else is refused where it is validated."""
    if isinstance(given, Limits):
        return given
    if given is None:
        return limits
    return {**limits, **given} if isinstance(limits, Mapping) and isinstance(given, Mapping) else given
