"""`coterie plan --nodes`: the placement before anything starts."""

from __future__ import annotations

import json

import pytest

from tests.cli.support import TABULAR, coterie
from tests.test_resume import MATRIX

TWO = ("--with", "ray", "--nodes", "2", "--node-cpus", "4", "--node-gpus", "0")


def test_the_table_of_processes_by_node() -> None:
    done = coterie("plan", TABULAR, *TWO, "cluster.workers=4")
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["node", "1", "run", "1", "-", "the", "run's", "loop", "and", "its", "trainer"] in rows
    assert [row[:3] for row in rows if "hosts" in row] == [["2", "rollout", "hosts"]] * 2
    assert "placement on 2 nodes of 4 CPUs, cluster.layout separate" in done.stdout
    assert "left: node 1 1 CPU; node 2 1 CPU" in done.stdout
    assert "weights go to the engine's process through Ray's object store\n  why: the engine" in done.stdout


def test_the_placement_as_json_and_the_counts_of_one_machine() -> None:
    done = coterie("plan", TABULAR, *TWO, "--json")
    assert done.exit_code == 0, done.output
    plan = json.loads(done.stdout)
    placement = plan.pop("placement")
    assert [node["free_cpus"] for node in placement["nodes"]] == [2, 2]
    processes = {each["name"]: each["node"] for each in placement["processes"]}
    assert processes == {
        "run": "node 1",
        "engine": "node 2",
        "rollout host 0": "node 1",
        "rollout host 1": "node 2",
    }
    assert placement["weights"]["transfer"] == "store" and placement["weights"]["why"]
    alone = json.loads(coterie("plan", TABULAR, "--json").stdout)
    assert plan["step"] == alone["step"] and "placement" not in alone


def test_a_placement_that_cannot_be_is_refused_with_the_numbers() -> None:
    done = coterie("plan", TABULAR, *TWO, "cluster.workers=7")
    assert done.exit_code != 0
    assert "cluster.workers: the run takes 9 CPUs, and the cluster has 8 CPUs on 2 nodes" in done.output
    assert "fix: lower cluster.workers, or add nodes" in done.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--nodes", "2"), "fix: add --with ray"),
        (("--node-cpus", "2"), "--node-cpus: this option has no effect"),
        ((*TWO, "--gpus", "2"), "--gpus: this option has no effect"),
    ],
)
def test_options_without_an_effect_are_refused(arguments: tuple[str, ...], message: str) -> None:
    done = coterie("plan", TABULAR, *arguments)
    assert done.exit_code != 0
    assert message in done.output


def test_what_a_cluster_cannot_follow_is_refused_without_nodes_too() -> None:
    done = coterie("plan", TABULAR, "--with", "ray", "cluster.layout=colocate")
    assert done.exit_code != 0
    assert "cluster.layout: nothing to colocate" in done.output
    done = coterie("plan", TABULAR, "--with", "ray", "cluster.weights_folder=/shared")
    assert done.exit_code != 0 and "cluster.weights_folder: nothing is written to this folder" in done.output
    done = coterie("plan", TABULAR, "--with", "ray", "cluster.weights=disk", "cluster.updates=at_once")
    assert done.exit_code != 0 and "cluster.weights: trainers of their own send their weights" in done.output


def test_sets_of_weights_that_are_updated_in_turn_are_told_with_the_setting() -> None:
    line = (
        "2 sets of weights (row, column) are updated in turn, by one trainer; cluster.updates=at_once gives"
    )
    assert line in coterie("plan", MATRIX, *TWO).stdout
    frozen = coterie("plan", MATRIX, *TWO, "policies.row.train=none").stdout
    assert "updated in turn" not in frozen, "one set is trained"
    at_once = coterie("plan", MATRIX, *TWO, "cluster.updates=at_once").stdout
    assert "updated in turn" not in at_once
    assert "trainer row/0" in at_once and "trainer column/0" in at_once


@pytest.mark.torch
@pytest.mark.parametrize(("leaves", "generation"), [("none", "9.98 GB"), ("auto", "9.6 GB")])
def test_replicas_on_the_trainers_gpus_are_there_in_the_figures_too(leaves: str, generation: str) -> None:
    """Of 24 GB vLLM takes .4; weights, masters and moments of 27.4 M parameters, .384 GB, stay or leave."""
    size = "hidden_size: 512, layers: 8, heads: 8, head_dim: 64, mlp_size: 1536, context: 2048"
    policy = f"{{model: {{init: qwen3, {size}, tokenizer: bytes}}, train: full, lora: null, dtype: bfloat16}}"
    nodes = ["--with", "ray", "--nodes", "1", "--node-gpus", "2", "--node-cpus", "16", "--gpu-memory", "24"]
    settings = [f"policies.shared={policy}", "cluster.layout=colocate", "engine={type: vllm, replicas: 2}"]
    trainer = f"trainer={{type: torch, ranks: 2, offload_in_rollouts: {leaves}}}"
    shown = coterie("plan", "plan_path", *nodes, *settings, trainer).stdout
    assert f"generation: {generation}" in shown and "they share GPUs 0 and 1" in shown
    assert ("leave the GPU for the host's memory, 0.384 GB" in shown) == (leaves == "auto")
