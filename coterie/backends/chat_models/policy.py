"""The chat model `policy`: one of the run's frozen policies, through the run's engine."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from coterie.core.errors import ConfigError, SystemFault, did_you_mean
from coterie.core.plugins import Plugin, PluginConfig
from coterie.core.protocols import ChatAnswer, ChatRequest, EngineClient
from coterie.core.rollout.thoughts import split
from coterie.core.types import Key, Request, Sampling
from coterie.core.types.digest import digest
from coterie.core.types.seeding import seed64


class PolicyModel(Plugin):
    """Generates with one of `policies`, which no update changes; its answer is the text after its thought.

    A request is an active rollout of the engine, so its batches wait for it. Its seed derives from the run's
    and from the request, so equal requests have equal answers. The answer has no set form: the component that
    asks reads the lines that its prompt asks for.
    """

    class Config(PluginConfig):
        policy: str = Field(
            min_length=1, description="Name of a policy with `train: none`.", examples=["judge"]
        )

    config: Config
    structured = False

    def __init__(self, config: Any = None, build: Any = None) -> None:
        super().__init__(config, build)
        run, path, name = build.run, f"{build.path}.policy", self.config.policy
        self._name, self._seed = str(build.name), int(run.seed)
        self._engine: EngineClient | None = None
        if name not in run.policies:
            fix = did_you_mean(name, run.policies)
            raise ConfigError(f"no policy is called '{name}'", path=path, fix=fix)
        if run.policies[name].train != "none":
            raise ConfigError(
                f"the chat model '{self._name}' is policy '{name}', which is trained",
                path=path,
                why="the judge would change with what it judges, and scores of different steps would differ",
                fix=f"set policies.{name}.train=none, or name a policy of its own: "
                f"policies.judge={{model: ..., train: none}} and {path}=judge",
            )

    def use_engine(self, engine: EngineClient) -> None:
        """Take the run's engine; called before `open`."""
        self._engine = engine

    async def answer(self, request: ChatRequest) -> ChatAnswer:
        """The policy's answer.

        Raises:
            SystemFault: the engine failed, the prompt leaves no room in the policy's context, or the policy
                wrote nothing but a thought.
        """
        engine, name = self._engine, self.config.policy
        if engine is None:
            raise RuntimeError("the chat model has no engine: use_engine comes first")
        codec = engine.codec(name)
        prompt = codec.encode(request.messages)
        context = codec.context
        if context is not None and len(prompt.ids) + request.max_tokens > context:
            raise SystemFault(
                f"chat model '{self._name}': a prompt of {len(prompt.ids)} tokens and an answer of "
                f"{request.max_tokens} do not fit into the context of policy '{name}' ({context})"
            )
        greedy = request.temperature == 0
        place = digest((self._name, prompt.ids, request.max_tokens, request.temperature))
        key = Key(f"chat:{place}", epoch=0 if greedy else request.sample).of_call(0)
        asked = Request(
            key=key,
            policy=name,
            prompt_ids=prompt.ids,
            seed=seed64(self._seed, key, "chat"),
            sampling=Sampling(temperature=request.temperature, max_new_tokens=request.max_tokens),
        )
        call = await engine.active(engine.generate(asked))
        text = split(codec.decode(call), prompt.thinking).text
        if not text.strip():
            raise SystemFault(
                f"chat model '{self._name}': policy '{name}' answered without text ({call.finish})"
            )
        finish = "length" if call.finish == "length" else "stop"
        return ChatAnswer(text=text, version=f"{name}@{call.version}", finish=finish)
