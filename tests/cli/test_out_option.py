"""Every command that writes says where by `-o, --out`, in the same words."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from coterie.cli.main import cli

WRITES = {
    "compare", "credit", "data make", "data prepare", "eval", "export", "new", "plot", "quickstart", "replay",
    "report", "reproduce", "run", "sandbox run",
}  # fmt: skip
"""Commands that write a file or a folder of their own. One that writes and isn't here fails below."""
READS = {
    "check", "coach", "config", "data leaks", "data mix", "data show", "doctor", "episodes", "explain",
    "plan", "plugins show", "recipes", "runs", "sandbox check", "schema", "watch",
}  # fmt: skip


def commands(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


COMMANDS = dict(commands(cli))


def out_of(command: click.Command) -> list[click.Option]:
    return [
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        and {"-o", "--out", "--output"} & {*parameter.opts, *parameter.secondary_opts}
    ]


def test_each_command_writes_or_does_not():
    ours = {
        name for name, command in COMMANDS.items() if (command.callback.__module__).startswith("coterie.")
    }
    unknown = ours - WRITES - READS
    assert not unknown, f"say in this file whether {sorted(unknown)} write; if so, they have `out_option`"
    assert ours >= WRITES | READS


@pytest.mark.parametrize("name", sorted({name for name in COMMANDS if out_of(COMMANDS[name])} | WRITES))
def test_a_command_that_writes_has_both_spellings_and_the_same_help(name):
    (option,) = out_of(COMMANDS[name])
    assert option.opts == ["-o", "--out"] and name in WRITES
    what = "folder" if option.metavar == "DIR" else "file"
    assert (
        option.help is not None and option.help.startswith(f"The {what} to write") and option.help[-1] == "."
    )
    shown = CliRunner().invoke(cli, [*name.split(), "--help"]).output
    assert f"-o, --out {option.metavar}" in shown


@pytest.mark.parametrize("spelling", [["-o", "OUT"], ["-oOUT"], ["--out", "OUT"], ["--out=OUT"]])
def test_every_spelling_is_read(spelling, tmp_path):
    words = [word.replace("OUT", str(tmp_path / "tasks")) for word in spelling]
    done = CliRunner().invoke(cli, ["data", "make", "plan_path", "--tasks", "1", "--split", "val", *words])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "tasks" / "val.jsonl").is_file()
