"""The placement of a run's processes: rules that hold for every cluster, and refusals that are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import example, given, settings, strategies as st

from coterie.backends.cluster.placement import ClusterNode, Placed, Process, place
from coterie.core.errors import ConfigError

QUARTERS = st.integers(0, 12).map(lambda quarters: quarters / 4)


@st.composite
def clusters(draw: st.DrawFn, most_nodes: int = 4) -> list[ClusterNode]:
    sizes = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=most_nodes))
    return [ClusterNode(f"node{number}", cpus, gpus) for number, (cpus, gpus) in enumerate(sizes)]


@st.composite
def runs(draw: st.DrawFn, most: int = 5, most_hosts: int = 6) -> list[Process]:
    """Ranks, replicas with and without GPUs of their own, and hosts."""
    ranks = draw(st.integers(1, 3))
    gpus = draw(st.integers(0, 1))
    result = [Process("run", draw(QUARTERS), gpus)]
    result += [Process(f"rank {number}", draw(QUARTERS), gpus) for number in range(1, ranks)]
    result.append(Process("engine", draw(QUARTERS), with_run=draw(st.booleans())))
    for number in range(draw(st.integers(0, most - ranks))):
        shared = draw(st.booleans()) and gpus
        shares = draw(st.sets(st.sampled_from([each.name for each in result[:ranks]]), min_size=1))
        result.append(
            Process(f"vllm base/{number}", draw(QUARTERS), shares=tuple(sorted(shares)))
            if shared
            else Process(f"vllm base/{number}", draw(QUARTERS), draw(st.integers(0, 4)))
        )
    cpus = draw(QUARTERS)
    hosts = draw(st.integers(0, most_hosts))
    return result + [Process(f"rollout host {number}", cpus) for number in range(hosts)]


def placed(nodes: Sequence[ClusterNode], processes: Sequence[Process]) -> tuple[Placed, ...] | None:
    try:
        return place(nodes, processes)
    except ConfigError:
        return None


@given(clusters(), runs())
@settings(max_examples=40, deadline=None)
def test_no_node_is_over_its_capacity_and_no_gpu_has_two_owners(
    nodes: list[ClusterNode], processes: list[Process]
) -> None:
    result = placed(nodes, processes)
    if result is None:
        return
    assert [each.process for each in result] == processes
    by_name = {each.process.name: each for each in result}
    assert by_name["run"].node == nodes[0].name
    for node in nodes:
        here = [each for each in result if each.node == node.name]
        assert sum(each.process.cpus for each in here) <= node.cpus + 1e-9
        own = Counter(gpu for each in here if not each.process.shares for gpu in each.gpus)
        assert all(count == 1 for count in own.values())
        assert set(own) <= set(range(node.gpus))
    for each in result:
        if each.process.with_run:
            assert each.node == nodes[0].name
        if not each.process.shares:
            assert len(each.gpus) == each.process.gpus
            continue
        owners = [by_name[name] for name in each.process.shares]
        assert {owner.node for owner in owners} == {each.node}
        assert each.gpus == tuple(gpu for owner in owners for gpu in owner.gpus)


@given(clusters(), runs())
@settings(max_examples=40, deadline=None)
def test_the_same_run_on_the_same_cluster_has_the_same_placement(
    nodes: list[ClusterNode], processes: list[Process]
) -> None:
    assert placed(nodes, processes) == placed(list(nodes), list(processes))


@given(clusters(most_nodes=3), runs(most=4, most_hosts=2))
@example(  # the first choice for rank 1 leaves no two GPUs together
    [ClusterNode("a", 8, 3), ClusterNode("b", 8, 3)],
    [Process("run", 1, 1), Process("rank 1", 1, 1), Process("vllm x/0", 1, 2), Process("vllm x/1", 1, 2)],
)
@example(
    [ClusterNode("a", 2), ClusterNode("b", 2)],
    [Process("run", 1.5), Process("engine", 0.5), Process("models", 2)],
)
@settings(max_examples=40, deadline=None)
def test_what_is_refused_has_no_placement(nodes: list[ClusterNode], processes: list[Process]) -> None:
    assert (placed(nodes, processes) is not None) == exists(nodes, processes)


def exists(nodes: Sequence[ClusterNode], processes: Sequence[Process]) -> bool:
    """Whether any choice of nodes, tried one by one, keeps all rules."""
    for choice in product(range(len(nodes)), repeat=len(processes)):
        at = {process.name: node for process, node in zip(processes, choice, strict=True)}
        if at["run"] != 0 or any(each.with_run and at[each.name] != 0 for each in processes):
            continue
        if any(at[each.name] != at[name] for each in processes for name in each.shares):
            continue
        here = [[each for each in processes if at[each.name] == number] for number in range(len(nodes))]
        if all(
            sum(each.cpus for each in mine) <= node.cpus + 1e-9
            and sum(each.gpus for each in mine) <= node.gpus
            for node, mine in zip(nodes, here, strict=True)
        ):
            return True
    return False


def on_nodes(result: Sequence[Placed]) -> dict[str, list[str]]:
    nodes: dict[str, list[str]] = {}
    for each in result:
        nodes.setdefault(each.node, []).append(each.process.name)
    return nodes


def test_hosts_are_spread_by_free_cpus() -> None:
    """The run leaves 2 of the first node's 4 CPUs: the others take hosts until they have 2 left, too."""
    nodes = [ClusterNode("a", 4), ClusterNode("b", 8), ClusterNode("c", 4)]
    hosts = [Process(f"rollout host {number}", 1) for number in range(8)]
    result = on_nodes(place(nodes, [Process("run", 2), *hosts]))
    assert {name: len(here) for name, here in result.items()} == {"a": 1, "b": 6, "c": 2}


def test_ten_thousand_hosts_on_64_nodes() -> None:
    nodes = [ClusterNode(f"node{number}", 64, 8) for number in range(64)]
    ranks = [Process("run", 1, 1), *(Process(f"rank {number}", 1, 1) for number in range(1, 256))]
    replicas = [Process(f"vllm base/{number}", 1, 4) for number in range(64)]
    hosts = [Process(f"rollout host {number}", 0.25) for number in range(10_000)]
    result = place(nodes, [*ranks, *replicas, *hosts])
    counts = Counter(each.node for each in result if each.process.name.startswith("rollout host"))
    assert sum(counts.values()) == 10_000
    free = {  # after the hosts: all nodes alike, but for what one host takes
        node.name: node.cpus - sum(each.process.cpus for each in result if each.node == node.name)
        for node in nodes
    }
    assert max(free.values()) - min(free.values()) <= 0.25


def test_room_for_hosts_decides_where_others_go() -> None:
    """A host of 3 CPUs fits twice beside one replica, and once beside run and two: 66 fit, and 67 don't."""
    nodes = [ClusterNode(f"node{number}", 8, 8) for number in range(33)]
    replicas = [Process(f"vllm base/{number}", 1, 4) for number in range(32)]
    hosts = [Process(f"rollout host {number}", 3, cpu_setting="cluster.workers") for number in range(67)]
    result = on_nodes(place(nodes, [Process("run", 1), *replicas, *hosts[:66]]))
    assert result["node0"][:2] == ["run", "vllm base/0"]
    assert all(sum(name.startswith("rollout") for name in here) == 2 for here in result.values())
    with pytest.raises(ConfigError) as refused:
        place(nodes, [Process("run", 1), *replicas, *hosts])
    assert refused.value.path == "cluster.workers"


def test_a_refusal_says_what_is_needed_and_what_there_is() -> None:
    processes = [
        Process("run", 1, 1),
        *(Process(f"vllm base/{number}", 1, 4, setting="engine.tensor_parallel") for number in range(2)),
        Process("rollout host 0", 1, cpu_setting="cluster.workers"),
    ]
    with pytest.raises(ConfigError) as refused:
        place([ClusterNode("a", 16, 4), ClusterNode("b", 16, 4)], processes)
    assert refused.value.path == "engine.tensor_parallel"
    assert (
        refused.value.what
        == "the run takes 4 CPUs and 9 GPUs, and the cluster has 32 CPUs and 8 GPUs on 2 nodes"
    )
    assert refused.value.why == "vllm (2): 8; run: 1; the largest node (a) has 16 CPUs and 4 GPUs"


def test_a_replica_that_no_node_holds_is_refused_by_the_largest_node() -> None:
    processes = [Process("run", 1), Process("vllm base/0", 1, 4, setting="engine.tensor_parallel")]
    with pytest.raises(ConfigError) as refused:
        place([ClusterNode("a", 16, 2), ClusterNode("b", 16, 3)], processes)
    assert refused.value.path == "engine.tensor_parallel"
    assert refused.value.why is not None
    assert "1 CPU and 4 GPUs (vllm base/0)" in refused.value.why
    assert "the largest node (b) has 16 CPUs and 3 GPUs" in refused.value.why


def test_what_must_be_with_the_run_is_refused_by_the_first_node() -> None:
    processes = [Process("run", 1), Process("models", 2, with_run=True)]
    with pytest.raises(ConfigError) as refused:
        place([ClusterNode("a", 2), ClusterNode("b", 16)], processes)
    assert refused.value.why is not None
    assert refused.value.why.startswith(
        "the node of the run's process (a) has 2 CPUs, and 3 CPUs must be there"
    )


def test_two_of_a_name_and_shares_of_nothing_are_bugs() -> None:
    with pytest.raises(ValueError, match="one name"):
        place([ClusterNode("a", 2)], [Process("run", 1), Process("run", 1)])
    with pytest.raises(ValueError, match="which has none"):
        place([ClusterNode("a", 2)], [Process("run", 1), Process("vllm x/0", 1, shares=("run",))])
