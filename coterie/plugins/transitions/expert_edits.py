"""The transition mode `expert_edits`: a chat model proposes an edit of each role's answer."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Annotated, Any, Generic, TypeVar

from pydantic import Field

from coterie.core.errors import ConfigError, SystemFault
from coterie.core.plugins import Composed, MayChange
from coterie.core.plugins.origin import plugin_call
from coterie.core.protocols import ChatModel, ChatRequest
from coterie.core.protocols.environment import DigestsStates
from coterie.core.rollout.contracts import refuse
from coterie.core.rollout.thoughts import split
from coterie.core.types import HistoryEntry, Message, as_tuple
from coterie.core.types.digest import digest
from coterie.discovery.optional import EnvironmentDefaults, with_defaults
from coterie.plugins.transitions.revision import OFFLINE, Revision, RevisionConfig, titled

T = TypeVar("T")
log = logging.getLogger("coterie")

EDIT = "The expert's edit of your answer"
NO_EDIT = "The expert gave no edit."
COUNTED = ("edits", "none", "malformed", "failed")
"""Metrics `expert/...`: roles that read an edit, or that there is none; malformed answers; failed calls."""
MOST = 4096
"""Answers that wait for a role; of more the oldest go (their episodes were lost)."""
_FENCE = re.compile(r"```(?:json)?[ \t]*\n(.*)\n```", re.S)
INSTEAD = f"choose a transition mode that asks no expert: {', '.join(OFFLINE)}"


@dataclass(slots=True)
class _ExpertCall(Generic[T]):
    """A call under way."""

    task: asyncio.Future[T]
    waiting: int = 0


@dataclass(slots=True)
class _Kept(Generic[T]):
    """An answer, and how many episodes of each role have yet to read it."""

    answer: T
    unread: Counter[str] = field(default_factory=Counter)


class SharedAnswers(Generic[T]):
    """Answers by key. Who asks leaves the answer to its teammates, who read it once each.

    So nothing outlives its state: a later episode asks anew, and the chat model's own cache serves it.

    Args:
        joins: whether equal questions wait for one call under way. Off for a model behind the run's engine:
            its batches begin when all episodes wait for the engine, and those that joined never would.
    """

    def __init__(self, joins: bool) -> None:
        self._joins = joins
        self._calls: dict[str, _ExpertCall[T]] = {}
        self._kept: OrderedDict[str, _Kept[T]] = OrderedDict()

    async def get(
        self, key: str, role: str, roles: Sequence[str], ask: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        """The answer that a teammate left, that of a call under way, or one asked for now.

        Args:
            roles: all roles that the answer is for.
        """
        kept = self._kept.get(key)
        if kept is None or not kept.unread[role]:
            answer = await (self._joined(key, ask) if self._joins else ask())
            kept = self._kept.get(key) or _Kept(answer)
            kept.answer = answer  # newer than what a lost episode left
        if kept.unread[role]:
            kept.unread[role] -= 1
        else:
            kept.unread.update(other for other in roles if other != role)
        if kept.unread.total():
            self._kept[key] = kept
        else:
            self._kept.pop(key, None)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)
        return kept.answer

    async def _joined(self, key: str, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = _ExpertCall(asyncio.ensure_future(ask()))
        call.waiting += 1
        try:
            return await asyncio.shield(call.task)  # who is cancelled must not cancel those that joined
        finally:
            call.waiting -= 1
            if not call.waiting:
                self._calls.pop(key, None)
                call.task.cancel()  # of a call that is done: nothing happens


class MalformedEdits(ValueError):
    """An answer that holds no edits; the message says what is wrong with it."""


def schema_of(roles: Sequence[str]) -> dict[str, Any]:
    """The JSON schema of an answer: a text for each role."""
    return {
        "type": "object",
        "properties": {role: {"type": "string"} for role in roles},
        "required": list(roles),
        "additionalProperties": False,
    }


def question(task: Sequence[Message], role: str, answers: Mapping[str, str]) -> str:
    """The expert's prompt.

    Args:
        task: messages of a role's first prompt of the episode.
        role: the role.
        answers: the latest answers, by role.
    """
    form = json.dumps(dict.fromkeys(answers, "..."), ensure_ascii=False)
    shown = "\n\n".join(message["content"] for message in task)
    written = [f'<answer role="{name}">\n{text}\n</answer>' for name, text in answers.items()]
    return "\n\n".join(
        (
            "You are an expert. You review what language models wrote for a task, one answer a role, and "
            "propose an edit of each answer. Each role reads its edit and writes its answer once more.",
            f"The task, as role '{role}' was given it:",
            f"<task>\n{shown}\n</task>",
            "The latest answers:",
            *written,
            "Write an edit for each role: the lines to change, or a whole answer in place of a wrong or "
            "missing one, in the form that the task asks for. Where nothing has to change, say so in a line.",
            f"Answer with one JSON object and nothing else, with a text in each field: {form}",
        )
    )


def read_edits(text: str, roles: Sequence[str]) -> dict[str, str]:
    """The edits by role; a role whose field is missing, blank or no text has none.

    Raises:
        MalformedEdits: the text holds no JSON object, or one with none of the fields.
    """
    table = _object(split(text).text.strip())
    if not any(role in table for role in roles):
        raise MalformedEdits(f"the JSON has none of the fields {', '.join(roles)}")
    edits = {role: table[role] for role in roles if isinstance(table.get(role), str)}
    return {role: edit for role, edit in edits.items() if edit.strip()}


def _object(text: str) -> dict[str, Any]:
    """The JSON object that a text is, or holds between other words or in a fence."""
    fenced = _FENCE.search(text)
    inner = text[text.find("{") : text.rfind("}") + 1]
    # The fence last: texts of the object may hold one.
    for candidate in (text, inner, *((fenced[1],) if fenced else ())):
        try:
            # Models write line ends into strings as they are.
            table = json.loads(candidate, strict=False, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            if isinstance(error, MalformedEdits):
                raise
            continue
        if not isinstance(table, dict):
            raise MalformedEdits("the JSON is no object")
        return table
    raise MalformedEdits("it is no JSON")


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(items)
    if len(table) < len(items):
        raise MalformedEdits("a key of the JSON stands twice")
    return table


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
        shares = with_defaults(build.environment, EnvironmentDefaults).latest is not None
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
        latest = with_defaults(environment, EnvironmentDefaults).latest
        if latest is not None:
            with plugin_call(environment, "latest"):
                given = latest(state)
            texts = isinstance(given, Mapping) and all(isinstance(text, str) for text in given.values())
            if not texts:
                refuse(environment, "latest", given, "return the latest answers as texts, by role")
            answers |= given
        return {name: answers[name] for name in dict.fromkeys(self._order) if name in answers}

    def _key(self, state: Any, environment: Any, answers: Mapping[str, str], task: Sequence[Message]) -> str:
        """The same for all roles that are told of a state, and for no other question."""
        if with_defaults(environment, EnvironmentDefaults).latest is None:
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
