"""The command: what it prints."""

from click.testing import CliRunner
from example_module.command import command


def test_it_shows_the_team_of_the_smoke_recipe():
    result = CliRunner().invoke(command, [])
    assert result.exit_code == 0, result.output
    assert "role: solver, played by policy table" in result.stdout
