"""docs/comlrl.md: its two commands of a line mean the same, and its tables are the code's."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from coterie.comlrl.mapping import CHOOSING, ROWS
from coterie.comlrl.translation import KINDS
from tests.cli.comlrl_files import LINES, words
from tests.cli.support import coterie

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "comlrl.md").read_text(encoding="utf-8")
OVERLAY = re.search(r"```yaml\n# as_there\.yaml\n(.*?)```", PAGE, re.DOTALL)
SCRIPTS = {"grpo": "train_grpo.py", "magrpo": "train_magrpo.py"}


def section(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def cells(heading: str) -> list[list[str]]:
    """The rows of a section's tables, without their heads."""
    lines = [line for line in section(heading).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def shown(keys: tuple[str, ...]) -> str:
    return ", ".join(f"`{key.replace('{p}', 'magrpo')}`" for key in keys)


COMMANDS = [row for row in cells("Their commands") if "train_" in row[0]]


@pytest.mark.parametrize(("theirs", "ours"), COMMANDS, ids=LINES)
def test_the_three_commands_of_a_line_mean_the_same(theirs, ours, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "as_there.yaml").write_text(OVERLAY[1], encoding="utf-8")
    script, _, path, *flags = shlex.split(theirs.strip("`"))
    line = LINES[COMMANDS.index([theirs, ours])]
    name, *rest = shlex.split(line)
    assert path == f"configs/{name}_config.yaml" and flags == rest
    assert script == SCRIPTS[name.removeprefix("mt_").partition("_")[0]]
    native = shlex.split(ours.strip("`"))
    assert native[:2] == ["coterie", "run"]
    tables = []
    for arguments in (words(line, tmp_path), native[2:]):
        done = coterie("config", "--json", *arguments)
        assert done.exit_code == 0, done.output
        table = json.loads(done.stdout)["config"]
        tables.append({key: value for key, value in table.items() if key != "summary"})
    assert tables[0] == tables[1]


def test_every_setting_is_listed():
    wanted = [[shown(row.keys), shown(row.ours), row.why] for row in ROWS if row.ours]
    assert cells("Settings")[1 + len(CHOOSING) + 1 :] == wanted or _listing(wanted)
    chosen = [[what, shown(keys)] for what, keys in CHOOSING.items()]
    assert cells("Settings")[1 : 1 + len(CHOOSING)] == chosen or _listing(chosen)


def test_what_has_no_counterpart_is_listed_with_its_reason():
    wanted = [[shown(row.keys), row.why] for row in ROWS if not row.ours]
    assert cells("Without a counterpart")[1:] == wanted or _listing(wanted)


def test_every_type_of_data_is_listed():
    wanted = [[f"`{word}`", f"`{kind.name}`", kind.hub] for word, kind in KINDS.items()]
    assert cells("Data")[1:] == wanted or _listing(wanted)


def _listing(rows: list[list[str]]) -> bool:
    """Fail with the rows as the page should have them."""
    raise AssertionError("the table should be\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows))
