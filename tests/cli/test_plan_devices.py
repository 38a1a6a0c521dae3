"""`coterie plan` for GPUs: the dtype, ranks and stages, and vLLM's share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coterie.backends.engines.vllm.settings import VLLMConfig
from coterie.core.errors import UserError
from coterie.estimate.engines import GIB, vllm_memory
from coterie.estimate.gpus import GpuLayout
from coterie.estimate.trainer import Division, device_of, division_of
from tests.cli.support import coterie
from tests.cli.test_plan import ADAPTER, PARAMETERS, folder as folder, planned, planned_and_shown

# Weights in bf16, masters, two moments, gradients in bf16 and fp32, of 1000 parameters.
PARTS = {"weights": 2000, "adapter": 0, "reference": 0, "masters": 4000, "moments": 8000, "gradients": 6000}


@pytest.mark.parametrize(
    ("stage", "held"),
    [
        (0, 2000 + 4000 + 8000 + 6000),
        (1, 2000 + 1000 + 2000 + 6000),
        (2, 2000 + 1000 + 2000 + 1500),
        (3, 500 + 1000 + 2000 + 1500),
    ],
)
def test_stages_of_zero_divide_between_ranks(stage, held):
    """Arithmetic of arXiv 1910.02054, section 5, on four ranks."""
    assert sum(Division(ranks=4, stage=stage).on_gpu(PARTS).values()) == held
    assert Division(ranks=4, stage=stage).on_host(PARTS) == 0


def test_what_is_offloaded_is_in_the_hosts_memory():
    optimiser = Division(ranks=2, stage=2, offload_optimizer=True)
    assert optimiser.on_gpu(PARTS) == {**PARTS, "masters": 0, "moments": 0, "gradients": 1000}
    assert optimiser.on_host(PARTS) == 4000 + 8000 + 4000
    both = Division(ranks=1, stage=3, offload_optimizer=True, offload_parameters=True)
    assert sum(both.on_gpu(PARTS).values()) == 2000 and both.on_host(PARTS) == 18000


def with_trainer(**settings):
    return SimpleNamespace(trainer=SimpleNamespace(config=SimpleNamespace(**settings)))


def test_the_division_is_read_from_the_trainers_settings():
    assert division_of(with_trainer()) == Division()
    offload = SimpleNamespace(optimizer="cpu", parameters="none")
    run = with_trainer(ranks=4, stage=3, offload=offload)
    assert division_of(run) == Division(4, 3, offload_optimizer=True, offload_parameters=False)


def test_the_device_is_the_trainers_or_the_options():
    pytest.importorskip("torch")
    assert device_of(with_trainer(device="cuda:1"), None) == "cuda"
    assert device_of(with_trainer(device="cpu"), "cuda") == "cpu"
    assert device_of(with_trainer(device="auto"), "cuda") == "cuda"


def test_vllm_takes_its_share_of_the_gpu():
    def reserved(weights, gpu, *, placed=(0,), inside=True, **settings):
        return vllm_memory(VLLMConfig(**settings), weights, gpu, GpuLayout(engine=placed), inside)

    assert reserved(4 * 10**9, 80e9)[:4] == (4 * 10**9, int(0.4 * 80e9) - 4 * 10**9, True, True)
    settings = {"process": "own", "replicas": 2, "tensor_parallel": 2, "memory_share": 0.5, "sleep": True}
    apart = reserved(4 * 10**9, 80e9, placed=(1, 2, 3, 4), inside=False, **settings)
    assert apart[:4] == (2 * 10**9, 38 * 10**9, False, True) and "doesn't use" in apart.note
    assert reserved(10**9, None, kv_gib=2)[:2] == (10**9, 2 * GIB)
    assert not reserved(10**9, 80e9, placed=(1,), inside=False).sleeps
    shared = reserved(10**9, 80e9, placed=(0,), inside=False)
    assert shared[1:4] == (31 * 10**9, True, True), "it leaves the trainer room, and sleeps in updates"
    with pytest.raises(UserError) as refused:
        reserved(40 * 10**9, 80e9)
    assert refused.value.path == "engine.memory_share" and "KV cache" in str(refused.value.why)


VLLM = ("engine.type=vllm", "engine.process=own")


@pytest.mark.torch
@pytest.mark.parametrize(
    ("settings", "gpus", "needed", "key"),
    [
        (("engine.type=vllm", "engine.replicas=8", "engine.tensor_parallel=4"), 1, 32, "engine.replicas"),
        (("engine.type=vllm", "trainer.ranks=3"), 2, 3, "trainer.ranks"),
        (("trainer.ranks=3",), 2, 3, "trainer.ranks"),
        ((*VLLM, "engine.devices=[2]"), 2, 3, "engine.devices"),
    ],
)
def test_a_run_that_needs_more_gpus_does_not_fit(settings, gpus, needed, key):
    pytest.importorskip("torch")
    plan, text = planned_and_shown("quickstart", *settings, "--gpus", str(gpus))
    found, text = plan["fit"], " ".join(text.split())
    assert f"does not fit: the run needs {needed} GPUs and has {gpus}: {key}" in text
    assert "fits a GPU" not in text and "which fits" not in text
    assert (found["needed_gpus"], found["one"], found["spread"]) == (needed, False, False)
    assert found["least_gpus"] == needed
    assert planned("quickstart", *settings, "--gpus", str(needed))["fit"]["one"]


@pytest.mark.torch
def test_servers_beside_ranks_have_gpus_of_their_own_where_there_are_enough():
    pytest.importorskip("torch")
    settings = ("quickstart", *VLLM, "trainer.ranks=2")
    plans, (apart, shared) = zip(
        *(planned_and_shown(*settings, "--gpus", count) for count in "32"), strict=True
    )
    assert "'torch' computes on GPUs 0 and 1, the engine 'vllm' on GPU 2\n" in apart
    assert "on GPU 1; they share GPU 1, and 3 GPUs keep them apart" in shared
    kv = [plan["memory"]["cache"] for plan in plans]
    assert [round(cache / 80e9, 1) for cache in kv] == [0.9, 0.4]


@pytest.mark.torch
def test_notes_name_the_runs_own_engine_and_options():
    pytest.importorskip("torch")
    two = coterie("plan", "quickstart", "engine.type=vllm", "--gpus", "2").stdout
    assert "trainer 'torch' and the engine 'vllm' share one GPU" in two and "'hf'" not in two
    assert "--gpus" not in two and "1 are" not in two
    one = coterie("plan", "quickstart", "--gpus", "1").stdout
    assert "1 GPUs" not in one and "spread" not in one


@pytest.mark.torch
def test_vllms_memory_is_in_the_phases_in_which_it_is_held_on_the_trainers_gpu():
    pytest.importorskip("torch")

    def phases(engine):
        return planned("quickstart", "--gpu-memory", "80", f"engine={engine}")["memory"]["phases"]

    asleep, awake, apart = map(phases, ("vllm", "{type: vllm, sleep: false}", "{type: vllm, process: own}"))
    assert awake["update"] - asleep["update"] == 0.4 * 80e9 and awake["generation"] == asleep["generation"]
    assert asleep["generation"] > 0.4 * 80e9 and apart["generation"] == 0.9 * 80e9
    assert apart["update"] == asleep["update"]
    spread = ("plan", "quickstart", "--gpus", "2", "--gpu-memory", "80")
    assert "share one GPU" in coterie(*spread, "engine=vllm").stdout
    assert "share one GPU" not in coterie(*spread, "engine={type: vllm, process: own}").stdout


@pytest.mark.torch
def test_the_dtype_of_auto_is_that_of_the_planned_device(folder, monkeypatch):
    pytest.importorskip("torch")
    from coterie.backends.models import precision

    arguments = ("plan_path", f"policies.shared.model={folder}", "policies.shared.dtype=auto")
    monkeypatch.setattr(precision, "has_instructions", lambda: True)
    monkeypatch.setattr(precision, "measured", lambda *widths: precision.Rates(90, 91))
    on_cpu, on_gpu = planned(*arguments), planned(*arguments, "--gpu-memory", "80")
    monkeypatch.setattr(precision, "measured", lambda *widths: precision.Rates(90, 205))
    faster = planned(*arguments)
    plans = on_cpu, on_gpu, faster
    weights = [plan["policies"]["shared"]["memory"]["weights"] for plan in plans]
    assert weights == [4 * PARAMETERS, 2 * PARAMETERS, 2 * PARAMETERS]
    assert [plan["memory"]["device"] for plan in plans] == ["cpu", "cuda", "cpu"]
    assert any("a CPU; dtype auto of shared is float32" in note for note in on_cpu["notes"])
    assert any("a GPU of 80 GB; dtype auto of shared is bfloat16" in note for note in on_gpu["notes"])
    caches = [plan["policies"]["shared"]["memory"]["kv"] for plan in (on_cpu, faster)]
    assert caches[0] == caches[1], "keys and values of a CPU's lean decoder are float32"
    why = "policies.shared.dtype: auto is bfloat16: its products take 0.44 of float32's time here (205 and 90"
    assert any(note.startswith(why) for note in faster["notes"])
    assert not any("products" in note for note in on_gpu["notes"])


@pytest.mark.torch
def test_a_plan_for_a_cpu_fits_the_memory_of_the_machine(monkeypatch):
    pytest.importorskip("torch")
    for memory, fits in ((10**6, "does not fit"), (10**9, "fits")):
        monkeypatch.setattr("coterie.estimate.gpus.machine_memory", lambda memory=memory: memory)
        plan, text = planned_and_shown("quickstart")
        assert plan["fit"]["one"] == (fits == "fits")
        assert plan["fit"]["gpu_memory"] == memory and plan["fit"]["of"] == "machine"
        assert f"{fits} this machine, which has 1 {'M' if memory == 10**6 else 'G'}B: " in text
        assert "a GPU of" not in text and plan["policies"]["shared"]["trained_share"] == 1
    on_gpu = planned("quickstart", "--gpus", "1")["fit"]
    assert on_gpu["gpu_memory"] == 80e9 and on_gpu["of"] == "gpu"


@pytest.mark.torch
def test_the_share_of_trained_parameters_is_shown(folder):
    pytest.importorskip("torch")
    plan, text = planned_and_shown("plan_path", f"policies.shared.model={folder}")
    adapter = plan["policies"]["shared"]
    assert adapter["trained_parameters"] == adapter["adapter_parameters"] == ADAPTER
    assert adapter["trained_share"] == ADAPTER / (PARAMETERS + ADAPTER)
    assert "0.48 %" in text and "trained" in text


@pytest.mark.torch
def test_ranks_of_trainer_torch_hold_everything_each(folder):
    pytest.importorskip("torch")
    settings = ("plan_path", "--with", "l2", f"policies.shared.model={folder}", "--gpu-memory", "80")
    one, (two, text) = planned(*settings), planned_and_shown(*settings, "trainer.ranks=2")
    assert one["memory"]["phases"] == two["memory"]["phases"] and two["memory"]["ranks"] == 2
    assert "on the fullest GPU of 2 ranks" in text


@pytest.mark.torch
def test_each_policy_that_trains_all_weights_has_a_vllm_of_its_own():
    """Adapters and frozen policies of one base share one."""
    pytest.importorskip("torch")

    def copies(*overrides):
        words = ("quickstart", "--with", "per_role", "engine.type=vllm", "--gpus", "1", *overrides)
        policies = planned(*words)["policies"].values()
        return [policy["memory"]["engine"] / policy["parameters"] for policy in policies]

    full, adapters = copies(), copies("policies.*.train=lora", "policies.*.lora={rank: 4}")
    assert len(full) == 2 and full[0] == full[1] > 0
    assert adapters[0] > full[0] and 0 < adapters[1] < full[0], "a place for each adapter, and one base"
    assert copies("policies.executor.train=none") == full, "one trains, the other keeps the base"


@pytest.mark.parametrize(
    ("settings", "places"),
    [((), 1), (("schedule.max_staleness=3", "schedule.play=pinned"), 5),
     (("schedule.max_staleness=3", "schedule.play=in_flight", "deterministic=false"), 2)],
)  # fmt: skip
def test_vllm_has_places_for_the_versions_of_each_adapter(settings, places):
    """Pinned steps lease N + 1 and an evaluation brings the newest; in flight two versions overlap."""
    pytest.importorskip("torch")
    lora = ("policies.*.train=lora", "policies.*.lora={rank: 4}")
    words = ("quickstart", "--with", "per_role", "engine.type=vllm", "--gpus", "1")
    policies = list(planned(*words, *lora, *settings)["policies"].values())
    trained = [policy["trained_parameters"] for policy in policies]
    base = planned(*words, "policies.*.train=none")["policies"]
    held = sum(policy["memory"]["engine"] for policy in policies)
    weights = sum(policy["memory"]["engine"] for policy in base.values())
    assert held - weights == places * 4 * sum(trained)


def test_a_plan_refuses_a_vllm_that_sleeps_while_steps_are_played_ahead():
    refused = coterie("plan", "quickstart", "engine={type: vllm, sleep: true}", "schedule.max_staleness=1")
    assert refused.exit_code == 2 and "vLLM can't sleep during updates" in refused.stderr


@pytest.mark.torch
def test_a_plan_counts_what_the_trainer_leaves_in_rollouts_for_the_hosts_memory():
    """bf16 weights that are all trained: 2 bytes a number, 4 of the master, 8 of the moments."""
    pytest.importorskip("torch")
    words = ("quickstart", *VLLM, "--gpus", "1", "policies.*.dtype=bfloat16")
    stays = planned(*words)
    (policy,) = stays["policies"].values()
    numbers = policy["parameters"]
    leaves = {
        what: planned(*words, f"trainer.offload_in_rollouts={what}") for what in ("optimizer", "all", "none")
    }
    assert leaves["none"]["memory"]["phases"] == stays["memory"]["phases"]
    for what, width in (("optimizer", 12), ("all", 14)):
        plan = leaves[what]
        freed = stays["memory"]["phases"]["generation"] - plan["memory"]["phases"]["generation"]
        assert freed == width * numbers == plan["memory"]["host"] - stays["memory"]["host"]
        assert plan["memory"]["phases"]["update"] == stays["memory"]["phases"]["update"]
        assert any("leave the GPU for the host's memory" in note for note in plan["notes"])
    ranks = planned(*words, "trainer.offload_in_rollouts=all", "trainer.ranks=2")
    assert ranks["memory"]["host"] - stays["memory"]["host"] == 2 * 14 * numbers, "each rank has a copy"
    on_cpu = planned(
        "quickstart", "engine.type=vllm", "trainer.device=cpu", "trainer.offload_in_rollouts=all"
    )
    assert on_cpu["memory"]["host"] == stays["memory"]["host"], "there is no GPU to leave"


@pytest.mark.torch
def test_a_plan_knows_that_a_trainer_leaves_gpus_that_it_shares_on_a_cluster():
    pytest.importorskip("torch")
    nodes = ("--nodes", "1", "--node-gpus", "1", "--gpu-memory", "80")
    words = ("quickstart", "engine.type=vllm", "--with", "ray", *nodes)
    shared = planned(*words, "cluster.layout=colocate")
    assert any("leave the GPU for the host's memory" in note for note in shared["notes"])
    stays = planned(*words, "cluster.layout=colocate", "trainer.offload_in_rollouts=none")
    assert shared["memory"]["host"] > stays["memory"]["host"]
