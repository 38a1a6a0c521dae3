"""Files that programs hand on, where episodes are played by hosts of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import coterie
from tests.backends.executors.ray.test_cluster import cluster
from tests.plugins.envs.data_science.teams import pack, run_table
from tests.test_resume import rollouts, rows

__all__ = ["cluster"]
pytestmark = [pytest.mark.ray, pytest.mark.xdist_group("ray")]


@pytest.mark.long
def test_a_pipeline_on_hosts_is_that_of_one_process(cluster: Any, tmp_path: Path) -> None:
    """Two hosts share the folder of contents, and leave nothing in it."""
    pytest.importorskip("sklearn")
    place, kept = pack(tmp_path, 4), tmp_path / "kept"
    table = run_table(place, {"type": "local", "workers": 1, "keep_files_in": str(kept)})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(table))
    settings: dict[str, Any] = {"overlays": ["ray"], "overrides": ["cluster.workers=2"]}
    coterie.train(str(tmp_path / "run.yaml"), out=tmp_path / "local")
    coterie.train(str(tmp_path / "run.yaml"), out=tmp_path / "ray", **settings)
    assert rows(tmp_path / "local") == rows(tmp_path / "ray")
    assert rollouts(tmp_path / "local") == rollouts(tmp_path / "ray")
    assert rows(tmp_path / "ray")[-1]["outcome/files"] == 1.0
    assert not list((kept / "contents").iterdir())
