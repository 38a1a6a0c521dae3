"""The chat format: what every one promises, and the text of a prompt."""

from example_module.engine import ExampleNameTokenizer

from coterie.testing import build


def test_it_keeps_the_promises_of_a_chat_format(coterie_check):
    coterie_check("example_name", kind="chat_format")


def test_a_conversation_is_a_transcript():
    tokenizer = ExampleNameTokenizer()
    codec = build("chat_format", "example_name").codec(tokenizer, None)
    messages = [
        {"role": "user", "content": "Hello <eos>"},  # nobody can write the token that ends a turn
        {"role": "assistant", "content": "Hi"},
        {"role": "user", "content": "Bye"},
    ]
    text = tokenizer.decode(codec.encode(messages).ids)
    assert text == "user: Hello assistant: Hi <eos> user: Bye assistant:"
