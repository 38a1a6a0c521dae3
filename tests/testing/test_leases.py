"""`check_engine` on engines that lease versions: ours pass, and each way to break it is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.backends.engines.tabular import TabularEngine
from coterie.backends.models.table import LogitTable
from coterie.core.types import Weights
from coterie.testing import ConformanceError, check_engine

WORDS = ("down", "left", "right", "up")


class Sharp(LogitTable):
    """A table that makes one word likely in every context."""

    def logits(self, context):
        return np.array([0.0, 9.0, 0.0, 0.0, 0.0])


def checked(engine):
    weights = [Weights(policy="policy", version=2, module=Sharp(WORDS)), Weights(policy="policy", version=3)]
    check_engine(engine(), model={"init": "tabular"}, weights=weights)


class SyncLease(TabularEngine):
    def lease(self, policy, version):
        return None


class SyncRelease(TabularEngine):
    def release(self, policy, version):
        return None


class LeasesLess(TabularEngine):
    async def lease(self, policy):
        pass


class Swapped(TabularEngine):
    async def release(self, version, policy):
        pass


class Runs(TabularEngine):
    """Names runs where the request names a version, which has no runs then."""

    async def generate(self, request):
        call = await super().generate(request)
        runs = () if request.version is None else ((call.version, len(call.token_ids)),)
        return replace(call, version_runs=runs)


class Forgets(TabularEngine):
    async def lease(self, policy, version):
        pass


class EndsAllAtOnce(TabularEngine):
    async def release(self, policy, version):
        await super().release(policy, version)
        await super().release(policy, version)


class PlaysNewest(TabularEngine):
    """Ignores the request's version, and says so."""

    async def generate(self, request):
        return await super().generate(replace(request, version=None))


class Lies(PlaysNewest):
    async def generate(self, request):
        call = await super().generate(request)
        return call if request.version is None else replace(call, version=request.version)


class Fails(TabularEngine):
    async def lease(self, policy, version):
        raise ValueError("no room")


@pytest.mark.parametrize(("engine", "said"), [
    (SyncLease, "lease: is not asynchronous"),
    (SyncRelease, "release: is not asynchronous"),
    (LeasesLess, "lease: can't be called as (self, policy: str, version: int) -> None"),
    (Swapped, "release: has the parameter `version` where `policy` is passed"),
    (Runs, "with version 3 and version_runs ((3, "),
    (Forgets, "generate: raised SystemFault"),
    (EndsAllAtOnce, "generate: raised SystemFault"),
    (PlaysNewest, "generate: has version 4, and the request names 3"),
    (Lies, "a leased version draws other tokens after a newer version was loaded"),
    (Fails, "lease: raised ValueError"),
])  # fmt: skip
def test_a_broken_engine_is_named(engine, said):
    with pytest.raises(ConformanceError) as error:
        checked(engine)
    assert said in str(error.value)


def test_a_sound_engine_passes():
    checked(TabularEngine)
