"""Options of `coterie data prepare`, and its counts of records kept and dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coterie.core.errors import UserError
from coterie.data.task_files import PreparedSplits, SplitRule


def split_rule(
    keys: tuple[str, ...], kept: Iterable[str], limit: int | None, **shares: float | None
) -> SplitRule:
    """The rule by which records are split: shares are 0.1 by default, and 0 for splits that are kept.

    Args:
        keys: fields that are the content.
        kept: splits of the source that are kept whole.
        shares: `val_share` and `test_share`; None where the option is absent.

    Raises:
        UserError: a share is given for a split that is kept, or none is left for training.
    """
    for name in kept:
        if shares[f"{name}_share"] is not None:
            raise UserError(
                f"the source's {name} split is kept whole",
                path=f"--{name}-share",
                fix=f"leave --{name}-share out, or --keep-splits",
            )
        shares[f"{name}_share"] = 0.0
    given = {name: 0.1 if value is None else value for name, value in shares.items()}
    if sum(given.values()) >= 1:
        raise UserError("--val-share and --test-share leave nothing for training", fix="lower one of them")
    return SplitRule(keys=keys, limit=limit, **given)


def renamings(pairs: Sequence[str]) -> dict[str, str]:
    """`OLD=NEW` pairs as a mapping from old to new names.

    Raises:
        UserError: an argument is not such a pair, or a name occurs in two of them.
    """
    names: dict[str, str] = {}
    for pair in pairs:
        old, _, new = pair.partition("=")
        if not old or not new or old in names or new in names.values():
            raise UserError(
                f"'{pair}' renames no field",
                path="--rename",
                why="it is OLD=NEW, and each name occurs once",
                fix="e.g. --rename problem=question",
            )
        names[old] = new
    return names


def counts(prepared: PreparedSplits) -> dict[str, int]:
    """Numbers of records that were read, dropped and written, by name."""
    return {
        "read": prepared.read,
        "duplicates_dropped": prepared.duplicates,
        **{f"dropped_from_{split}_being_in_{other}": n for (split, other), n in prepared.shared.items()},
        "beyond_the_limit": prepared.over_limit,
        **{split: len(records) for split, records in prepared.splits.items()},
    }
