"""The words that a configuration's games and roles write."""

from __future__ import annotations

from collections.abc import Sequence

from coterie.api.train import Source
from coterie.compose import compose
from coterie.recipes import load


def vocabulary(
    source: Source, *, overrides: Sequence[str] = (), scale: str | None = None, overlays: Sequence[str] = ()
) -> tuple[str, ...]:
    """The words that a recipe's environment, roles and transition write, in alphabetical order, each once.

    A tokenizer of whole words must know them. Words of plugins that name none are not among them.

    Args:
        source: as of `train`, and so are `overrides`, `scale` and `overlays`; or a run's folder.

    Raises:
        UserError: something in the input is wrong.
    """
    return compose(load(source, overrides=overrides, scale=scale, overlays=overlays)).vocabulary
