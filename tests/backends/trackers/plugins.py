"""Trackers that a run of the tests has beside those of libraries."""

from __future__ import annotations

import json
import time

import coterie


class Lines(coterie.Plugin):
    """Keeps every row and every episode in files of the run folder."""

    log_episodes = 2

    def open(self, folder):
        self.rows, self.episodes = folder / "lines.jsonl", folder / "lines_episodes.jsonl"

    def truncate(self, step):
        for path in (self.rows, self.episodes):
            kept = [line for line in path.read_text().splitlines(True) if json.loads(line)["step"] <= step]
            path.write_text("".join(kept))

    def track(self, step, metrics):
        with self.rows.open("a") as file:
            file.write(json.dumps({"step": step, **metrics}) + "\n")

    def track_episodes(self, step, actions):
        with self.episodes.open("a") as file:
            file.write("".join(json.dumps(dict(action)) + "\n" for action in actions))

    def close(self):
        pass


class Hangs(coterie.Plugin):
    """Never returns from the first `track`."""

    def open(self, folder): ...

    def truncate(self, step): ...

    def track(self, step, metrics):
        while True:
            time.sleep(60)

    def close(self): ...


class HangsAtOnce(Hangs):
    """Never returns from `open`."""

    def open(self, folder):
        while True:
            time.sleep(60)


class FailsOnce(Lines):
    """Fails at step 2 alone."""

    log_episodes = 0

    def open(self, folder):
        super().open(folder)
        self.rows = folder / "fails_once.jsonl"

    def track(self, step, metrics):
        if step == 2:
            raise OSError("one 500")
        super().track(step, metrics)
