"""Optional packages: looked for before anything is loaded, of components within components too."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from coterie.compose.packages import check_packages
from coterie.core.errors import MissingExtra

HF, TORCH = {"type": "hf"}, {"type": "torch"}


@pytest.mark.parametrize(
    ("engine", "trainer", "package"),
    [
        ({"type": "vllm"}, TORCH, "vllm"),
        (HF, {"type": "deepspeed"}, "deepspeed"),
        ({"type": "mixed", "local": {"type": "vllm"}, "remote": {"type": "openai"}}, TORCH, "vllm"),
    ],
)
def test_a_missing_package_names_its_extra(engine, trainer, package, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    with pytest.raises(MissingExtra) as caught:
        check_packages(SimpleNamespace(engine=engine, trainer=trainer))
    assert f"pip install 'coterie[{package}]'" in str(caught.value)
    check_packages(SimpleNamespace(engine=HF, trainer=TORCH))
