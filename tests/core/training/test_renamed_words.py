"""A word that a plugin uses by its old name is an error that names the new one."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.core.errors import PluginError
from coterie.testing import coterie_run
from coterie.testing.support.toys import NumberGame


class OldStage(NumberGame):
    """Its author renamed nothing: `acting_roles` is inherited, and `stage` would be ignored."""

    def stage(self, state: Any) -> None:
        return None


class OldGains(NumberGame):
    immediate_only = ("sum",)


class OldKind(NumberGame):
    components = {"sum": "increment", "best": "level", "own": "increment"}


class WrongKind(NumberGame):
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
        coterie_run(env={"type": f"tests.core.training.test_renamed_words:{game}"})
    assert all(text in str(caught.value) for text in texts), str(caught.value)
