"""`check_plugin` catches broken plugins; `build`; the pytest plugin; imports stay light."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import click
import pytest

import coterie.testing
from coterie import Plugin, PluginConfig, PolicyConfig, hookimpl
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.errors import ConfigError, PluginError
from coterie.discovery import plugins
from coterie.plugins.algos.grpo import GRPO
from coterie.testing import build, check_plugin
from coterie.testing.support.toys import GAME, ROLE, EchoRole, NumberGame
from tests.compose.test_kinds import Misspelt
from tests.games import Matrix
from tests.testing.support import caught

RECIPE = """
env: {type: ledger, tasks: 3}
team: {order: [one], max_turns: 2, roles: {one: {type: speaker, policy: table}}}
policies: {table: {model: {init: tabular}, train: full}}
rewards: {environment: {type: environment}}
algorithm: at_grpo
sampler: {branches: 2}
engine: tabular
trainer: {type: tabular, learning_rate: 1.0}
schedule: {steps: 1, tasks_per_step: 2}
scales: {cpu: {schedule: {tasks_per_step: 4}}}
"""


def module(**targets: Any) -> Any:
    """A plugin that registers (name, target) by kind."""

    def hook(kind: str, pairs: Any) -> Any:
        @hookimpl(specname=f"register_{kind}s")
        def implementation(register):
            for name, target in pairs:
                register(name, target)

        return implementation

    return SimpleNamespace(__name__="mine", **{kind: hook(kind, pairs) for kind, pairs in targets.items()})


class Loose(Plugin):
    """A role whose settings accept unknown keys."""

    class Config(PluginConfig):
        model_config = {"extra": "ignore"}

    render = EchoRole.render
    parse = EchoRole.parse


class NoSettings(EchoRole):
    Config: Any = dict


class Lonely(EchoRole):
    def __init__(self) -> None:
        super().__init__()


class Misread(EchoRole):
    def parse(self, text: str) -> Any:
        return text


class Mute(Plugin):
    def parse(self, text: str, observation: Any) -> Any:
        return text


class Waiting(EchoRole):
    async def parse(self, text: str, observation: Any) -> Any:
        return text


class Direct(NumberGame):
    def step(self, state: Any, actions: Any, ctx: Any) -> Any:
        return None


class SlowEstimator(GRPO):
    async def __call__(self, batch: Any, state: Any) -> Any:
        return None


class Silent(EchoRole):
    parse: Any = None


@click.command()
def command() -> None:
    """Do nothing."""


@hookimpl
def register_role(register):
    """Misspelt."""


@hookimpl(specname="register_roles")
def asks_for_more(register, environment):
    pass


@hookimpl(specname="register_roles")
def fails(register):
    raise RuntimeError("boom")


def test_sound_plugins_pass(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(RECIPE)
    overlay = tmp_path / "large.yaml"
    overlay.write_text('summary: Large.\npolicies: {"*": {model: large}}\n')
    check_plugin(
        module(
            environment=[("ledger", NumberGame), ("matrix", "tests.games:Matrix")],
            role=[("speaker", EchoRole)],
            recipe=[
                ("mine", str(recipe)),
                ("shipped", "coterie.recipes:quickstart.yaml"),
            ],
            overlay=[("large", str(overlay)), ("ours", "coterie.recipes:overlays/l0.yaml")],
            command=[("nothing", command)],
        )
    )
    assert "ledger" not in plugins().registry.names("environment")  # the check leaves nothing behind


def shipped(tmp_path, text, kind="recipe"):
    """A plugin with an environment, a role and one file of a kind."""
    file = tmp_path / "shipped.yaml"
    file.write_text(text)
    targets = {"environment": [("ledger", NumberGame)], "role": [("speaker", EchoRole)]}
    return module(**targets, **{kind: [("shipped", str(file))]})


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("tasks: 3", "taks: 3", "env.taks: unknown key 'taks'\n  fix: did you mean 'tasks'?"),
        ("tasks: 3", "tasks: many", "env.tasks: input should be a valid integer"),
        ("type: ledger", "type: leger", "unknown environment 'leger'\n"),
        ("branches: 2", "branchs: 2", "sampler.branchs: unknown key"),
        ("steps: 1,", "step: 1,", "schedule.step: unknown key"),
        ("learning_rate", "learn_rate", "trainer.learn_rate: unknown key"),
        ("policy: table", "polcy: table", "team.roles.one.polcy: unknown key"),
        ("type: environment", "type: environment, flor: 1", "rewards.environment.flor: unknown key"),
        ("train: full", "trian: full", "policies.table.trian: unknown key"),
        ("tasks_per_step: 4", "tasks_per_stp: 4", "schedule.tasks_per_stp: unknown key"),
        ("order: [one]", "order: [two]", "unknown role 'two'"),
    ],
)
def test_a_misspelt_key_in_a_shipped_recipe_is_caught(tmp_path, right, wrong, message):
    check_plugin(shipped(tmp_path, RECIPE))
    assert right in RECIPE
    caught(message.partition("\n")[0], check_plugin, shipped(tmp_path, RECIPE.replace(right, wrong)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sampller: {branches: 2}", "unknown key 'sampller'\n  fix: did you mean 'sampler'?"),
        ("trainer: {type: tabular, learning_rte: 1}", "trainer.learning_rte: unknown key"),
        ("rewards: {x: {type: environment, flor: 1}}", "rewards.x.flor: unknown key"),
        ("schedule: {step: 2}", "schedule.step: unknown key"),
        ("scales: {cpu: {shedule: {steps: 2}}}", "scales.cpu.shedule: unknown key"),
        ("every_scale: {shedule: {steps: 2}}", "every_scale.shedule: unknown key"),
    ],
)
def test_a_misspelt_key_in_an_overlay_is_caught(tmp_path, text, message):
    caught(message.partition("\n")[0], check_plugin, shipped(tmp_path, text, "overlay"))


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (
            {"environment": [("plan_path", NumberGame)]},
            "environment 'plan_path' of mine: the name is taken by coterie",
        ),
        ({"command": [("run", command)]}, "command 'run' of mine: the name is taken by coterie"),
        ({"recipe": [("quickstart", "coterie.recipes:magrpo.yaml")]}, "the name is taken by coterie"),
    ],
)
def test_a_name_that_another_distribution_has_is_caught(targets, message):
    caught(message, check_plugin, module(**targets))


def register_environments(register):
    """A hook whose author forgot the mark."""


def test_a_hook_without_its_mark_is_caught():
    sound = module(role=[("speaker", EchoRole)])
    sound.register_environments = register_environments
    caught("`register_environments` is never called: `@coterie.hookimpl` is missing", check_plugin, sound)


@pytest.mark.parametrize(("plugin", "message"), [
    (SimpleNamespace(register_role=register_role), "did you mean 'register_roles'"),
    (module(environment=[("misspelt", Misspelt)]), "`diagnoze`, which nothing reads: did you mean"),
    (SimpleNamespace(hook=asks_for_more), "an argument 'environment'"),
    (SimpleNamespace(hook=fails), "boom"),
    (SimpleNamespace(), "implements no hook"),
    (module(role=[("speaker", EchoRole), ("speaker", EchoRole)]), "already registered"),
    (module(role=[("a:b", EchoRole)]), "is not a plain word"),
    (module(role=[("speaker", "tests.games:Chair")]), "can't be imported"),
    (module(role=[("speaker", "tests.no_such_module:PlainRole")]), "can't be imported"),
    (module(role=[("speaker", EchoRole())]), "role 'speaker' of mine: is an EchoRole"),
    (module(role=[("speaker", Mute)]), "Mute lacks render"),
    (module(role=[("speaker", Misread)]), "can't be called as (self, text: str, observation: Any) -> Any"),
    (module(role=[("speaker", Silent)]), "Silent lacks parse"),
    (module(role=[("speaker", Waiting)]), "Waiting.parse: is asynchronous"),
    (module(environment=[("game", Direct)]), "Direct.step: is not asynchronous"),
    (module(estimator=[("slow", SlowEstimator)]), "SlowEstimator.__call__: is asynchronous"),
    (module(role=[("speaker", Lonely)]), "cls(config, build)"),
    (module(role=[("speaker", Loose)]), "takes unknown keys"),
    (module(role=[("speaker", NoSettings)]), "Config is no PluginConfig"),
    (module(environment=[("matrix", EchoRole)]), "EchoRole lacks tasks, reset"),
    (module(recipe=[("mine", "/nowhere/mine.yaml")]), "there is no file"),
    (module(recipe=[("mine", "coterie.recipes:nothing.yaml")]), "there is no file"),
    (module(recipe=[("mine", __file__)]), "is not "),
    (module(overlay=[("mine", "/nowhere/mine.yaml")]), "there is no file"),
    (module(overlay=[("mine", "coterie.recipes:magrpo.yaml")]), "an overlay has no 'extends'"),
    (module(command=[("nothing", print)]), "is a builtin_function_or_method"),
])  # fmt: skip
def test_a_broken_plugin_is_caught(plugin, message, monkeypatch):
    caught(message, check_plugin, plugin)
    monkeypatch.setenv("COTERIE_STRICT_PLUGINS", "1")  # the check reports every error, strict or not
    caught(message, check_plugin, plugin)


class NoPolicy(TabularTrainer):
    Policy = dict


class Beside(PluginConfig):
    """The Config of no plugin here."""


def registering(**beside):
    @hookimpl
    def register_trainers(register):
        register("mine", TabularTrainer, **beside)

    return SimpleNamespace(register_trainers=register_trainers)


def test_what_is_registered_beside_a_target_is_checked():
    check_plugin(registering(config=TabularTrainer.Config, policy=TabularTrainer.Policy))
    caught("another Config", check_plugin, registering(config=Beside))
    caught("another Policy", check_plugin, registering(policy=PolicyConfig))
    caught("is no PluginConfig", check_plugin, registering(config=dict))
    caught("can't be imported", check_plugin, registering(config="tests.no_such_module:Config"))
    caught("neither a class", check_plugin, registering(policy=3))
    caught("Policy is no PolicyConfig", check_plugin, module(trainer=[("mine", NoPolicy)]))


def test_a_missing_extra_is_no_fault_unless_asked(monkeypatch, tmp_path):
    (tmp_path / "wants_mcp.py").write_text("import mcp\nclass Tracker: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "mcp", None)
    plugin = module(tracker=[("remote", "wants_mcp:Tracker")])
    check_plugin(plugin)
    caught("coterie[mcp]", check_plugin, plugin, extras=True)


# --------------------------------------------------------------------------------------------------- build


def test_build_makes_what_a_run_makes():
    game = build(
        "environment",
        {"type": GAME, "tasks": 3},
        order=["one", ["two", "three"]],
    )
    assert len(game.tasks("train", 0)) == 3 and game.build.path == "env"
    assert list(game.build.run.team.roles) == ["one", "two", "three"]
    role = build(
        "role",
        ROLE,
        name="critic",
        env={"type": "tests.games:Matrix"},
        order=["row"],
    )
    assert role.build.path == "team.roles.critic" and role.build.name == "critic"
    assert isinstance(role.build.environment, Matrix)
    reward = build("reward", {"type": "function", "function": len}, name="length", seed=5)
    assert list(reward.components) == ["length"] and reward.build.run.seed == 5
    assert build("tracker", "jsonl").build.path == "trackers.jsonl"
    assert build("estimator", "grpo").build.path == "algorithm"


def test_build_raises_what_a_run_would_raise(tmp_path):
    with pytest.raises(ConfigError, match="unknown key 'start'"):
        build("environment", {"type": GAME, "start": 3})
    with pytest.raises(PluginError, match="did you mean 'plan_path'"):
        build("environment", "plan_pth")
    with pytest.raises(PluginError, match="did you mean 'environment'"):
        build("enviroment", "plan_path")
    with pytest.raises(ConfigError, match="the environment has no diagnosis"):
        build("transition", "diagnosis")


def test_build_composes_fields(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"q": "{n}", "answer": {n}}}\n' for n in range(60)))
    for table, more in (
        ({"type": "team_task", "data": {"type": "jsonl", "path": str(path)}}, {}),
        ({"type": "team_task"}, {"data": {"type": "jsonl", "path": str(path)}}),
    ):
        assert len(build("environment", table, **more).tasks("train", 0)) > 20


# ------------------------------------------------------------------------------------------- importing it


def test_every_public_name_loads():
    for name in coterie.testing.__all__:
        public = getattr(coterie.testing, name)
        assert public.__doc__, name
    assert set(coterie.testing.__all__) <= set(dir(coterie.testing))
    with pytest.raises(AttributeError):
        _ = coterie.testing.check_nothing


def python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_pytest_loads_the_plugin_and_nothing_else_with_it():
    python("""
        import sys
        import pytest
        before = set(sys.modules)
        import coterie.testing.fixtures
        new = {name.partition(".")[0] for name in set(sys.modules) - before}
        assert new <= {"coterie"} | set(sys.stdlib_module_names) | {"pluggy"}, new
        from importlib.metadata import entry_points
        (entry,) = [e for e in entry_points(group="pytest11") if e.name == "coterie"]
        assert entry.value == "coterie.testing.fixtures"
    """)


def test_the_kit_needs_no_torch_and_no_pytest():
    python("""
        import sys
        sys.modules["torch"] = sys.modules["transformers"] = sys.modules["pytest"] = None
        import coterie.testing as kit
        for name in kit.__all__:
            getattr(kit, name)
        kit.check_environment(kit.build("environment", {"type": "plan_path", "size": 4}),
                              roles=["solver"], act=["[U]", "[R, D]", "?"], episodes=3)
        kit.check_estimator(kit.build("estimator", "grpo"), seeds=1)
        kit.check_engine(kit.build("engine", "tabular"), model={"init": "tabular"})
        kit.check_loss(kit.build("loss", "ppo_clip"))
        kit.check_chat_format(kit.build("chat_format", "template"))
    """)


def test_the_fixture_is_build(coterie_build):
    assert coterie_build is build
