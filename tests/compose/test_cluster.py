"""The table `cluster`."""

from __future__ import annotations

import sys

import pytest

import coterie
from coterie.compose import prepare
from coterie.compose.settings import settings_of
from coterie.core.errors import ConfigError, MissingExtra
from coterie.recipes import load
from tests.test_resume import MATRIX


def test_a_table_that_no_executor_reads_is_refused():
    with pytest.raises(ConfigError, match="nothing consumes this table") as error:
        prepare(load(MATRIX, overrides=["cluster={workers: 2}"]))
    assert error.value.path == "cluster" and "executor=ray" in error.value.fix


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("cluster.wokers=2", "cluster.wokers"),
        ("cluster.workers=0", "cluster.workers"),
        ("cluster.timeout=1", "cluster.timeout"),
        ("cluster.worker_cpus=-1", "cluster.worker_cpus"),
    ],
)
def test_a_wrong_setting_is_told_with_its_path(setting, path):
    with pytest.raises(ConfigError) as error:
        prepare(load(MATRIX, overlays=["ray"], overrides=[setting]))
    assert error.value.path == path


def test_where_a_run_is_played_is_no_part_of_its_digest():
    plain = load(MATRIX, overlays=["ray"])
    assert load(MATRIX, overlays=["ray"], overrides=["cluster.workers=7"]).digest() == plain.digest()


def test_all_settings_of_a_cluster_may_change_when_a_run_resumes():
    settings = settings_of(load(MATRIX, overlays=["ray"]).config)
    table = settings.table["cluster"]
    assert {"address", "workers", "timeout"} <= table.keys()
    exact = {name for name in table if settings.mark(f"cluster.{name}").exact}
    assert {*table} - exact == {"max_live"}, "it holds jobs back, and which one is next depends on speed"


def test_a_run_without_ray_names_the_extra(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match="ray") as error:
        coterie.train(MATRIX, overlays=["ray"], out=tmp_path / "run")
    assert "coterie[ray]" in error.value.fix


def test_a_trainer_that_cannot_be_divided_is_refused(tmp_path):
    """Before anything starts."""
    settings = ["cluster.updates=at_once", "trainer=tests.backends.executors.ray.trainers:Whole"]
    with pytest.raises(ConfigError, match="can't train sets of weights at once") as refused:
        coterie.train(MATRIX, overlays=["ray"], overrides=settings, out=tmp_path / "run")
    assert refused.value.path == "cluster.updates" and "cluster.updates=in_turn" in refused.value.fix
    assert not (tmp_path / "run").exists()
