"""`check_column`: a column of studies can be run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError
from coterie.testing.support.failure import ConformanceError, guarded, require


def check_column(target: Any, where: str = "") -> None:
    """Check a column: the YAML file that `register_columns` names.

    - It is a file, and holds what `coterie.studies.columns` describes, and nothing else.
    - Every form's recipe exists, and is a sound configuration with the form's and each scale's overrides.
    - Its roles play in the forms in which studies look for them; its figures are of rows that studies have.

    Args:
        target: a path, or `"package:file.yaml"`.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    from coterie.core.config import resource_path
    from coterie.studies.catalogue import read_column
    from coterie.studies.graph import check_variants

    where = where or str(target)
    with guarded(where, "a path, or `package:file.yaml`"):
        path = Path(resource_path(target))
    require(path.is_file(), f"there is no file {path}", where=where, fix="a path, or `package:file.yaml`")
    try:
        check_variants(read_column(path, path.stem))
    except CoterieError as error:
        raise ConformanceError(str(error), where=where, fix="see coterie.studies.columns") from error
