"""`check_trainer` on trainers that keep versions: ours pass, and each way to break it is named."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest

from coterie.backends.models.table import LogitTable
from coterie.backends.models.wordcodec import word_id
from coterie.backends.trainers.tabular import TabularTrainer
from coterie.core.types import Weights
from coterie.testing import ConformanceError, check_trainer

TOKENS = [0, *(word_id(word) for word in ("left", "right", "up", "down"))]


class Stays(TabularTrainer):
    """Leaves the old table in place."""

    @contextmanager
    def weights_at(self, policy, version):
        tables = self.policies[policy]
        tables.table = tables.kept[version].snapshot()
        with super().weights_at(policy, version) as weights:
            yield weights


class Newest(TabularTrainer):
    @contextmanager
    def weights_at(self, policy, version):
        with super().weights_at(policy, version) as weights:
            yield replace(weights, version=version + 1)


class Forgets(TabularTrainer):
    def load(self, folder):
        super().load(folder)
        for tables in self.policies.values():
            tables.kept.clear()


class Once(TabularTrainer):
    def drop(self, policy, version):
        del self.policies[policy].kept[version]


class Raises(TabularTrainer):
    def keep(self, policy):
        assert self.policies[policy].version not in self.policies[policy].kept, "kept twice"
        super().keep(policy)


class KeepsNothing(TabularTrainer):
    """Gives the present weights under the number that was asked for."""

    def keep(self, policy):
        pass

    @contextmanager
    def weights_at(self, policy, version):
        yield replace(self.weights(policy), version=version)


class LoadsPresent(TabularTrainer):
    """Keeps a copy, and puts the present one in its place when it loads."""

    def load(self, folder):
        super().load(folder)
        for tables in self.policies.values():
            tables.kept = dict.fromkeys(tables.kept, tables.table.snapshot())


class Initial(TabularTrainer):
    @contextmanager
    def weights_at(self, policy, version):
        yield Weights(policy=policy, version=version, module=LogitTable(self.policies[policy].table.words))


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        (Stays, "weights_at: changed the present weights"),
        (Newest, "weights_at: gave Weights("),
        (KeepsNothing, "weights_at: gave the present weights under version "),
        (LoadsPresent, "after `save` and `load`, not those that were kept"),
        (Initial, "weights_at: gave other weights under version "),
        (Forgets, "weights_at: raised KeyError"),
        (Once, "drop: raised KeyError"),
        (Raises, "keep: raised AssertionError"),
    ],
)
def test_a_broken_trainer_is_named(trainer, said):
    with pytest.raises(ConformanceError) as error:
        check_trainer(trainer, model={"init": "tabular"}, token_ids=TOKENS)
    assert said in str(error.value)


def test_a_trainer_of_one_version_has_nothing_to_keep():
    class One(TabularTrainer):
        keep = None

    check_trainer(One, model={"init": "tabular"}, token_ids=TOKENS)
