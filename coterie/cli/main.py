"""`coterie`: the command line.

`coterie --help` imports this module alone: the short helps are in a table here, and a test holds them equal
to those of the commands.
"""

from __future__ import annotations

import sys

import click

from coterie import __version__
from coterie.cli.lazy import LazyGroup

COMMANDS = {
    "run": "Train a team.",
    "plan": "Estimate what a run costs, without loading a model.",
    "eval": "Evaluate a run, or a recipe's untrained team.",
    "compare": "Compare runs or evaluations, paired by task.",
    "export": "Write a policy as a Hugging Face folder or a PEFT adapter.",
    "runs": "List the runs in a folder.",
    "watch": "Show how runs go, live in the terminal.",
    "plot": "Draw curves of runs, with intervals over seeds.",
    "report": "Write a run's curves, roles and episodes as one HTML file.",
    "doctor": "Check this machine, or say what is wrong with a run.",
    "episodes": "Print the episodes that match, readably.",
    "replay": "Play recorded steps again without a model, and compare.",
    "credit": "Show what each role and turn earned, and check it.",
    "coach": "Report how well a run's coach agrees with the verifier.",
    "recipes": "List the recipes.",
    "data": "Write tasks as files, split records by content, find leaks.",
    "config": "Show a configuration and where each value came from.",
    "explain": "Show what serves, reads and writes what of a configuration.",
    "schema": "Print the JSON Schema of configurations.",
    "sandbox": "Run a program in a sandbox, or check its protections.",
    "new": "Write a plugin package, or one file, that works.",
    "plugins": "List the plugins and what is wrong with the broken ones.",
    "check": "Check plugins: which promises they keep and break.",
    "reproduce": "Run a whole comparison, to its table with intervals.",
    "quickstart": "Train a small team from scratch on this machine, in minutes.",
}


@click.group(
    cls=LazyGroup,
    package="coterie.cli.commands",
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="coterie", message="%(prog)s %(version)s")
def cli() -> None:
    """Coterie trains teams of language models with reinforcement learning.

    Start with `coterie quickstart`, or with `coterie recipes` and `coterie run RECIPE`.
    """
    from coterie.cli.output import show_warnings

    show_warnings()


def main() -> None:
    """The console script. Exit codes: 0 done, 1 failed, 2 wrong input, 130 interrupted."""
    from coterie.cli import terminal

    terminal.take_over()
    try:
        cli(prog_name="coterie")
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # e.g. a task of a plugin that cancels itself
        import traceback

        from coterie.viewing.text import harmless

        # With its notes, which name the plugin that raised it.
        click.echo(harmless(traceback.format_exc()), err=True, nl=False)
        notes: list[str] = getattr(error, "__notes__", [])
        where = harmless(notes[0]) if notes else f"in coterie {__version__} or in a plugin"
        click.echo(
            f"\nThis is a bug {where}: please report it with the lines above and the command you gave.",
            err=True,
        )
        sys.exit(1)
