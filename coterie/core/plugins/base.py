"""The kinds of plugins, and what a plugin class is made of: its settings and its base class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import core_schema

from coterie.core.errors import PluginError, did_you_mean

KINDS: tuple[str, ...] = (
    "environment",
    "role",
    "reward",
    "estimator",
    "loss",
    "transition",
    "sampler",
    "engine",
    "trainer",
    "executor",
    "sandbox",
    "tool",
    "chat_format",
    "chat_model",
    "data_source",
    "tracker",
    "recipe",
    "overlay",
    "column",
    "study",
    "command",
)
"""Every kind of plugin; each has a hook `register_<kind>s`."""

FILES = ("recipe", "overlay", "column")
"""Kinds whose target names a file, not an object."""

DECLARING = ("engine", "trainer")
"""Kinds whose class may have a `Policy`: the fields of a policy's table that it reads."""

UNCONFIGURED = (*FILES, "study", "command")
"""Kinds without a table in a configuration."""

Table = dict[str, Any]
"""A component's table: `type` names the plugin, the rest is for its Config."""


class PluginConfig(BaseModel):
    """Base of every plugin's settings: unknown keys are refused."""

    exclusive: ClassVar[Sequence[tuple[str, ...]]] = ()
    """Settings of which a later layer's replace an earlier one's: `(("path", "train val test"),)`."""
    only_with: ClassVar[Mapping[str, str]] = {}
    """Setting -> the exclusive one that it goes with, and is replaced with; "": it goes with none of them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        known = {field.alias or name for name, field in cls.model_fields.items()}
        named = {key for choice in cls.exclusive for keys in choice for key in keys.split()}
        for key in sorted({*named, *cls.only_with, *filter(None, cls.only_with.values())} - known):
            raise PluginError(f"{cls.__qualname__} has no setting '{key}'", fix=did_you_mean(key, known))

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        arbitrary_types_allowed=True,
        coerce_numbers_to_str=True,
        validate_default=False,
    )


@dataclass(frozen=True, slots=True)
class MayChange:
    """Marks a setting that a resumed run may change: `max_batch: Annotated[int, MayChange()] = 512`.

    It decides how fast or where a run goes; or, with `asked`, what it does from then on.
    """

    exact: bool = False
    """Whether the steps stay bit-equal to those of the uninterrupted run."""
    asked: bool = False
    """Whether the change needs `--allow-change`."""


class Composed:
    """Marks a Config field that holds a component: `judge: Annotated[RewardSource, Composed("reward")]`.

    In YAML the field is a table with a `type` (or just the name); in the built Config it is the object.
    """

    def __init__(self, kind: str) -> None:
        if kind not in KINDS:
            raise PluginError(f"Composed: unknown kind '{kind}'", fix=did_you_mean(kind, KINDS))
        self.kind = kind

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        def build(value: Any, info: core_schema.ValidationInfo) -> Any:
            if not isinstance(value, (str, dict)):
                return value  # already an object: the Python interface
            if info.context is None or "build" not in info.context:
                return as_table(value)
            where = ".".join(filter(None, (info.context.get("path", ""), info.field_name or "")))
            return info.context["build"](self.kind, as_table(value), where)

        return core_schema.with_info_plain_validator_function(
            build,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda value: value if isinstance(value, dict) else str(value)
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> Table:
        properties = {"type": {"type": "string"}}
        return {"type": "object", "title": self.kind, "properties": properties, "required": ["type"]}


def composed_fields(model: type[BaseModel]) -> dict[str, str]:
    """Fields of a Config that hold another component, by name, with its kind."""
    kinds = {}
    for name, info in model.model_fields.items():
        marks = [mark for mark in info.metadata if isinstance(mark, Composed)]
        for member in get_args(info.annotation) if get_origin(info.annotation) is not None else ():
            marks += [mark for mark in getattr(member, "__metadata__", ()) if isinstance(mark, Composed)]
        if marks:
            kinds[name] = marks[0].kind
    return kinds


def as_table(value: Any) -> Any:
    """`name` is short for `{type: name}`."""
    return {"type": value} if isinstance(value, str) else value


Component = Annotated[Table, BeforeValidator(as_table)]


class Plugin:
    """Optional base of plugin classes: stores `config` and `build`."""

    Config: type[PluginConfig] = PluginConfig
    config: Any

    def __init__(self, config: Any = None, build: Any = None) -> None:
        self.config = config if config is not None else type(self).Config()
        self.build = build
