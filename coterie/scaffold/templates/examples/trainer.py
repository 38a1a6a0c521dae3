"""Examples, with which `coterie check` tries the components. No run imports them."""

from example_module.trainer import word_id

from coterie.testing import Example

WORDS = ("left", "right", "up", "down")
TRAINER = Example(
    model={"init": "none"},
    token_ids=[word_id(word) for word in WORDS],
    vocabulary=WORDS,
    annotates=("ref_logprobs", "old_logprobs"),
)
"""A model, and tokens that it can write; this trainer has no `values`."""
