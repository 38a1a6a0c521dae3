"""The model of a run on a cluster: figures by hand, measured cases within its bound, the page's tables."""

from __future__ import annotations

import copy
import json
import runpy
from dataclasses import replace
from typing import Any

import cluster_cases
import cluster_model
import pytest
from cluster_costs import solved
from cluster_simulation import Case, Costs, simulate
from hypothesis import given, strategies as st

pytestmark = pytest.mark.xdist_group("cluster_model")  # `result` takes seconds

SMALL = Case(trees=1, stages=1, branches=1)


# ---------------------------------------------------------------------------------------- figures by hand


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        (replace(SMALL, stages=2, wait=3.0, update=2.0, sync=0.5), 2 * 3 + 2 + 0.5),
        # two trees on one host: 2 actions of 1 s each, and 0.25 s to send a tree
        (replace(SMALL, trees=2, stages=2, hosts=1, costs={"host": Costs(0.25, 1.0)}), 4.5),
        (replace(SMALL, trees=2, stages=2, hosts=2, costs={"host": Costs(0.25, 1.0)}), 2.25),
        (replace(SMALL, trees=2, stages=2, hosts=2, cores=1, costs={"host": Costs(0.25, 1.0)}), 4.5),
        # the driver takes tree after tree, then counts advantages of both, and records both
        (
            replace(
                SMALL, trees=2, costs={"driver": Costs(1.0), "credit": Costs(0.5), "record": Costs(0.25)}
            ),
            3.5,
        ),
        # an action, 3 tokens of a prompt, 4 of an answer
        (replace(SMALL, prompt=3, answer=4, costs={"engine": Costs(0.0, 1.0, 0.1, 0.01)}), 1.34),
    ],
)
def test_a_step_without_steps_ahead(case, seconds):
    assert simulate(case, 3).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("more", "seconds"),
    [
        ({"decoding": (1.0, 0.0)}, 3),  # all rows at once
        ({"decoding": (0.0, 1.0)}, 12),  # a second for each row
        ({"decoding": (1.0, 0.5)}, 3 * (1 + 0.5 * 4)),
        ({"decoding": (1.0, 0.5), "rows": 2}, 2 * 3 * (1 + 0.5 * 2)),
        ({"decoding": (1.0, 0.5), "replicas": 2}, 3 * (1 + 0.5 * 2)),
        ({"decoding": (1.0, 0.5), "bundle": 2}, 3 * (1 + 0.5 * 4)),
    ],
)
def test_an_engine_draws_in_batches(more, seconds):
    case = replace(SMALL, trees=2, branches=2, answer=3, **more)
    assert simulate(case, 3).seconds == pytest.approx(seconds)


@pytest.mark.parametrize(("ahead", "seconds"), [(0, 8), (1, 4), (2, 8 / 3), (3, 2), (9, 2)])
def test_steps_ahead_overlap_until_the_trainer_is_busy(ahead, seconds):
    """Play that only waits for 6 s, and updates of 2 s: (6 + 2) / (N + 1), at least 2."""
    assert simulate(replace(SMALL, wait=6.0, update=2.0, ahead=ahead), 60).seconds == pytest.approx(
        seconds, 0.02
    )


@given(
    trees=st.integers(1, 6),
    stages=st.integers(1, 3),
    hosts=st.integers(0, 3),
    ahead=st.integers(0, 3),
    cores=st.sampled_from([None, 1, 2]),
    seconds=st.tuples(*[st.floats(0.01, 3.0)] * 6),
)
def test_a_step_takes_what_its_busiest_part_works_and_at_most_all_parts_in_turn(
    trees, stages, hosts, ahead, cores, seconds
):
    driver, host, engine, token, wait, update = seconds
    costs = {"driver": Costs(driver), "host": Costs(0.0, host), "engine": Costs(0.0, engine)}
    case = Case(trees=trees, stages=stages, branches=2, answer=4, costs=costs, hosts=hosts, cores=cores,
                decoding=(token, 0.0), wait=wait, update=update, ahead=ahead)  # fmt: skip
    of = simulate(case, 6 * (ahead + 1))
    assert max(of.busy.values()) <= of.seconds * 1.35, "only the first and last steps are cut"
    actions = trees * stages * 2
    in_turn = trees * driver + actions * (host + engine) + trees * stages * (2 * 4 * token + wait) + update
    assert of.seconds <= in_turn * 1.01
    assert of.seconds <= simulate(replace(case, ahead=0), 6).seconds * 1.35


def test_costs_are_solved_from_steps_and_never_negative():
    counts = [(20, 40, 60), (20, 1000, 60), (20, 40, 1000)]
    units = ("action", "prompt_token", "answer_token")

    def kinds(*costs: float) -> dict[str, Any]:
        return {
            str(n): {
                "counts": dict(zip(units, each, strict=True)),
                "processor": {"p": sum(cost * count for cost, count in zip(costs, each, strict=True))},
            }
            for n, each in enumerate(counts)
        }

    assert list(solved(kinds(0.5, 0.01, 0.02), "p").values()) == pytest.approx([0.5, 0.01, 0.02])
    assert min(solved(kinds(0.5, -0.01, 0.02), "p").values()) == 0


# ------------------------------------------------------------------------------------------ what is said


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return cluster_model.result()


def test_the_measured_cases_are_predicted_within_a_quarter(result):
    errors = {each["case"]: each["error"] for each in result["cases"]}
    assert len(errors) >= 15 and max(map(abs, errors.values())) <= 0.25 == result["bound"], errors


def test_no_prediction_depends_on_what_it_predicts(monkeypatch):
    """All results that are predicted are doubled, and every prediction stays."""
    before = cluster_cases.local_cases()
    plain = cluster_cases.stored.__wrapped__

    def doubled(name: str) -> dict[str, Any]:
        changed = copy.deepcopy(plain(name))
        if name == "cluster":  # the action with `local` says how fast the machine was
            changed["step_seconds"] = {place: 2 * v for place, v in changed["step_seconds"].items()}
            changed["action_microseconds"]["ray"] *= 2
        elif name == "cluster_costs":
            for place in ("local", "ray"):
                other = changed[place]["other"]["processor"]
                other.update({process: 2 * seconds for process, seconds in other.items()})
            changed["weights"]["other"]["seconds"] *= 2
        elif name in ("asynchronous", "asynchronous_vllm"):
            changed |= {part: 2 * changed[part] for part in ("g", "u")} | {"turns": []}
            changed["rows"] = [{n: v if n == "ahead" else [] if isinstance(v, list) else 2 * v
                              for n, v in row.items()} for row in changed["rows"]]  # fmt: skip
        return changed

    monkeypatch.setattr(cluster_cases, "stored", doubled)
    after = cluster_cases.local_cases()
    assert [each.predicted for each in after] == [each.predicted for each in before]
    assert [each.measured for each in after] == pytest.approx([2 * each.measured for each in before])


def test_the_committed_result_and_the_page_are_what_the_script_says(result):
    committed = json.loads((cluster_model.RESULTS / "cluster_model.json").read_text(encoding="utf-8"))
    assert committed == json.loads(json.dumps(result)), "run `python benchmarks/cluster_model.py`"
    assert cluster_model.page(result) == cluster_model.PAGE.read_text(encoding="utf-8")


def test_work_by_hand(result):
    """Qwen3-1.7B on 64 GPUs: 192 tasks of 3 decisions and 4 answers, 32 replicas of 2 bytes a weight."""
    row = next(each for each in result["clusters"] if (each["model"], each["gpus"]) == ("Qwen3-1.7B", 64))
    assert (row["tasks"], row["samples"]) == (192, 2304)
    assert row["drawn_tokens"] == 2304 * 2048 and row["trained_tokens"] == 2304 * 2048 + 576 * 1024
    assert row["moved"] == 32 * 2 * 1_720_574_976


def test_the_public_run_of_vllm_agrees_with_the_assumed_gpu(result):
    for each in result["public_vllm"].values():
        assert each["predicted"] == pytest.approx(each["published"], rel=0.1)


@pytest.mark.torch
def test_the_models_have_the_sizes_of_the_plan():
    pytest.importorskip("torch")
    script = runpy.run_path(str(cluster_model.PAGE.parent / "scaling_table.py"))
    for name, model in cluster_model.MODELS.items():
        size = script["model"](name.removeprefix("Qwen3-")).size
        assert size.parameters == model.parameters and 2 * size.cache == model.cache
