"""The tokens that end an answer of a model in plain transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

END_IDS = "coterie_end_ids"
"""The attribute of a tokenizer that holds them."""


def with_end_ids(tokenizer: Any, source: str, revision: str | None) -> Any:
    """The tokenizer of a folder or hub id, with the ids that end answers of its model as `END_IDS`.

    Models of a family end turns, messages with calls of tools, and texts with different tokens: Llama 3.1
    has three, and the tokenizer's `eos_token` is one of them. They are `eos_token_id` of
    generation_config.json or, where it has none, of config.json; without both files there are none. An
    adapter's are those of its base, if that is still there.
    """
    setattr(tokenizer, END_IDS, _end_ids(source, revision))
    return tokenizer


def _end_ids(source: str, revision: str | None) -> tuple[int, ...]:
    adapter = _table(source, "adapter_config.json", revision)
    places = [(source, revision), (adapter.get("base_model_name_or_path"), adapter.get("revision"))]
    for place, its_revision in places:
        for name in ("generation_config.json", "config.json"):
            ids = _table(str(place), name, its_revision).get("eos_token_id") if place else None
            if ids is not None:
                return tuple(ids) if isinstance(ids, list) else (int(ids),)
    return ()


def _table(source: str, name: str, revision: str | None) -> dict[str, Any]:
    """A JSON file of a folder or of the hub, fetched if the cache lacks it; empty where there is none."""
    from transformers.utils import cached_file

    try:
        path: str | None = cached_file(
            source,
            name,
            revision=revision,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
    except OSError:  # a base's folder that is gone is no id of the hub either
        return {}
    return {} if path is None else dict(json.loads(Path(path).read_text()))
