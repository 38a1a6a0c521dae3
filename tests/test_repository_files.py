"""CITATION.cff is valid and of this version; what SECURITY.md says of files is so."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml

from coterie.backends.models.table import read_rows
from tests.cli.support import coterie
from tests.test_docs import LINK, anchors

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SECURITY = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
# Of the schema of the Citation File Format 1.2.0: what is required, and which keys a file may have.
REQUIRED = {"authors", "cff-version", "message", "title"}
ALLOWED = REQUIRED | {
    *("abstract", "commit", "contact", "date-released", "doi", "identifiers", "keywords", "license"),
    *("license-url", "preferred-citation", "references", "repository", "repository-artifact"),
    *("repository-code", "type", "url", "version"),
}


def test_the_citation_is_valid_and_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited.keys() >= REQUIRED and cited.keys() <= ALLOWED
    assert cited["cff-version"] == "1.2.0" and cited["type"] in ("software", "dataset")
    assert str(cited["version"]) == PROJECT["version"] and cited["license"] == PROJECT["license"]
    assert cited["title"].lower() == f"{PROJECT['name']}: {PROJECT['description']}".lower()
    # An entity has a `name`, a person `family-names`.
    assert [author["name"] for author in cited["authors"]] == [
        author["name"] for author in PROJECT["authors"]
    ]
    assert cited["keywords"] == PROJECT["keywords"] and len(set(cited["keywords"])) == len(cited["keywords"])
    assert all(isinstance(cited[key], str) for key in ("message", "title", "abstract"))


def test_the_links_of_the_security_page_lead_somewhere():
    for target in LINK.findall(SECURITY):
        path, _, anchor = target.partition("#")
        assert (ROOT / path).exists(), target
        assert not anchor or anchor in anchors((ROOT / path).read_text(encoding="utf-8")), target


def test_a_checkpoint_has_no_pickle(tmp_path):
    done = coterie(
        "run", ROOT / "tests" / "recipes" / "tabular.yaml", "schedule.steps=1", "--out", tmp_path / "run"
    )
    assert done.exit_code == 0, done.stderr
    files = [path for path in (tmp_path / "run" / "checkpoints").rglob("*") if path.is_file()]
    assert len(files) > 3 and {path.suffix for path in files} <= {".npz", ".json", ".safetensors"}
    for path in files:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                assert all(arrays[name].dtype != object for name in arrays.files)
        elif path.suffix == ".json":
            json.loads(path.read_text())


def test_a_table_with_a_pickle_in_it_is_not_read(tmp_path):
    np.savez(tmp_path / "table.npz", words=np.array([{"any": "object"}], dtype=object))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        read_rows(tmp_path / "table.npz")


def test_no_module_that_reads_run_folders_unpickles():
    loads = re.compile(r"^\s*(?:import|from) pickle\b|\btorch\.load\(|\bpickle\.loads?\(", re.MULTILINE)
    names = [
        path.relative_to(ROOT / "coterie").as_posix()
        for path in sorted((ROOT / "coterie").rglob("*.py"))
        if loads.search(path.read_text(encoding="utf-8"))
    ]
    # What processes of one run send each other, the kit's checks, and a set whose texts are pickled: its
    # unpickler names no class.
    between = ("backends/executors/ray/", "backends/trainers/ranks/", "backends/cluster/", "testing/")
    assert not [name for name in names if not name.startswith((*between, "backends/data/sets/forms.py"))]
    assert "trust_remote_code=True" not in "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "coterie" / "backends").rglob("*.py")
    )
