"""Column files: errors name the file and the key, and `check_column` resolves every variant."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import coterie
from coterie import Study
from coterie.core.errors import ConfigError, PluginError
from coterie.discovery import Entry
from coterie.studies.catalogue import columns_of, load_column, load_study, read_column
from coterie.studies.reproduce import code_of, prepare
from coterie.testing import ConformanceError, check_column, check_plugin
from coterie.testing.checks.plugin import registered
from tests.cli.support import coterie as coterie_command
from tests.studies.support import COLUMN, column_file


def test_a_column_is_read():
    column = load_column(COLUMN)
    assert (column.name, column.title, column.swap) == ("column", "Hand over", ("giver", "taker"))
    assert set(column.variants) == {
        "single", "shared", "per_role", "alone.giver", "alone.taker", "sampled", "chains"
    }  # fmt: skip
    assert column.variants["shared"].recipe == str(COLUMN.parent / "hand_over.yaml")
    assert column.variants["alone.taker"].overrides == ["team.order=[taker]", "team.roles.giver=null"]


def test_a_sound_column_passes_its_check():
    """As each built-in one does: tests/testing/test_builtin.py."""
    check_column(COLUMN)


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"tittle": "x"}, "tittle", "'title'"),
        ({"forms": {"shraed": "hand_over.yaml"}}, "forms.shraed", "did you mean 'shared'?"),
        ({"forms": {"shared": "plan_pth"}}, "forms.shared", "did you mean 'plan_path'?"),
        (
            {"forms": {"shared": {"recipe": "plan_path", "override": []}}},
            "forms.shared.override",
            "'overrides'",
        ),
        ({"forms": {"alone": {"givr": "plan_path"}}}, "forms.alone.givr", "did you mean 'giver'?"),
        ({"swap": ["giver", "tacker"]}, "swap.tacker", "did you mean 'taker'?"),
        ({"scales": {"cpu": {"tokens": 0, "tasks": 1}}}, "scales.cpu.tokens", "greater than or equal to 1"),
        ({"scales": {"cpu": {"tasks": 1}}}, "scales.cpu.tokens", "missing"),
        ({"notes": {"at-grpo-table11": "x"}}, "notes.at-grpo-table11", "did you mean 'at-grpo-table1"),
        ({"paper": {"at-grpo-table11": {}}}, "paper.at-grpo-table11", "did you mean 'at-grpo-table1"),
        (
            {"paper": {"at-grpo-table1": {"singel": 1}}},
            "paper.at-grpo-table1.singel",
            "did you mean 'single'?",
        ),
    ],
)
def test_errors_name_the_file_and_the_key(tmp_path, changes, path, message):
    file = column_file(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        read_column(file, "x")
    assert caught.value.path == f"{file}: {path}"
    assert message in str(caught.value)


def test_the_check_resolves_every_variant_and_looks_for_the_roles(tmp_path):
    bad = column_file(tmp_path, forms={"shared": {"recipe": "plan_path", "overrides": ["env.size=x=y", "k"]}})
    with pytest.raises(ConformanceError, match=r"forms\.shared"):
        check_column(str(bad))
    without = column_file(tmp_path, forms={"per_role": {"recipe": "plan_path", "with": ["per_role"]}})
    with pytest.raises(ConformanceError, match="the team has no role 'giver'"):
        check_column(str(without))
    with pytest.raises(ConformanceError, match="no file"):
        check_column(str(tmp_path / "none.yaml"))


def test_a_strangers_broken_study_or_column_is_no_fault_of_others(tmp_path):
    raises = Study(summary="Raises.", methods=lambda column: column.variants["no"])
    refuses = Study(summary="Refuses.", methods=refuse)
    strangers = {"five": 5, "raises": raises, "refuses": refuses, "absent": "no.such:STUDY"}
    entries = [Entry("study", name, target, "acme") for name, target in strangers.items()]
    with registered([*entries, Entry("column", "six", 6, "acme")]):
        assert load_column(COLUMN).title == "Hand over"
        with pytest.raises(ConfigError, match="did you mean 'single'"):
            read_column(column_file(tmp_path, paper={"at-grpo-table1": {"singel": 1}}), "x")
        listed = coterie_command("reproduce")
        assert listed.exit_code == 0 and "sampling" in listed.stdout and "plan_path" in listed.stdout
        told = ("study 'five' is no coterie.Study", "no.such", "column 'six' of acme has no file '6'")
        assert all(text in listed.stderr for text in told)
        assert "plan_path" in {column.name for column in columns_of(load_study("sampling"), None, "cpu")}
    with registered(entries[2:3]), pytest.raises(ConfigError, match="did you mean 'shared'"):
        read_column(column_file(tmp_path, forms={"shraed": "hand_over.yaml"}), "x")


def test_what_a_study_raises_is_told_as_its():
    entry = Entry("study", "broken", Study(summary="Breaks.", methods=lambda column: 1 / 0), "acme")
    told = "study 'broken' can't be planned: ZeroDivisionError"
    with registered([entry]), pytest.raises(PluginError, match=told) as error:
        prepare("broken", columns=[COLUMN])
    assert f"raised at {__file__}, line " in error.value.why
    with pytest.raises(PluginError, match="can't be shown: KeyError"), code_of("x", "shown"):
        {}["banana"]


def refuse(column):
    raise ConfigError("not for this game")


def test_an_unknown_column_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'plan_path'"):
        load_column("plan_pth")
    with pytest.raises(ConfigError, match="no such column file"):
        load_column("none.yaml")


def test_the_check_covers_studies_and_columns_of_plugins():
    def plugin(study, column):
        @coterie.hookimpl
        def register_studies(register):
            register("mine", study)

        @coterie.hookimpl
        def register_columns(register):
            register("my_game", column)

        return SimpleNamespace(register_studies=register_studies, register_columns=register_columns)

    check_plugin(plugin("tests.studies.tiny:ONE", str(COLUMN)))
    with pytest.raises(ConformanceError, match=r"a coterie\.Study"):
        check_plugin(plugin("tests.studies.tiny:register_studies", str(COLUMN)))
    with pytest.raises(ConformanceError, match="there is no file"):
        check_plugin(plugin("tests.studies.tiny:ONE", "none.yaml"))
