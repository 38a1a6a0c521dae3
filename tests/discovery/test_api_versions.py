"""API versions that plugins state, and deprecations: a plugin out of range is reported and not called."""

from __future__ import annotations

import logging

import pytest
from pydantic import Field

import coterie
from coterie import deprecations
from coterie.compose.builder import check_members
from coterie.compose.tables import warn_of_settings
from coterie.core.errors import PluginError
from coterie.core.plugins import PluginConfig
from coterie.core.plugins.origin import Origin
from coterie.deprecations import Deprecation
from coterie.discovery import API_VERSION, Plugins, Report, api_version
from coterie.discovery.files import load_plugin_file

FILE = """\
from coterie import hookimpl

coterie_api = ">=2"


@hookimpl
def register_rewards(register):
    raise RuntimeError("boom")
"""


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")

    __str__ = __repr__


def test_the_version_is_public():
    assert coterie.API_VERSION == API_VERSION == "1.0"


@pytest.mark.parametrize("statement", [">=1.0,<2", "==1.*", "~=1.0", "", None])
def test_a_range_with_this_version_is_taken(statement):
    assert api_version.refusal(statement, "acme") == ("", "")


@pytest.mark.parametrize(
    ("statement", "what", "fix"),
    [
        (">=2.0,<3", "version >=2.0,<3 of Coterie's plugin API, and this Coterie", "pip install -U coterie"),
        ("~=1.3", "has 1.0: its hooks are not called", "pip install -U coterie"),
        ("==2.*", "has 1.0", "pip install -U coterie"),
        (">1.0", "version >1.0", "pip install -U coterie"),
        ("<1.0", "version <1.0", "pip install -U acme"),
        (">=0.3,<1", "has 1.0", "pip install -U acme"),
        ("!=1.0", "has 1.0", "pip install -U acme"),
        ("one", "`coterie_api = 'one'` is no range of versions", '`coterie_api = ">=1.0,<2"`'),
        (1.0, "`coterie_api = 1.0` is no range", '`coterie_api = ">=1.0,<2"`'),
    ],
)
def test_another_range_is_refused_with_which_of_the_two_to_update(statement, what, fix):
    what_is_wrong, advice = api_version.refusal(statement, "acme")
    assert what in what_is_wrong and fix in advice


def test_a_statement_that_no_text_can_be_made_of_is_refused_too():
    for statement, shown in ((">=" + "1" * 5000, "'>=111"), (Unprintable(), "a Unprintable`")):
        what, fix = api_version.refusal(statement, "acme")
        assert f"`coterie_api = {shown}" in what and "is no range of versions" in what and ">=1.0,<2" in fix
        assert len(what) < 200


def test_a_file_out_of_range_is_refused_before_its_hooks_are_called(tmp_path):
    file = tmp_path / "for_later.py"
    file.write_text(FILE)
    with pytest.raises(PluginError) as caught:
        load_plugin_file(file, Plugins())
    assert "version >=2" in str(caught.value) and "update Coterie" in str(caught.value)
    assert "boom" not in str(caught.value)


def test_an_import_that_fails_since_the_version_is_another_one_says_so(tmp_path):
    file = tmp_path / "for_later_names.py"
    file.write_text('from coterie import NameOfLater\n\ncoterie_api = ">=7,<8"\n')
    with pytest.raises(PluginError, match=r"(?s)version >=7,<8.*fix: update Coterie"):
        load_plugin_file(file, Plugins())
    file = tmp_path / "for_now.py"
    file.write_text('from coterie import NameOfLater\n\ncoterie_api = ">=1"\n')
    with pytest.raises(PluginError, match=r"cannot import name 'NameOfLater'"):
        load_plugin_file(file, Plugins())


@pytest.fixture
def planted(monkeypatch):
    monkeypatch.setattr(deprecations, "WARNED", set())

    def plant(*entries):
        monkeypatch.setattr(deprecations, "DEPRECATIONS", entries)

    return plant


def test_nothing_is_deprecated_that_is_not_there():
    """An entry of the table names something that still works, and a version that is to come."""
    for entry in deprecations.DEPRECATIONS:
        assert entry.what != "name" or hasattr(coterie, entry.old)
        assert int(entry.goes.partition(".")[0]) > int(API_VERSION.partition(".")[0])


def test_a_deprecated_name_warns_once_a_package(planted, caplog):
    planted(Deprecation("name", "k3", "coterie.k2", "2.0"))
    code = "from coterie import k3\nimport coterie\ncoterie.k3\ncoterie.k2"
    for module in ("acme.rewards", "acme.losses", "zeta"):
        exec(code, {"__name__": module})
    text = "coterie.k3 is deprecated and goes with version 2.0 of the plugin API: write coterie.k2"
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [f"plugin acme: {text}", f"plugin zeta: {text}"]
    assert all(record.levelno == logging.WARNING for record in caplog.records)


def test_a_deprecated_hook_warns_and_is_still_called(planted, caplog):
    planted(Deprecation("hook", "register_rewards", "another", "2.0"))

    class Acme:
        @coterie.hookimpl
        def register_rewards(self, register):
            register("mine", "json:loads")

    manager, report = Plugins(), Report("acme", "acme-dist", "1")
    manager.add(Acme(), report)
    assert report.ok and manager.registry.names("reward") == ["mine"]
    text = "hook register_rewards is deprecated and goes with version 2.0 of the plugin API: write another"
    assert report.warnings == [text] and f"plugin 'acme' of acme-dist: {text}" in caplog.text


def test_a_deprecated_member_warns_once_a_plugin(planted, caplog):
    planted(Deprecation("member", "old", "new", "2.0", kind="tool"))

    class Tool:
        old = None

    for name in ("mine", "mine", "yours"):
        with pytest.raises(PluginError, match="lacks"):  # it has nothing else
            check_members(Tool(), Origin("tool", name, "acme"))
    texts = [record.getMessage() for record in caplog.records if "deprecated" in record.getMessage()]
    text = "member old is deprecated and goes with version 2.0 of the plugin API: write new"
    assert texts == [f"tool 'mine' of acme: {text}", f"tool 'yours' of acme: {text}"]


class Inner(PluginConfig):
    depth: int = Field(2, deprecated="write `size`; it goes with version 2.0")


class Config(PluginConfig):
    rate: float = 0.5
    inner: Inner = Inner.model_construct()


def test_a_deprecated_setting_warns_where_it_is_stated(planted, caplog):
    planted()
    warn_of_settings(Config, {"rate": 1.0, "inner": {}}, "rewards.x", "reward 'x' of acme")
    assert caplog.text == ""
    for _ in range(2):
        warn_of_settings(Config, {"inner": {"depth": 3}}, "rewards.x", "reward 'x' of acme")
    assert [record.getMessage() for record in caplog.records] == [
        "rewards.x.inner.depth (reward 'x' of acme): this setting is deprecated: write `size`; it goes with "
        "version 2.0"
    ]
