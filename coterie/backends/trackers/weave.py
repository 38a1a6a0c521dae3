"""Tracker `weave`: each step is a trace of W&B Weave; below it the episodes, below these their actions."""

from __future__ import annotations

import datetime
import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import Field

from coterie.backends.trackers.common import LibraryTracker, TrackerConfig, configuration, flat

EPISODE = ("task", "epoch", "chain", "episode")
"""What names an episode within a step."""
READ = ("policy", "prompt")
"""Columns that an action was given; the rest came of it."""


class WeaveTracker(LibraryTracker):
    """Calls `coterie.step` (its output is the row), `coterie.episode` and `coterie.action`.

    They are sent when the step has ended, by the library's client of the trace server, in two requests. The
    ids of the steps' calls are kept in the run folder: a resumed run deletes those that it plays again.
    """

    class Config(TrackerConfig):
        project: str = Field(
            "coterie", description="Project, or ENTITY/PROJECT; Weave makes one that is new."
        )
        entity: str | None = Field(
            None, description="User or team; by default WANDB_ENTITY, else that of the key."
        )
        name: str | None = Field(
            None, description="Name of the run in every call; by default that of the run folder."
        )
        tags: tuple[str, ...] = Field((), description="Tags, among the attributes of every call.")
        create_project: bool = Field(
            True, description="Ask W&B whether the project exists, and make one that doesn't."
        )
        server: str | None = Field(
            None, description="Trace server; by default WF_TRACE_SERVER_URL, else that of the W&B server."
        )
        timeout: float = Field(10.0, gt=0, description="Seconds to wait for an answer of the server.")
        retries: int = Field(2, ge=0, description="How often a request that failed is sent again.")

    _server: Any = None

    packages = ("weave",)

    def open(self, folder: Path) -> None:
        """Connect to the trace server (WF_TRACE_SERVER_URL, else W&B's) with W&B's key.

        Raises:
            Exception: the library's own: no key, no permission, no answer within `timeout`.
        """
        from weave.trace.env import weave_trace_server_url
        from weave.trace.settings import override_settings
        from weave.trace.weave_init import get_entity_project_from_project_name
        from weave.trace_server_bindings.remote_http_trace_server import RemoteHTTPTraceServer
        from weave.wandb_interface.context import get_wandb_auth_context

        config = self.config
        self._bounded = partial(
            override_settings,
            http_timeout=config.timeout,
            retry_max_attempts=config.retries + 1,
            retry_max_interval=5.0,
        )
        with self._bounded():
            # One request at a time, in this thread: failures are seen, and no thread or exit hook is left.
            server = RemoteHTTPTraceServer(config.server or weave_trace_server_url(), should_batch=False)
            if (key := get_wandb_auth_context()) is not None:
                server.set_auth(key)
            whole = f"{config.entity}/{config.project}" if config.entity else config.project
            entity, project = get_entity_project_from_project_name(whole)
            if config.create_project:
                project = server.ensure_project_exists(entity, project).project_name
            server.server_info()
        self._project, self._server = f"{entity}/{project}", server
        ids = self.kept(folder)
        run_id = ids.read().get("id") or uuid.uuid4().hex
        ids.write({"id": run_id, "project": self._project})
        self._calls = ids.path.with_suffix(".calls.jsonl")
        self._step: tuple[int, str] | None = None
        self._attributes = {
            "run": config.name or folder.resolve().name,
            "run_id": run_id,
            "tags": list(config.tags),
            "config": configuration(folder)[0],
        }

    def truncate(self, step: int) -> None:
        """Delete the calls of later steps, with all calls below them."""
        calls = list(self._known())
        later = [call["id"] for call in calls if call["step"] > step]
        for at in range(0, len(later), 100):
            with self._bounded():
                self._server.calls_delete({"project_id": self._project, "call_ids": later[at : at + 100]})
        lines = [json.dumps(call) + "\n" for call in calls if call["step"] <= step]
        self._calls.write_text("".join(lines), encoding="utf-8")

    def track(self, step: int, metrics: Mapping[str, Any]) -> None:
        """One call, whose output is the row: names as they are, a missing number is null."""
        call, self._step = self._call_of(step), None
        self._send([self._call("coterie.step", call, None, call, {"step": step}, dict(flat(metrics)))])

    def track_episodes(self, step: int, actions: Sequence[Mapping[str, Any]]) -> None:
        """The calls below that of the step."""
        root, calls = self._call_of(step), list[Mapping[str, Any]]()
        for place, of in groupby(actions, key=lambda action: tuple(action[name] for name in EPISODE)):
            played, episode = list(of), str(uuid.uuid4())
            given = {"step": step, **dict(zip(EPISODE, place, strict=True))}
            end = {"success": played[-1]["success"], "actions": len(played)}
            calls.append(self._call("coterie.episode", episode, root, root, given, end))
            for action in played:
                at = {name: action[name] for name in ("turn", "stage", "role", "branch", *READ)}
                came = {n: v for n, v in action.items() if n not in (*at, *given)}
                calls.append(
                    self._call("coterie.action", str(uuid.uuid4()), episode, root, at, came, action["role"])
                )
        self._send(calls)

    def close(self) -> None:
        self._server = None

    def _known(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError):
            for line in self._calls.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError):  # a kill tears the last line
                    yield json.loads(line)

    def _call_of(self, step: int) -> str:
        """The id of the step's call, which is on the disk before anything is sent."""
        if self._step is None or self._step[0] != step:
            self._step = step, str(uuid.uuid4())
            with self._calls.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, "id": self._step[1]}) + "\n")
        return self._step[1]

    def _call(
        self, op: str, call: str, parent: str | None, trace: str,
        given: Mapping[str, Any], came: Mapping[str, Any], name: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        now = datetime.datetime.now(tz=datetime.UTC).isoformat()
        attributes = self._attributes if parent is None else {}
        return {
            "project_id": self._project,
            "id": call,
            "op_name": op,
            "display_name": name,
            "trace_id": trace,
            "parent_id": parent,
            "started_at": now,
            "ended_at": now,
            "attributes": attributes,
            "inputs": given,
            "output": came,
            "summary": {},
        }

    def _send(self, calls: Sequence[Mapping[str, Any]]) -> None:
        """Raises what the library raises once its retries are spent."""
        with self._bounded():
            self._server.calls_complete({"batch": calls})
