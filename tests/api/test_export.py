"""An export is complete or absent, and replaces nothing unasked."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest

import coterie
from coterie.api.export import export
from coterie.core.errors import WriteError
from tests.cli.support import coterie as command, process
from tests.test_resume import MATRIX


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return coterie.train(
        MATRIX, overrides=["schedule.steps=1"], out=tmp_path_factory.mktemp("a") / "run"
    ).folder


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def replaced(monkeypatch, write):
    from coterie.backends.trainers.tabular import TabularTrainer

    monkeypatch.setattr(TabularTrainer, "export", lambda self, policy, folder, *, merge=False: write(folder))


@pytest.mark.parametrize("made", [False, True], ids=["new", "empty"])
def test_an_export_goes_to_a_new_or_an_empty_folder(run, tmp_path, made):
    out = tmp_path / "deep" / "out"
    if made:
        out.mkdir(parents=True)
        (out / ".tmp-out-1234").mkdir()  # of an export that was killed
    assert export(run, "row", out) == out and sorted(files(out)) == ["README.md", "table.npz"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_a_folder_that_holds_files_is_refused_before_a_model_is_loaded(run, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    (tmp_path / "file").touch()
    replaced(monkeypatch, lambda folder: pytest.fail("a policy was written"))
    done = command("export", run, "--policy", "row", "-o", tmp_path / "out")
    assert done.exit_code == 2 and "is not empty" in done.stderr and "notes.txt" in done.stderr
    assert "fix: choose another folder, or replace files of the same names with --overwrite" in done.stderr
    with pytest.raises(coterie.UserError, match="is a file"):
        export(run, "row", tmp_path / "file", overwrite=True)
    assert files(tmp_path) == {"file": b"", "out/notes.txt": b"mine"}


def test_overwriting_replaces_files_of_the_same_names_and_names_those_that_stay(run, tmp_path, caplog):
    out = tmp_path / "out"
    out.mkdir()
    for name in ("table.npz", "notes.txt"):
        (out / name).write_text("mine")
    done = command("export", run, "--policy", "row", "-o", out, "--overwrite")
    assert done.exit_code == 0, done.output
    written = files(out)
    assert sorted(written) == ["README.md", "notes.txt", "table.npz"] and written["notes.txt"] == b"mine"
    assert written["table.npz"] == files(export(run, "row", tmp_path / "new"))["table.npz"]
    assert f"{out} keeps files that this export has not written: notes.txt" in caplog.text


@pytest.mark.parametrize("existing", [None, {}, {"config.json": b"old", "notes.txt": b"mine"}])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyError("a bug"), KeyboardInterrupt()]
)
def test_an_export_that_fails_leaves_its_folder_as_it_was(run, tmp_path, monkeypatch, existing, error):
    def half(folder):
        (folder / "config.json").write_text("{}")
        raise error

    out = tmp_path / "out"
    if existing is not None:
        out.mkdir()
        for name, raw in existing.items():
            (out / name).write_bytes(raw)
    replaced(monkeypatch, half)
    expected = WriteError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected):
        export(run, "row", out, overwrite=True)
    assert (
        (files(out) == existing and len(list(out.iterdir())) == len(existing))
        if out.exists()
        else existing is None
    )
    assert not list(tmp_path.glob(".tmp-*"))


def test_files_may_be_in_subfolders_and_name_the_folder(run, tmp_path, monkeypatch):
    """A PEFT adapter names the folder of its base."""

    def adapter(folder):
        (folder / "base").mkdir()
        (folder / "base" / "weights").write_text("new")
        (folder / "adapter_config.json").write_text(json.dumps({"base": str((folder / "base").resolve())}))

    replaced(monkeypatch, adapter)
    for out in (tmp_path / "new", tmp_path / "old"):
        if out.name == "old":
            (out / "base").mkdir(parents=True)
            (out / "base" / "weights").write_text("old")
        export(run, "row", out, overwrite=True)
        assert json.loads((out / "adapter_config.json").read_text()) == {"base": str(out / "base")}
        assert (out / "base" / "weights").read_text() == "new"


@pytest.mark.skipif(sys.platform == "win32", reason="file limits of POSIX")
def test_a_full_disk_is_told_without_a_traceback(run, tmp_path):
    code = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))"
    done = process("export", run, "--policy", "row", "-o", tmp_path / "out", code=code)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"the export {tmp_path / 'out'} can't be written\n  why: [Errno 27] File too large" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.torch
def test_a_run_with_vllm_is_exported_and_evaluated_where_vllm_is_missing(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from coterie.backends.engines.vllm import settings

    tiny = "{init: qwen3, hidden_size: 16, layers: 1, heads: 2, head_dim: 8, mlp_size: 16, context: 64}"
    changes = [f"policies.shared.model={tiny}", "policies.shared.warm_start=null", "schedule.steps=1",
               "schedule.tasks_per_step=1", "schedule.evaluate_every=0"]  # fmt: skip
    folder = coterie.train("quickstart", overrides=changes, out=tmp_path / "run").folder
    config = folder / "config.yaml"
    assert "\n  type: hf\n" in config.read_text()
    config.write_text(config.read_text().replace("\n  type: hf\n", "\n  type: vllm\n"))
    missing = SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: None))
    monkeypatch.setattr(settings, "importlib", missing)
    assert "model.safetensors" in files(export(folder, "shared", tmp_path / "out"))
    refused = command("eval", folder, "--tasks", "1")
    assert refused.exit_code == 2 and "'vllm' is not installed" in refused.stderr
    assert "or set engine.type=hf" in refused.stderr
    done = command("eval", folder, "engine.type=hf", "--tasks", "1")
    assert done.exit_code == 0, done.output


def test_an_export_opens_no_engine(run, tmp_path, monkeypatch):
    from coterie.backends.engines.tabular import TabularEngine

    async def opened(self, ctx):
        pytest.fail("the engine was opened")

    monkeypatch.setattr(TabularEngine, "open", opened)
    assert "table.npz" in files(export(run, "row", tmp_path / "out"))
