"""The families of chat templates: a template, a tokenizer and what the family can't show.

The templates are Coterie's own, in each family's form. Their tokenizers are one small byte-level BPE with the
family's special tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from coterie.backends.chat_formats.formats import TemplateChat
from tests.backends.chat_formats.tokenizers import bpe

FOLDER = Path(__file__).parent / "templates"
Conversation = list[dict[str, str]]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "python",
            "description": "Runs a program.",
            "parameters": {"type": "object", "properties": {"code": {"type": "string"}}},
        },
    }
]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family's form."""

    template: str
    """The file, without its ending."""
    special: Sequence[str]
    eos: str
    end: str
    """The token behind an answer."""
    bos: str | None = None
    refuses: frozenset[str] = frozenset()
    """What it has no place for: `system`, `later_system`, `tool`, `repeats`."""
    tools: bool = True
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def source(self) -> str:
        return (FOLDER / f"{self.template}.jinja").read_text().removesuffix("\n")

    def tokenizer(self) -> Any:
        return made(self.source(), self.eos, self.bos, tuple(self.special))

    def codec(self, context: int | None = None) -> Any:
        return TemplateChat(TemplateChat.Config(template_kwargs=dict(self.kwargs))).codec(
            self.tokenizer(), context
        )

    def taken(self, messages: Sequence[Mapping[str, str]]) -> Conversation:
        """The conversation as this family takes it, word by word from the page on chat templates."""
        turns: Conversation = []
        for index, message in enumerate(messages):
            name = {"system": "later_system" if index else "system"}.get(message["role"], message["role"])
            moved = name in self.refuses
            if moved and index and message == messages[0]:
                continue
            role = "user" if moved else message["role"]
            before = turns[-1] if turns else {"role": ""}
            joins = "repeats" in self.refuses or moved or before.get("moved")
            if role == before["role"] == "user" and joins:
                before["content"] += "\n\n" + message["content"]
                before["moved"] = moved
            else:
                turns.append({"role": role, "content": message["content"], "moved": moved})  # type: ignore[dict-item]
        return [{"role": turn["role"], "content": turn["content"]} for turn in turns]

    def ids(self, messages: Sequence[Mapping[str, str]], *, tools: bool = False) -> tuple[int, ...]:
        """The ids of transformers' `apply_chat_template`, of the conversation as the family takes it."""
        more = {"tools": TOOLS} if tools else {}
        return tuple(
            self.tokenizer().apply_chat_template(
                self.taken(messages),
                tokenize=True,
                add_generation_prompt=True,
                return_dict=False,
                **self.kwargs,
                **more,
            )
        )


@cache
def made(template: str, eos: str, bos: str | None, special: tuple[str, ...]) -> Any:
    """A tokenizer with these special tokens."""
    more = {} if bos is None else {"bos_token": bos}
    tokenizer = bpe(template, eos=eos, **more)
    tokenizer.add_special_tokens({"additional_special_tokens": list(special)})
    return tokenizer


_CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
_HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>")
_TURNS = ("<start_of_turn>", "<end_of_turn>", "<eos>")
_INST = ("[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]")

FAMILIES = {
    "chatml_default": Family(template="chatml_default", special=_CHATML, eos="<|im_end|>", end="<|im_end|>"),
    "chatml": Family(template="chatml", special=_CHATML, eos="<|endoftext|>", end="<|im_end|>", tools=False),
    "thoughts": Family(template="chatml_drops_thoughts", special=_CHATML, eos="<|im_end|>", end="<|im_end|>"),
    "thoughts_off": Family(
        template="chatml_drops_thoughts",
        special=_CHATML,
        eos="<|im_end|>",
        end="<|im_end|>",
        kwargs={"enable_thinking": False},
    ),
    "headers": Family(
        template="headers",
        special=_HEADERS,
        eos="<|eot_id|>",
        end="<|eot_id|>",
        bos="<|begin_of_text|>",
    ),
    "user_and_model": Family(
        template="user_and_model",
        special=_TURNS,
        eos="<eos>",
        end="<end_of_turn>",
        bos="<bos>",
        refuses=frozenset({"system", "later_system", "tool", "repeats"}),
        tools=False,
    ),
    "user_and_model_system": Family(
        template="user_and_model_system",
        special=_TURNS,
        eos="<eos>",
        end="<end_of_turn>",
        bos="<bos>",
        refuses=frozenset({"later_system", "tool", "repeats"}),
        tools=False,
    ),
    "inst": Family(
        template="inst",
        special=_INST,
        eos="</s>",
        end="</s>",
        bos="<s>",
        refuses=frozenset({"later_system", "tool", "repeats"}),
    ),
    "inst_first": Family(
        template="inst_first",
        special=(),
        eos="</s>",
        end="</s>",
        bos="<s>",
        refuses=frozenset({"later_system", "tool", "repeats"}),
        tools=False,
    ),
}
