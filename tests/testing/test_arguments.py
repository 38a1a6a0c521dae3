"""What `check_plugin` catches in the parameters of methods, those of optional members among them."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.testing import check_plugin
from coterie.testing.support.toys import EchoRole
from tests.testing.support import caught
from tests.testing.test_modules import module


class LeasesLess(TabularEngine):
    async def lease(self, policy: str) -> None:
        pass


class Swapped(TabularEngine):
    async def release(self, version: Any, policy: Any) -> None:
        pass


class SwappedStep(TabularTrainer):
    async def update(self, step: Any, samples: Any) -> Any:
        pass


class StepsLess(TabularTrainer):
    def optimizer_steps(self, samples: int) -> int:
        return 1


class OwnParameters(TabularEngine):
    """Other names, more parameters with defaults, and a method of the class are all sound."""

    async def lease(self, of: str, number: int, forever: bool = False) -> None:
        pass

    async def release(self, policy: str, *more: Any) -> None:
        pass


class ClassWords(EchoRole):
    @classmethod
    def vocabulary(cls) -> list[str]:
        return ["one"]


@pytest.mark.parametrize(("kind", "plugin", "message"), [
    ("engine", LeasesLess, "lease: can't be called as (self, policy: str, version"),
    ("engine", Swapped, "release: has the parameter `version` where `policy`"),
    ("trainer", SwappedStep, "update: has the parameter `step` where `samples`"),
    ("trainer", StepsLess, "optimizer_steps: can't be called as (self, samples"),
])  # fmt: skip
def test_wrong_parameters_are_caught(kind, plugin, message):
    caught(f"{plugin.__name__}.{message}", check_plugin, module(**{kind: [("mine", plugin)]}))


def test_sound_parameters_pass():
    check_plugin(module(engine=[("mine", OwnParameters)], role=[("worded", ClassWords)]))
