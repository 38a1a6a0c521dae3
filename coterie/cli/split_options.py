"""How `coterie data prepare` reads its words, and how it counts what became of the records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.core.errors import UserError
from coterie.data.task_files import Cut, Prepared


def cut_of(keys: tuple[str, ...], own: Iterable[str], limit: int | None, **shares: float | None) -> Cut:
    """The shares that were given or go without saying.

    Raises:
        UserError: one is of a split that is kept, or nothing is left for training.
    """
    for name in own:
        if shares[f"{name}_share"] is not None:
            raise UserError(
                f"the source has a {name} split, and it is kept whole",
                path=f"--{name}-share",
                fix=f"leave --{name}-share out, or --keep-splits",
            )
        shares[f"{name}_share"] = 0.0
    given = {name: 0.1 if value is None else value for name, value in shares.items()}
    if sum(given.values()) >= 1:
        raise UserError("--val-share and --test-share leave nothing for training", fix="lower one of them")
    return Cut(keys=keys, limit=limit, **given)


def renamings(words: Sequence[str]) -> dict[str, str]:
    """`OLD=NEW` words as a table.

    Raises:
        UserError: a word is no such pair, or a name stands in two of them.
    """
    names: dict[str, str] = {}
    for word in words:
        old, _, new = word.partition("=")
        if not old or not new or old in names or new in names.values():
            raise UserError(
                f"'{word}' renames no field",
                path="--rename",
                why="it is OLD=NEW, and each of them is named once",
                fix="e.g. --rename problem=question",
            )
        names[old] = new
    return names


def counts(found: Prepared) -> dict[str, int]:
    """What became of the records, under names that tell it."""
    return {
        "read": found.read,
        "duplicates_dropped": found.duplicates,
        **{f"dropped_from_{one}_being_in_{other}": n for (one, other), n in found.shared.items()},
        "beyond_the_limit": found.over_limit,
        **{split: len(records) for split, records in found.splits.items()},
    }
