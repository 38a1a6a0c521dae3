"""Tracker `tensorboard`: event files in the run folder, written without torch or TensorFlow."""

from __future__ import annotations

import io
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie.backends.trackers.common import (
    LibraryTracker,
    TrackerConfig,
    cell,
    configuration,
    flat,
    numbers_and_texts,
)

PLAIN = frozenset(chr(code) for code in range(128))
SHOWN = {
    **{ord(c): f"&#{ord(c)};" for c in PLAIN if not c.isalnum() and c.isprintable() and c != " "},
    **{ord(c): f"&#92;x{ord(c):02x}" for c in PLAIN if not c.isprintable()},
    ord("\t"): "\t",
    ord("\n"): "<br>",
}
"""What Markdown or HTML may read as markup, and control characters, as they are shown."""
COLUMNS = ("task", "epoch", "chain", "episode", "turn", "stage", "role", "branch", "prompt", "completion",
           "scores", "reward", "advantage", "success")  # fmt: skip


class TensorBoardTracker(LibraryTracker):
    """Each number is a scalar of float64 (TensorBoard's pages show float32), NaN where it is missing.

    A resumed run adds a file to the folder, in which an event tells readers to drop the steps that it plays
    again. A row is in the file, whole, when `track` returns; of one that can't be written nothing stays.
    """

    class Config(TrackerConfig):
        log_dir: str = Field("tensorboard", description="Folder of the event files, from the run folder.")

    _handle = -1

    packages = ("tensorboard",)

    def open(self, folder: Path) -> None:
        """Start an event file, with the configuration as hyperparameters and as text.

        Raises:
            OSError: e.g. the disk is full.
        """
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2, types_pb2
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._writer = event_pb2, summary_pb2, RecordWriter
        self._tensor, self._shape, self._types = tensor_pb2, tensor_shape_pb2, types_pb2
        where = folder / self.config.log_dir
        where.mkdir(parents=True, exist_ok=True)
        resumed = any(where.glob("events.out.tfevents.*"))
        name = f"events.out.tfevents.{time.time_ns() // 10**6}.{socket.gethostname()}.{os.getpid()}"
        self._handle = os.open(where / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._write(event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2"))
        if not resumed:
            self._start(0)  # readers take the first start for no restart, wherever it stands
        table, text = configuration(folder)
        settings = {name: value for name, value in flat(table) if value is not None}
        values = [*hparams_pb(settings).value, self._text("config", "    " + text.replace("\n", "\n    "))]
        self._add(0, values)

    def truncate(self, step: int) -> None:
        """Readers drop what earlier files have of steps after `step`."""
        self._start(max(step, 0) + 1)

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Raises OSError, e.g. where the disk is full."""
        numbers, texts = numbers_and_texts(metrics)
        values = [self._scalar(name, value) for name, value in numbers.items()]
        self._add(step, values + [self._text(name, escaped(text)) for name, text in texts.items()])

    def track_episodes(self, step: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """One text `logged_episodes`: a table, one line an action. What models wrote is shown as text."""
        lines = [COLUMNS, ("---",) * len(COLUMNS)]
        for action in actions:
            cells = (cell(action[name]) for name in COLUMNS)
            lines.append(tuple("" if value is None else escaped(str(value)) for value in cells))
        self._add(
            step, [self._text("logged_episodes", "\n".join(f"| {' | '.join(line)} |" for line in lines))]
        )

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _start(self, step: int) -> None:
        """Readers drop earlier events of this step and of later ones."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._write(self._event.Event(wall_time=time.time(), step=step, session_log=start))

    def _scalar(self, name: str, value: float) -> Any:
        tensor = self._tensor.TensorProto(
            dtype=self._types.DT_DOUBLE, tensor_shape=self._shape.TensorShapeProto(), double_val=[value]
        )
        return self._value(name, "scalars", self._summary.DATA_CLASS_SCALAR, tensor)

    def _text(self, name: str, text: str) -> Any:
        tensor = self._tensor.TensorProto(
            dtype=self._types.DT_STRING,
            tensor_shape=self._shape.TensorShapeProto(),
            string_val=[text.encode("utf-8", "replace")],
        )
        return self._value(name, "text", self._summary.DATA_CLASS_TENSOR, tensor)

    def _value(self, name: str, plugin: str, kind: int, tensor: Any) -> Any:
        data = self._summary.SummaryMetadata.PluginData(plugin_name=plugin)
        metadata = self._summary.SummaryMetadata(plugin_data=data, data_class=kind)
        return self._summary.Summary.Value(tag=name, metadata=metadata, tensor=tensor)

    def _add(self, step: int, values: Sequence[Any]) -> None:
        summary = self._summary.Summary(value=values)
        self._write(self._event.Event(wall_time=time.time(), step=step, summary=summary))

    def _write(self, event: Any) -> None:
        record = io.BytesIO()
        self._writer(record).write(event.SerializeToString())
        text, size, done = record.getbuffer(), os.fstat(self._handle).st_size, 0
        try:
            while done < len(text):
                done += os.write(self._handle, text[done:])
        except OSError:
            os.ftruncate(self._handle, size)  # readers stop at half a record, and would miss all later ones
            raise


def escaped(text: str) -> str:
    """A text that Markdown and HTML show as it is, on one line of a table."""
    if not text.isascii():
        text = "".join(c if c in PLAIN or c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    return text.translate(SHOWN)
