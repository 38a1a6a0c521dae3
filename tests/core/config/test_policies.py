"""A policy's table has the fields that the chosen trainer and engine declare, and no others."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field

import coterie
from coterie import Plugin, PolicyConfig, hookimpl
from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.models.policy import TablePolicy, TensorPolicy, TorchPolicy, UntrainedPolicy, declared
from coterie.compose import compose
from coterie.compose.policies import policy_schema, run_config
from coterie.core.errors import ConfigError, PluginError
from coterie.discovery import Report, plugins
from coterie.recipes import load, read_yaml
from coterie.testing import ConformanceError, check_plugin, check_trainer
from tests.cli.support import coterie as command
from tests.core.config import urn
from tests.core.config.urn import UrnPolicy, UrnTrainer

MATRIX = Path(__file__).parents[2] / "recipes" / "matrix.yaml"
URN = ["trainer=urn"]


class Reader(TabularEngine):
    """An engine that declares nothing."""

    Policy = PolicyConfig


class Warm(TabularEngine):
    """An engine with a field of its own."""

    class Policy(PolicyConfig):
        warmth: float = Field(1.0, gt=0)


class Hurried(TabularEngine):
    """An engine that declares `pace` otherwise than the trainer `urn`."""

    class Policy(PolicyConfig):
        pace: int = 3


class Faster(TabularEngine):
    """An engine whose schema derives from the trainer's and narrows a field."""

    class Policy(UrnPolicy):
        pace: float = Field(0.25, gt=0, le=1)


class NoSchema(TabularEngine):
    Policy = dict  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def urns() -> Iterator[None]:
    """The plugin, registered with a manager of this test's own."""
    plugins.cache_clear()
    plugins().add(urn, Report("urn", "urns", "1"))
    yield
    plugins.cache_clear()


def engine(kind: type) -> str:
    return f"engine={__name__}:{kind.__name__}"


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def composed(source: Path, overrides: list[str]) -> Any:
    return compose(load(source, overrides=overrides))


def refused(*overrides: str, check: Callable[..., Any] = load) -> ConfigError:
    with pytest.raises((ConfigError, PluginError)) as error:
        check(MATRIX, overrides=[*overrides])
    return error.value


# ----------------------------------------------------------------------------- a trainer's own schema


def test_a_trainer_with_a_schema_of_its_own_trains(tmp_path: Path) -> None:
    own = ["policies.row.pace=2", "policies.column.pace=2", "policies.column.memory={kept: 0.9}"]
    result = coterie.train(MATRIX, overrides=[*URN, *own, "schedule.steps=12"], out=tmp_path / "run")
    assert result.finished
    trained = rows(tmp_path / "run")
    assert trained[-1]["policy/row/samples"] > 0
    assert trained[-1]["reward/row"] > trained[0]["reward/row"] + 0.5, "it learns"
    table = read_yaml(tmp_path / "run" / "config.yaml")["policies"]
    assert table["row"] == {
        "model": table["row"]["model"],
        "train": "full",
        "from": None,
        "pace": 2.0,
        "memory": {"kept": 1.0},
    }
    assert table["column"]["memory"] == {"kept": 0.9}


def test_it_resumes_from_its_own_file(tmp_path: Path) -> None:
    part = [*URN, "schedule.steps=2"]
    coterie.train(MATRIX, overrides=part, out=tmp_path / "run")
    result = coterie.train(resume=tmp_path / "run", overrides=["schedule.steps=4"])
    assert (result.step, result.finished) == (4, True)


def test_it_plays_with_an_engine_that_declares_nothing_and_with_one_that_declares_more(
    tmp_path: Path,
) -> None:
    coterie.train(MATRIX, overrides=[*URN, engine(Reader), "schedule.steps=1"], out=tmp_path / "a")
    both = [*URN, engine(Warm), "policies.row.warmth=2", "policies.row.pace=3", "schedule.steps=1"]
    policy = compose(load(MATRIX, overrides=both)).config.policies["row"]
    assert isinstance(policy, UrnPolicy) and isinstance(policy, Warm.Policy)
    assert (policy.pace, policy.warmth) == (3, 2)


def test_the_kit_knows_its_schema() -> None:
    check_plugin(urn)
    opened: list[Any] = []

    class Recording(UrnTrainer):
        async def open(self, ctx: Any) -> None:
            opened.extend(ctx.policies.values())
            await super().open(ctx)

    with pytest.raises(ConformanceError):  # it calls no loss, which the kit demands of trainers
        check_trainer(
            Recording, model={"init": "tabular"}, policy={"pace": 0.25}, annotates=(), token_ids=range(9)
        )
    assert all(isinstance(policy, UrnPolicy) for policy in opened)
    assert {policy.pace for policy in opened} == {0.25, 0.5}


@pytest.mark.parametrize(
    ("override", "path", "hint"),
    [
        ("policies.row.pase=2", "policies.row.pase", "pace"),
        ("policies.row.memry={}", "policies.row.memry", "memory"),
        ("policies.row.optimizer={learning_rate: 1}", "policies.row.optimizer", "known: "),
    ],
)
def test_a_key_that_neither_declares_is_told(override: str, path: str, hint: str) -> None:
    error = refused(*URN, override)
    assert (error.what, error.path) == (f"unknown key '{path.rpartition('.')[2]}'", path)
    assert error.why == "neither the trainer 'urn' nor the engine 'tabular' declares it"
    assert hint in error.fix


def test_a_key_inside_a_declared_table_is_told_without_the_plugins() -> None:
    error = refused(*URN, "policies.row.memory.kep=1")
    assert (error.path, error.why) == ("policies.row.memory.kep", "") and "kept" in error.fix


def test_a_wrong_value_and_a_refused_one_have_their_paths() -> None:
    assert refused(*URN, "policies.row.pace=-1").path == "policies.row.pace"
    load(MATRIX, overrides=[*URN, "policies.row.train=lora"])  # a configuration can be read
    error = refused(*URN, "policies.row.train=lora", check=composed)
    assert (error.what, error.path) == ("an urn has no adapters", "policies.row.train")


def test_other_trainers_refuse_its_fields() -> None:
    error = refused("policies.row.pace=2")
    assert (error.path, error.why) == (
        "policies.row.pace", "neither the trainer 'tabular' nor the engine 'tabular' declares it",
    )  # fmt: skip


def test_the_commands_show_its_fields() -> None:
    shown = json.loads(command("config", MATRIX, *URN, "--json").stdout)
    assert shown["config"]["policies"]["row"]["pace"] == 0.5
    schema = json.loads(command("schema", MATRIX, *URN).stdout)
    policy = schema["$defs"]["PolicyConfig"]
    assert {"model", "train", "from", "pace", "memory"} == set(policy["properties"]) and "Memory" in schema[
        "$defs"
    ]
    assert policy["additionalProperties"] is False
    assert "pace" in schema["components"]["trainer"]["urn"]["policy"]["properties"]
    default = json.loads(command("schema").stdout)["$defs"]["PolicyConfig"]["properties"]
    assert {"optimizer", "lora", "dtype"} <= set(default) and "pace" not in default


# ---------------------------------------------------------------------- both declare


def test_one_field_declared_in_two_ways_names_both_plugins() -> None:
    error = refused(*URN, engine(Hurried))
    assert isinstance(error, PluginError) and error.path == "policies.*.pace"
    assert "trainer 'urn'" in error.what and f"engine '{__name__}:Hurried'" in error.what


def test_a_schema_that_derives_from_the_others_may_narrow_a_field() -> None:
    assert policy_schema("urn", f"{__name__}:Faster") is Faster.Policy
    assert refused(*URN, engine(Faster), "policies.row.pace=2").path == "policies.row.pace"


def test_a_policy_that_is_no_schema_is_refused() -> None:
    error = refused(engine(NoSchema))
    assert isinstance(error, PluginError) and error.path == "engine.type" and "PolicyConfig" in error.fix


def test_an_unknown_trainer_is_told_before_the_policies_keys() -> None:
    assert refused("trainer=tabulra", "policies.row.pace=2").path == "trainer.type"


def test_the_built_in_pairs() -> None:
    assert policy_schema("torch", "hf") is TorchPolicy
    assert policy_schema("none", "scripted") is UntrainedPolicy
    joined = policy_schema("none", "tabular")
    assert issubclass(joined, UntrainedPolicy) and issubclass(joined, TablePolicy)
    assert joined is policy_schema("none", "tabular"), "two configurations are equal"


def test_the_declared_model_wins_over_the_cores() -> None:
    resolved = load(MATRIX, overrides=[*URN])
    assert resolved.config.policies["row"].model.init == "tabular"  # type: ignore[union-attr]
    assert refused(*URN, "policies.row.model={init: tabulra}").path == "policies.row.model.init"


def test_a_configuration_with_a_joined_schema_can_be_pickled() -> None:
    config = load(MATRIX, overrides=[*URN, engine(Warm), "policies.row.warmth=2"]).config
    again = pickle.loads(pickle.dumps(config))
    assert again == config and type(again.policies["row"]) is type(config.policies["row"])


def test_a_table_from_python_is_validated_by_the_same_schema() -> None:
    table = load(MATRIX, overrides=URN).table
    config = coterie.RunConfig.model_validate(table)
    assert run_config(config.model_dump(by_alias=True)) == config
    assert isinstance(config.policies["row"], UrnPolicy) and load(config).table == table


def test_a_schema_that_is_imported_alone_says_what_reads_policies(monkeypatch: pytest.MonkeyPatch) -> None:
    table = load(MATRIX, overrides=URN).table
    monkeypatch.setattr("coterie.core.config.schema.POLICY_READERS", [])
    with pytest.raises(ConfigError, match="nothing that reads policies is imported"):
        coterie.RunConfig.model_validate(table)


def test_a_policy_of_another_schema_is_converted_for_a_backend() -> None:
    urns = {"p": UrnPolicy(model="org/model", pace=2.0)}
    assert declared(urns, TensorPolicy) == {"p": TensorPolicy(model="org/model")}
    own = TorchPolicy(model="org/model", dtype="bfloat16")
    assert declared({"p": own}, TensorPolicy)["p"] is own


# ---------------------------------------------------------------------- what the built-ins refuse


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        (["trainer=none"], "policies.row.train"),
        (["trainer=none", "policies.row.train=none", "policies.column.train=none", "engine=hf"],
         "policies.row.model.init"),
        (["trainer=torch", "policies.row.model={init: qwen3}"], "policies.row.model"),
        (["policies.row.train=lora"], "policies.row.train"),
        (["policies.row.lora={rank: 4}"], "policies.row.lora"),
        (["policies.row.optimizer.learning_rate=1"], "policies.row.optimizer"),
        (["policies.row.optimizer.schedule=linear"], "policies.row.optimizer.horizon"),
        (["policies.column.model=org/model"], "policies.column.model"),
    ],
)  # fmt: skip
def test_what_a_trainer_or_an_engine_cant_follow_is_refused_before_they_are_made(
    overrides: list[str], path: str
) -> None:
    assert refused(*overrides, check=composed).path == path


# ---------------------------------------------------------------------- registered beside


class Settings(coterie.PluginConfig):
    size: int = 3


class Other(coterie.PluginConfig):
    size: int = 4


class Beside(Plugin):
    Config = Settings


def registering(**beside: Any) -> Report:
    @hookimpl
    def register_transitions(register: Any) -> None:
        register("beside", f"{__name__}:Beside", **beside)

    report = Report("beside", "besides", "1")
    plugins().add(SimpleNamespace(register_transitions=register_transitions), report)
    return report


def test_a_config_beside_the_target_is_read_without_the_target() -> None:
    @hookimpl
    def register_trainers(register: Any) -> None:
        register("big", "not_installed:Big", config=f"{__name__}:Settings", policy=UrnPolicy)

    plugins().add(SimpleNamespace(register_trainers=register_trainers), Report("big", "bigs", "1"))
    registry = plugins().registry
    assert registry.config_of("trainer", "big") is Settings
    assert registry.policy_of("trainer", "big") is UrnPolicy
    assert (
        load(MATRIX, overrides=["trainer=big", "policies.row.pace=2"]).table["policies"]["row"]["pace"] == 2
    )
    assert refused("trainer={type: big, sise: 3}", check=composed).path == "trainer.sise"


@pytest.mark.parametrize(
    ("beside", "error"),
    [
        ({"config": 7}, "neither a class nor 'module:Class'"),
        ({"config": "no_colon"}, "neither a class nor 'module:Class'"),
        ({"policy": UrnPolicy}, "a transition has no Policy"),
        ({"confg": Settings}, "confg"),
    ],
)
def test_a_wrong_registration_is_reported_with_the_plugin(beside: dict[str, Any], error: str) -> None:
    report = registering(**beside)
    assert not report.ok and error in report.errors[0]


@pytest.mark.parametrize(
    ("beside", "error"),
    [
        ({"config": dict}, "is no PluginConfig"),
        ({"config": "tests.core.config.urn:Nothing"}, "can't be imported"),
        ({"config": "not_installed:Config"}, "can't be imported"),
        ({"config": Other}, "another Config than the one registered beside it"),
    ],
)
def test_a_registered_config_is_checked_when_it_is_used(beside: dict[str, Any], error: str) -> None:
    assert registering(**beside).ok
    told = refused("transition=beside", check=composed)
    assert isinstance(told, PluginError) and error in str(told) and "besides" in str(told)
