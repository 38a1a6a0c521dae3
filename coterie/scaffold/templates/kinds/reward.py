"""A reward source: scores beside those of the environment, for single actions or for more.

Brevity: an answer of few words earns a little.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from coterie import ActionView, ComponentKind, Plugin, PluginConfig, PolicyFault, Register, Score, hookimpl


class ExampleNameReward(Plugin):
    """Rewards answers of at most `most` words."""

    class Config(PluginConfig):
        most: int = Field(1, ge=1, description="Most words of an answer that is brief.")

    config: Config
    scope: Literal["action"] = "action"  # what `score` receives; or joint, siblings, episode, trajectory
    components: Mapping[str, ComponentKind] = {"brief": "potential"}  # potential: returns use differences
    weights: Mapping[str, float] = {"brief": 0.1}  # of the components in the reward
    policy_fault = 0.0  # the floor: the score where the output is at fault

    # Calls overlap: keep nothing on `self` between them. A source that waits for a server bounds every wait.
    # PolicyFault: the output is at fault, the score is the floor. SystemFault: an outage, it is missing.
    async def score(self, view: ActionView) -> Mapping[tuple[str, str], Score]:
        words = len(view.action.text.split())
        if words == 0:
            raise PolicyFault("an empty answer")
        return {(view.role, "brief"): Score(float(words <= self.config.most), comment=f"{words} words")}


@hookimpl
def register_rewards(register: Register) -> None:
    register("example_name", ExampleNameReward)
