"""`coterie new`: what it writes, and what it refuses."""

from __future__ import annotations

import ast
import errno
import itertools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from coterie import scaffold
from coterie.core.plugins import KINDS
from coterie.discovery.manager import KIND_OF
from coterie.scaffold.kinds import TEMPLATES
from coterie.scaffold.names import Names
from coterie.scaffold.package import merged
from tests.cli.support import coterie

COMMON = ("environment", "role", "reward", "estimator")
SELECTIONS = [*((kind,) for kind in KINDS), COMMON, KINDS]
PLACEHOLDER = re.compile(r"[Ee]xample[_-][a-z]+|ExampleName|request\.key\.role")
NAMES = Names("word-games", "word_games", "word_games", "WordGames")


def written(kinds, *, one_file=False):
    chosen, _ = scaffold.with_needed(kinds)
    return scaffold.one_file(NAMES, chosen) if one_file else scaffold.package(NAMES, chosen, "A. Writer")


def test_there_is_a_template_of_every_kind():
    assert set(scaffold.KINDS) == set(KINDS)
    for name, kind in scaffold.KINDS.items():
        assert [KIND_OF[hook] for hook, _ in kind.source.targets] == [name]


@pytest.mark.parametrize("one_file", [False, True], ids=["package", "one file"])
@pytest.mark.parametrize("kinds", SELECTIONS, ids="+".join)
def test_what_is_written_parses_and_has_no_placeholder(kinds, one_file):
    for path, text in written(kinds, one_file=one_file).items():
        assert not PLACEHOLDER.search(path + text), PLACEHOLDER.search(path + text)
        if path.endswith(".py"):
            compile(text, path, "exec")
            names = [getattr(node, "name", None) for node in ast.parse(text).body]
            assert all(count == 1 for name, count in _counts(names) if name), path
        elif path.endswith((".yaml", ".yml")):
            YAML(typ="safe").load(text)
        elif path.endswith(".toml"):
            assert tomllib.loads(text)["project"]["authors"] == [{"name": "A. Writer"}]


def test_mypy_reads_a_package_as_it_reads_the_templates():
    ours = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    theirs = tomllib.loads(written(COMMON)["pyproject.toml"])
    assert theirs["tool"]["mypy"]["plugins"] == ours["tool"]["mypy"]["plugins"]


def _counts(names):
    return [(name, len(list(group))) for name, group in itertools.groupby(sorted(filter(None, names)))]


def test_what_is_written_is_as_ruff_formats_it(tmp_path):
    ruff = pytest.importorskip("ruff.__main__").find_ruff_bin()

    for kinds in (KINDS, COMMON, ("estimator",), ("trainer",), ("tool",)):
        folder = tmp_path / "+".join(kinds)[:40]
        scaffold.write_folder(folder, written(kinds))
        (folder / "alone").mkdir()
        scaffold.write_files(folder / "alone", written(kinds, one_file=True))
        for command in (["check", "--no-cache"], ["format", "--no-cache", "--diff"]):
            done = subprocess.run([ruff, *command, "."], cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("given", "distribution", "module", "component", "prefix"),
    [
        ("word-games", "word-games", "word_games", "word_games", "WordGames"),
        ("coterie-word-games", "coterie-word-games", "coterie_word_games", "word_games", "WordGames"),
        ("Word_Games", "word-games", "word_games", "word_games", "WordGames"),
        ("Chess2", "chess2", "chess2", "chess2", "Chess2"),
    ],
)
def test_names_are_derived_by_rule(given, distribution, module, component, prefix):
    names = scaffold.package_names(given, [], {})
    assert names == Names(distribution, module, component, prefix)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("2048", "--kind", "role"), "begins with a digit"),
        (("class", "--kind", "role"), "a word of Python's grammar"),
        (("json", "--kind", "role"), "of the standard library"),
        (("numpy", "--kind", "role"), "a module 'numpy' is installed already"),
        (("coterie-2048", "--kind", "role"), "no class can be called '2048'"),
        (("tests", "--kind", "role"), "has beside its own"),
        (("../up", "--kind", "role"), "is no name of a package"),
        (("coterie-math", "--kind", "environment"), "an environment 'math' is installed already"),
        (("coterie-run", "--kind", "command"), "a command 'run' is installed already"),
        (("coterie-row", "--kind", "estimator"), "the class RowEstimator would be called like"),
        (("games", "--kind", "rol"), "did you mean 'role'?"),
        (("games", "--kind", "nope"), "the kinds are chat_format, chat_model, column"),
        (("games", "--author", "A\nB", "--kind", "role"), "is no name\n  why: a control character"),
        (("games", "--author", "\udcff", "--kind", "role"), "is no name\n  why: a control character"),
        (("games", "--author", " ", "--kind", "role"), "it is empty"),
        (("--file", "json.py", "--kind", "role"), "such as --file my_json.py"),
        (("--file", "Class.py", "--kind", "role"), "fix: --file my_class.py"),
        (("games", "--kind", "role", "--kind", "role"), "is given twice"),
        (("--kind", "role"), "there is no NAME"),
        (("games", "--file", "games.py", "--kind", "role"), "both a NAME and --file"),
        (("--file", "my-games.py", "--kind", "role"), "--file my_games.py"),
        (("--file", "games.py", "--author", "A", "--kind", "role"), "--author has no effect"),
    ],
)
def test_what_is_refused_says_why_and_writes_nothing(arguments, says, tmp_path):
    result = coterie("new", *arguments, "-o", tmp_path)
    assert result.exit_code == 2 and says in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_package_that_an_extra_needs_is_no_name_though_it_is_not_installed(monkeypatch):
    monkeypatch.setattr("coterie.scaffold.names.importable", lambda module: False)
    with pytest.raises(scaffold.ScaffoldError, match="that Coterie or one of its extras needs"):
        scaffold.package_names("torch", [], {})


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "games").mkdir()
    (tmp_path / "games" / "notes").write_text("mine")
    result = coterie("new", "games", "--kind", "role", "-o", tmp_path)
    assert result.exit_code == 2 and "there is something in it" in result.stderr
    assert [path.name for path in (tmp_path / "games").iterdir()] == ["notes"]


def test_an_existing_file_is_left_alone_and_no_other_is_written(tmp_path):
    (tmp_path / "games-smoke.yaml").write_text("mine")
    result = coterie("new", "--file", "games.py", "--kind", "role", "-o", tmp_path)
    assert result.exit_code == 2 and "exists already" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["games-smoke.yaml"]


@pytest.mark.parametrize("arguments", [("games",), ("--file", "games.py")], ids=["package", "one file"])
def test_a_full_disk_leaves_nothing(arguments, tmp_path, monkeypatch):
    calls = itertools.count()
    real_open = Path.open

    def opened(self, mode="r", *rest, **options):
        if tmp_path in self.parents and mode in ("w", "x") and next(calls) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_open(self, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", opened)
    result = coterie("new", *arguments, "--kind", "role", "-o", tmp_path)
    assert result.exit_code == 2 and "No space left on device" in result.stderr
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_tree_and_what_comes_next(tmp_path):
    result = coterie("new", "word-games", "--kind", "environment", "-o", tmp_path / "new one")
    assert result.exit_code == 0 and "also of kind role" in result.stderr
    folder = f"cd '{tmp_path}/new one/word-games'\n"
    for line in (folder, "    environment.py", "pip install -e . pytest", "coterie run word-games-smoke"):
        assert line in result.stdout
    assert (tmp_path / "new one" / "word-games" / "word_games" / "py.typed").is_file()


@pytest.mark.parametrize("form", [("games",), ("--file", "games.py")], ids=["package", "one file"])
def test_a_kind_that_the_recipe_leaves_out_is_named(form, tmp_path):
    kinds = ("--kind", "data_source", "--kind", "tool")
    printed = coterie("new", *form, *kinds, "-o", tmp_path).stderr
    assert "the recipe doesn't use the data source: its mazes are Plan-Path's, and a tool" in printed
    assert coterie("new", "mazes", "--kind", "data_source", "-o", tmp_path).stderr == ""


def test_the_scaffold_needs_every_file_of_its_templates():
    names = {path.stem.removeprefix("test_") for path in (TEMPLATES / "tests").glob("*.py")}
    assert names == {*KINDS, "package"} - {"recipe"}
    assert {path.stem for path in (TEMPLATES / "smoke").glob("*.yaml")} <= {
        *KINDS,
        "base",
        "builtin",
        "script",
    }


def test_layers_of_a_recipe_are_joined_with_their_comments():
    under = "a: 1\nb:\n  # the first\n  c: [x]\n  d: 2\n"
    over = "b:\n  c: [y]\n  type: t\n# the last\ne: {f: 3}\n"
    assert merged([under, over]) == (
        "a: 1\nb:\n  type: t\n  # the first\n  c: [x, y]\n  d: 2\n# the last\ne: {f: 3}\n"
    )
