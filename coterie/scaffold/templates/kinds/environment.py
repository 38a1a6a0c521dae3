"""An environment: a game that a team plays in turns, with one score a turn.

Countdown: the team reads a number and earns 1 for writing the next lower one. At 0 the game is over.
"""

from collections.abc import Mapping, Sequence

from pydantic import Field

from coterie import (
    TEAM,
    Action,
    ComponentKind,
    Plugin,
    PluginConfig,
    Register,
    Split,
    Step,
    StepContext,
    Task,
    hookimpl,
)

STARTS: Mapping[Split, tuple[int, ...]] = {"train": (1, 3), "val": (2,), "test": (0,)}
"""What a number leaves when it is divided by 4, by split: so no two splits share a game."""


class ExampleNameEnvironment(Plugin):
    """Count down from a number to 0, one number a turn."""

    class Config(PluginConfig):
        start: int = Field(5, ge=4, description="The largest number that a game begins with.")

    config: Config
    roles: tuple[str, ...] = ()  # names of the roles that it knows; (): any
    components: Mapping[str, ComponentKind] = {"right": "increment"}  # what `step` scores
    weights: Mapping[str, float] = {}  # of the components in the reward; 1 where absent

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        numbers = [n for n in range(1, self.config.start + 1) if n % 4 in STARTS[split]]
        return [Task(id=f"{split}-{n}", payload=n) for n in numbers]

    # A state is a value: no method changes it, and nothing is stored on `self`. Here it is a number.
    def reset(self, task: Task, seed: int) -> int:
        number: int = task.payload
        return number

    def acting_roles(self, state: int) -> tuple[str, ...] | None:
        return () if state == 0 else None  # (): the game is over; None: team.order says who acts

    def observe(self, state: int, role: str) -> str:
        return str(state)

    # All roles of a stage act at once. `parsed` is None where the role couldn't read the answer.
    async def step(self, state: int, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        right = all(action.parsed == (str(state - 1),) for action in actions.values())
        return Step(state=state - 1 if right else state, scores={(TEAM, "right"): float(right)})

    def outcome(self, state: int) -> Mapping[str, float]:
        return {"success": float(state == 0)}  # from 0 to 1; more names are more metrics

    def vocabulary(self) -> Sequence[str]:
        """Optional: the words of prompts and answers, for models that are made on the spot."""
        return [str(n) for n in range(self.config.start + 1)]


@hookimpl
def register_environments(register: Register) -> None:
    register("example_name", ExampleNameEnvironment)
