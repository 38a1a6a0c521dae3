"""Tracker `otel`: the spans of real runs, as a collector of OpenTelemetry gets them."""

from __future__ import annotations

import itertools
import json
import logging
import pickle
import socket
import time
from pathlib import Path

import pytest

import coterie
from coterie import Key, Plugin, PolicyFault, SystemFault, seed64
from coterie.api.rollouts import read_rollouts
from coterie.backends.trackers.otel import OtelTracker
from coterie.core.errors import ConfigError
from coterie.spans import Trace
from coterie.testing import check_tracker, coterie_run
from coterie.testing.support.toys import EchoRole

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from tests.backends.trackers.collector import Collector

RECIPE = "tests/recipes/tabular.yaml"
HERE = "tests.backends.trackers.test_otel"
PARTS = {"play", "score", "credit", "update", "sync", "record", "evaluate", "checkpoint"}


def table(endpoint: str, **settings) -> dict:
    return {"type": "otel", "endpoint": endpoint, "timeout": 5, "share": 1, **settings}


def train(folder: Path, *overrides: str, steps: int = 2, **trackers: dict) -> Path:
    """A small real run: two roles in tables, four branches; step 2 evaluates and has a checkpoint."""
    given = [f"trackers.{tracker}={json.dumps(of)}" for tracker, of in trackers.items()]
    coterie.train(RECIPE, out=folder / "run", overrides=[f"schedule.steps={steps}", *given, *overrides])
    return folder / "run"


def branches(folder: Path, step: int) -> list[dict]:
    (file,) = (folder / "rollouts").glob(f"*{step:06d}*")
    return [row for row in read_rollouts(file) if row["kind"] == "branch"]


def prompt_of(folder: Path, branch: dict) -> list[int]:
    """The ids of the prompt of a branch of step 1."""
    (file,) = (folder / "rollouts").glob("*000001*")
    nodes = [row for row in read_rollouts(file) if row["kind"] == "node"]
    (node,) = [row for row in nodes if (row["node"], row["role"]) == (branch["node"], branch["role"])]
    return node["prompt_ids"]


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    with Collector() as collector:
        folder = train(tmp_path_factory.mktemp("otel"), otel=table(collector.endpoint, content=True))
    return folder, collector


def by_id(collector):
    return {(span.trace, span.id): span for span in collector.spans}


# ------------------------------------------------------------------------------------------------- the tree


def test_every_span_has_its_parent_and_lies_within_its_time(traced):
    _, collector = traced
    spans, allowed = by_id(collector), {
        "episode": {"step", "evaluate"},
        "decision": {"episode"},
        "call": {"decision"},
        "judge": {"episode"},
        "score": {"step", "evaluate"},
    }  # fmt: skip
    assert len(spans) == len(collector.spans), "ids are unique"
    for span in collector.spans:
        assert span.start <= span.end
        if span.kind in ("run", "step"):
            assert span.parent == b""
            continue
        parent = spans[span.trace, span.parent]
        assert parent.kind in allowed.get(span.kind, {"step"}), (span.kind, parent.kind)
        assert parent.start <= span.start and span.end <= parent.end, (span.kind, parent.kind)
    assert set(collector.kinds) == {"run", "step", "episode", "decision", "call", "judge", *PARTS}


def test_a_step_is_a_trace_that_is_linked_to_the_run(traced):
    _, collector = traced
    (run,) = collector.of("run")
    steps = sorted(collector.of("step"), key=lambda span: span.start)
    assert [span.attributes["coterie.step"] for span in steps] == [1, 2]
    assert len({span.trace for span in steps} | {run.trace}) == 3
    assert all(span.links == [run.trace] for span in steps)
    assert run.start <= steps[0].start and steps[-1].end <= run.end
    assert {span.attributes["session.id"] for span in [run, *steps]} == {"run"}
    assert collector.resources[0]["service.name"] == "coterie"


def test_the_counts_are_those_of_the_rollout_files(traced):
    folder, collector = traced
    for step in (1, 2):
        rows = branches(folder, step)
        played = {
            span.id
            for span in collector.of("episode")
            if span.attributes["coterie.step"] == step and not span.attributes["coterie.evaluation"]
        }
        decisions = [span for span in collector.of("decision") if span.parent in played]
        calls = [span for span in collector.of("call") if span.parent in {each.id for each in decisions}]
        assert len(played) == 8
        assert {span.attributes["coterie.place"] for span in decisions} == {
            f"{row['node']}/{row['role']}" for row in rows
        }
        assert len(calls) == sum(len(row["calls"]) for row in rows)
        assert sum(span.attributes["gen_ai.usage.output_tokens"] for span in calls) == sum(
            len(call["token_ids"]) for row in rows for call in row["calls"]
        )
    assert collector.kinds["episode"] == 2 * 8 + 8  # and 8 tasks of val


def test_a_judge_has_the_scores_that_the_rollout_files_have(traced):
    folder, collector = traced
    rows = {(row["node"], row["role"], row["branch"]): row["scores"] for row in branches(folder, 1)}
    judged = [span for span in collector.of("judge") if span.attributes["coterie.step"] == 1]
    compared = 0
    for span in judged:
        assert span.name == "judge environment" and span.attributes["coterie.scope"] == "joint"
        node, _, joint = span.attributes["coterie.place"].rpartition("/j")
        for role in ("planner", "executor"):
            for name, value in rows.get((node, role, int(joint)), {}).items():
                key = name if name.startswith("team.") else f"{role}.{name}"
                assert span.attributes[f"coterie.score.{key}"] == value
                compared += 1
    assert compared > 100


def test_attributes_are_those_of_the_conventions(traced):
    folder, collector = traced
    rows = {f"{row['node']}/{row['role']}/b{row['branch']}": row for row in branches(folder, 1)}
    call = next(span for span in collector.of("call") if span.attributes["coterie.step"] == 1)
    row = rows[call.attributes["coterie.place"].rpartition("/")[0]]
    (recorded,) = row["calls"]
    assert call.name == "chat shared" and call.otel_kind == 3  # CLIENT
    assert (
        call.attributes.items()
        >= {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "coterie",
            "gen_ai.request.model": "shared",
            "gen_ai.request.max_tokens": 3,
            "gen_ai.request.temperature": 1.0,
            "gen_ai.usage.input_tokens": len(prompt_of(folder, row)),
            "gen_ai.usage.output_tokens": len(recorded["token_ids"]),
            "gen_ai.agent.name": row["role"],
        }.items()
    )
    assert call.attributes["gen_ai.response.finish_reasons"] == [recorded["finish"]]
    (answer,) = json.loads(call.attributes["gen_ai.output.messages"])
    assert answer == {
        "role": "assistant",
        "parts": [{"type": "text", "content": row["completion"]}],
        "finish_reason": recorded["finish"],
    }
    decision = next(span for span in collector.of("decision") if span.id == call.parent)
    assert decision.name == f"invoke_agent {row['role']}"
    assert decision.attributes["gen_ai.operation.name"] == "invoke_agent"
    assert decision.attributes["gen_ai.request.choice.count"] == 4
    (prompt,) = json.loads(decision.attributes["gen_ai.input.messages"])
    assert prompt["role"] == "user" and prompt["parts"][0]["content"].startswith(row["role"])
    episode = next(span for span in collector.of("episode") if span.id == decision.parent)
    assert episode.name == "invoke_workflow run"
    assert episode.attributes["gen_ai.conversation.id"] == f"run/{episode.attributes['coterie.place']}"
    update = collector.of("update")[0]
    assert update.attributes["coterie.update.shared.optimizer_steps"] == 1


def test_contents_stay_at_home_unless_they_are_asked_for(tmp_path, traced):
    with Collector() as collector:
        train(tmp_path, otel=table(collector.endpoint))
    asked, silent = b"".join(traced[1].raw), b"".join(collector.raw)
    texts = {
        row["completion"].encode() for row in branches(tmp_path / "run", 1) if len(row["completion"]) > 8
    }
    assert texts and all(text in asked for text in texts)
    assert not any(text in silent for text in texts)
    assert b"messages" not in silent and collector.kinds == traced[1].kinds


# ------------------------------------------------------------------------------------------------ sampling


def test_a_share_is_the_episodes_whose_draw_is_below_it(tmp_path, traced):
    places = {span.attributes["coterie.place"] for span in traced[1].of("episode")}

    def draw(place: str) -> float:
        task, epoch, chain, _ = place.split("/")
        return seed64(0, Key(task, int(epoch[1:]), int(chain[1:])), "spans") / 2**64

    with Collector() as few, Collector() as many, Collector() as none:
        train(
            tmp_path,
            few=table(few.endpoint, share=0.2),
            many=table(many.endpoint, share=0.7),
            none=table(none.endpoint, share=0),
        )
    for collector, share in ((few, 0.2), (many, 0.7), (none, 0.0)):
        wanted = {place for place in places if draw(place) < share}
        assert {span.attributes["coterie.place"] for span in collector.of("episode")} == wanted
        assert collector.kinds["step"] == 2 and all(collector.kinds[part] for part in PARTS)
        spans = by_id(collector)
        assert all((span.trace, span.parent) in spans for span in collector.spans if span.parent)
    assert 0 < len(few.of("episode")) < len(many.of("episode")) < len(traced[1].of("episode"))


def rows_of(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: of for name, of in row.items() if "time/" not in name and "/mb" not in name} for row in rows
    ]


def test_a_run_has_the_same_rows_rollouts_and_weights_with_spans_and_without(tmp_path, traced):
    folder, _ = traced
    plain = train(tmp_path)
    assert rows_of(plain) == rows_of(folder) and len(rows_of(plain)) == 2
    for step in (1, 2):
        assert branches(plain, step) == branches(folder, step)
    last = "checkpoints/step-000002/shared.npz"
    assert (plain / last).read_bytes() == (folder / last).read_bytes()


def test_without_a_tracker_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(Trace, "__init__", None)  # none can be made
    assert len(rows_of(train(tmp_path))) == 2


def test_an_evaluation_of_a_traced_run_records_nothing(traced, monkeypatch):
    folder, collector = traced
    spans = len(collector.spans)
    monkeypatch.setattr(Trace, "__init__", None)
    coterie.evaluate(folder, samples=1)
    assert len(collector.spans) == spans


def test_steps_that_play_ahead_have_times_that_lie_within_each_other(tmp_path):
    with Collector() as collector:
        train(tmp_path, "schedule.max_staleness=1", otel=table(collector.endpoint))
    spans = by_id(collector)
    for span in collector.spans:
        if span.parent:
            parent = spans[span.trace, span.parent]
            assert parent.start <= span.start and span.end <= parent.end, (span.kind, parent.kind)
    second, first = sorted(collector.of("step"), key=lambda span: -span.attributes["coterie.step"])[-2:]
    assert second.start < first.end, "step 2 was handed out before step 1 was over"


def test_a_resumed_run_has_a_span_of_its_own_and_the_name_of_the_run(tmp_path):
    with Collector() as collector:
        folder = train(tmp_path, steps=1, otel=table(collector.endpoint))
        coterie.train(resume=folder, overrides=["schedule.steps=2"])
    runs, steps = collector.of("run"), collector.of("step")
    assert len(runs) == 2 and len({run.trace for run in runs}) == 2
    assert [span.attributes["coterie.step"] for span in steps] == [1, 2]
    assert {span.attributes["coterie.run"] for span in [*runs, *steps]} == {"run"}
    assert [span.links for span in steps] == [[runs[0].trace], [runs[1].trace]]


# ------------------------------------------------------------------------------------- tools, judges, errors


class Adder(Plugin):
    """`add 1 2` -> 3."""

    name = "adder"

    def find(self, text):
        return text.split()[1:] if text.startswith("add ") else None

    async def run(self, call):
        if call == ["0", "2"]:
            raise SystemFault("no abacus")
        return str(sum(int(number) for number in call))


class Judge(Plugin):
    """Fails by its own fault, or by that of what was written."""

    scope = "action"
    components = {"taste": "increment"}
    weights = {"taste": 1.0}
    policy_fault = -1.0

    async def score(self, view):
        if view.action.text == "3":
            raise PolicyFault("it wrote the secret word")
        if view.action.text == "4":
            raise SystemFault("the judge is out")
        return {(view.role, "taste"): coterie.Score(0.5, comment="a fine answer")}


def adds(request, text):
    return f"add {request.key.branch} 2" if request.key.call == 0 else text.split()[-2]


def team_with_a_tool(folder: Path, **settings) -> None:
    run = coterie_run(
        answers=adds,
        order=["one"],
        tools={"adder": {"type": f"{HERE}:Adder"}},
        roles={"one": {"type": f"{HERE}:Plain", "tools": ["adder"]}},
        rewards={"judge": {"type": f"{HERE}:Judge"}},
        sampler={"branches": 4},
        schedule={"max_missing": 1, "tasks_per_step": 1},
        trackers={"otel": table(**settings)},
    )
    coterie.train(run.config, out=folder / "run")


class Plain(EchoRole):
    def parse(self, text, observation):
        return int(text)


def test_tools_and_judges_have_spans_and_their_failures(tmp_path):
    with Collector() as collector:
        team_with_a_tool(tmp_path, endpoint=collector.endpoint, content=True)
    spans, tools = by_id(collector), collector.of("tool")
    assert len(tools) == 4 and {tool.name for tool in tools} == {"execute_tool adder"}
    by_branch = {tool.attributes["coterie.place"].split("/")[-2]: tool for tool in tools}
    sound, failed = by_branch["b1"], by_branch["b0"]
    assert sound.attributes["gen_ai.tool.name"] == "adder"
    assert json.loads(sound.attributes["gen_ai.tool.call.arguments"]) == ["1", "2"]
    assert sound.attributes["gen_ai.tool.call.result"] == "3" and not sound.failed
    assert failed.failed and failed.attributes["error.type"] == "SystemFault"
    assert failed.message == "no abacus"
    (decision,) = {spans[tool.trace, tool.parent].id for tool in tools}
    assert len([call for call in collector.of("call") if call.parent == decision]) == 7
    faults = next(span for span in collector.of("decision")).attributes["coterie.faults"]
    assert faults == ["b0: system"]
    judged = [span for span in collector.of("judge") if span.name == "judge judge"]
    assert sorted(span.attributes.get("error.type", "") for span in judged) == [
        "",
        "PolicyFault",
        "SystemFault",
    ]
    score = next(span.attributes for span in judged if not span.failed)
    assert score["coterie.score.one.taste"] == 0.5 and score["coterie.comment.one.taste"] == "a fine answer"


def test_what_a_policy_is_at_fault_for_is_content(tmp_path):
    with Collector() as collector:
        team_with_a_tool(tmp_path, endpoint=collector.endpoint)
    messages = {span.message for span in collector.of("judge") if span.failed}
    assert messages == {"", "the judge is out"}
    assert b"secret" not in b"".join(collector.raw) and b"fine answer" not in b"".join(collector.raw)


# -------------------------------------------------------------------------------------------------- faults


def lost(caplog) -> tuple[list[str], str]:
    """What was told of losses while the run went on, and at its end."""
    texts = [each.getMessage() for each in caplog.records if each.name.startswith(("coterie", "opentel"))]
    told = [text for text in texts if "did not reach the collector" in text]
    (end,) = [text for text in texts if "spans were lost" in text]
    assert len(texts) == 2, texts
    return told, end


def test_a_collector_that_refuses_costs_its_spans_alone(tmp_path, caplog):
    with Collector(status=lambda request: 401) as collector:
        folder = train(tmp_path, otel=table(collector.endpoint))
    (told,), end = lost(caplog)
    assert "code: 401" in told and collector.endpoint in told
    lost_spans, _, total = end.split()[:3]
    assert lost_spans == total and int(total) > 700
    assert len(rows_of(folder)) == 2


def test_a_collector_that_is_down_costs_its_spans_alone(tmp_path, caplog):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = time.monotonic()
    train(tmp_path, steps=1, otel=table(f"http://127.0.0.1:{port}/v1/traces", timeout=2))
    assert time.monotonic() - begun < 30
    (told,), end = lost(caplog)
    assert "refused" in told and end.startswith(end.split()[2])


@pytest.mark.parametrize("status", [300, 307])
def test_a_redirect_is_a_loss_and_is_not_followed(tmp_path, caplog, monkeypatch, status):
    monkeypatch.setenv("COLLECTOR_KEY", "s3cret-of-mine")
    with Collector() as other, Collector(status=lambda request: status, location=other.endpoint) as collector:
        headers = {"x-api-key": "${COLLECTOR_KEY}"}
        train(tmp_path, steps=1, otel=table(collector.endpoint, headers=headers))
    (told,), end = lost(caplog)
    assert f"code: {status}" in told and "not followed" in told and end.split()[0] == end.split()[2]
    assert collector.requests and not other.requests, "the key goes to no other address"


def test_spans_that_a_collector_rejects_are_lost(tmp_path, caplog):
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans, answer.partial_success.error_message = 3, "too old"
    with Collector(answer=[answer.SerializeToString()]) as collector:
        train(tmp_path, steps=1, otel=table(collector.endpoint))
    (told,), end = lost(caplog)
    assert told.startswith("3 spans did not reach") and "rejected them: too old" in told
    assert int(end.split()[0]) == 3 * collector.requests - (collector.requests > 1) * 2, end
    assert int(end.split()[2]) == len(collector.spans)


def test_of_an_endless_answer_little_is_read(tmp_path, caplog):
    with Collector(answer=itertools.repeat(b"y" * 2**16)) as collector:
        train(tmp_path, steps=1, otel=table(collector.endpoint))
    (told,), end = lost(caplog)
    assert "longer than 1 MiB" in told and end.split()[0] == end.split()[2]
    assert 2**20 < collector.answered < 2**24 * collector.requests, "and not what fits into ten seconds"


def test_an_answer_that_drips_has_the_time_of_a_request(tmp_path, caplog):
    def drips():
        while True:
            yield b"x"
            time.sleep(0.05)

    with Collector(answer=drips()) as collector:
        begun = time.monotonic()
        train(tmp_path, steps=1, otel=table(collector.endpoint, timeout=0.5))
        assert time.monotonic() - begun < 60  # it drips for ever
    (told,), end = lost(caplog)
    assert "spans did not reach" in told and end.split()[0] == end.split()[2]


def test_a_collector_that_hangs_costs_its_spans_and_the_deadline(tmp_path, caplog):
    with Collector(hangs=True) as collector:
        begun = time.monotonic()
        train(tmp_path, steps=1, otel=table(collector.endpoint, timeout=1))
        assert time.monotonic() - begun < 60  # it hangs for ever
        (told,), end = lost(caplog)
        assert end.startswith(end.split()[2]) and told


def test_a_collector_that_is_busy_for_a_moment_gets_every_span(tmp_path, caplog, traced):
    with Collector(status=lambda request: 503 if request == 0 else 200) as collector:
        train(tmp_path, otel=table(collector.endpoint))
    assert collector.kinds == traced[1].kinds
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_spans_that_wait_for_too_long_are_lost_and_counted(tmp_path, caplog):
    with Collector() as collector:
        train(tmp_path, steps=1, otel=table(collector.endpoint, waiting=200))
    (told,), end = lost(caplog)
    assert "more than 200 wait" in told
    assert int(end.split()[2]) - int(end.split()[0]) == len(collector.spans) >= 1


def test_a_tracker_that_fails_leaves_the_others_their_spans(tmp_path, caplog, traced):
    with Collector(status=lambda request: 500) as broken, Collector() as sound:
        train(tmp_path, bad=table(broken.endpoint), good=table(sound.endpoint))
    assert sound.kinds == traced[1].kinds
    (told,), _ = lost(caplog)
    assert "code: 500" in told and broken.endpoint in told


# ------------------------------------------------------------------------------------------------- settings


def test_headers_come_from_the_environment_and_are_never_told(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("COLLECTOR_KEY", "s3cret-of-mine")
    with Collector(status=lambda request: 401) as collector:
        train(
            tmp_path,
            steps=1,
            otel=table(collector.endpoint, headers={"Authorization": "Bearer ${COLLECTOR_KEY}"}),
        )
    assert collector.headers[0]["authorization"] == "Bearer s3cret-of-mine"
    stored = (tmp_path / "run" / "config.yaml").read_text()
    assert "s3cret" not in stored and "s3cret" not in caplog.text


def test_the_collector_of_the_environment_is_used_where_none_is_named(tmp_path, monkeypatch):
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", collector.endpoint)
        train(tmp_path, steps=1, otel={"type": "otel"})
    assert collector.kinds["step"] == 1


@pytest.mark.parametrize(
    ("setting", "path"),
    [({"share": 1.5}, "share"), ({"endpoint": "localhost:4318"}, "endpoint"), ({"sample": 0.1}, "sample")],
)
def test_wrong_settings_are_refused_before_the_run(setting, path):
    with pytest.raises(ConfigError) as refused:
        coterie.load(RECIPE, overrides=[])
        coterie_run(trackers={"otel": {"type": "otel", **setting}})
    assert path in str(refused.value)


def test_the_contract_of_trackers_holds():
    with Collector() as collector:
        check_tracker(OtelTracker(OtelTracker.Config(endpoint=collector.endpoint)))
    assert collector.kinds == {"run": 2}


def test_spans_travel_between_processes(tmp_path):
    run = coterie_run(schedule={"tasks_per_step": 1}, trackers={"kept": {"type": f"{HERE}:Kept"}})
    coterie.train(run.config, out=tmp_path / "run")
    (spans,) = Kept.steps
    assert pickle.loads(pickle.dumps(spans)) == spans
    assert isinstance(Kept(), coterie.TracksSpans) and isinstance(spans[0], coterie.TraceSpan)


class Kept(Plugin):
    """Keeps the spans as they come."""

    share = 1.0
    steps: list = []

    def open(self, folder): ...

    def truncate(self, step): ...

    def track(self, step, metrics): ...

    def track_spans(self, step, spans):
        self.steps.append(spans)

    def close(self): ...


@pytest.mark.torch
@pytest.mark.long
def test_a_quickstart_has_the_same_rows_and_weights_with_spans_and_without(tmp_path):
    pytest.importorskip("torch")
    short = [
        "schedule.steps=2",
        "schedule.evaluate_every=0",
        "policies.shared.warm_start.steps=1",
        "policies.shared.warm_start.batch=8",
        "schedule.tasks_per_step=4",
        "schedule.record_every=1",
    ]
    with Collector() as collector:
        for name, trackers in (
            ("plain", []),
            ("spans", [f"trackers.otel={json.dumps(table(collector.endpoint))}"]),
        ):
            coterie.train("quickstart", out=tmp_path / name, overrides=[*short, *trackers])
    assert collector.kinds["call"] > 100
    assert rows_of(tmp_path / "plain") == rows_of(tmp_path / "spans")
    assert branches(tmp_path / "plain", 2) == branches(tmp_path / "spans", 2)
