"""Small components for the checks: a game, a role, a codec of letters, an engine, a tokenizer, a loss."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from coterie.core.errors import PolicyFault, SystemFault
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import Codec, Length, StepContext, Surrogate, TokenBatch
from coterie.core.types import (
    TEAM,
    Action,
    Call,
    ComponentKind,
    Message,
    Prompt,
    Request,
    RoleInput,
    Step,
    Task,
    Weights,
)

GAME = "coterie.testing.support.toys:NumberGame"
ROLE = "coterie.testing.support.toys:EchoRole"
"""The game and the role, as a configuration names them."""


class NumberTasks:
    """Tasks whose payload is their index."""

    def __init__(self, split: str, count: int) -> None:
        self.split, self.count = split, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Task:
        if not 0 <= index < self.count:
            raise IndexError(index)
        return Task(id=f"{self.split}-{index}", payload=index)


class NumberGame(Plugin):
    """Each role writes a number; the team earns its value, the role a tenth of it. `stop` ends the game.

    The state is the tuple of (role, text) so far, and every role observes all of it.
    """

    class Config(PluginConfig):
        tasks: int = 8
        pause: bool = False
        """Whether a step takes an unseeded time, so that the order in which episodes finish varies."""
        fail_on: str = ""
        """A text at which the step raises SystemFault; empty: none."""
        stages: list[list[str]] | None = None
        """Roles that act in each stage of an episode; None: `team.order` decides."""

    config: Config
    roles: tuple[str, ...] = ()
    components: Mapping[str, ComponentKind] = {"sum": "increment", "best": "potential", "own": "increment"}
    weights: Mapping[str, float] = {"best": 0.0}

    def tasks(self, split: str, seed: int) -> Sequence[Task]:
        return cast(Sequence[Task], NumberTasks(split, self.config.tasks))

    def reset(self, task: Task, seed: int) -> Any:
        return ()

    def acting_roles(self, state: Any) -> tuple[str, ...] | None:
        if state and state[-1][1] == "stop":
            return ()
        stages = self.config.stages
        if stages is None:
            return None
        return tuple(stages[len(state)]) if len(state) < len(stages) else ()

    def observe(self, state: Any, role: str) -> str:
        return " ".join(f"{author}={text}" for author, text in state)

    async def step(self, state: Any, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        if self.config.pause:
            await asyncio.sleep(random.random() / 200)
        texts = {role: action.text for role, action in actions.items()}
        if self.config.fail_on and self.config.fail_on in texts.values():
            raise SystemFault("the world broke")
        values = {role: number(text) for role, text in texts.items()}
        after = (*state, *sorted(texts.items()))
        scores: dict[tuple[str, str], float | None] = {
            (TEAM, "sum"): sum(value or 0.0 for value in values.values()),
            (TEAM, "best"): max(
                (value for _, text in after if (value := number(text)) is not None), default=0.0
            ),
        }
        scores |= {(role, "own"): (value or 0.0) / 10 for role, value in values.items()}
        return Step(state=after, scores=scores, info={"texts": texts})

    def outcome(self, state: Any) -> Mapping[str, float]:
        return {"success": float(bool(state) and state[-1][1] == "stop"), "length": float(len(state))}


def number(text: str) -> float | None:
    """The number that a text is."""
    return float(text) if text.lstrip("-").replace(".", "").isdigit() else None


class EchoRole(Plugin):
    """A role whose prompt is the observation and whose parser refuses the text `bad`."""

    class Config(PluginConfig):
        remembers: bool = False

    config: Config

    @property
    def remembers(self) -> bool:
        return self.config.remembers

    def render(self, role_input: RoleInput) -> list[Message]:
        words = [role_input.role, f"turn{role_input.turn}", str(role_input.observation), *role_input.feedback]
        return [{"role": "user", "content": " ".join(words)}]

    def parse(self, text: str, observation: Any) -> str:
        if text == "bad":
            raise PolicyFault("said bad")
        return text


class EmittedScores:
    """A reward source that returns the scores which the environment's step emitted."""

    scope = "joint"
    components = NumberGame.components
    weights: Mapping[str, float] = {}
    policy_fault = 0.0

    async def score(self, view: Any) -> Any:
        return view.emitted


class SilentTransition:
    """A transition mode without feedback."""

    async def tell(self, role: str, state: Any, history: Any, environment: Any) -> Sequence[str]:
        return ()


class LetterCodec:
    """A codec with one id a letter; id 0 ends a call."""

    stop_ids: frozenset[int] = frozenset((0,))

    @property
    def context(self) -> int | None:
        return None

    def encode(
        self, messages: Sequence[Message], previous: Call | None = None, previous_messages: Any = ()
    ) -> Prompt:
        text = "\n".join(f"{message['role']}: {message['content']}" for message in messages)
        return Prompt(ids=tuple(map(ord, text)))

    def decode(self, call: Call) -> str:
        return "".join(chr(index) for index in call.token_ids if index)

    def encode_completion(self, text: str) -> tuple[int, ...]:
        return (*map(ord, text), 0)


class LetterEngine:
    """An engine that writes one digit, drawn from the request's seed, and keeps its requests.

    Args:
        breaks: whether `generate` raises SystemFault for a request.
    """

    def __init__(self, breaks: Callable[[Request], bool] = lambda request: False) -> None:
        self.requests: list[Request] = []
        self._breaks = breaks

    async def open(self, ctx: Any) -> None: ...

    async def load_weights(self, weights: Weights) -> None: ...

    async def close(self) -> None: ...

    def codec(self, policy: str) -> Codec:
        return LetterCodec()

    async def generate(self, request: Request) -> Call:
        self.requests.append(request)
        if self._breaks(request):
            raise SystemFault("the connection was lost")
        ids = (ord(str(request.seed % 10)), 0)
        return Call(
            prompt_ids=request.prompt_ids,
            token_ids=ids,
            logprobs=(-2.3, 0.0),
            version=0,
            finish="stop",
            continues=request.continues,
        )


class LetterTokenizer:
    """The part of a Hugging Face tokenizer that chat formats use, one id a letter.

    Args:
        template: whether it has a chat template, one that keeps every turn unchanged.
    """

    eos_token, eos_token_id = "<end>", 2
    pad_token, pad_token_id = "<pad>", 0
    bos_token = bos_token_id = unk_token = unk_token_id = None
    all_special_ids = [0, 1, 2]
    _SPECIAL = ("<pad>", "<turn>", "<end>")

    def __init__(self, *, template: bool = True) -> None:
        self.chat_template = "a template" if template else None
        self.added_tokens_decoder = {i: SimpleNamespace(special=True) for i in self.all_special_ids}

    def __len__(self) -> int:
        return 0x110000 + len(self._SPECIAL)

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        parts = re.split(f"({'|'.join(self._SPECIAL)})", text)
        return [
            index
            for part in parts
            for index in (
                [self._SPECIAL.index(part)]
                if part in self._SPECIAL
                else [ord(letter) + len(self._SPECIAL) for letter in part]
            )
        ]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, **options: Any) -> str:
        count = len(self._SPECIAL)
        return "".join(
            chr(index - count) if index >= count else "" if skip_special_tokens else self._SPECIAL[index]
            for index in ids
        )

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tokenize: bool = False,
        add_generation_prompt: bool = True,
        **options: Any,
    ) -> str:
        turns = [f"<turn>{message['role']}\n{message['content']}<end>\n" for message in messages]
        return "".join(turns) + ("<turn>assistant\n" if add_generation_prompt else "")


class PolicyGradient:
    """A loss: -A r, with the ratio r to the behaviour policy."""

    needs: tuple[str, ...] = ()
    length: Length = "token_mean"
    entropy = 0.0

    def __call__(self, xp: Any, tokens: TokenBatch) -> Surrogate:
        value = -tokens.advantages * xp.exp(tokens.logprobs - tokens.behaviour)
        return Surrogate(value=value, grad=value, metrics={})
