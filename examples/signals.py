"""The speaker sees a number, the listener hears one word: they have to agree on a language."""

from coterie import TEAM, Plugin, PluginConfig, Step, Task, hookimpl

WORDS = ("ba", "di", "gu", "mo")


class Signals(Plugin):
    class Config(PluginConfig):
        numbers: int = 3

    roles = ("speaker", "listener")
    components = {"understood": "increment"}  # rewards of steps, summed over the episode
    weights = {}

    def tasks(self, split, seed):
        return [Task(id=f"{split}-{n}", payload=n) for n in range(self.config.numbers)]

    def reset(self, task, seed):
        return {"number": task.payload, "heard": None, "answer": None}  # a state is a value

    def acting_roles(self, state):
        return None if state["answer"] is None else ()  # None: as in team.order; (): the episode ends

    def observe(self, state, role):
        return f"number {state['number']}" if role == "speaker" else f"heard {state['heard']}"

    async def step(self, state, actions, ctx):
        messages = {role: action.text for role, action in actions.items()}
        if "speaker" in messages:
            return Step(state={**state, "heard": messages["speaker"]})
        answer = messages["listener"]
        reward = float(answer == str(state["number"]))
        return Step(state={**state, "answer": answer}, scores={(TEAM, "understood"): reward})

    def outcome(self, state):
        return {"success": float(state["answer"] == str(state["number"]))}

    def vocabulary(self):
        return ["number", "heard", *WORDS, *map(str, range(self.config.numbers))]


@hookimpl
def register_environments(register):
    register("signals", Signals)
