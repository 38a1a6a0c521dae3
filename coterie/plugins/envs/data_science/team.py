"""The roles of environment `data_science`, the files that each has to leave, and the names of the task's own.

Source: the pipeline of MAPPA (arXiv 2601.23228) for DSBench.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from coterie.core.errors import ConfigError, did_you_mean

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
