"""The environment `team_task`: records of the user, any roles, and one answer of the team."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from coterie.core.errors import ConfigError, PolicyFault, did_you_mean
from coterie.core.plugins import Composed, Plugin, PluginConfig
from coterie.core.protocols import DataSource, StepContext
from coterie.core.types import TEAM, Action, ComponentKind, Step, Task, as_tuple
from coterie.core.types.splits import Split
from coterie.plugins.envs.team_task.answers import Match, Reading, matches, voted
from coterie.plugins.envs.team_task.records import TYPES, FieldType, RecordReader
from coterie.plugins.functions import FunctionReference, call, load_function

NAMES_FILE: JsonDict = {"format": "file-path"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamTaskUtterance:
    """One action of a role."""

    recorded_name: ClassVar[str] = "Utterance"
    turn: int
    role: str
    text: str
    parsed: Any
    """None where the text couldn't be read."""

    def plain(self) -> dict[str, Any]:
        """The utterance as plain data."""
        return {"turn": self.turn, "role": self.role, "text": self.text, "parsed": self.parsed}


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamTaskState:
    """A value: copied by `dataclasses.replace`, never mutated."""

    recorded_name: ClassVar[str] = "State"
    record: Mapping[str, Any]
    answer: Any
    transcript: tuple[TeamTaskUtterance, ...] = ()
    correct: float = 0.0
    """The score of the current answer."""
    stopped: bool = False

    def latest(self) -> dict[str, TeamTaskUtterance]:
        """Every role's last utterance."""
        return {utterance.role: utterance for utterance in self.transcript}


class Answered(PluginConfig):
    """Success: a role's latest parsed answer matches the record's."""

    role: str | None = Field(None, description="The role whose answer counts; null: the last of team.order.")
    match: Match = Field(
        "exact", description="`exact`; `text`: ignores case and spaces; `number`: compares the last number."
    )


class TeamTask(Plugin):
    """One task per record; roles act in team.order for up to team.max_turns turns.

    The reward `correct` is a potential: 1 while the current answer is right. A recipe may replace it:
    `rewards: {mine: {type: function, function: my_module:score}}`.
    """

    class Config(PluginConfig):
        path: str | None = Field(
            None,
            description="JSONL file, split by content hash.",
            json_schema_extra=NAMES_FILE,
            examples=["tasks.jsonl"],
        )
        train: str | None = Field(
            None, description="JSONL file of the split, instead of `path`.", json_schema_extra=NAMES_FILE
        )
        val: str | None = Field(None, json_schema_extra=NAMES_FILE)
        test: str | None = Field(None, json_schema_extra=NAMES_FILE)
        data: Annotated[DataSource | None, Composed("data_source")] = Field(
            None, description="Any data source, instead of JSONL files."
        )
        val_share: float | None = Field(None, ge=0, lt=1, description="Of `path`; default 0.1.")
        test_share: float | None = Field(None, ge=0, lt=1, description="Of `path`; default 0.1.")
        fields: list[str] | dict[str, FieldType] = Field(
            default_factory=list,
            description="The fields that roles see, which every record must have; as a table: with types "
            f"({', '.join(TYPES)}). Empty: all but the answer, id and stratum.",
        )
        answer_field: str | None = "answer"
        id_field: str | None = None
        stratum_field: str | None = Field(None, description="For schedule.stratify.")
        success: Answered | FunctionReference = Field(
            Answered(),
            description="A role and the comparison of its answer, or `module:function` (record, transcript) "
            "-> 0..1, async or not.",
        )
        stop_when: FunctionReference | None = Field(
            None,
            description="`agree`: all roles gave the same answer in a turn; or `module:function` (record, "
            "transcript) -> bool.",
        )

        exclusive = (("path", "train val test", "data"),)
        only_with = {"val_share": "path", "test_share": "path"}

        @model_validator(mode="after")
        def _one_origin(self) -> TeamTask.Config:
            origins = [bool(self.path), bool(self.train or self.val or self.test), self.data is not None]
            if sum(origins) != 1:
                raise ValueError("give one of: path (split by content); train, val and test; data")
            if not self.path and (self.val_share is not None or self.test_share is not None):
                raise ValueError("val_share and test_share are for a single path")
            return self

    config: Config
    roles: tuple[str, ...] = ()
    components: Mapping[str, ComponentKind] = {"correct": "potential"}
    weights: Mapping[str, float] = {"correct": 1.0}

    def __init__(self, config: Config, build: Any) -> None:
        super().__init__(config, build)
        self._team = tuple(chain.from_iterable(as_tuple(build.run.team.order)))
        self._success = self._find_success()
        self._stops = self._find_stop()
        self.concurrent = any(inspect.iscoroutinefunction(f) for f in (self._success, self._stops))
        success = config.success
        reading = None
        if isinstance(success, Answered):
            role = success.role or self._team[-1]
            reading = Reading.of(role, build.run.team.roles.get(role), success.match)
        self._reader = RecordReader(
            self._source(),
            shown=config.fields,
            answer=config.answer_field,
            id=config.id_field,
            stratum=config.stratum_field,
            reading=reading,
            path=build.path,
            needs_answer=reading is not None or "answer_field" in config.model_fields_set,
            splits=("train", "val", "test")
            if config.path or config.data is not None
            else tuple(split for split in ("train", "val", "test") if getattr(config, split)),
        )

    @property
    def fields(self) -> tuple[str, ...] | None:
        """What observations hold, for templates to be checked against; None: as the records have it."""
        return (*self.config.fields, "parsed", "transcript") if self.config.fields else None

    # ---- the game ------------------------------------------------------------------------------------------

    def tasks(self, split: Split, seed: int) -> Sequence[Task]:
        """The records of a split, in their order.

        Raises:
            DataError: a record is wrong, or also in another split.
            ConfigError: the split is empty or not configured.
        """
        return self._reader.tasks(split)

    def reset(self, task: Task, seed: int) -> TeamTaskState:
        return TeamTaskState(record=task.payload, answer=task.answer)

    def acting_roles(self, state: TeamTaskState) -> tuple[str, ...] | None:
        return () if state.stopped else None

    def observe(self, state: TeamTaskState, role: str) -> dict[str, Any]:
        """The record's fields, and the team's actions.

        Returns:
            {field: value, ..., actions: {role: latest text}, parsed: {role: its value}, transcript: [...]}.
        """
        latest = state.latest()
        return {
            **self._reader.visible(state.record),
            "actions": {name: utterance.text for name, utterance in latest.items()},
            "parsed": {name: utterance.parsed for name, utterance in latest.items()},
            "transcript": _plain(state),
        }

    async def step(self, state: TeamTaskState, actions: Mapping[str, Action], ctx: StepContext) -> Step:
        """The state with the actions added, scored, and stopped if the episode is over."""
        utterances = tuple(
            TeamTaskUtterance(turn=ctx.turn, role=role, text=action.text, parsed=action.parsed)
            for role, action in actions.items()
        )
        after = replace(state, transcript=(*state.transcript, *utterances))
        after = replace(after, correct=await self._correct(after), stopped=await self._is_over(after))
        return Step(
            state=after,
            scores={(TEAM, "correct"): after.correct},
            info={"said": {utterance.role: utterance.text for utterance in utterances}},
        )

    def outcome(self, state: TeamTaskState) -> dict[str, float]:
        """`success` of the last answer; the number of turns."""
        turns = state.transcript[-1].turn + 1 if state.transcript else 0
        return {"success": state.correct, "turns": float(turns)}

    def fingerprints(self, task: Task) -> dict[str, str]:
        """`content`: the fields that roles see, without `id`. Equal problems under two ids have the same."""
        return {"content": self._reader.content(task.payload)}

    def place(self, task: Task) -> str:
        """The record's file and line."""
        return self._reader.places[task.id]

    def final_answer(
        self, task: Task, played: Sequence[tuple[Mapping[str, Action], Mapping[str, Any]]]
    ) -> str | None:
        """The last answer of the role that `success` compares; none where a function decides."""
        config = self.config.success
        if not isinstance(config, Answered):
            return None
        role = config.role or self._team[-1]
        given = [actions[role].parsed for actions, _ in played if role in actions]
        return voted(given[-1], task.answer, config.match) if given else None

    # ---- inside --------------------------------------------------------------------------------------------

    async def _correct(self, state: TeamTaskState) -> float:
        config = self.config.success
        if isinstance(config, Answered):
            answer = state.latest().get(config.role or self._team[-1])
            return float(answer is not None and matches(answer.parsed, state.answer, config.match))
        assert self._success is not None
        try:
            value = await call(self._success, state.record, _plain(state))
        except PolicyFault:
            return 0.0
        if isinstance(value, (bool, int, float)) and math.isfinite(value):
            return float(value)
        raise TypeError(f"{self.config.success} returned {value!r}; it must return a number from 0 to 1")

    async def _is_over(self, state: TeamTaskState) -> bool:
        if self.config.stop_when is None:
            return False
        if self._stops is not None:
            return bool(await call(self._stops, state.record, _plain(state)))
        turn = state.transcript[-1].turn
        answers = {
            utterance.role: utterance.parsed for utterance in state.transcript if utterance.turn == turn
        }
        if set(answers) != set(self._team) or any(answer is None for answer in answers.values()):
            return False
        first, *others = answers.values()
        return all(matches(other, first, "exact") for other in others)

    def _find_success(self) -> Any:
        config, path = self.config.success, f"{self.build.path}.success"
        if not isinstance(config, Answered):
            return load_function(config, path)
        if self.config.answer_field is None:
            raise ConfigError(
                "no field holds the right answer: answer_field is null",
                path=path,
                fix=f"set {path}=module:function, or answer_field",
            )
        if config.role is not None and config.role not in self._team:
            raise ConfigError(
                f"'{config.role}' is not in team.order",
                path=f"{path}.role",
                fix=did_you_mean(config.role, self._team),
            )
        return None

    def _find_stop(self) -> Any:
        condition, path = self.config.stop_when, f"{self.build.path}.stop_when"
        if condition is None:
            return None
        if condition != "agree":
            return load_function(condition, path)
        if len(set(self._team)) < 2:
            raise ConfigError(
                "stop_when: agree needs two roles", path=path, fix="add a role, or leave stop_when out"
            )
        return None

    def _source(self) -> DataSource:
        config = self.config
        if config.data is not None:
            return config.data
        table = {
            name: getattr(config, name)
            for name in ("path", "train", "val", "test", "val_share", "test_share")
            if getattr(config, name) is not None
        }
        if config.path:
            # Fields other than the content must not decide the split, so that equal questions stay together.
            table["split_ignore"] = [
                name for name in (config.id_field, config.stratum_field, config.answer_field) if name
            ]
        source: DataSource = self.build.make("data_source", {"type": "jsonl", **table}, self.build.path)
        return source


def _plain(state: TeamTaskState) -> list[dict[str, Any]]:
    """The transcript as plain data."""
    return [utterance.plain() for utterance in state.transcript]
