"""What of a rendered text comes from where: made-up roles whose words have origins that are known."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel

from coterie.analysis import prompt_origins
from coterie.analysis.explained_prompts import ExplainedMessage, whole_prompt
from coterie.analysis.prompt_origins import (
    PromptPart,
    attribute,
    changes_of,
    leaves,
    setting_change,
)
from coterie.core.types import RoleInput

WRITERS = {"role": "role", "observation": "environment"}
WORDS = st.text(st.sampled_from("abcXYZ éß{}<>|.,\n"), min_size=1, max_size=12)


def parts_of(render, observation, feedback=(), extra=()):
    """The parts of one rendered user message, checked: joined they are the message."""
    role_input = RoleInput(role="one", turn=0, observation=observation, feedback=tuple(feedback))
    messages = list(render(role_input))
    changes = changes_of(render, role_input, [("feedback", "mode")] * len(feedback))
    found = attribute(messages, [*changes, *extra], WRITERS)
    joined = ["".join(part.text for part in parts) for _, parts in found.messages]
    assert joined == [message["content"] for message in messages]
    assert [role for role, _ in found.messages] == [message["role"] for message in messages]
    return found


def user(text):
    return [{"role": "user", "content": text}]


PIECES = st.lists(
    st.one_of(
        st.tuples(st.just("role"), WORDS),
        st.tuples(st.sampled_from(["left", "right", "feedback"]), st.just("")),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(PIECES, st.fixed_dictionaries({"left": WORDS, "right": WORDS, "feedback": WORDS}))
def test_every_character_of_a_made_up_prompt_has_the_origin_that_wrote_it(pieces, values):
    """Fields and sentences may be shown several times, be alike, or be empty of words."""

    def render(role_input):
        shown = {**role_input.observation, "feedback": "".join(role_input.feedback)}
        return user("".join(text or shown[kind] for kind, text in pieces))

    observation = {"left": values["left"], "right": values["right"]}
    (_, parts), *_ = parts_of(render, observation, [values["feedback"]]).messages
    wanted = [(character, kind) for kind, text in pieces for character in text or values[kind]]
    written = [(character, part) for part in parts for character in part.text]
    for (character, kind), (same, part) in zip(wanted, written, strict=True):
        assert character == same
        if kind == "feedback":
            assert part.kind == "feedback" and part.writer == "mode"
        elif kind == "role":
            # Space and commas between two pieces of one origin belong to it.
            assert part.kind == "role" or not any(c.isalnum() for c in character)
        else:
            assert part.kind == "observation" and kind in part.names and part.writer == "environment"


@dataclass(frozen=True)
class Cell:
    row: int
    name: str = "free"


Pair = namedtuple("Pair", "first second")


class Table(BaseModel):
    size: int
    words: list[str]


@dataclass(frozen=True, slots=True)
class Seen:
    number: int
    share: float
    cells: tuple[Cell, ...]
    pair: Pair
    table: Table
    by_name: Mapping[str, str]
    group: frozenset[int]
    switch: bool = True
    nothing: None = None


SEEN = Seen(
    number=3, share=0.25, cells=(Cell(1), Cell(7, "wall")), pair=Pair("one", 2),
    table=Table(size=9, words=["alpha", "beta"]), by_name={"k": "gamma"}, group=frozenset({41}),
)  # fmt: skip


def everything(role_input):
    seen = role_input.observation
    cells = " ".join(f"{cell.name}@{cell.row}" for cell in seen.cells)
    words = "/".join(seen.table.words)
    mode = "on" if seen.switch else "off"
    return user(
        f"number {seen.number} share {seen.share} cells {cells} pair {seen.pair.first} {seen.pair.second} "
        f"table {seen.table.size} {words} mapping {seen.by_name['k']} group {min(seen.group)} mode {mode}"
    )


def test_values_in_every_kind_of_container_are_found_by_the_outermost_field():
    found = parts_of(everything, SEEN)
    shown = {word: part.names for _, parts in found.messages for part in parts if part.kind == "observation"
             for word in part.text.split()}  # fmt: skip
    assert shown == {
        "3": ("number",), "0.25": ("share",), "free@1": ("cells",), "wall@7": ("cells",), "one": ("pair",),
        "2": ("pair",), "9": ("table",), "alpha/beta": ("table",), "gamma": ("by_name",), "41": ("group",),
    }  # fmt: skip
    assert found.decides == ["switch"]
    again = [put(value) for _, value, put in leaves(SEEN)]
    assert again == [SEEN] * len(again) and len(again) == 14
    changed = [put("x") for name, value, put in leaves(SEEN) if name == "by_name"]
    assert changed == [replace(SEEN, by_name={"k": "x"})] and SEEN.by_name == {"k": "gamma"}


def test_an_input_that_changes_the_form_decides_it_and_owns_no_word():
    def render(role_input):
        seen = role_input.observation
        if seen["form"] == "short":
            return user(f"{seen['text']}?")
        if seen["form"] == "wrong":
            raise ValueError("no such form")
        return [{"role": "system", "content": "long"}, *user(seen["text"])]

    short = parts_of(render, {"form": "short", "text": "why"})
    assert short.decides == ["form"] and [p.names for p in short.messages[0][1]] == [("text",), ()]
    assert parts_of(render, {"form": "other", "text": "why"}).decides == []  # any other form is the same


def test_a_text_that_the_role_trims_or_alters_is_still_its_origin_s():
    trimmed = parts_of(lambda i: user(f"Do: {i.observation.strip()}!"), "  run fast \n")
    assert [(p.text, p.kind) for p in trimmed.messages[0][1]] == [
        ("Do: ", "role"), ("run fast", "observation"), ("!", "role"),
    ]  # fmt: skip
    altered = parts_of(lambda i: user(f"Do: {i.observation[:3].upper()} now"), "run fast")
    assert ("RUN", "observation") in [(p.text, p.kind) for p in altered.messages[0][1]]


def test_pieces_of_one_field_are_one_part_and_those_of_two_fields_are_two():
    def parts(text):
        return [(p.text, p.names) for p in parts_of(lambda i: user(text.format(**i.observation)), {
            "left": "alpha", "right": "beta"}).messages[0][1]]  # fmt: skip

    assert parts("{left}, {left}") == [("alpha, alpha", ("left",))]
    assert parts("{left}, {right}") == [("alpha", ("left",)), (", ", ()), ("beta", ("right",))]
    assert parts("{left} and {left}") == [("alpha", ("left",)), (" and ", ()), ("alpha", ("left",))]


def test_settings_own_what_they_state_and_name_what_they_would_replace():
    def render(role_input, opening="Dear {name},", ending=None):
        return user(f"{opening.replace('{name}', role_input.observation)}\n{ending or 'Bye now'}")

    seen = RoleInput(role="one", turn=0, observation="Ann")
    extra = [
        setting_change(lambda text: render(seen, opening=text), "roles.one.opening", "Dear {name},", "r"),
        setting_change(lambda text: render(seen, ending=text), "roles.one.ending", None, "r"),
    ]
    parts = parts_of(render, "Ann", extra=extra).messages[0][1]
    assert [(p.text, p.kind, p.names, p.replaced_by) for p in parts] == [
        ("Dear ", "setting", ("roles.one.opening",), ""),
        ("Ann", "observation", ("observation",), ""),
        (",", "setting", ("roles.one.opening",), ""),
        ("\n", "role", (), ""),
        ("Bye now", "role", (), "roles.one.ending"),
    ]


def test_inputs_past_the_bound_are_said_to_be_left_out(monkeypatch):
    monkeypatch.setattr(prompt_origins, "MOST_CHANGES", 20)
    found = parts_of(lambda i: user(" ".join(map(str, i.observation))), list(range(22)))
    assert any("beyond the first 20" in name for name in found.decides)
    text = "".join(part.text for part in found.messages[0][1] if part.kind == "role")
    assert text.split() == ["20", "21"]


# ------------------------------------------------------------------------------------------- the chat format


def messages_of(*texts):
    return [
        ExplainedMessage(role=role, parts=[PromptPart(text[:3], "role"), PromptPart(text[3:], "setting")])
        for role, text in texts
    ]


CONVERSATION = messages_of(("system", "be brief"), ("user", " what is 2 + 2?\n"), ("assistant", "it is 4"),
                           ("user", "system user 4"))  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("count", [2, 4])
def test_contents_and_marks_of_every_family_of_templates_join_to_the_prompt(count, tools):
    pytest.importorskip("transformers")
    from tests.backends.chat_formats.families import FAMILIES, TOOLS

    for name, family in FAMILIES.items():
        plain = family.codec()
        codec = plain.with_tools(TOOLS) if tools else plain
        if codec is None:
            assert not family.tools
            continue
        messages = CONVERSATION[:count]
        bare = [{"role": m.role, "content": m.content} for m in messages]
        parts = whole_prompt(
            messages, codec, plain, PromptPart("", "format"), PromptPart("", "tools", ("python",))
        )
        text = "".join(part.text for part in parts)
        assert text == codec.prompt_text(bare), name
        assert tuple(codec.tokenizer.encode(text, add_special_tokens=False)) == codec.encode(bare).ids
        by_kind = {k: "".join(p.text for p in parts if p.kind == k) for k in ("tools", "setting", "format")}
        assert bool(by_kind["tools"]) == tools and ("Runs a program" in by_kind["tools"]) == tools, name
        for message in messages:
            assert message.content[3:].strip() in by_kind["setting"], name
            assert message.content[3:].strip() not in by_kind["format"], name


def test_the_words_of_an_engine_without_a_tokenizer_join_too():
    from coterie.backends.models.wordcodec import WordCodec

    codec = WordCodec()
    parts = whole_prompt(CONVERSATION, codec, codec, PromptPart("", "format"), PromptPart("", "tools"))
    bare = [{"role": m.role, "content": m.content} for m in CONVERSATION]
    assert "".join(part.text for part in parts) == codec.text(codec.encode(bare).ids)
    assert "".join(p.text for p in parts if p.kind == "format").split() == [
        "System:", "User:", "Assistant:", "User:", "Assistant:",
    ]  # fmt: skip
