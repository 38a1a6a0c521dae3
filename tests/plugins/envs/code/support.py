"""A code environment on the problems of the tests, and its actions."""

from __future__ import annotations

import json
from typing import Any

from coterie.testing import build, coterie_run
from tests.plugins.envs.code.problems import ADD, HALF, ROOT, SHIFT
from tests.plugins.envs.code.warm import WARM

TEAM = [["aux", "main"]]
ROLES = {"aux": {"type": "code_aux"}, "main": {"type": "code_main"}, "solver": {"type": "code_solver"}}


def fenced(code: str) -> str:
    return f"```python\n{code}```"


def data_of(folder: Any, *records: dict[str, Any], **splits: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of a data source with these records in every split, or in the splits that are given."""
    table: dict[str, Any] = {"type": "jsonl"}
    given = splits or {"train": list(records) or [ADD, SHIFT], "val": [ROOT], "test": [HALF]}
    for split, rows in given.items():
        file = folder / f"{split}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        table[split] = str(file)
    return table


def environment(folder: Any, order: Any = None, *, records: Any = (), **settings: Any) -> Any:
    """A `code_collab` with the local sandbox of all tests."""
    return build(
        "environment",
        {"type": "code_collab", **settings},
        order=order or TEAM,
        data=data_of(folder, *records),
        sandbox=WARM,
    )


def run(
    folder: Any, answers: Any, order: Any = None, *, records: Any = (), env: Any = None, **tables: Any
) -> Any:
    order = order or TEAM
    names = [role for stage in order for role in ([stage] if isinstance(stage, str) else stage)]
    of_team = tables.pop("roles", None) or {name: ROLES[name] for name in names}
    settings = {
        "rewards": {"code_structure": {"type": "code_structure"}},
        "sandbox": WARM,
    }
    return coterie_run(
        answers,
        env={"type": "code_collab", **(env or {})},
        order=order,
        roles=of_team,
        data=data_of(folder, *records),
        **{**settings, **tables},
    )
