"""Values and files that are no YAML: what is wrong, where, and the spelling that works in a shell."""

from __future__ import annotations

import shlex

import pytest

from coterie import train
from coterie.core.errors import ConfigError
from coterie.recipes import load
from coterie.recipes.layers import parse_override, read_yaml
from tests.cli.support import TABULAR


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("{{ q }}", "a brace begins a YAML mapping"),
        ("{% if a %}", "a brace begins a YAML mapping"),
        ("@foo", "YAML reserves @"),
        ("%foo", "YAML reserves %"),
        ("`a`", "YAML reserves `"),
        ("[a", "a bracket begins a YAML list"),
        ("*a", "an asterisk names a YAML alias"),
        ("!a", "begins a YAML tag"),
        ('"a', "not closed"),
        ("Answer: {{ q }}", "a colon and a space make a YAML mapping"),
        ("Question: why", "a colon and a space make a YAML mapping"),
        ("# title", "`#` begins a YAML comment"),
        ("a #b", "`#` begins a YAML comment"),
        ("a\tb", "a tab has"),
        ("it's {{ q }}: #1", "a colon"),
    ],
)
def test_an_override_shows_the_spelling_that_works(value, why):
    with pytest.raises(ConfigError) as error:
        parse_override(f"x.prompt={value}")
    assert error.value.path == "x.prompt"
    if "#" not in value or "'" not in value:
        assert why in error.value.why, error.value.why
    spelling = error.value.fix.partition("in a shell: ")[2]
    (argument,) = shlex.split(spelling)
    assert parse_override(argument) == {"x": {"prompt": value}}


@pytest.mark.parametrize(
    ("value", "parsed"),
    [
        ("{a: 1}", {"a": 1}),
        ("[a, b]", ["a", "b"]),
        ("'a #b'", "a #b"),
        ("a#b", "a#b"),
        ("1e-5", 1e-5),
        ("a:b", "a:b"),
    ],
)
def test_what_yaml_reads_stays_as_it_is(value, parsed):
    assert parse_override(f"x={value}") == {"x": parsed}


@pytest.mark.parametrize(
    ("text", "place", "why", "fix"),
    [
        ("a: 1\nb: 2\na: 3\n", ":3 repeats the key 'a'", "line 1 has it already", "merge the two"),
        ("a:\n  b: 1\n  c: {d: 1,\n    d: 2}\n", ":4 repeats the key 'd'", "line 3 has it", "merge"),
        ("a:\n\tb: 1\n", ":2 is not", "no tab", "spaces"),
        ("a:\n  b: 1\n   c: 2\n", ":3 is not", "indentation fits no line above", "as many spaces"),
        ("a: x: y\n", ":1 is not", "a colon and a space", '"x: y"'),
        ("a: {{ q }}\n", ":1 is not", "a brace begins", '"{{ q }}"'),
        ("a: @x\n", ":1 is not", "YAML reserves @", '"@x"'),
        ("a: [1\nb: 2\n", ":2 is not", "expected ',' or ']'", "check brackets"),
        ("a: {b: c\nd: ]", ":2 is not", "the parser says", "check brackets"),
        ("a: 1\n---\nb: 2\n", ":2 is not", "second document", "one table"),
    ],
)
def test_a_file_says_the_line_and_the_fix(tmp_path, text, place, why, fix):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert f"{path}{place}" in error.value.what
    assert why in error.value.why and fix in error.value.fix
    assert "ruamel" not in str(error.value) and "unicode string" not in str(error.value)


def test_one_text_is_no_list_of_overrides(tmp_path):
    with pytest.raises(ConfigError, match=r"overrides=\['seed=1'\]"):
        train(TABULAR, overrides="seed=1", out=tmp_path / "a")


def test_the_bare_name_of_a_run_folder_is_that_run(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.yaml").write_text(load(TABULAR, overrides=["seed=5"]).text())
    (tmp_path / "plan_path").mkdir()
    (tmp_path / "plan_path" / "config.yaml").write_text(load(TABULAR).text())
    monkeypatch.chdir(tmp_path)
    assert load("mine").config.seed == 5
    assert load("plan_path").config.env["type"] == "plan_path" and load("plan_path").name == "plan_path"
    assert load("plan_path").origins["env.type"] != "file plan_path/config.yaml"  # the recipe comes first


def test_a_pattern_of_scales_that_matches_none_is_told():
    table = {**load(TABULAR).table, "scales": {"*": {"seed": 3}}}
    with pytest.raises(ConfigError, match="matches nothing") as error:
        load(table)
    assert error.value.path == "scales.*"


@pytest.mark.parametrize(
    ("text", "what"), [("", "it is empty"), ("# a\n", "it is empty"), ("- a", "it is a list")]
)
def test_a_file_without_a_table_says_what_it_is(tmp_path, text, what):
    path = tmp_path / "a.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="is not a table") as caught:
        read_yaml(path)
    assert caught.value.why == what
