"""`check_study`: a study's methods, claims and gains belong together, on each column that suits it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from coterie.core.errors import UserError, did_you_mean, type_text
from coterie.discovery import plugins
from coterie.testing.support.failure import guarded, require
from coterie.testing.support.promises import promise


def check_study(study: Any, where: str = "", *, columns: Sequence[Any] | None = None) -> None:
    """Check a study on columns.

    - It is a `coterie.Study` with a summary.
    - `methods` gives methods of a column, the same ones twice, with ids that differ; or it refuses a column
      with a UserError. At least one column has all variants that its methods need.
    - The methods that its claims compare, that gains are over and that its analysis reads are among them.

    Args:
        where: the place that errors name; by default the summary.
        columns: `coterie.Column`s to try; by default every registered one that is sound.

    Raises:
        ConformanceError: what is wrong, where, and how to fix it.
    """
    from coterie.studies import Study

    promise("it is a coterie.Study")
    where = where or str(getattr(study, "summary", "the study"))
    require(isinstance(study, Study), f"is {type_text(study)}", where, fix="a coterie.Study")
    sound = isinstance(study.summary, str) and study.summary.strip()
    require(sound, f"has the summary {study.summary!r}", where, fix="a sentence")
    promise("its methods, claims and gains belong together")
    tried = _columns() if columns is None else columns
    lacks = [_lacking(study, column, where) for column in tried]
    suits = any(not missing for missing in lacks)
    what = f"no column has the variants that its methods need: {', '.join(sorted(set(filter(None, lacks))))}"
    require(suits or not tried, what, where, fix="register a column with these variants")


def _columns() -> list[Any]:
    from coterie.studies.catalogue import load_column

    columns = []
    for name in plugins().registry.names("column"):
        try:
            columns.append(load_column(name))
        except UserError:
            continue  # told by the column's own check
    return columns


def _lacking(study: Any, column: Any, where: str) -> str:
    """A variant that a study's methods need and a column lacks; empty: the column suits it."""
    from coterie.studies import Method

    with guarded(f"{where}: methods", "a column -> its methods"):
        try:
            methods, again = list(study.methods(column)), list(study.methods(column))
        except UserError as error:
            return str(error.what)
    at = f"{where}: methods of the column '{column.name}'"
    wrong = [method for method in methods if not isinstance(method, Method)]
    require(not wrong, f"have {wrong[:1]!r:.200}", at, fix="a coterie.Method")
    ids = [method.id for method in methods]
    require(ids == [method.id for method in again], "differ when called twice", at, fix="no draws")
    twice = [id_ for id_, count in Counter(ids).items() if count > 1]
    require(not twice, f"have the id '{', '.join(twice)}' twice", at, fix="an id a method")
    missing = sorted({name for method in methods for name in method.variants} - set(column.variants))
    if missing:
        return missing[0]
    named = {id_ for claim in study.claims for id_ in claim.methods}
    named |= {study.gain_over} if study.gain_over is not None else set()
    named |= {study.analysis.method} if study.analysis is not None else set()
    for id_ in sorted(named - set(ids)):
        what = f"lack '{id_}', which a claim, `gain_over` or the analysis names"
        require(False, what, at, fix=did_you_mean(id_, ids))
    return ""
