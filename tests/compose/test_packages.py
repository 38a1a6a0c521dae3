"""Optional packages: looked for before anything is loaded, of components within components too."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from coterie.compose.packages import check_hosts, check_packages
from coterie.core.errors import MissingExtra
from coterie.core.plugins import PluginConfig
from coterie.core.protocols import Limits

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


class Looks:
    """A sandbox that notes what it is asked."""

    asked: dict[str, Limits] | None = None

    def check_host(self, limits):
        self.asked = dict(limits)


class Runs(PluginConfig):
    sandbox: Any = None
    limits: Limits | None = None
    by_role: dict[str, Limits] = {}


def test_a_sandbox_is_asked_with_the_limits_of_all_that_run_programs_in_it():
    box, other = Looks(), Looks()
    small, large = Limits(memory_mb=64), Limits(memory_mb=4096)
    users = [
        SimpleNamespace(config=Runs(sandbox=box, limits=small), build=SimpleNamespace(path="env")),
        SimpleNamespace(config=Runs(sandbox=box, by_role={"one": large}), build=SimpleNamespace(path="t")),
        SimpleNamespace(config=Runs(sandbox=other, limits=large), build=SimpleNamespace(path="tools.b")),
    ]
    run: Any = SimpleNamespace(
        config=SimpleNamespace(executor={"type": "local"}),
        rollout_side=SimpleNamespace(resources=[box, other, *users]),
    )
    check_hosts(run)
    assert box.asked == {"env.limits": small, "t.by_role.one": large}
    assert other.asked == {"tools.b.limits": large}
    box.asked = None
    run.config.executor = {"type": "ray"}  # each host looks for itself
    check_hosts(run)
    assert box.asked is None
