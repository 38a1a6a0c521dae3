"""What the debaters get: by the judge of the team, or by a chat model that judges from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from coterie import (
    ChatModel,
    ChatRequest,
    ComponentKind,
    Composed,
    EpisodeView,
    Plugin,
    PluginConfig,
    Score,
    SystemFault,
)
from coterie_debate.game import SIDES
from coterie_debate.roles import transcript

Pay = Mapping[tuple[str, str], float | Score]


class Verdict(Plugin):
    """1 for the side that the team's judge named and -1 for the other; 0 for both where none was named.

    It is of scope `episode`: the verdict comes after the debaters acted, and an environment scores only the
    roles that act.
    """

    scope: Literal["episode"] = "episode"
    components: Mapping[str, ComponentKind] = {"convinced": "increment"}
    weights: Mapping[str, float] = {}
    per_role = ("convinced",)
    policy_fault = -1.0

    async def score(self, view: EpisodeView) -> Pay:
        return zero_sum(str(view.leaf.info.get("verdict", "")), "convinced")


class Panel(Plugin):
    """The same, by a chat model that reads the arguments: a judge that isn't part of the team.

    An answer without a verdict is no fault of the debaters: their scores are missing.
    """

    class Config(PluginConfig):
        model: Annotated[Any, Composed("chat_model")] = Field(description="The chat model that judges.")

    config: Config
    scope: Literal["episode"] = "episode"
    components: Mapping[str, ComponentKind] = {"panel": "increment"}
    weights: Mapping[str, float] = {}
    per_role = ("panel",)
    policy_fault = -1.0
    calls_per_view = 1

    async def score(self, view: EpisodeView) -> Pay:
        node = view.path[-1][0]
        heard = transcript(node.decisions["judge"].observation["heard"])
        question = f"Two sides argued.\n<debate>\n{heard}\n</debate>\nWho is right? Answer pro or con."
        model: ChatModel = self.config.model
        answer = await model.answer(
            ChatRequest(messages=({"role": "user", "content": question},), max_tokens=8)
        )
        named = answer.text.strip().lower()
        if named not in SIDES:
            raise SystemFault(f"the panel answered {answer.text[:40]!r}, which is neither pro nor con")
        return zero_sum(named, "panel", f"the panel: {named}")


def zero_sum(named: str, component: str, comment: str = "") -> Pay:
    """1 for the named side, -1 for the other; 0 for both where neither is named."""
    pay = {side: 0.0 if named not in SIDES else 1.0 if side == named else -1.0 for side in SIDES}
    return {(side, component): Score(value, comment=comment) for side, value in pay.items()}
