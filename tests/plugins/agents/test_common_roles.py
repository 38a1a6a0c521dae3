"""What is the same in the three games' roles: how moves and lists are read, what the roles refuse."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from coterie.core.errors import ConfigError, PolicyFault
from tests.plugins.envs.players import GAMES
from tests.plugins.support import read, role_input


@dataclass(frozen=True)
class Words:
    """A game's words."""

    alphabet: str
    """Letters of random texts."""
    settings: tuple[dict[str, Any], ...]
    """Settings of the environment under which random texts are read."""
    prose: str
    """An executor's prose answer."""
    parsed: Any
    system: str


WORDS = {
    "plan_path": Words(
        alphabet="UDLR[](),:r0c1 \n\"'-+moves",
        settings=({}, {"rendering": "prose"}),
        prose="Hm. [U]",
        parsed=("U",),
        system="Walk.",
    ),
    "sudoku": Words(
        alphabet="rc0123=[](),:. \n\"'-+|ab",
        settings=({}, {"rendering": "prose"}),
        prose="Hm. [r0c2=3]",
        parsed=((0, 2, 3),),
        system="Fill.",
    ),
    "sokoban": Words(
        alphabet="UDLRp[](),:r0c1 \n\"'-+moves",
        settings=({}, {"rendering": "prose"}, {"push_words": "offsets"}),
        prose="Hm. [U]",
        parsed=("U",),
        system="Walk.",
    ),
}
games = pytest.mark.parametrize("name", list(GAMES))
walks = pytest.mark.parametrize("name", ["plan_path", "sokoban"])


# ---- answers


@walks
@pytest.mark.parametrize(
    ("rendering", "text", "moves"),
    [
        ("compact", "U R R", "URR"),
        ("compact", "  U\n", "U"),
        ("compact", "", ""),
        ("compact", "U r", None),
        ("compact", "URR", None),
        ("compact", "U r1c2", None),
        ("compact", "[U, R]", None),
        ("prose", "[U, R, R]", "URR"),
        ("prose", '["U", "r", \'R\']', "URR"),
        ("prose", "First [D], no. The answer is [Up, right].", "UR"),
        ("prose", "Moves: U,R", "UR"),
        ("prose", "I go up.\n**Moves:** U, R", "UR"),
        ("prose", "plan: U\nmoves = R R", "RR"),
        ("prose", '{"moves": ["U", "L"]}', "UL"),
        ("prose", "U R R", "URR"),
        ("prose", "[]", ""),
        ("prose", "   ", ""),
        ("prose", "I would go up and right", None),
        ("prose", "[north]", None),
        ("prose", "[U, R] or rather [1, 2]", None),
        ("prose", "[" * 3000, None),
    ],
)
def test_reading_moves(name, rendering, text, moves):
    observation = GAMES[name].seen("executor", rendering=rendering)
    read(GAMES[name].role("executor"), text, observation, None if moves is None else tuple(moves))


@games
@given(data=st.data())
def test_any_text_is_read_or_is_the_policys_fault(name, data):
    text = data.draw(st.text(alphabet=WORDS[name].alphabet, max_size=60))
    for role in ("planner", "executor"):
        for settings in WORDS[name].settings:
            with suppress(PolicyFault):
                parsed = GAMES[name].role(role).parse(text, GAMES[name].seen(role, **settings))
                assert isinstance(parsed, tuple)


# ---- programs


@games
def test_a_program_is_the_last_closed_block(name):
    observation, tool = GAMES[name].seen_with_tools("tool"), GAMES[name].role("tool")
    read(tool, "so:\n```python\nprint('U')\n```", observation, "print('U')\n")
    read(tool, "", observation, "")
    read(tool, "```python\nprint('U')", observation, None)
    read(tool, "print(1)", observation, None)
    assert "```python" in tool.render(role_input(observation, "tool"))[-1]["content"]


@games
@pytest.mark.parametrize("role", ["tool", "plan"])
def test_the_roles_of_the_papers_form_need_prose_and_their_own_names(name, role):
    game = GAMES[name]
    with pytest.raises(ConfigError, match="prose") as caught:
        game.role(role, rendering="compact")
    assert caught.value.path == f"team.roles.{role}.rendering" and "compact" in str(caught.value)
    with pytest.raises(ConfigError, match="of the role") as caught:
        game.role(role, "executor")
    assert caught.value.path == "team.roles.executor.type"
    assert game.role(role, rendering="prose", system="").config.system == ""


# ---- prompts


@games
def test_feedback_is_never_dropped_by_the_compact_rendering(name):
    executor = GAMES[name].role("executor")
    with pytest.raises(ConfigError, match="can't show the feedback") as caught:
        executor.render(role_input(GAMES[name].seen("executor"), "executor", feedback=("You slept.",)))
    assert caught.value.path == "team.roles.executor"


@games
def test_a_role_may_override_the_rendering_and_the_system_prompt(name):
    words, observation = WORDS[name], GAMES[name].seen("executor")
    prose = GAMES[name].role("executor", rendering="prose", system=words.system)
    system, user = prose.render(role_input(observation, "executor", feedback=("You slept.",)))
    assert system == {"role": "system", "content": words.system} and "You slept." in user["content"]
    assert prose.parse(words.prose, observation) == words.parsed
    bare = GAMES[name].role("executor", rendering="prose", system="")
    assert len(bare.render(role_input(observation, "executor"))) == 1


@games
def test_a_role_refuses_another_roles_name(name):
    with pytest.raises(ConfigError, match="of the role") as caught:
        GAMES[name].role("solver", "executor")
    assert caught.value.path == "team.roles.executor.type"
