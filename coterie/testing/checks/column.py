"""`check_column`: a column of a study resolves to sound configurations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, did_you_mean
from coterie.testing.support.failure import ConformanceError, guarded, require


def check_column(target: Any, where: str = "") -> None:
    """Check a column: the YAML file that `register_columns` names.

    - The file exists, and holds the fields that `coterie.studies.columns` describes and no others.
    - The recipe of every variant exists, and is a sound configuration with the overrides of the variant and
      of each scale.
    - The column's roles are in the teams of the variants that train them, each in one team at least; its
      figures belong to methods of registered studies.

    Args:
        target: a path, or `"package:file.yaml"`.
        where: the place that errors name; by default the target.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    from coterie.recipes import resource_path
    from coterie.studies.catalogue import read_column
    from coterie.studies.variants import check_variants, resolve

    where = where or str(target)
    with guarded(where, "a path, or `package:file.yaml`"):
        path = Path(resource_path(target))
    require(path.is_file(), f"there is no file {path}", where, fix="a path, or `package:file.yaml`")
    try:
        column = read_column(path, path.stem)
        check_variants(column)
        scale = next(iter(column.scales))
        teams = [resolve(column, name, scale, [])[3].table["team"]["roles"] for name in column.variants]
    except CoterieError as error:
        raise ConformanceError(str(error), where=where, fix="see docs/reproduce.md") from error
    known = list(dict.fromkeys(role for team in teams for role in team))
    for role in column.roles:
        what = f"`roles` names '{role}', which no variant's team has"
        require(role in known, what, where, fix=did_you_mean(role, known))
