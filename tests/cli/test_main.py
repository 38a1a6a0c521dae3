"""The group: quick help, commands of plugins, and how errors end."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from coterie import __version__
from coterie.cli.main import COMMANDS, cli
from coterie.core.errors import ConfigError, PolicyFault, SystemFault, TooManyMissing
from coterie.discovery import plugins
from coterie.viewing.text import CONTROLS
from tests.cli.support import anew, coterie, plugin_package, process

PLUGIN = """
    from coterie import hookimpl

    @hookimpl
    def register_commands(register):
        register("greet", "acme_greet_command:command")
        register("run", "acme_greet_command:command")
        register("odd", "json:dumps")
"""
COMMAND = """
import click

@click.command()
@click.argument("name")
def command(name):
    '''Say hello.'''
    click.echo(f"hello {name}")
"""


@pytest.fixture
def acme(tmp_path):
    path = plugin_package(tmp_path, "acme-greet", PLUGIN)
    (tmp_path / "acme_greet_command.py").write_text(COMMAND)
    return path


def test_help_lists_the_commands_and_imports_nothing_heavy():
    script = """
        import atexit, sys
        from coterie.cli.main import main
        heavy = "torch transformers numpy pydantic pydantic_core rich ruamel httpx matplotlib".split()
        atexit.register(lambda: print("HEAVY", [name for name in heavy if name in sys.modules]))
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), "--help"],
        capture_output=True, text=True, check=True, timeout=120, env={**os.environ, "COTERIE_PLUGINS": ""},
    )  # fmt: skip
    assert "HEAVY []" in done.stdout
    for name, text in COMMANDS.items():
        assert name in done.stdout and text in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_short_helps_says_what_the_commands_say(name):
    command = cli.get_command(None, name)
    assert command.name == "command"
    assert command.get_short_help_str(limit=200) == COMMANDS[name]
    assert coterie(name, "--help").exit_code == 0


def test_no_command_imports_torch_for_its_help():
    loop = (
        "import sys\nfrom coterie.cli.main import COMMANDS, cli\n[cli.get_command(None, n) for n in COMMANDS]"
    )
    done = process("--version", code=loop + "\nprint('torch' in sys.modules)")
    assert done.stdout.split() == ["False", "coterie", __version__]


def test_commands_of_plugins_are_listed_without_importing_them_and_run(acme):
    watch = "import atexit, sys\natexit.register(lambda: print('acme_greet_command' in sys.modules))"
    listed = process("--help", code=watch, PYTHONPATH=acme)
    assert "Commands of plugins" in listed.stdout and "From acme-greet." in listed.stdout
    assert listed.stdout.endswith("False\n")
    assert anew("greet", "you", path=acme).stdout == "hello you\n"


def test_a_plugins_command_with_a_built_in_name_is_had_by_its_distribution(acme):
    assert "acme-greet:run" in anew("--help", path=acme).stdout
    assert anew("acme-greet:run", "you", path=acme).stdout == "hello you\n"


def test_a_plugins_command_with_a_built_in_name_is_told(acme):
    done = anew("plugins", path=acme)
    assert done.exit_code == 0
    assert "command 'run' of acme-greet is already registered by coterie" in done.stderr
    assert "select it as 'acme-greet:run'" in done.stderr


def test_the_built_in_commands_are_registered():
    assert plugins().registry.names("command") == sorted(COMMANDS)


def test_a_plugins_command_that_is_none_says_so(acme):
    done = anew("odd", path=acme)
    assert done.exit_code == 2
    assert "command 'odd' of acme-greet is a function, and no click command" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exception_of_a_plugins_command_names_it_and_its_distribution(acme, tmp_path):
    (tmp_path / "acme_greet_command.py").write_text(COMMAND.replace("click.echo(", "raise KeyError("))
    done = process("greet", "Ada", PYTHONPATH=acme)
    assert done.returncode == 1 and "Traceback" in done.stderr
    assert "This is a bug in command 'greet' of acme-greet: please report it" in done.stderr
    assert anew("greet", path=acme).exit_code == 2, "wrong input is click's to tell"


def test_a_broken_plugin_is_listed_and_stops_nothing(tmp_path):
    path = plugin_package(tmp_path, "acme-broken", "import nothing_of_that_name")
    done = anew("--help", path=path)
    assert done.exit_code == 0 and "quickstart" in done.stdout
    listed = anew("plugins", path=path)
    assert listed.exit_code == 0
    assert "acme-broken 1.2 broken" in listed.stdout and "nothing_of_that_name" in listed.stdout
    assert "plugin 'acme_broken' of acme-broken: import failed" in listed.stderr
    assert "Traceback" not in done.stderr + listed.stderr


def test_what_a_broken_plugin_would_have_is_told_with_its_error(tmp_path):
    path = plugin_package(tmp_path, "acme-broken", "import nothing_of_that_name")
    for arguments in (
        ("run", "countdown"),
        ("run", "plan_path", "env.type=countdown"),
        ("config", "plan_path", "--with", "wide"),
        ("reproduce", "theirs"),
        ("countdown",),
    ):
        done = anew(*arguments, path=path)
        assert done.exit_code == 2, done.stderr
        error = done.stderr[done.stderr.index("Error: ") :]
        assert "acme-broken is broken: import failed" in error and "nothing_of_that_name" in error, error
        assert "Traceback" not in done.stderr


def test_what_a_plugin_that_is_left_out_has_is_told(acme):
    done = anew("greet", "you", path=acme, COTERIE_PLUGINS="acme")
    assert done.exit_code == 2
    assert "COTERIE_PLUGINS leaves out 'acme_greet' of acme-greet" in done.stderr
    assert "COTERIE_PLUGINS names 'acme', which no installed plugin has: did you mean 'acme" in done.stderr


def test_strict_plugins_make_a_broken_one_an_error_even_of_help(tmp_path):
    path = plugin_package(tmp_path, "acme-broken", "import nothing_of_that_name")
    done = anew("--help", path=path, COTERIE_STRICT_PLUGINS="1")
    assert done.exit_code == 2 and "acme-broken" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_command_names_the_nearest():
    done = coterie("evl")
    assert done.exit_code == 2
    assert done.stderr == "Error: unknown command 'evl'\n  fix: did you mean 'eval'?\n"


def test_version():
    assert coterie("--version").stdout == f"coterie {__version__}\n"


def fails_with(monkeypatch, error):
    def load(*_, **__):
        raise error

    monkeypatch.setattr("coterie.recipes.recipes", load)
    return coterie("recipes")


def test_wrong_input_is_told_with_why_and_mend_and_exits_2(monkeypatch):
    done = fails_with(monkeypatch, ConfigError("it is odd", path="a.b", why="because", fix="turn it"))
    assert done.exit_code == 2 and done.stdout == ""
    assert done.stderr == "Error: a.b: it is odd\n  why: because\n  fix: turn it\n"


def test_other_failures_of_ours_exit_1(monkeypatch):
    done = fails_with(monkeypatch, TooManyMissing("9 of 10 scores are missing"))
    assert done.exit_code == 1
    assert done.stderr == "Error: 9 of 10 scores are missing\n"


def test_a_failure_that_a_plugin_caused_names_it(monkeypatch):
    fault = SystemFault("the server is gone")
    fault.add_note("in engine 'far' of coterie-far: open")
    done = fails_with(monkeypatch, fault)
    assert done.exit_code == 1
    assert done.stderr == "Error: the server is gone\n  in engine 'far' of coterie-far: open\n"


HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e"
WRITTEN_OUT = "\\x1b]52;c;ZXZpbA==\\x07\\x1b[2J\\u202e"


def test_what_a_server_said_in_an_error_does_nothing_to_the_terminal(monkeypatch):
    fault = SystemFault(f"the server says {HOSTILE} {'x' * 100_000}")
    fault.add_note("in engine 'far' of coterie-far: open")
    done = fails_with(monkeypatch, fault)
    assert done.stderr.startswith(f"Error: the server says {WRITTEN_OUT} xxx") and len(done.stderr) < 9000
    assert done.stderr.endswith("xxx\n  in engine 'far' of coterie-far: open\n")


def test_a_policy_fault_where_it_means_nothing_says_where_it_means_something(monkeypatch):
    fault = PolicyFault("too long")
    fault.add_note("in transition 'mine' of mine: tell")
    done = fails_with(monkeypatch, fault)
    assert done.exit_code == 1 and done.stderr == (
        "Error: PolicyFault: too long\n  in transition 'mine' of mine: tell\n"
        "  fix: raise it only in parse, step, score and run\n"
    )


def test_a_traceback_of_a_plugin_names_it_and_whom_to_tell(tmp_path):
    (tmp_path / "acme_broken_game.py").write_text(
        "from coterie.testing.support.toys import NumberGame\n\n\nclass Broken(NumberGame):\n"
        "    def reset(self, task, seed):\n        return {}[task.id]\n"
    )
    recipe = tmp_path / "broken.yaml"
    recipe.write_text(
        "env: {type: acme_broken_game:Broken}\npolicies: {p: {model: {init: tabular}}}\nalgorithm: at_grpo\n"
        "rewards: {environment: {}}\n"
        "team: {order: [one], roles: {one: {type: coterie.testing.support.toys:EchoRole, policy: p}}}\n"
        "engine: tabular\ntrainer: tabular\nsampler: {branches: 2}\nschedule: {steps: 1}\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    done = process("data", "show", recipe, "--role", "one", PYTHONPATH=path)
    where = "in environment 'acme_broken_game:Broken' of acme_broken_game: reset"
    assert done.returncode == 1, done.stderr
    assert f"KeyError: 'test-0'\n{where}" in done.stderr
    assert f"This is a bug {where} (" in done.stderr
    assert "acme_broken_game.py, line 6): please report it" in done.stderr
    # What is no Exception ends nothing without a word either.
    broken = (tmp_path / "acme_broken_game.py").read_text()
    (tmp_path / "acme_broken_game.py").write_text(
        broken.replace("return {}[task.id]", "raise type('Panic', (BaseException,), {})")
    )
    done = process("data", "show", recipe, "--role", "one", PYTHONPATH=path)
    assert done.returncode == 1 and f"This is a bug {where} (" in done.stderr, done.stderr


def test_debug_shows_the_traceback_of_wrong_input_too():
    plain, debug = coterie("evl"), anew("evl", COTERIE_DEBUG="1")
    assert plain.exit_code == debug.exit_code == 2
    assert "Traceback" not in plain.stderr and "Traceback" in debug.stderr
    assert "did you mean 'eval'?" in debug.stderr


def test_a_bug_shows_its_traceback_which_does_nothing_to_the_terminal_and_asks_for_a_report():
    error = f"def recipes(**_): raise ZeroDivisionError({HOSTILE!r})"
    code = f"import coterie.recipes as c\n{error}\nc.recipes = recipes"
    done = process("recipes", code=code)
    assert done.returncode == 1
    assert "Traceback" in done.stderr and f"ZeroDivisionError: {WRITTEN_OUT}" in done.stderr
    assert "please report it" in done.stderr and not CONTROLS.search(done.stderr)


def test_ctrl_c_in_a_command_that_saves_nothing_exits_130(monkeypatch):
    done = fails_with(monkeypatch, KeyboardInterrupt())
    assert done.exit_code == 130 and done.stderr == "stopped\n"


def test_texts_of_others_in_warnings_do_nothing_to_the_terminal(monkeypatch):
    def warn(**_):
        logging.getLogger("coterie").warning("it said %s\n\t%s", HOSTILE, "x" * 100_000)
        return []

    monkeypatch.setattr("coterie.recipes.recipes", warn)
    text = coterie("recipes", "--json").stderr
    assert text.startswith(f"warning: it said {WRITTEN_OUT}\n\txxx") and len(text) < 2100
    assert "characters left out) ... xxx" in text


def test_warnings_of_the_package_go_to_stderr(monkeypatch):
    def warn(**_):
        logging.getLogger("coterie").warning("mind the %s", "gap")
        logging.getLogger("coterie").info("not this")
        return []

    monkeypatch.setattr("coterie.recipes.recipes", warn)
    done = coterie("recipes", "--json")
    assert done.stdout == "[]\n"
    assert done.stderr == "warning: mind the gap\n"
