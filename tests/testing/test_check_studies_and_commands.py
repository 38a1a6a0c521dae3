"""`check_study` and `check_command` tell of what a study or a command gets wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from coterie.studies import Study
from coterie.studies.columns import Column
from coterie.studies.library.at_grpo import SAMPLING, sampling_methods as methods
from coterie.studies.study import Method, order
from coterie.testing import check_command, check_study
from tests.testing.support import caught

VARIANTS = {"shared": "plan_path", "sampled": "plan_path", "chains": "plan_path"}


def column(**variants):
    fields = {field.name: None for field in dataclasses.fields(Column)}
    return Column(**{**fields, "name": "c", "path": Path("c.yaml"), "variants": variants or VARIANTS})


def study(**changes) -> Study:
    return dataclasses.replace(SAMPLING, **changes)


def test_a_sound_study_passes():
    check_study(SAMPLING, columns=[column()])
    check_study(SAMPLING, columns=[column(other="x"), column()])


def test_a_study_is_told_what_does_not_belong_together():
    twice = study(methods=lambda column: [*methods(column), methods(column)[0]])
    caught("have the id 'team' twice", check_study, twice, columns=[column()])
    gains = study(gain_over="teem")
    caught("lack 'teem'", check_study, gains, columns=[column()])
    claims = study(claims=[order("tree", "chain", "a misspelt one")])
    caught("lack 'chain'", check_study, claims, columns=[column()])
    lacks = study(methods=lambda column: [Method(id="a", title="A", variant="absent")], claims=[])
    caught("no column has the variants that its methods need: absent", check_study, lacks, columns=[column()])
    caught("raised KeyError", check_study, study(methods=lambda column: column.variants["no"]),
           columns=[column()])  # fmt: skip
    caught("is a str", check_study, "sampling", columns=[])


def test_a_sound_command_passes():
    @click.command()
    @click.argument("name")
    def hello(name):
        """Say hello."""

    check_command(hello)


def test_a_command_is_told_what_keeps_its_help_away():
    caught("@click.command()", check_command, print)

    @click.command()
    def silent():
        pass

    caught("has no help", check_command, silent)

    class Fails(click.Command):
        def get_help(self, ctx):
            raise KeyError("lost")

    caught("KeyError: 'lost'", check_command, Fails("fails", help="x"))
    group = click.Group("group", help="A group.", commands=[silent])
    caught("group: silent: has no help", check_command, group)
