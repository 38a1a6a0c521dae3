"""Capabilities: the table by kind, and names that a plugin misspells."""

from __future__ import annotations

import inspect
from importlib import import_module
from pkgutil import iter_modules

import pytest

import coterie.core.protocols
from coterie import GroupEstimator, Plugin, PluginConfig, PolicyConfig, RowEstimator, TokenLoss
from coterie.backends.trackers.jsonl import JsonlTracker
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.compose import compose
from coterie.compose.kinds import CAPABILITIES, PROTOCOL, check_coroutines, ignored, members
from coterie.core.errors import MissingExtra, PluginError
from coterie.core.protocols.chat_format import Codec, DescribesTools
from coterie.discovery import members as discovery_members, plugins
from coterie.discovery.members import (
    Demonstrates,
    Diagnoses,
    HasNotSummable,
    HasTokenIds,
    HasVocabulary,
    RecordsTasks,
    StepsConcurrently,
)
from coterie.plugins.algos.at_grpo import ATGRPO
from coterie.plugins.losses.ppo_clip import PPOClip
from coterie.recipes import load
from coterie.testing import check_tracker
from coterie.testing.support.toys import EchoRole, NumberGame
from tests import games
from tests.testing.support import caught


def test_every_capability_belongs_to_a_kind():
    """A capability that the table lacks would be neither documented nor spell-checked."""
    defined = set()
    modules = [
        import_module(f"coterie.core.protocols.{m.name}")
        for m in iter_modules(coterie.core.protocols.__path__)
    ]
    for module in (*modules, discovery_members):
        for value in vars(module).values():
            if inspect.isclass(value) and getattr(value, "_is_runtime_protocol", False):
                defined.add(value)
    tabled = {protocol for protocols in CAPABILITIES.values() for protocol in protocols}
    of_codecs = {Codec, DescribesTools, HasTokenIds}  # a chat format makes them; nobody registers one
    assert defined == {*PROTOCOL.values(), *tabled, *of_codecs}
    assert not tabled & {*PROTOCOL.values(), *of_codecs}


def test_members_are_told_from_attributes():
    assert members(RecordsTasks, StepsConcurrently) == {"concurrent": False, "record": True, "task_of": True}
    assert members(PROTOCOL["sampler"])["plan"] is False, "a property is no method"


def test_a_plugin_has_a_capability_by_its_members_alone():
    assert isinstance(games.Matrix(), HasVocabulary)
    assert not isinstance(NumberGame(), HasVocabulary)
    assert not isinstance(type("Without", (games.Matrix,), {"vocabulary": None})(), HasVocabulary)
    assert not isinstance(games.Matrix(), (Diagnoses, Demonstrates, HasNotSummable))


class Misspelt(NumberGame):
    not_sumable = ("sum",)

    def diagnoze(self, state, role):
        return "as ever"

    def vocabulry(self):
        return ["one"]


def test_misspelt_members_are_found_with_the_name_that_was_meant():
    texts = ignored(Misspelt(), "environment")
    assert texts == [
        "`diagnoze`, which nothing reads: did you mean `diagnose`?",
        "`not_sumable`, which nothing reads: did you mean `not_summable`?",
        "`vocabulry`, which nothing reads: did you mean `vocabulary`?",
    ]
    assert ignored(Misspelt, "environment") == texts, "of a class as of an object"


@pytest.mark.parametrize(
    ("kind", "name", "value", "meant"),
    [
        ("environment", "concurent", True, "concurrent"),
        ("environment", "finger_prints", lambda self, task: {}, "fingerprints"),
        ("environment", "not_sumable", property(lambda self: ("sum",)), "not_summable"),
        ("role", "remember", True, "remembers"),
        ("reward", "backgroud", True, "background"),
        ("reward", "call_per_view", 1, "calls_per_view"),
        ("estimator", "stops_above", 1.0, "stop_above"),
        ("estimator", "sum_over_turns", True, "sums_over_turns"),
        ("trainer", "set_progres", lambda self, share: None, "set_progress"),
        ("loss", "lenght_constant", 8.0, "length_constant"),
        ("sandbox", "reports", lambda self: (), "report"),
        ("tool", "schema", (), "schemas"),
        ("tool", "opens", lambda self: None, "open"),
        ("tool", "opne", lambda self: None, "open"),
        ("chat_model", "clsoe", lambda self: None, "close"),
        ("reward", "oepn", lambda self: None, "open"),
    ],
)
def test_a_near_name_is_found_for_every_kind(kind, name, value, meant):
    texts = ignored(type("Mine", (Plugin,), {name: value})(), kind)
    assert [text for text in texts if f"`{name}`" in text and text.endswith(f"`{meant}`?")], texts


@pytest.mark.parametrize(
    "members",
    [
        {"records": ()},  # the rows of its data, not the method `record`
        {"steps": 3},  # it has `step`
        {"field": lambda self: "n"},  # a method, and `fields` is none
        {"board": 3, "height": 4, "solver": None},
        {"_diagnoze": None},
        {"digest_of": "text"},
    ],
)
def test_other_attributes_are_nobodys_business(members):
    assert ignored(type("Mine", (NumberGame,), members)(), "environment") == []


@pytest.mark.parametrize(("name", "value"), [("open", None), ("use_engine", 3), ("close", "later")])
def test_a_method_that_is_none_is_told(name, value):
    mine = type("Mine", (Plugin,), {name: value})
    assert ignored(mine, "chat_model") == [f"`{name}`, which is {value!r} and no method"]
    assert ignored(mine(), "chat_model") == ignored(mine, "chat_model")
    inherits = type("Inherits", (type("Base", (Plugin,), {name: lambda self: None}),), {name: None})
    assert ignored(inherits, "chat_model") == [], "None takes an inherited method away"


def test_attributes_that_a_constructor_sets_count():
    game = NumberGame()
    game.concurent = True
    assert ignored(game, "environment") == ["`concurent`, which nothing reads: did you mean `concurrent`?"]


def test_a_capability_in_part_is_told():
    half = type("Half", (NumberGame,), {"task_of": lambda self, record, id: None})()
    assert ignored(half, "environment") == ["`task_of` alone, which nothing reads without `record`"]
    assert not isinstance(half, RecordsTasks)


@pytest.mark.parametrize("kind", PROTOCOL)
def test_no_built_in_plugin_has_a_misspelt_member(kind):
    for entry in plugins().registry.entries(kind):
        if entry.distribution == "coterie":
            try:
                target = entry.load()
            except MissingExtra:
                continue
            assert ignored(target, kind) == [], entry.name


@pytest.mark.parametrize(
    ("base", "kind", "name", "value", "member"),
    [
        (GroupEstimator, "estimator", "retuns", "episode", "returns"),
        (GroupEstimator, "estimator", "gruop", "task", "group"),
        (GroupEstimator, "estimator", "basline", "none", "baseline"),
        (GroupEstimator, "estimator", "chek", lambda self, plan, team: None, "check"),
        (RowEstimator, "estimator", "metrcs", lambda self, rows, values: {}, "metrics"),
        (TokenLoss, "loss", "nedes", ("values",), "needs"),
        (TabularTrainer, "trainer", "Polcy", PolicyConfig, "Policy"),
        (TabularTrainer, "trainer", "optimiser_steps", lambda self: 1, "optimizer_steps"),
        (Plugin, "trainer", "Polcy", PolicyConfig, "Policy"),
        (NumberGame, "environment", "Confg", PluginConfig, "Config"),
    ],
)
def test_a_misspelt_override_of_a_base_is_told(base, kind, name, value, member):
    mine = type("Mine", (base,), {"__module__": "somebody", name: value})
    text = f"`{name}`, which nothing reads: did you mean `{member}`?"
    assert text in ignored(mine, kind)
    # Once the base's own name is set too, the other one is somebody's helper.
    both = type(
        "Mine", (base,), {"__module__": "somebody", name: value, member: getattr(base, member, value)}
    )
    assert text not in ignored(both, kind)


def test_what_derives_from_a_base_and_adds_names_of_its_own_passes():
    class Mine(GroupEstimator):
        returns = "episode"
        group = "task"
        temperature = 0.5

        def squash(self, values):
            return values

    assert ignored(Mine, "estimator") == []


def _asynchronous(base, name):
    """The class, with one of its methods as `async def`."""

    async def method(self, *args, **kwargs):
        return None

    return type("Changed", (base,), {name: method})


@pytest.mark.parametrize(
    ("kind", "base", "name"),
    [
        ("tracker", JsonlTracker, "track"),
        ("tracker", JsonlTracker, "close"),
        ("environment", games.Matrix, "outcome"),
        ("environment", games.Matrix, "vocabulary"),
        ("role", EchoRole, "parse"),
        ("estimator", ATGRPO, "__call__"),
        ("loss", PPOClip, "__call__"),
    ],
)
def test_an_asynchronous_method_that_nothing_awaits_is_refused(kind, base, name):
    check_coroutines(base(base.Config() if hasattr(base, "Config") else None), kind)
    changed = _asynchronous(base, name)
    with pytest.raises(
        PluginError, match=f"`{name}` is a coroutine function, and nothing awaits it"
    ) as refused:
        check_coroutines(changed(changed.Config() if hasattr(base, "Config") else None), kind)
    assert refused.value.fix == f"def {name}"


def test_feedback_of_an_environment_may_be_a_coroutine():
    class Both(games.Matrix):
        async def diagnose(self, state, role):
            return ""

    check_coroutines(Both(), "environment")


AsyncTracker = _asynchronous(JsonlTracker, "track")


def test_a_run_with_an_asynchronous_tracker_is_not_started():
    tracker = "trackers.lines={type: tests.compose.test_kinds:AsyncTracker}"
    with pytest.raises(PluginError, match="`track` is a coroutine function") as refused:
        compose(load("tests/recipes/tabular.yaml", overrides=[tracker]))
    assert refused.value.path == "trackers.lines"
    caught("Changed.track: is asynchronous", check_tracker, AsyncTracker())
