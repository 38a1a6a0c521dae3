"""`weights_digest`: what an engine reads of weights, whatever form they have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from coterie.core.types import Weights
from coterie.testing.support.training import weights_digest


def of(**form: Any) -> str | None:
    return weights_digest(Weights(policy="one", version=form.pop("version", 0), **form))


def module(**tensors: Any) -> Any:
    return SimpleNamespace(state_dict=lambda: {n.replace("_", "."): np.array(t) for n, t in tensors.items()})


def test_the_digest_changes_with_the_weights_and_not_with_the_version(tmp_path):
    file = tmp_path / "model" / "weights.bin"
    file.parent.mkdir()
    forms: dict[str, Any] = {
        "folder": lambda number: file.write_text(str(number)) and {"folder": str(tmp_path)},
        "tensors": lambda number: {"tensors": lambda: iter([("a", np.zeros(2)), ("b", np.array(number))])},
        "module": lambda number: {"module": module(a=0.0, b=number)},
        "object": lambda number: {
            "module": SimpleNamespace(rows={(1, 2): [np.array(number)]}, _cache=[number])
        },
    }
    for name, form in forms.items():
        first, again, other = of(**form(1.0)), of(version=5, **form(1.0)), of(**form(2.0))
        assert first is not None and first == again != other, name


def test_of_several_adapters_the_policys_own_is_read():
    first, second = module(base=0.0, lora_one=1.0, lora_two=1.0), module(base=0.0, lora_one=1.0, lora_two=2.0)
    assert of(module=first, adapter="one") == of(module=second, adapter="one")
    assert of(module=first, adapter="two") != of(module=second, adapter="two")


def test_what_nothing_is_read_of_has_no_digest():
    assert of() is None and of(module=SimpleNamespace(name="shared memory", _cache=[1.0])) is None
