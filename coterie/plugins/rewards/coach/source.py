"""The reward source `coach`: per-action process rewards (MAPPA, arXiv 2601.23228)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from string import Template
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator

from coterie.core.errors import ConfigError, SystemFault, did_you_mean
from coterie.core.plugins import Composed, MayChange, Plugin, PluginConfig
from coterie.core.protocols import ActionView, ChatAnswer, ChatModel, ChatRequest, EpisodeView
from coterie.core.types import ComponentKind, Key, Message, Score
from coterie.plugins.rewards.coach import answers
from coterie.plugins.rewards.coach.answers import Judgement, MalformedAnswer
from coterie.plugins.rewards.coach.prompts import (
    Characters,
    ShownAction,
    ShownTask,
    action_text,
    load_template,
    shortened,
    trajectory_text,
)
from coterie.plugins.rewards.coach.shown import ShownWork

log = logging.getLogger("coterie")
T = TypeVar("T")
Table = Mapping[tuple[str, str], float | Score | None]

_OUTCOME = "\noutcome shown: "
"""Of a comment, where the outcome was shown: what that was."""
_NAME = re.compile(r"[^\W\d][\w-]*")


class Coach(Plugin):
    """A chat model scores every action from 0 to 10, with a reason; score / 10 * `scale` is a gain.

    It is shown the team and its task, the role, its instruction, what it saw, what it wrote, what came of its
    tools and programs, and the file trail; nothing of it is cut unless `characters` says so, and never a
    thought, unless the role has `show_thoughts`. With `per: trajectory` one call scores
    all actions of an episode (arXiv 2609.04094): about as many calls less as an episode has actions, and the
    coach sees how it went on.

    A malformed answer is asked for once more, in the same conversation; after the second one the score is
    missing. Nothing stands in for a missing score. The reason is the score's comment, and its last line names
    the model's version and the number of answers that it took; the reason of a missing score ends in the
    number of questions and of answers.
    """

    class Config(PluginConfig):
        model: Annotated[Any, Composed("chat_model")] = Field(
            description="The coach: a name of `chat_models`, or a table of its own."
        )
        per: Literal["action", "trajectory"] = Field(
            "action", description="One call an action, or one call an episode with a score for each action."
        )
        ground_truth: Literal["none", "last", "all"] = Field(
            "none",
            description="Whether the reference answer is shown: never, with the actions of the last role of "
            "team.order, or always. Where it is, the outcome leaks into process scores.",
        )
        outcome: Literal["none", "last", "all"] = Field(
            "none",
            description="Whether the outcome that the environment computed is shown (a metric, why a "
            "submission is invalid): never, with the last role's action that ended the episode, or always. "
            "With `all` and `per: action` an episode is scored when it has ended. Recorded, never paid.",
        )
        guidance: Annotated[Mapping[str, str], MayChange(asked=True)] = Field(
            {}, description="By role: what the coach is to look at in its work."
        )
        prompt: str | None = Field(
            None,
            description="File of the prompt, with $format and $parts; default: ours of the mode.",
            json_schema_extra={"format": "file-path"},
        )
        show_feedback: bool = Field(
            False,
            description="Whether roles that act later read the reason, as feedback. Then each role waits for "
            "the score of the one before it.",
        )
        component: str = Field(
            "process", description="Name of the scores: a letter, then letters, digits, `_` and `-`."
        )
        quality: Annotated[str | None, MayChange(exact=True)] = Field(
            None,
            description="The component that verifies single actions, for `coterie coach`: of another reward "
            "source, such as `environment`.",
        )
        scale: float = Field(1.0, gt=0, allow_inf_nan=False, description="The value of a score of 10.")
        max_tokens: int = Field(
            1024, ge=1, description="Of an answer; per trajectory: of each action's part."
        )
        temperature: float = Field(0.0, ge=0)
        characters: Characters = Characters()

        @field_validator("component", mode="before")
        @classmethod
        def _named(cls, component: Any) -> Any:
            if not isinstance(component, str) or not _NAME.fullmatch(component):
                raise ValueError("a name is a text: a letter, then letters, digits, `_` and `-`")
            return component

    config: Config
    weights: Mapping[str, float] = {}
    policy_fault = 0.0

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self.scope: Literal["action", "trajectory"] = "trajectory" if self._waits(config) else "action"
        self.components: Mapping[str, ComponentKind] = {config.component: "increment"}
        self.background = not config.show_feedback  # whoever reads the reason waits for it
        if config.show_feedback:
            self.feedback = self._feedback  # a source with the member shows feedback
        self._model: ChatModel = config.model
        self._template: Template = load_template(config.per, config.prompt, f"{build.path}.prompt")
        self._versions: list[str] = []
        self._check()
        self._shown = ShownWork(config, build)
        in_turn = config.per == "action" and self.scope == "trajectory"
        self.calls_per_view = self._shown.most_actions if in_turn else 1
        self.call_tokens = len(self._template.template) // 4  # about four characters a token, in English
        self.answer_tokens = config.max_tokens

    @staticmethod
    def _waits(config: Config) -> bool:
        """Whether an action is scored once its episode has ended."""
        return config.per == "trajectory" or config.outcome == "all"

    def _check(self) -> None:
        """Refuse settings that can't be followed together."""
        config, path = self.config, self.build.path
        for name in ("ground_truth", "outcome"):
            if config.per == "trajectory" and getattr(config, name) == "last":
                what = "the answer" if name == "ground_truth" else "the outcome"
                raise ConfigError(
                    f"one call for a trajectory shows {what} for every action or for none",
                    path=f"{path}.{name}",
                    why="the same coach scores the last role and all others",
                    fix=f"set {name} to all or none, or per: action",
                )
        if config.show_feedback and self._waits(config):
            whole = config.per == "trajectory"
            raise ConfigError(
                "the coach's reasons can't be shown to later roles here",
                path=f"{path}.show_feedback",
                why="a trajectory is scored after its last role has acted"
                if whole
                else "with outcome: all an action is scored when its episode has ended",
                fix=f"set {'per: action' if whole else 'outcome: last'}, or show_feedback: false",
            )

    def check_components(self, components: Mapping[str, str]) -> None:
        """Refuse a `quality` that no other reward source scores.

        Args:
            components: by component of all reward sources, the name of its source.

        Raises:
            ConfigError: `quality` is a coach's own component, or nobody's.
        """
        config, path = self.config, self.build.path
        tables = self.build.run.rewards
        coaches = {name for name, by in components.items() if tables[by].get("type", by) == "coach"}
        others = components.keys() - coaches - {config.component}
        if config.quality is not None and config.quality not in others:
            itself = config.quality in components
            raise ConfigError(
                f"'{config.quality}' can't verify the coach",
                path=f"{path}.quality",
                why="it is a coach's own score" if itself else "no reward source has such a component",
                fix=did_you_mean("" if itself else config.quality, others),
            )

    def _feedback(self, role: str, score: Score) -> str:
        """The reason of a role's score."""
        reason = score.comment.rpartition("\n")[0].partition(_OUTCOME)[0]
        return f"The coach on {role}: {reason}" if reason else ""

    async def score(self, view: ActionView | EpisodeView) -> Table | Sequence[Table]:
        """The score of one action, or of each action of an episode.

        Raises:
            SystemFault: the coach gave no answer, or two malformed ones.
            UserError: no call can succeed.
        """
        if isinstance(view, ActionView):
            shown, task = self._shown.of_action(view)
            return self._table(view.role, *await self._judged(shown, task), outcome=shown.outcome)
        return await (self._trajectory(view) if self.config.per == "trajectory" else self._in_turn(view))

    async def _judged(self, shown: ShownAction, task: ShownTask) -> tuple[Judgement, str, int]:
        """The judgement of one action, as `_ask` gives it."""
        return await self._ask(
            self._prompt(action_text(shown, task, self.config.characters), 1),
            partial(answers.read_action, structured=self._model.structured),
            answers.SCHEMA,
            self.config.max_tokens,
        )

    async def _in_turn(self, view: EpisodeView) -> Sequence[Table]:
        """The score of each action of an ended episode, a question each; a failure is its action's own.

        One after the other: `concurrency` bounds calls of `score`.
        """
        actions, task = self._shown.of_episode(view)
        tables: dict[Key, Table] = {}
        for at, shown in actions:
            try:
                judged = await self._judged(shown, task)
                tables[at.key] = self._table(shown.role, *judged, outcome=shown.outcome)
            except SystemFault as fault:
                tables[at.key] = {(shown.role, self.config.component): Score(None, str(fault))}
        return [tables.get(at.key, {}) for at in view.actions]

    async def _trajectory(self, view: EpisodeView) -> Sequence[Table]:
        """An empty table for an action that the engine aborted: it is missing anyway."""
        actions, task = self._shown.of_episode(view)
        shown = [action for _, action in actions]
        judgements, version, asked = await self._ask(
            self._prompt(trajectory_text(shown, task, self.config.characters), len(shown)),
            partial(answers.read_trajectory, structured=self._model.structured, count=len(shown)),
            answers.SCHEMA_EACH,
            self.config.max_tokens * len(shown),
        )
        scored = {at.key: judged for (at, _), judged in zip(actions, judgements, strict=True)}
        return [
            self._table(at.decision.role, scored[at.key], version, asked, outcome=task.outcome)
            if at.key in scored
            else {}
            for at in view.actions
        ]

    def _prompt(self, parts: str, count: int) -> list[Message]:
        structured = self._model.structured
        if self.config.per == "trajectory":
            form = (answers.JSON_EACH if structured else answers.LINES_EACH).format(count=count)
        else:
            form = answers.JSON if structured else answers.LINES
        return [{"role": "user", "content": self._template.substitute(format=form, parts=parts)}]

    async def _ask(
        self, messages: list[Message], read: Callable[[str], T], schema: Any, max_tokens: int
    ) -> tuple[T, str, int]:
        """The judgement, the model's version, and how many answers it took.

        Raises:
            SystemFault: no answer, or two malformed ones; it ends in the number of questions and answers,
                which the report on the coach reads.
        """
        wrong: list[str] = []
        while True:
            try:
                answer: ChatAnswer = await self._model.answer(
                    ChatRequest(
                        messages=tuple(messages),
                        max_tokens=max_tokens,
                        temperature=self.config.temperature,
                        schema=schema if self._model.structured else None,
                    )
                )
            except SystemFault as fault:
                before = f"the coach's answer was malformed ({wrong[0]}); asked again, " if wrong else ""
                what = f"{before}{'the coach ' * (not wrong)}gave no answer: {fault}"
                raise self._missing(what, len(wrong) + 1, len(wrong)) from None
            self._note(answer.version)
            cut = self._cut(answer, max_tokens)
            try:
                if cut and answers.ends_in_score(answer.text):
                    raise MalformedAnswer("its score may be cut")
                return read(answer.text), answer.version, len(wrong) + 1
            except MalformedAnswer as error:
                wrong.append(cut or str(error))
            if len(wrong) > 1:
                what = f"the coach's answer was malformed twice: {wrong[0]}; then {wrong[1]}"
                raise self._missing(what, 2, 2)
            problem = "it broke off at its limit; be shorter" if cut else wrong[0]
            again = f"Your answer can't be read: {problem}. Answer again, in the form that was asked for."
            messages = [
                *messages,
                {"role": "assistant", "content": answer.text or "(empty)"},
                {"role": "user", "content": again},
            ]

    def _missing(self, what: str, asked: int, answered: int) -> SystemFault:
        what = shortened(what, self.config.characters.reason)
        return SystemFault(f"{what} (asked: {asked}, answered: {answered})")

    def _cut(self, answer: ChatAnswer, max_tokens: int) -> str:
        """How an answer was cut by its limit, and what raises that; empty where it was not."""
        if answer.finish != "length":
            return ""
        whole = "" if self.config.per == "action" else f", {self.config.max_tokens} for each action"
        fix = f"raise {self.build.path}.max_tokens, or the chat model's thought_tokens where it thinks"
        return f"it was cut by max_tokens={max_tokens}{whole} ({fix})"

    def _note(self, version: str) -> None:
        """Keep the versions that answered, and warn of another one: it may score differently."""
        if not version or version in self._versions:
            return
        self._versions.append(version)
        if len(self._versions) > 1:
            log.warning(
                "%s: the coach's model changed from %s to %s; its scores may not be comparable",
                *(self.build.path, self._versions[-2], version),
            )

    def _table(
        self, role: str, judgement: Judgement, version: str, asked: int, *, outcome: str = ""
    ) -> Table:
        value = judgement.score / 10 * self.config.scale
        reason = shortened(judgement.reason, self.config.characters.reason)
        shown = f"{_OUTCOME}{shortened(outcome, self.config.characters.reason)}" if outcome else ""
        comment = f"{reason}{shown}\n({version[:200] or 'version unknown'}; answers: {asked})"
        return {(role, self.config.component): Score(value, comment=comment)}
