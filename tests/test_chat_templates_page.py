"""docs/chat_templates.md: what it says of each family is what Coterie does, and its recipes are read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

pytest.importorskip("transformers")

from coterie.backends.chat_formats.formats import DATE, AutoChat, PlainChat, TemplateChat
from coterie.estimate.counts import Growth
from coterie.estimate.prompts import growth
from tests.backends.chat_formats.families import FAMILIES

pytestmark = pytest.mark.torch

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "chat_templates.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## Families\n\n")[1].split("\n\n")[0].replace("\\|", "/").splitlines()[2:]
ROWS = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in TABLE]
NAMES = [
    ["chatml_default", "chatml"],
    ["thoughts", "thoughts_off"],
    ["headers"],
    ["user_and_model"],
    ["user_and_model_system"],
    ["inst"],
    ["inst_first"],
]
QUESTION = {"role": "user", "content": "what is 2 + 2?"}
SYSTEM = {"role": "system", "content": "be brief"}


def test_the_table_has_every_family():
    assert [name for names in NAMES for name in names] == list(FAMILIES) and len(ROWS) == len(NAMES)


@pytest.mark.parametrize(("names", "row"), zip(NAMES, ROWS, strict=True), ids=[names[0] for names in NAMES])
def test_a_row_is_what_is_measured_of_its_templates(names, row):
    _, system, results, repeats, later = row
    for name in names:
        codec = FAMILIES[name].codec()
        limits = codec.render.limits
        assert system == ("shown" if limits.system else "moved")
        assert results == ("shown" if limits.tool else "moved")
        assert repeats == ("shown" if limits.repeats else "joined")
        measured = growth(codec, [QUESTION], 3, 1, 30)
        with_system = growth(codec, [SYSTEM, QUESTION], 3, 1, 30)
        expected = {
            "extend": (0, 0),
            "begin anew": (2, 2),
            "extend without a system message; else begin anew": (0, 2),
            "begin anew where answers have thoughts; with `enable_thinking: false`, always": (2, 2),
        }[later]
        assert (measured.anew, with_system.anew) == expected
        assert ("where answers have some" in measured.why) == (name == "thoughts")


def test_a_row_names_the_tokens_that_its_tokenizer_has():
    for names, row in zip(NAMES[:1] + NAMES[2:4], ROWS[:1] + ROWS[2:4], strict=True):
        marks = {mark for mark in re.findall(r"<[^ `]+?>", row[0].replace("/", "|"))}
        special = set(FAMILIES[names[0]].tokenizer().all_special_tokens)
        assert marks and marks <= special, names


def test_recipes_are_read_and_the_date_is_the_default():
    (block,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    chats = [yaml.safe_load(line)["chat"] for line in block.splitlines()]
    assert chats[0] == "auto" and chats[3] == "plain" and {AutoChat, PlainChat}
    for table in chats[1:3]:
        assert table.pop("type") == "template"
        TemplateChat.Config(**table)
    assert f"It gets {DATE.isoformat()}, which the log says" in PAGE


def test_the_line_of_a_plan_is_what_it_prints():
    (line,) = re.findall(r"```text\n(.*)\n```", PAGE)
    why = "the template drops earlier thoughts, where answers have some"
    grown = Growth(begins_anew=(True,) * 3, calls=1, whole=300, new=150, least=100, why=why)
    assert line == grown.sentence("solver", cached=True)
