"""The schema of a run's configuration: one table per component. Unknown keys are errors.

The settings inside a component's table are validated by its plugin's own `Config` when the run is assembled
(`compose/run.py`). Recipes, scales and overrides are merged in `recipes/layers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

from coterie.core.errors import ConfigError
from coterie.core.plugins import Component, Table
from coterie.core.types import MAX_STAGES


class Strict(BaseModel):
    """A table that is immutable and refuses unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, coerce_numbers_to_str=True, serialize_by_alias=True
    )


class PolicyConfig(Strict):
    """A policy: the model of one or more roles. Its other fields are declared by trainers and engines.

    The class attribute `Policy` of a trainer or an engine derives from this class and adds the fields that it
    reads. A run's policies have the fields of both, and are instances of both classes.
    """

    model: str | Table = Field(description="Hub id, folder, or a table for random initial weights.")
    train: Literal["full", "lora", "none"] = "full"
    from_: str | None = Field(
        None,
        alias="from",
        description="Weights to begin with in place of the model's: a run's folder, with @best, @latest or "
        "@STEP and :POLICY if you like, or a folder of a model, of an adapter or of a table.",
    )

    def check(self, path: str, run: RunConfig) -> None:
        """Check the policy before a run imports its trainer and engine; call `super().check(path, run)`.

        Reading a configuration doesn't call it: the file of an old run can be read without its model.

        Args:
            path: dotted path of the policy's table, for errors.

        Raises:
            ConfigError: the run can't have this policy, e.g. its model isn't there.
        """

    @property
    def follows_budget(self) -> bool:
        """Whether past updates depend on `schedule.tokens`; a resumed run can't change it then."""
        return False

    @property
    def warm_started(self) -> bool:
        """Whether its initial weights are trained on an oracle's demonstrations first."""
        return False

    @property
    def weights_kind(self) -> str:
        """What an engine holds of it, e.g. `tensors`; policies of one kind can play together; "": nothing."""
        return ""

    def external(self, folder: Path) -> PolicyConfig:
        """The frozen policy in a folder that `export` wrote, to play in place of this one.

        Raises:
            ConfigError: the folder holds no model of a format that trainer and engine know.
        """
        why = "the trainer and the engine declare no format of exported folders"
        raise ConfigError(f"{folder} can't be read as a policy", why=why)


class TeamConfig(Strict):
    """The roles and their order."""

    order: list[str | list[str]] = Field(min_length=1, description="Stages; a nested list acts at once.")
    max_turns: int = Field(1, ge=1)
    max_stages: int = Field(MAX_STAGES, ge=1, description="Stages of one turn; more are an error.")
    overflow: Literal["floor", "truncate_oldest", "stop"] = Field(
        "floor",
        description="A prompt that outgrows the context: it ends the episode with the rewards' floors, "
        "loses the oldest turns of a role that remembers, or stops the run.",
    )
    max_tool_turns: int = Field(4, ge=0, description="Rounds of tool results within one action.")
    roles: dict[str, Table] = Field(
        description="By role: the keys of `compose.tables.RoleConfig`, `type` and its settings."
    )


class ScheduleConfig(Strict):
    """The length of a run, and its regular evaluations, checkpoints and records."""

    exclusive: ClassVar = (("steps", "epochs"),)
    only_with: ClassVar = {"tokens": ""}
    steps: int | None = Field(None, ge=0)
    epochs: int | None = Field(None, ge=1, description="Passes over the train split, instead of `steps`.")
    tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens generated in training, over all roles and branches. The run ends after the step "
        "that reaches them, or earlier by `steps` or `epochs`.",
    )
    tasks_per_step: int = Field(16, ge=1)
    evaluate_every: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="In steps; 0: not in training; auto: at most a twentieth of training's actions."
    )
    evaluate_tasks: int = Field(64, ge=1)
    checkpoint_every: Literal["auto"] | Annotated[int, Field(ge=0)] = Field(
        "auto", description="In steps; 0: only at the end; auto: a kill loses at most 5 minutes, or one step."
    )
    keep_checkpoints: int = Field(2, ge=1, description="Newest ones, besides the best on `val`.")
    record_every: int = Field(1, ge=0, description="Write the rollouts of every n-th step; 0: none.")
    stratify: bool | Annotated[str, Field(min_length=1)] = Field(
        False,
        description="Keep each stratum's share of tasks in every step, within one task. true: the strata "
        "that the environment gives its tasks; a text: a key of the tasks' records, such as data_type.",
    )
    stop_after: float | None = Field(None, gt=0, description="Seconds; the step under way is completed.")
    max_staleness: int = Field(
        0,
        ge=0,
        le=100,
        strict=True,
        description="Steps that are played while earlier ones train: no token is drawn by weights that are "
        "older than so many updates. 0: a step is played when the one before it has trained.",
    )
    play: Literal["auto", "pinned", "in_flight"] = Field(
        "auto",
        description="With max_staleness: `pinned`, one version of the weights plays all of a step, so that "
        "runs repeat and resume exactly; `in_flight`, the newest weights play, which may change within an "
        "episode; auto: pinned where results must repeat (see deterministic).",
    )
    max_missing: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Largest share of missing scores in a step, of each reward source over what it was asked "
        "(`rewards.<name>.max_missing` overrides it), and of joint actions that a system fault lost.",
    )
    patience: float | None = Field(
        300,
        ge=0,
        allow_inf_nan=False,
        description="Seconds after which a plugin's method that has not returned is named. 0: none is.",
    )


POLICY_READERS: list[Callable[[Mapping[str, Any]], Mapping[str, PolicyConfig]]] = []
"""The last one reads the policies of a run's table; `compose/policies.py` puts it here, and asks plugins."""


class RunConfig(Strict):
    """The configuration of a run."""

    summary: str = Field("", description="One line for `coterie recipes`.")
    seed: int = 0
    deterministic: Literal["auto"] | bool = Field("auto", description="Repeat bit for bit; auto: on a CPU.")
    env: Component
    team: TeamConfig
    policies: dict[str, SerializeAsAny[PolicyConfig]]
    rewards: dict[str, Component] = Field(
        default_factory=lambda: {"environment": {"type": "environment"}},
        description="By name: `type`, `weights` and the source's settings.",
    )
    sampler: Component
    algorithm: Component
    loss: Component
    transition: Component
    engine: Component
    trainer: Component
    executor: Component
    sandbox: Component | None = None
    tools: dict[str, Component] = Field(default_factory=dict)
    chat: Component
    chat_models: dict[str, Component] = Field(default_factory=dict)
    data: Component | None = None
    trackers: dict[str, Component] = Field(default_factory=lambda: {"jsonl": {"type": "jsonl"}})
    schedule: ScheduleConfig = ScheduleConfig()
    evaluate: Table | None = Field(None, description="Of evaluations in training: sets, samples, sampling.")
    cluster: Table | None = Field(
        None, description="Of an executor that uses several machines; it declares the keys."
    )

    @model_validator(mode="before")
    @classmethod
    def _read_policies(cls, table: Any) -> Any:
        """Have the policies' tables read: only the chosen trainer and engine know their fields."""
        policies = table.get("policies") if isinstance(table, Mapping) else None
        if not isinstance(policies, Mapping) or all(isinstance(p, PolicyConfig) for p in policies.values()):
            return table
        if not POLICY_READERS:
            fix = "take coterie.RunConfig, or coterie.load(table).config"
            raise ConfigError("nothing that reads policies is imported", path="policies", fix=fix)
        return {**table, "policies": POLICY_READERS[-1](table)}
