"""`--from comlrl`: a configuration of CoMLRL's scripts in the place of a recipe, with their options."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from coterie.cli.options import F
from coterie.core.errors import UserError

if TYPE_CHECKING:
    from coterie.comlrl import Flags, Translation

LISTS = ("--override", "--turn_gradient_weights")
"""Options of the original that take several words; click takes one, so each word gets the option's name."""
THEIRS = ("grpo", "magrpo", "dataset", "model", "agent_model", "model_name", "external", "reward_processor")
"""Sections of the original, which a setting of ours never begins with."""


class FromCommand(click.Command):
    """A command whose line may be the original's: its options with several words are spread first."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(spread(args)))


def spread(arguments: Sequence[str]) -> Iterator[str]:
    """`--override a=1 b=2` as `--override a=1 --override b=2`.

    The words of an option end at the next option, at a word of another form, and at a setting of ours, such
    as `schedule.steps=2`, whose first name is no section of the original.
    """
    option, bare = "", False
    for word in (*arguments, None):
        if word is not None and option and _belongs(option, word):
            yield from (option, word)
            bare = False
            continue
        if bare:
            yield option  # click says that it needs a word
        option, bare = (word or "", True) if word in LISTS else ("", False)
        if word is not None and not option:
            yield word


def _belongs(option: str, word: str) -> bool:
    if option == "--override":
        key, equals, _ = word.partition("=")
        return bool(equals) and not word.startswith("-") and not _is_ours(key)
    try:
        float(word)
    except ValueError:
        return False
    return True


def _is_ours(key: str) -> bool:
    from coterie.core.config import RunConfig

    first = key.partition(".")[0]
    return first in RunConfig.model_fields and first != "seed"  # `seed` is both, and means the same


def from_option(command: F) -> F:
    """Add `--from comlrl` and the original's options; the command gets `flags`, None without `--from`."""

    @functools.wraps(command)
    def with_flags(*args: Any, origin: str | None, override: tuple[str, ...], **options: Any) -> Any:
        names = ("model_name", "output_base_dir", "num_epochs", "num_turns", "turn_gradient_weights")
        values = {name: options.pop(name) for name in names}
        values["turn_gradient_weights"] = list(values["turn_gradient_weights"]) or None
        given = [f"--{name}" for name, value in {**values, "override": override or None}.items()
                 if value is not None]  # fmt: skip
        if origin is None and given:
            fix = "--from comlrl FILE, or settings as key=value behind a recipe"
            raise UserError(f"{given[0]} is an option of CoMLRL's scripts", why="there is no --from", fix=fix)
        flags = None
        if origin is not None:
            from coterie.comlrl import Flags

            flags = Flags(override, values)
        return command(*args, flags=flags, **options)

    added = (
        click.option(
            "--from",
            "origin",
            metavar="comlrl",
            type=click.Choice(["comlrl"]),
            help="FILE is a configuration of CoMLRL's train_grpo.py or train_magrpo.py; their options "
            "(--override a.b=v ..., --model_name, --num_epochs, --num_turns, ...) may follow.",
        ),
        click.option("--override", multiple=True, hidden=True),
        click.option("--model_name", hidden=True),
        click.option("--output_base_dir", hidden=True),
        click.option("--num_epochs", type=int, hidden=True),
        click.option("--num_turns", type=int, hidden=True),
        click.option("--turn_gradient_weights", type=float, multiple=True, hidden=True),
    )
    decorated: Any = with_flags
    for option in reversed(added):
        decorated = option(decorated)
    return cast(F, decorated)


def translated(source: str | None, overrides: Sequence[str], flags: Flags) -> Translation:
    """The original's file as a recipe of ours; what has no counterpart is named in a warning.

    Raises:
        UserError: there is no file, or a setting of the original stands among ours.
        ConfigError: a value has no meaning for us; its path is the original's key.
    """
    from coterie.comlrl import read, translate

    if source is None:
        raise UserError("--from comlrl needs a file", fix="coterie run --from comlrl configs/magrpo_he.yaml")
    for setting in overrides:
        if setting.partition("=")[0].partition(".")[0] in THEIRS:
            why = "it is a setting of CoMLRL's, and stands among ours"
            raise UserError(f"'{setting}' is no setting of ours", why=why, fix=f"--override {setting}")
    translation = translate(read(Path(source), flags))
    translation.warn()
    return translation


def configured(source: str, settings: Sequence[str], flags: Flags | None) -> Any:
    """What a configuration is loaded from: the source, or with `--from comlrl` its translation."""
    return source if flags is None else translated(source, settings, flags).table


def run_folder(translation: Translation) -> Path | None:
    """A new run's folder under the original's `output.base_dir`; None where that is not set."""
    if translation.base_dir is None:
        return None
    return Path(translation.base_dir) / f"{translation.table['name']}-{time.strftime('%Y%m%d-%H%M%S')}"
