"""Countdown: roles count down to zero, one number an action."""

import click

from coterie import (
    TEAM,
    Credit,
    GroupEstimator,
    Plugin,
    PluginConfig,
    PolicyFault,
    Step,
    Task,
    by_decision,
)


class Countdown(Plugin):
    """The team earns 1 for each action that is the next number down."""

    class Config(PluginConfig):
        start: int = 3

    roles = ()
    components = {"right": "increment"}
    weights = {}

    def tasks(self, split, seed):
        return [Task(id=f"{split}-{n}", payload=1 + n % self.config.start) for n in range(16)]

    def reset(self, task, seed):
        return task.payload

    def acting_roles(self, state):
        return () if state == 0 else None

    def observe(self, state, role):
        return state

    async def step(self, state, actions, ctx):
        right = all(action.parsed == state - 1 for action in actions.values())
        return Step(state=state - 1 if right else state, scores={(TEAM, "right"): float(right)})

    def outcome(self, state):
        return {"success": float(state == 0)}

    def vocabulary(self):
        return [str(n) for n in range(self.config.start + 1)]


class Counter(Plugin):
    """A role whose prompt is the number and whose answer is a number."""

    def render(self, role_input):
        return [{"role": "user", "content": str(role_input.observation)}]

    def parse(self, text, observation):
        try:
            return int(text)
        except ValueError as error:
            raise PolicyFault(f"{text[:20]!r} is no number") from error


class Brevity(Plugin):
    """A reward of 1 for answers of one word."""

    scope = "action"
    components = {"brief": "potential"}
    weights = {"brief": 0.1}
    policy_fault = 0.0

    async def score(self, view):
        return {(view.role, "brief"): float(len(view.action.text.split()) == 1)}


class Sign(GroupEstimator):
    """Advantage +1 above the mean of the siblings, -1 below it."""

    def __call__(self, batch, state):
        advantage = {}
        for group in by_decision(batch):
            rows = [row for row in group.rows if row.value is not None]
            mean = sum(row.value for row in rows) / max(len(rows), 1)
            for row in rows:
                if row.value != mean:
                    advantage[row.branches[0]] = 1.0 if row.value > mean else -1.0
        return Credit(advantage=advantage, metrics={"sign/credited": float(len(advantage))}), state


@click.command()
def command():
    """Count down."""
    click.echo("3 2 1 0")
