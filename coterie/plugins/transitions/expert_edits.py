"""The transition mode `expert_edits`: a chat model proposes an edit of each role's answer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Annotated, Any

from pydantic import Field

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.plugins import Composed, MayChange
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import ChatModel, ChatRequest
from coterie.core.protocols.environment import DigestsStates
from coterie.core.rollout.contracts import refuse
from coterie.core.types import HistoryEntry, Message, as_tuple
from coterie.core.types.digest import digest
from coterie.plugins.transitions.expert import (
    GivesLatestAnswers,
    MalformedEdits,
    question,
    read_edits,
    schema_of,
)
from coterie.plugins.transitions.revision import OFFLINE, Revision, RevisionConfig, titled
from coterie.plugins.transitions.shared_answers import SharedAnswers

log = logging.getLogger("coterie")

EDIT = "The expert's edit of your answer"
NO_EDIT = "The expert gave no edit."
COUNTED = ("edits", "none", "malformed", "failed")
"""Metrics `expert/...`: roles that read an edit, or that there is none; malformed answers; failed calls."""
INSTEAD = f"choose a transition mode that asks no expert: {', '.join(OFFLINE)}"


class ExpertEditsConfig(RevisionConfig):
    model: Annotated[Any, Composed("chat_model")] = Field(
        None, description="The expert: a name of `chat_models`, or a table of its own."
    )
    expert_model: Annotated[str | None, MayChange(asked=True)] = Field(
        None,
        description="Instead of `model`: the name of a vendor's model, such as deepseek-coder or claude-...; "
        "the name decides the address and the variable of the key.",
    )
    base_url: Annotated[str | None, MayChange()] = Field(
        None, description="Address of `expert_model`, for a model of no known vendor."
    )
    api_key: Annotated[str | None, MayChange(exact=True)] = Field(
        None, description="`${NAME}` of the variable with its key; default: the vendor's."
    )
    max_tokens: int = Field(2048, ge=1, description="Of an answer, with the edits of all roles.")
    temperature: float = Field(0.0, ge=0)


class ExpertEdits(Revision):
    """Tells each role its earlier answer, and an expert's edit of it.

    The expert is asked once a state, for all roles: it is shown the task and the latest answers of the team
    (of an environment without `latest(state)` those of the role alone), and answers in JSON with a field a
    role. A malformed answer is asked for once more. A failed call, a second malformed answer and a field
    without text mean that there is no edit: the role reads that, it is counted, and nothing stands in for it.
    No score depends on the expert.
    """

    Config = ExpertEditsConfig
    config: ExpertEditsConfig
    words = (f"{EDIT}:", NO_EDIT)

    def __init__(self, config: ExpertEditsConfig, build: Any) -> None:
        super().__init__(config, build)
        self._check()
        if config.model is None:
            self.config = config.model_copy(update={"model": self._vendors_model()})
        self._model: ChatModel = self.config.model
        inner = getattr(self._model, "model", self._model)
        if hasattr(inner, "instead"):
            inner.instead = INSTEAD
        stages = as_tuple(build.run.team.order)
        self._order = tuple(chain.from_iterable(stages))
        shares = isinstance(build.environment, GivesLatestAnswers)
        self.calls_per_view = 1 if shares else max(map(len, stages))
        self._answers: SharedAnswers[dict[str, str] | None] = SharedAnswers(
            joins=not hasattr(self._model, "use_engine")
        )
        self._counts: Counter[str] = Counter()
        self._warned: set[str] = set()

    def _check(self) -> None:
        """Refuse settings without an expert, or with two."""
        config, path = self.config, self.build.path
        if config.model is not None:
            for key in ("expert_model", "base_url", "api_key"):
                if getattr(config, key) is not None:
                    why, fix = "`model` is the expert", f"remove it, or set it in {path}.model"
                    raise ConfigError("nothing reads this", path=f"{path}.{key}", why=why, fix=fix)
        elif config.expert_model is None:
            raise ConfigError(
                "there is no expert",
                path=f"{path}.expert_model",
                fix="set expert_model=deepseek-coder (or another vendor's model), or model to the name of an "
                f"entry of chat_models; or {INSTEAD}",
            )

    def _vendors_model(self) -> Any:
        """The chat model of `expert_model`.

        Raises:
            ConfigError: no vendor is known for the name, and there is no address.
        """
        config, path = self.config, self.build.path
        table = {"type": "openai", "model": config.expert_model}
        table |= {"vendor": "auto"} if config.base_url is None else {"base_url": config.base_url}
        table |= {} if config.api_key is None else {"api_key": config.api_key}
        try:
            return self.build.make("chat_model", table, path)
        except ConfigError as error:
            if error.path == f"{path}.vendor":
                error.fix = (
                    f"set {path}.base_url, and {path}.api_key=${{NAME}} where the endpoint needs a key; or "
                )
                error.fix += (
                    f"{path}.model={{type: openai, model: {config.expert_model}, vendor: NAME}} with a name "
                )
                error.fix += "of docs/chat_models.md in place of expert_model"
            if error.path in (f"{path}.vendor", f"{path}.model"):
                error.path = f"{path}.expert_model"
            raise

    async def remarks(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> Sequence[str]:
        """The edit under its title, or that there is none.

        Raises:
            UserError: no call can pass (a wrong key, a spent budget): the run stops.
        """
        answers = self._latest(role, state, history, environment)
        task = history[0].messages

        async def ask() -> dict[str, str] | None:
            return await self._ask(question(task, role, answers), tuple(answers))

        edits = await self._answers.get(
            self._key(state, environment, answers, task), role, tuple(answers), ask
        )
        edit = (edits or {}).get(role)
        self._counts["none" if edit is None else "edits"] += 1
        return (NO_EDIT,) if edit is None else titled(EDIT, edit)

    def counted(self) -> Mapping[str, float]:
        """What was counted since the last call."""
        counts, self._counts = self._counts, Counter()
        return {f"expert/{name}": float(counts[name]) for name in COUNTED}

    # ----------------------------------------------------------------------------------------- its parts

    def _latest(
        self, role: str, state: Any, history: Sequence[HistoryEntry], environment: Any
    ) -> dict[str, str]:
        """The latest answers by role, in the order of the team."""
        answers = {role: history[-1].action.text}
        if isinstance(environment, GivesLatestAnswers):
            with plugin_call(environment, "latest"):
                given = environment.latest(state)
            texts = isinstance(given, Mapping) and all(isinstance(text, str) for text in given.values())
            if not texts:
                refuse(environment, "latest", given, "return the latest answers as texts, by role")
            answers |= given
        return {name: answers[name] for name in dict.fromkeys(self._order) if name in answers}

    def _key(self, state: Any, environment: Any, answers: Mapping[str, str], task: Sequence[Message]) -> str:
        """The same for all roles that are told of a state, and for no other question."""
        if not isinstance(environment, GivesLatestAnswers):
            return digest((tuple(answers.items()), task))
        if isinstance(environment, DigestsStates):
            with plugin_call(environment, "digest"):
                return digest((environment.digest(state), dict(answers)))
        return digest((digest(state), dict(answers)))

    async def _ask(self, prompt: str, roles: Sequence[str]) -> dict[str, str] | None:
        """The edits by role; None: the expert gave none."""
        messages: list[Message] = [{"role": "user", "content": prompt}]
        for again in (False, True):
            request = ChatRequest(
                messages=tuple(messages),
                max_tokens=self.config.max_tokens,
                temperature=self.config.temperature,
                schema=schema_of(roles) if self._model.structured else None,
            )
            try:
                answer = await self._model.answer(request)
            except SystemFault as fault:
                self._note("failed", f"a call failed: {fault}")
                return None
            try:
                return read_edits(answer.text, roles)
            except MalformedEdits as error:
                cut = f"; max_tokens={self.config.max_tokens} cut it" if answer.finish == "length" else ""
                wrong = f"{error}{cut}"
            self._note("malformed", f"an answer can't be read{' a second time' if again else ''}: {wrong}")
            wish = f"Your answer can't be read: {wrong}. Answer again, with the JSON object alone."
            messages += [
                {"role": "assistant", "content": answer.text or "(empty)"},
                {"role": "user", "content": wish},
            ]
        return None

    def _note(self, metric: str, what: str) -> None:
        """Count a failure, and warn of the first of its kind."""
        self._counts[metric] += 1
        if metric not in self._warned:
            self._warned.add(metric)
            log.warning(
                "%s: the expert: %s. A role without an edit reads that there is none. Later ones are not "
                "listed: see the metrics expert/%s and expert/none",
                self.build.path, what, metric,
            )  # fmt: skip
