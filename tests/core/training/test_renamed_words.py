"""A word that a plugin uses by its old name is an error that names the new one."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import PluginError
from tests import games
from tests.games import run_of


class OldStage(games.Ledger):
    """Its author renamed nothing: `acting_roles` is inherited, and `stage` would be ignored."""

    def stage(self, state: Any) -> None:
        return None


class OldGains(games.Ledger):
    immediate_only = ("sum",)


class OldKind(games.Ledger):
    components = {"sum": "increment", "best": "level", "own": "increment"}


class WrongKind(games.Ledger):
    components = {"sum": "incremental", "best": "potential", "own": "increment"}


@pytest.mark.parametrize(
    ("game", "texts"),
    [
        ("OldStage", ("`stage`", "`acting_roles`", "fix:")),
        ("OldGains", ("`immediate_only`", "`not_summable`", "fix:")),
        ("OldKind", ("'best'", "'level'", "`potential`", "fix:")),
        ("WrongKind", ("'sum'", "did you mean 'increment'?")),
    ],
)
def test_an_old_word_is_refused_by_its_new_name(game, texts):
    with pytest.raises(PluginError) as caught:
        run_of(env={"type": f"tests.core.training.test_renamed_words:{game}"})
    assert all(text in str(caught.value) for text in texts), str(caught.value)
