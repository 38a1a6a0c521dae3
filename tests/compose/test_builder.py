"""What a component declares is checked when it is built."""

from __future__ import annotations

import logging
from types import MappingProxyType

import pytest
from pydantic import BaseModel

from coterie import Plugin, PluginConfig
from coterie.core.errors import ConfigError, PluginError
from coterie.testing import build, coterie_run
from coterie.testing.support.toys import GAME, EchoRole, NumberGame
from tests.compose.test_kinds import Misspelt

HERE = "tests.compose.test_builder"


def made(kind, **members):
    """Build a plugin of a kind whose class has these members."""
    bases = {
        "environment": (NumberGame,),
        "reward": (Source,),
        "role": (EchoRole,),
        "transition": (Silence,),
    }[kind]
    globals()["Made"] = type("Made", bases, members)
    return build(kind, f"{HERE}:Made")


class Silence(Plugin):
    async def tell(self, role, state, history, environment):
        return ()


class Source(Plugin):
    scope = "joint"
    components = {"right": "increment"}
    weights = {}
    policy_fault = 0.0

    async def score(self, view):
        return {}


class Loose(NumberGame):
    class Config(BaseModel):
        start: int = 3


Late = type(
    "Late",
    (Plugin,),
    {
        {"acting_roles": "acting_role"}.get(name, name): value
        for name, value in vars(NumberGame).items()
        if not name.startswith("__")
    },
)


class Fails(NumberGame):
    def __init__(self, config, build):
        raise KeyError("board")


def test_misspelt_members_are_warned_of_once_a_class(caplog):
    caplog.set_level(logging.WARNING, logger="coterie")

    class Twice(Misspelt):
        pass

    globals()["Twice"] = Twice
    for _ in range(2):
        coterie_run(env={"type": f"{HERE}:Twice"}, order=["one"])
    messages = [record.getMessage() for record in caplog.records]
    name = f"environment '{HERE}:Twice' of tests has"
    assert messages == [
        f"{name} `diagnoze`, which nothing reads: did you mean `diagnose`?",
        f"{name} `not_sumable`, which nothing reads: did you mean `not_summable`?",
        f"{name} `vocabulry`, which nothing reads: did you mean `vocabulary`?",
    ]
    assert {record.name for record in caplog.records} == {"coterie"}


def test_a_missing_member_names_the_one_that_is_near():
    with pytest.raises(PluginError, match="lacks acting_roles") as caught:
        build("environment", f"{HERE}:Late")
    assert "`acting_role`, which nothing reads: did you mean `acting_roles`?" in str(caught.value)
    assert "of tests" in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "members", "texts"),
    [
        ("environment", {"roles": "one"}, ("`roles` is 'one'",)),
        ("environment", {"roles": ("one", 2)}, ("`roles`",)),
        ("environment", {"components": ["sum"]}, ("`components` is ['sum']",)),
        ("environment", {"components": {"sum": "incremental"}}, ("did you mean 'increment'?",)),
        ("environment", {"weights": {"sum": "1"}}, ("`weights`", "valid number")),
        ("environment", {"weights": {"smu": 1.0}}, ("`weights` names ['smu']", "did you mean 'sum'?")),
        ("environment", {"not_summable": "sum"}, ("`not_summable` is 'sum'",)),
        ("environment", {"concurrent": "no"}, ("`concurrent` is 'no'",)),
        ("environment", {"concurrent": property(lambda self: 1)}, ("`concurrent` is 1",)),
        ("reward", {"scope": "joints"}, ("`scope` is 'joints'", "did you mean 'joint'?")),
        ("reward", {"policy_fault": None}, ("`policy_fault` is None",)),
        ("reward", {"calls_per_view": 1.5}, ("`calls_per_view` is 1.5",)),
        ("reward", {"calls_per_view": -2}, ("`calls_per_view` is -2",)),
        ("transition", {"calls_per_view": -2}, ("`calls_per_view` is -2", "0 or more")),
        ("reward", {"background": 1}, ("`background` is 1",)),
        ("reward", {"weights": {"wrong": 1.0}}, ("`weights` names ['wrong']",)),
        ("role", {"remembers": "yes"}, ("`remembers` is 'yes'",)),
    ],
)
def test_an_attribute_of_the_wrong_type_is_refused(kind, members, texts):
    with pytest.raises(PluginError) as caught:
        made(kind, **members)
    message = str(caught.value)
    assert all(text in message for text in (*texts, f"{kind} '{HERE}:Made' of tests", "fix: ")), message


@pytest.mark.parametrize(
    ("kind", "members"),
    [
        ("environment", {"not_summable": ["sum"], "concurrent": True, "weights": {"sum": 1}}),
        ("environment", {"not_summable": frozenset({"sum"})}),
        ("reward", {"calls_per_view": 0, "background": False}),
        ("reward", {"components": MappingProxyType({"right": "increment"})}),
    ],
)
def test_attributes_of_the_declared_type_pass(kind, members):
    made(kind, **members)


def test_a_config_that_is_no_plugin_config_is_refused():
    with pytest.raises(PluginError, match="is no PluginConfig") as caught:
        build("environment", f"{HERE}:Loose")
    assert f"environment '{HERE}:Loose' of tests" in str(caught.value)
    globals()["Made"] = type("Made", (NumberGame,), {"Config": {"start": 3}})
    with pytest.raises(PluginError, match="is no PluginConfig"):
        build("environment", f"{HERE}:Made")


def test_a_constructor_that_fails_is_named():
    with pytest.raises(KeyError) as caught:
        build("environment", f"{HERE}:Fails")
    line = Fails.__init__.__code__.co_firstlineno + 1
    (note,) = caught.value.__notes__
    assert note.startswith(f"in environment '{HERE}:Fails' of tests: constructor (")
    assert note.endswith(f"test_builder.py, line {line})")


def test_an_unknown_setting_with_no_near_one_names_the_component_that_lacks_it():
    with pytest.raises(ConfigError) as caught:
        build("environment", {"type": "plan_path", "zzz": 3})
    assert caught.value.path == "env.zzz"
    assert caught.value.why == "environment 'plan_path' has no such setting"


def test_settings_are_the_users_and_get_no_note():
    assert issubclass(NumberGame.Config, PluginConfig)
    with pytest.raises(Exception, match="tasks") as caught:
        build("environment", {"type": GAME, "tasks": "many"})
    assert not hasattr(caught.value, "__notes__")
