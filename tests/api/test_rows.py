"""Lost rows, and tokens on the axis of curves."""

from __future__ import annotations

from coterie.api.rows import read_metrics, tokens_so_far
from coterie.core.storage.jsonl import MetricsLog


def test_lost_rows_are_named_with_their_steps(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in (1, 2):
        log.append(step, {})
    assert len(read_metrics(path)) == 2 and not caplog.text
    for step in (4, 7, 8):
        log.append(step, {})
    assert len(read_metrics(path)) == 5
    assert f"{path} lacks the rows of 3 of 8 steps: 3, 5-6. They can't be made again" in caplog.text
    log.truncate_after(4)
    log.close()
    (tmp_path / "checkpoints" / "step-000007").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".tmp-step-000009").mkdir()
    caplog.clear()
    assert len(read_metrics(path)) == 3 and "4 of 7 steps: 3, 5-7" in caplog.text
    path.unlink()
    assert read_metrics(path) == [] and "7 of 7 steps: 1-7" in caplog.text


def test_tokens_so_far_survive_lost_rows():
    rows = [{"step": step, "tokens/generated": 10, "tokens/total": 10 * step} for step in (1, 2, 5)]
    assert tokens_so_far(rows) == [10.0, 20.0, 50.0]
    assert tokens_so_far([{"step": 1, "tokens/generated": 10}, {"step": 2}, {"tokens/generated": 5.0}]) == [
        10.0, 10.0, 15.0
    ]  # fmt: skip
    assert tokens_so_far([]) == []


def test_several_rows_of_a_step_are_told_and_the_last_counts(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1, "a": 1}\n{"step": 2, "a": 2}\n{"step": 2, "a": 3}\n{"step": 3, "a": 4}\n')
    assert [row["a"] for row in read_metrics(path)] == [1, 3, 4]
    assert "has several rows of the steps 2; the last of each counts" in caplog.text
    caplog.clear()
    path.write_bytes(b'{"step": 3, "a": 1}\n{"step": 1, "a": 2}\n{"step": 2, "a": 3}\n')
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3] and "is not in order" in caplog.text


def test_a_last_row_that_lacks_only_its_newline_is_kept(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
    log = MetricsLog(path)
    log.append(3, {})
    log.close()
    assert [row["step"] for row in read_metrics(path)] == [1, 2, 3] and not caplog.text
    path.write_bytes(b'{"step": 1}\n{"step": 2}')
    MetricsLog(path).truncate_after(2)
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
