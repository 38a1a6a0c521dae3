"""`coterie plugins show` and `coterie plugins --hooks`: what a plugin is, broken or not."""

from __future__ import annotations

import json
from typing import Annotated

import pytest
from pydantic import Field
from ruamel.yaml import YAML

from coterie.cli.commands.schema import plugin_schema
from coterie.cli.plugin_details import example
from coterie.compose.described import fields, hooks
from coterie.core.plugins import KINDS, UNCONFIGURED, Composed, MayChange, Plugin, PluginConfig
from coterie.core.protocols import RewardSource
from coterie.discovery import Entry, hookspecs, plugins
from coterie.discovery.validation import validate
from tests.cli.support import anew, coterie, plugin_package, process

PLUGIN = '''
    """Rewards of a made-up package."""
    from typing import Annotated

    from pydantic import Field

    from coterie import MayChange, Plugin, PluginConfig, hookimpl

    coterie_api = ">=1.0,<2"


    class Polite(Plugin):
        """Pays for politeness.

        The words are counted.
        """

        class Config(PluginConfig):
            words: tuple[str, ...] = Field(("please",), description="What counts.")
            most: Annotated[int, MayChange(exact=True)] = 3
            """The most that is paid."""
            file: str = Field(examples=["words.txt"])

        components = {"polite": "increment"}

        async def open(self):
            pass

        async def close(self):
            pass


    @hookimpl
    def register_rewards(register):
        register("polite", Polite)
        register("environment", Polite)


    @hookimpl
    def step_ended(step):
        pass
'''


def shown(*arguments):
    done = coterie("plugins", "show", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    return plugin_package(tmp_path_factory.mktemp("site"), "acme-polite", PLUGIN)


def test_a_plugin_of_a_package_is_shown_with_all_that_it_has(installed):
    (one,) = json.loads(anew("plugins", "show", "polite", "--json", path=installed).stdout)
    assert (one["kind"], one["distribution"], one["version"]) == ("reward", "acme-polite", "1.2")
    assert one["entry_point"] == "acme_polite = acme_polite" and one["target"] == "acme_polite:Polite"
    assert one["file"] == f"{installed}/acme_polite.py" and one["line"] == 12
    assert one["docstring"].startswith("Pays for politeness.") and one["docstring"].endswith("counted.")
    rows = [tuple(setting.values())[:-1] for setting in one["config"]]
    assert rows == [
        ("words", "tuple[str, ...]", ["please"], False, "What counts.", ""),
        ("most", "int", 3, False, "The most that is paid.", "exact"),
        ("file", "str", None, True, "", ""),
    ]
    assert YAML(typ="safe").load(one["example"]) == {
        "rewards": {"polite": {"type": "polite", "file": "words.txt", "words": ["please"], "most": 3}}
    }
    assert one["hooks"] == ["register_rewards", "step_ended"]
    assert [(member["signature"], member["capability"]) for member in one["members"]] == [
        ("async open()", "Opens"),
        ("async close()", "Closes"),
    ]


def test_a_name_that_another_has_is_shown_by_its_distribution_and_with_the_other_one(installed):
    text = anew("plugins", "show", "reward:environment", path=installed).stdout
    assert text.count("reward 'environment'\n") == 2 and "from         coterie" in text
    assert "from         acme-polite 1.2" in text and "already registered by coterie" in text
    assert "fix: choose another name, or select it as 'acme-polite:environment'" in text
    assert "most" in text and "required" in text and "The most that is paid." in text


def test_a_distribution_is_shown_with_its_errors(tmp_path):
    path = plugin_package(tmp_path, "acme-broken", "import a_library_that_is_not_there")
    done = anew("plugins", "show", "acme-broken", path=path)
    assert done.exit_code == 0 and "acme-broken 1.2 broken" in done.stdout
    assert "No module named 'a_library_that_is_not_there'" in done.stdout
    assert "fix: pip install the package that has 'a_library_that_is_not_there'" in done.stdout


def test_a_plugin_file_is_shown(tmp_path):
    file = tmp_path / "of_mine.py"
    file.write_text(
        "from coterie import Plugin, hookimpl\n\n\nclass Mine(Plugin):\n    '''Mine alone.'''\n\n\n"
        "@hookimpl\ndef register_roles(register):\n    register('mine', Mine)\n"
    )
    (one,) = json.loads(anew("plugins", "show", "of_mine.py:mine", "--json", "-p", file).stdout)
    assert one["distribution"] == str(file) and one["entry_point"] == "" and one["docstring"] == "Mine alone."


def test_all_kinds_of_a_name_are_shown_and_a_kind_chooses():
    assert [one["kind"] for one in shown("coach")] == ["reward", "command"]
    assert [one["kind"] for one in shown("command:coach")] == ["command"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("at_gpro", "no plugin is called 'at_gpro'\n  fix: did you mean 'at_grpo'?"),
        ("reward:coahc", "no reward plugin is called 'coahc'\n  fix: did you mean 'coach'?"),
        ("coterie:coahc", "'coterie' registers nothing called 'coahc'\n  fix: did you mean 'coach'?"),
        ("rewrad:coach", "'rewrad' is no kind and no distribution\n  fix: did you mean 'reward'?"),
    ],
)
def test_an_unknown_name_is_told_with_the_nearest(name, message):
    done = coterie("plugins", "show", name)
    assert done.exit_code == 2 and message in done.stderr


def test_a_plugin_without_its_extra_shows_what_can_be_shown_and_names_the_extra():
    hidden = "import sys; sys.modules['torch'] = None"
    done = process("plugins", "show", "trainer:torch", code=hidden)
    assert done.returncode == 0 and "fix: pip install 'coterie[torch]'" in done.stdout
    assert "micro_tokens" in done.stdout and "16384" in done.stdout  # its Config is registered beside it
    assert "of a policy's table it reads" in done.stdout and "learning_rate" in done.stdout
    assert "torch_trainer.py" in done.stdout and "trainer:\n    type: torch" in done.stdout
    assert "Trains" in done.stdout or "Updates" in done.stdout  # the docstring, read from the source


class Inner(PluginConfig):
    depth: int = 2
    """How deep."""


class Config(PluginConfig):
    judge: Annotated[RewardSource, Composed("reward")] = Field(description="Who says so.")
    rate: Annotated[float | None, MayChange()] = Field(0.5, gt=0, le=1)
    inner: Inner = Inner()
    deeper: Inner = Inner(depth=9)
    by_name: dict[str, Inner] = {}
    home: str = Field(default_factory=lambda: {}["HOME_OF_MINE"])
    old: int | None = Field(None, deprecated="write `rate`")


def test_a_field_has_its_type_bounds_default_meaning_and_marks():
    rows = {field.name: field for field in fields(Config)}
    assert rows["judge"].type == "a reward" and rows["judge"].composed == "reward" and rows["judge"].required
    assert rows["rate"].type == "float > 0 <= 1 | null" and rows["rate"].may_change == "yes"
    assert rows["inner.depth"].default == 2 and rows["inner.depth"].meaning == "How deep."
    assert rows["deeper.depth"].default == 9  # of the table around it: what a run without the table has
    assert rows["home"].default == "<its default_factory raised KeyError>"
    assert rows["by_name.*.depth"].type == "int" and rows["by_name.*.depth"].default == 2
    assert rows["old"].meaning == "(deprecated: write `rate`)"


def test_an_example_and_a_schema_leave_out_a_default_that_raises():
    class Homeless(PluginConfig):
        home: str = Field(default_factory=lambda: {}["HOME_OF_MINE"])
        rate: float = 0.5

    class Mine(Plugin):
        Config = Homeless

    entry = Entry("reward", "mine", Mine, "acme")
    assert YAML(typ="safe").load(example(entry, Homeless)) == {
        "rewards": {"mine": {"type": "mine", "rate": 0.5}}
    }
    assert "default" not in plugin_schema(entry)["properties"]["home"]


UNKNOWABLE = {("engine", "scripted")}
"""Needs a function that can be imported."""


@pytest.mark.parametrize("kind", sorted(set(KINDS) - set(UNCONFIGURED)))
def test_the_example_of_every_built_in_component_is_a_table_that_its_config_accepts(kind):
    for entry in plugins().registry.entries(kind):
        model = entry.attribute("Config")
        if entry.distribution != "coterie" or model is None:
            continue
        text = example(entry, model)
        if (kind, entry.name) in UNKNOWABLE:
            assert text.startswith("# Not valid yet: ")
            continue
        table = YAML(typ="safe").load(text)
        while "type" not in table or isinstance(table["type"], dict):
            (table,) = table.values()
        assert table.pop("type") == entry.name
        table.pop("policy") if kind == "role" else None
        validate(model, table)  # raises


def test_every_hook_is_listed_with_its_signature_when_it_is_called_and_what_for():
    listed = json.loads(coterie("plugins", "--hooks", "--json").stdout)
    assert [hook["name"] for hook in listed] == [
        name for name, value in vars(hookspecs).items() if hasattr(value, "coterie_spec")
    ]
    assert all(hook["sentence"] and hook["when"] for hook in listed)
    by_name = {hook["name"]: hook for hook in listed}
    assert by_name["step_ended"]["signature"] == "(step: int, metrics: Mapping[str, Any]) -> None"
    assert by_name["step_ended"]["when"] == hookspecs.WHEN["step_ended"]
    assert set(hookspecs.WHEN) <= {hook.name for hook in hooks()}
    text = coterie("plugins", "--hooks").stdout
    assert "register_rewards(register: Register) -> None\n  Register reward sources" in text
