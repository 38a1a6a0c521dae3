"""The plain format only ever grows at its end."""

from pathlib import Path

from hypothesis import given, strategies as st

from coterie.backends.models.wordcodec import pieces

MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool", "critic"]),
            "content": st.text(alphabet="ab\n", max_size=4),
        }
    ),
    min_size=1,
    max_size=5,
)


def text(messages, **more):
    return "".join(part + ("<eos>" if ends else "") for part, ends in pieces(messages, **more))


def message(role, content):
    return {"role": role, "content": content}


def test_a_single_user_message_stands_as_it_is():
    assert text([message("user", "2 + 2 =")]) == "2 + 2 ="


def test_several_messages_have_markers():
    assert (
        text([message("system", "Be brief."), message("user", "Hi")])
        == "System: Be brief.\nUser: Hi\nAssistant:"
    )
    messages = [message("user", "a"), message("assistant", "b"), message("tool", "c")]
    assert text(messages) == "ab<eos>\nTool: c\nAssistant:"
    assert (
        text([message("system", "s"), *messages])
        == "System: s\nUser: a\nAssistant:b<eos>\nTool: c\nAssistant:"
    )


def test_the_table_of_plain_text_is_what_is_written():
    page = (Path(__file__).parents[3] / "docs" / "chat_templates.md").read_text(encoding="utf-8")
    turn, system = message("user", "2 + 2 ="), message("system", "Add.")
    later = [message("assistant", " 4"), message("user", "Again.")]
    for label, more in (("first", []), ("second", later)):
        cells = [text([*first, turn, *more]).replace("\n", "\\n") for first in ([], [system])]
        assert f"| {label} turn | `{cells[0]}` | `{cells[1]}` |" in page


def test_without_markers_messages_are_lines():
    messages = [message("system", "s"), message("user", "a"), message("user", "b")]
    assert text(messages, markers=False) == "s\na\nb"


@given(MESSAGES, st.text(alphabet="xy", max_size=3), MESSAGES, st.booleans())
def test_an_answered_prompt_is_a_prefix_of_all_that_follows(before, answer, after, markers):
    prefix = text(before, markers=markers) + answer + "<eos>"
    assert text([*before, message("assistant", answer), *after], markers=markers).startswith(prefix)


@given(MESSAGES, MESSAGES, st.booleans())
def test_parts_join_to_the_whole(before, after, markers):
    whole = pieces([*before, *after], markers=markers)
    rest = pieces([*before, *after], markers=markers, start=len(before))
    assert whole[len(whole) - len(rest) :] == rest
