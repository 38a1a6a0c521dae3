"""The processes of a run: pools of replicas by set of weights, and what a layout excludes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from coterie.backends.cluster.placement import ClusterNode, Process, place
from coterie.backends.cluster.processes import processes_of
from coterie.backends.cluster.settings import ClusterConfig
from coterie.core.errors import ConfigError
from coterie.discovery.validation import validate
from coterie.recipes import load

DSBENCH = str(Path(__file__).with_name("three_sets.yaml"))
GPUS, NO_GPUS = [ClusterNode("a", 16, 8)], [ClusterNode("a", 16)]


def processes(*overrides: str, recipe: str = DSBENCH, nodes: Sequence[ClusterNode] = GPUS) -> list[Process]:
    config = load(recipe, scale="gpu", overlays=["ray"], overrides=overrides).config
    return list(processes_of(config, validate(ClusterConfig, config.cluster, "cluster"), nodes))


def names(*overrides: str, recipe: str = DSBENCH, nodes: Sequence[ClusterNode] = GPUS) -> list[str]:
    return [process.name for process in processes(*overrides, recipe=recipe, nodes=nodes)]


def pools(*overrides: str) -> dict[str, str]:
    result = processes(*overrides)
    return {each.name: each.holds for each in result if each.name.startswith("vllm")}


def test_whole_weights_have_a_pool_each_and_adapters_and_frozen_ones_one_together() -> None:
    whole = pools()
    assert whole == {
        "vllm data_engineer/0": "data_engineer",
        "vllm modeler/0": "modeler",
        "vllm analyst/0": "analyst",
    }
    adapters = pools("policies.modeler.train=lora", "policies.analyst.train=none")
    assert adapters == {
        "vllm data_engineer/0": "data_engineer",
        "vllm modeler/0": "modeler, analyst",
    }


def test_other_weights_at_the_start_are_another_pool() -> None:
    frozen = [f"policies.{name}.train=none" for name in ("data_engineer", "modeler", "analyst")]
    assert len(pools(*frozen)) == 1
    assert len(pools(*frozen, "policies.analyst.revision=other")) == 2
    assert len(pools(*frozen, "policies.analyst.dtype=float32")) == 2
    assert len(pools(*frozen, "policies.analyst.dtype=bfloat16")) == 1  # what `auto` is on a GPU


def test_replicas_are_numbered_within_their_pool() -> None:
    result = pools("engine.replicas=2", "policies.modeler.train=none", "policies.analyst.train=none")
    assert list(result) == [
        *("vllm data_engineer/0", "vllm data_engineer/1", "vllm modeler/0", "vllm modeler/1"),
    ]


def test_a_cluster_without_gpus_has_the_same_processes_and_no_gpu() -> None:
    settings = ["trainer.ranks=2", "engine.tensor_parallel=2", "cluster.layout=colocate"]
    with_gpus, without = processes(*settings), processes(*settings, nodes=NO_GPUS)
    assert [each.name for each in with_gpus] == [each.name for each in without]
    assert sum(each.gpus for each in with_gpus) == 2 and not any(each.gpus for each in without)
    assert not any(each.shares for each in without)


def test_a_trainer_on_a_cpu_takes_no_gpu() -> None:
    run = processes("trainer.device=cpu")[0]
    assert (run.name, run.gpus) == ("run", 0)
    assert processes()[0].gpus == 1
    assert processes("cluster.rank_gpus=0")[0].gpus == 0


def test_one_engine_without_replicas_holds_all_policies() -> None:
    result = {each.name: each for each in processes("engine=hf", "cluster.engine_gpus=1")}
    assert list(result) == ["run", "engine", "models", "rollout host 0", "rollout host 1"]
    assert result["engine"].gpus == 1
    assert result["engine"].holds == "engine hf: data_engineer, modeler, analyst"
    inside = names("engine.process=inside", "cluster.engine_gpus=1")
    assert inside == list(result)


def test_models_of_a_server_have_a_process_with_the_run() -> None:
    assert processes()[-3].name == "models" and processes()[-3].with_run
    assert "models" not in names(recipe="plan_path")


@pytest.mark.parametrize(
    ("settings", "path", "fix"),
    [
        (["engine.devices=[0]"], "engine.devices", "remove it"),
        (["cluster.engine_gpus=1"], "cluster.engine_gpus", "remove it"),
        (["engine=hf", "cluster.layout=colocate"], "cluster.layout", "engine.type=vllm"),
        (["trainer=none", "cluster.layout=colocate"], "cluster.layout", "cluster.layout=separate"),
        (["engine.sleep=false", "cluster.layout=colocate"], "engine.sleep", "remove engine.sleep"),
        (
            ["schedule.max_staleness=1", "cluster.layout=colocate"],
            *("schedule.max_staleness", "schedule.max_staleness=0"),
        ),
        (["cluster.rank_gpus=0", "cluster.layout=colocate"], "cluster.rank_gpus", "remove it"),
        (
            ["engine.tensor_parallel=2", "cluster.layout=colocate"],
            "engine.tensor_parallel",
            "trainer.ranks=2",
        ),
    ],
)
def test_settings_that_no_cluster_can_follow(settings: list[str], path: str, fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        processes(*settings)
    assert refused.value.path == path
    assert fix in (refused.value.fix or "")


AT_ONCE = "cluster.updates=at_once"


def trainers(*overrides: str) -> dict[str, str]:
    result = processes(AT_ONCE, *overrides)
    return {each.name: each.holds for each in result if each.name.startswith("trainer")}


def test_at_once_each_set_of_weights_has_a_trainer_and_the_run_no_weights() -> None:
    result = {each.name: each for each in processes(AT_ONCE)}
    run = result["run"]
    assert (run.gpus, run.holds, run.with_run) == (0, "the run's loop", True)
    assert [(name, each.gpus) for name, each in result.items() if name.startswith("trainer")] == [
        ("trainer data_engineer/0", 1),
        ("trainer modeler/0", 1),
        ("trainer analyst/0", 1),
    ]
    assert not any(result[name].with_run for name in result if name.startswith("trainer"))
    adapters = ["policies.modeler.train=lora", "policies.analyst.train=lora"]
    assert trainers(*adapters) == {
        "trainer data_engineer/0": "trainer: data_engineer",
        "trainer modeler/0": "trainer: modeler, analyst",
    }


def test_frozen_weights_have_no_trainer_of_their_own() -> None:
    assert trainers("policies.data_engineer.train=none") == {
        "trainer modeler/0": "trainer: data_engineer, modeler",
        "trainer analyst/0": "trainer: analyst",
    }
    frozen = [f"policies.{name}.train=none" for name in ("data_engineer", "modeler", "analyst")]
    assert trainers(*frozen, "policies.analyst.revision=other") == {
        "trainer data_engineer/0": "trainer: data_engineer, modeler, analyst"
    }


def test_each_trainer_has_its_ranks_and_its_replicas_share_their_gpus() -> None:
    settings = [AT_ONCE, "trainer.ranks=2", "engine.replicas=3", "cluster.layout=colocate"]
    result = {each.name: each for each in processes(*settings)}
    for name in ("data_engineer", "modeler", "analyst"):
        ranks = [f"trainer {name}/{number}" for number in range(2)]
        assert [result[rank].gpus for rank in ranks] == [1, 1]
        shares = [result[f"vllm {name}/{number}"].shares for number in range(3)]
        assert shares == [(ranks[0],), (ranks[1],), (ranks[0],)]


def test_trainers_take_gpus_of_any_node_and_none_on_a_cpu() -> None:
    """In turn rank 0 is on the first node, with the run; at once no trainer has to be."""
    nodes = [ClusterNode("a", 16), ClusterNode("b", 16, 8)]
    assert not any(each.gpus for each in processes(nodes=nodes) if each.name == "run")
    assert {each.gpus for each in processes(AT_ONCE, nodes=nodes) if "trainer" in each.name} == {1}
    for setting in ("trainer.device=cpu", "cluster.rank_gpus=0"):
        assert {each.gpus for each in processes(AT_ONCE, setting) if "trainer" in each.name} == {0}


def test_too_few_gpus_for_trainers_name_the_setting() -> None:
    nodes = [ClusterNode("a", 16, 2)]
    for more, path in ((), "cluster.updates"), (("trainer.ranks=2",), "trainer.ranks"):
        with pytest.raises(ConfigError) as refused:
            place(nodes, processes(AT_ONCE, "engine=hf", *more, nodes=nodes))
        assert refused.value.path == path
        assert "set cluster.updates=in_turn" in (refused.value.fix or "")
        assert "trainer (" in (refused.value.why or "")


def test_too_few_cpus_for_what_must_be_together_name_the_cpus() -> None:
    """Run, rank 1 and three replicas that share their GPUs: 5 CPUs on one node, which has 4."""
    settings = ["cluster.layout=colocate", "trainer.ranks=2", "engine.tensor_parallel=2"]
    nodes = [ClusterNode("a", 4, 4), ClusterNode("b", 16, 4)]
    with pytest.raises(ConfigError) as refused:
        place(nodes, processes(*settings, nodes=nodes))
    assert refused.value.path == "cluster.replica_cpus"
    why = "the node of the run's process (a) has 4 CPUs and 4 GPUs, and 5 CPUs and 2 GPUs must be there: "
    assert (refused.value.why or "").startswith(why + "run, rank 1, vllm data_engineer/0")
