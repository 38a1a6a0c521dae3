"""The three games by name: classes, roles, a drawn task, and steps with messages as a model writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from coterie.plugins.agents import games
from coterie.plugins.envs.plan_path import PlanPath
from coterie.plugins.envs.sokoban import Sokoban
from coterie.plugins.envs.sudoku import Sudoku
from tests.plugins.envs import mazes, sokobans, sudokus
from tests.plugins.envs.programs import Inline
from tests.plugins.support import Build, action, context, make, role_input, wait


@dataclass
class Game:
    """A game and its built-in roles."""

    name: str
    plugin: Any
    roles: ModuleType
    settings: Mapping[str, Any]
    """Those of the drawn task."""
    draw: Callable[..., Any]
    """(environment, rows) -> state."""
    rows: Sequence[str]
    """The drawn task."""
    made: dict[str, Any] = field(default_factory=dict)

    def make(self, *order: Any, **settings: Any) -> Any:
        """The environment of a team with this order; default: planner and executor."""
        build = Build(order=list(order)) if order else Build()
        return make(self.plugin, build, **{**self.settings, **settings})

    def tooled(self, *order: Any, **settings: Any) -> Any:
        """The environment of the paper's form: a tool role that writes programs, and a plan role."""
        settings = {"rendering": "prose", "sandbox": Inline(), **settings}
        return self.make(*(order or ("tool", "plan")), **settings)

    def start(self, env: Any) -> Any:
        return self.draw(env, *self.rows)

    def seen(self, role: str, **settings: Any) -> Any:
        """What a role observes of the drawn task."""
        env = self.make(**settings)
        return env.observe(self.start(env), role)

    def seen_with_tools(self, role: str) -> Any:
        """The same in the paper's form."""
        env = self.tooled()
        return env.observe(self.start(env), role)

    def role_class(self, name: str) -> Any:
        return getattr(self.roles, "".join(part.title() for part in (*self.name.split("_"), name)))

    def role(self, name: str, played_as: str = "", **settings: Any) -> Any:
        """A new instance of a role, by default under its own name in `team.roles`."""
        key = played_as or name
        return make(self.role_class(name), Build(name=key, path=f"team.roles.{key}"), **settings)

    def role_plugin(self, name: str) -> Any:
        """The one instance of a role with the default settings."""
        if name not in self.made:
            self.made[name] = self.role(name)
        return self.made[name]

    def send(self, env: Any, state: Any, **texts: str) -> Any:
        """The step of messages by role; those named act at once."""
        actions = {
            role: action(text, self.role_plugin(role), env.observe(state, role))
            for role, text in texts.items()
        }
        return wait(env.step(state, actions, context()))

    def send_one(self, env: Any, state: Any, role: str, text: str) -> Any:
        return self.send(env, state, **{role: text})

    def messages(self, env: Any, state: Any, role: str, feedback: Sequence[str] = ()) -> list[Any]:
        """The prompt of a role."""
        observation = env.observe(state, role)
        return list(self.role_plugin(role).render(role_input(observation, role, feedback=tuple(feedback))))

    def prompt(self, env: Any, state: Any, role: str, feedback: Sequence[str] = ()) -> str:
        """The last message of a role's prompt."""
        return str(self.messages(env, state, role, feedback)[-1]["content"])


PLAN_PATH = Game("plan_path", PlanPath, games, {"size": 4}, mazes.start, mazes.WALLED)
SUDOKU = Game("sudoku", Sudoku, games, {}, sudokus.start, sudokus.EASY)
SOKOBAN = Game("sokoban", Sokoban, games, {"size": 4}, sokobans.start, sokobans.CORNER)
GAMES = {game.name: game for game in (PLAN_PATH, SUDOKU, SOKOBAN)}
