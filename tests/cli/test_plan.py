"""`coterie plan`: what it says, what it refuses, and that its memory is what a run takes."""

from __future__ import annotations

import gc
import json

import pytest

from coterie.backends.models.sizes import advice
from coterie.estimate.plan import plan as estimated
from tests.cli.support import TABULAR, coterie, process
from tests.cli.test_wrong_input import WITHOUT_TORCH, refused

CROSS = (
    *("team.order=[[planner, executor]]", "sampler.pairing=cross", "sampler.expand=all"),
    *("sampler.branches=4", "algorithm=magrpo", "env.team=potential"),
)


def planned(*arguments):
    done = coterie("plan", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def planned_and_shown(*arguments):
    """A plan as `planned` has it, and the text of the same, which is made once."""
    made = []

    def once(*words, **options):
        made.append(estimated(*words, **options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.estimate.plan.plan", once)
        done = coterie("plan", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(json.dumps(made[0].as_dict())), done.stdout


# ----------------------------------------------------------------------------------------------------- counts


def test_counts_by_step_and_policy_without_torch():
    done = process("plan", TABULAR, "--json", code=WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["step"] == {
        "tasks": 8,
        "trees": 8,
        "generations": 8 * 2 * 2 * 4,  # tasks, turns, roles, branches
        "joints": 8 * 2 * 2 * 4,
        "leaves": 8,
        "outside_calls": {},
        "outside_tokens": {},
    }
    shared = plan["policies"]["shared"]
    assert shared["generated_tokens"] == 128 * 3 and shared["prompts"] == 8 * 2 * 2
    assert shared["samples"] == 128 and shared["optimizer_steps"] == 1
    assert shared["memory"] is None and plan["memory"]["peak"] == 0, "tables have no tensors"
    assert plan["saturates_first"] == {"what": "generations", "share": 128 / 20_000}


def test_overrides_and_scales_count():
    plan = planned("quickstart", "schedule.tasks_per_step=7", "sampler.branches=3")
    assert plan["step"]["generations"] == 7 * 3 * 2 * 3
    assert planned("plan_path", "--scale", "smoke")["step"]["tasks"] == 4


def test_a_plan_in_a_used_process_is_that_of_a_fresh_one_and_leaves_its_objects_as_they_were():
    import torch

    fresh = planned("quickstart")
    kept = [torch.empty(7, device="meta")]
    assert planned("quickstart") == fresh and kept
    assert gc.isenabled()


def test_a_view_of_an_older_tensor_is_not_made_anew():
    import torch

    from coterie.estimate.engines import MadeOnMeta

    older = torch.empty(100, device="meta")
    with MadeOnMeta([older]) as new:
        view = older[:50]
        assert new.meta_bytes() == 0
        made = torch.empty(8, device="meta", dtype=torch.float32)
        halves = made[:4], made[4:]
        assert new.meta_bytes() == 32 and len(halves) == 2 and view.is_meta


def test_a_tree_past_the_bound_is_refused_unless_told_yes():
    tree = ("team.max_turns=4", "schedule.tasks_per_step=1", *CROSS)
    refused(coterie("plan", TABULAR, *tree), "34,952 generations", "20,000", "65,536 leaves", "--yes")
    plan = planned(TABULAR, *tree, "--yes")
    assert plan["step"]["leaves"] == 4 ** (2 * 4)
    assert plan["saturates_first"] == {"what": "generations", "share": 34_952 / 20_000}


def test_a_tree_of_astronomical_size_is_told_by_its_magnitude():
    tree = ("team.max_turns=2000", *CROSS)
    refused(coterie("plan", TABULAR, *tree), "10^2")
    done = coterie("plan", TABULAR, *tree, "--yes")
    assert done.exit_code == 0 and "10^2409" in done.stdout, done.output
    assert planned(TABULAR, *tree, "--yes")["step"]["leaves"] is None


def test_a_run_past_the_bound_says_so_and_goes_on_and_its_folder_can_be_planned(tmp_path, monkeypatch):
    for module in ("cost", "least"):
        monkeypatch.setattr(f"coterie.estimate.{module}.BOUND", 100)
    done = coterie("run", TABULAR, "schedule.steps=1", "--out", tmp_path / "run")
    assert done.exit_code == 0 and "warning: a step has up to 128 generations" in done.stderr, done.output
    refused(coterie("plan", tmp_path / "run"), "128 generations, and 100 are the bound")
    assert planned(tmp_path / "run", "--yes")["steps"] == 1


def test_wrong_input_is_refused_as_everywhere():
    refused(coterie("plan", "quickstrat"), "did you mean 'quickstart'?")
    refused(coterie("plan", TABULAR, "sampler.branchs=2"), "did you mean 'branches'?")
    assert coterie("plan", TABULAR, "--gpus", "0").exit_code == 2


def test_missing_torch_says_what_to_install():
    refused(process("plan", "quickstart", code=WITHOUT_TORCH), "pip install 'coterie[torch]'")


# ----------------------------------------------------------------------------------------------------- models


def model_folder(folder, layers):
    """A model's configuration, without weights and without a tokenizer: the sizes of Qwen3-1.7B."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "tie_word_embeddings": True,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(tmp_path):
    """Four layers take a seventh of the time of all."""
    return model_folder(tmp_path, 4)


PARAMETERS, ADAPTER = 512_510_976, 2_490_368
"""Of that model, and of an adapter of rank 16; a test below counts them by hand."""


@pytest.mark.torch
def test_prompt_tokens_are_counted_at_the_length_of_the_prompts():
    """The quickstart's tokenizer has one token a word, so words of the prompts are counted by hand."""
    pytest.importorskip("torch")
    shown = coterie(
        *("data", "show", "quickstart", "--split", "train", "--tasks", "16", "--turns", "1", "--json"),
        *("--answer", "planner=", "--answer", "executor="),
    )
    lengths = {"planner": 0, "executor": 0}
    for task in json.loads(shown.stdout):
        for prompt in task["prompts"]:
            [message] = prompt["messages"]
            lengths[prompt["role"]] = max(lengths[prompt["role"]], len(message["content"].split()))
    plan, text = planned_and_shown("quickstart")
    shared = plan["policies"]["shared"]
    assert shared["first_prompts"] == lengths and shared["context"] == 64
    # 20 tasks, 3 turns, each role once a turn; the eight branches share a prompt.
    assert shared["prompt_tokens"] == 20 * 3 * (lengths["planner"] + lengths["executor"]) < 20 * 6 * 63 / 5
    text = " ".join(text.split())
    assert f"prompt tokens (about) {shared['prompt_tokens']:,}" in text
    assert "later turns, and prompts that hold other roles' messages, may be longer" in text


@pytest.mark.torch
def test_a_prompt_length_that_is_not_known_is_said_and_bounded_by_the_context(folder):
    pytest.importorskip("torch")
    plan, text = planned_and_shown("plan_path", f"policies.shared.model={folder}")
    shared = plan["policies"]["shared"]
    assert shared["first_prompts"] == {} and shared["prompt_tokens"] == shared["prompts"] * 40959
    assert any("prompts are assumed to fill the context" in note for note in plan["notes"])
    assert "prompt tokens (about)" not in text and "prompt tokens" in text
    (verdict,) = [line for line in text.splitlines() if " of it, with prompts" in line]
    assert "with prompts that fill the context of 40,960 tokens" in verdict
    assert verdict.endswith("policies.shared.context=N bounds it")


def test_prompt_tokens_of_tables_are_said_to_be_unknown():
    plan, text = planned_and_shown(TABULAR)
    assert plan["policies"]["shared"]["prompt_tokens"] is None
    note = "the prompt tokens of shared are unknown: its tokenizer is made when a run is opened"
    assert note in plan["notes"] and note in text.replace("\n", " ")


@pytest.mark.torch
def test_a_model_that_cant_be_read_is_said_and_everything_else_counted():
    pytest.importorskip("torch")
    plan, text = planned_and_shown("plan_path", "policies.shared.model=nobody/nothing")
    assert plan["step"]["generations"] == 128 * 4 * 2 * 4
    shared = plan["policies"]["shared"]
    assert shared["unknown"]["what"].startswith("the model 'nobody/nothing' is not in the cache")
    assert "download" in shared["unknown"]["fix"]
    assert shared["memory"] is None and plan["memory"]["peak"] is None and plan["fit"]["one"] is None
    assert "policy shared: unknown: the model 'nobody/nothing' is not in the cache" in text and "fix:" in text
    assert "did you mean" not in text and "knows the shapes of" in text and "Qwen/Qwen2.5, Qwen/Qwen3" in text


def test_an_id_that_is_nearly_one_of_the_known_shapes_is_asked_after():
    for wrong in ("Qwen/Qwen3-1.7b", "qwen/qwen3-1.7B", "Qwen/Qwen-3-1.7B"):
        assert advice(wrong, "look").startswith("did you mean 'Qwen/Qwen3-1.7B'? look; ")
    assert "did you mean" not in advice("Qwen/Qwen3-1.7B", "look"), "with a revision the table isn't asked"


@pytest.mark.torch
def test_a_well_known_model_is_planned_without_the_hub():
    plan = planned("plan_path", "policies.shared.model=Qwen/Qwen3-0.6B", "engine=hf", "trainer=torch")
    assert plan["policies"]["shared"]["parameters"] == 596_049_920
    (note,) = [note for note in plan["notes"] if "own table" in note]
    assert note.startswith("the shape of Qwen/Qwen3-0.6B (shared) is Coterie's own table's")


def test_a_folders_configuration_is_enough(folder):
    pytest.importorskip("torch")
    models = [f"policies.{name}.model={folder}" for name in ("planner", "executor")]
    models.append("engine.kv_memory=700GB")  # `auto` would bound the batch by the GPU
    plan = planned("plan_path", "--with", "per_role", *models, "--gpus", "4", "--gpu-memory", "24")
    planner, executor = (plan["policies"][name] for name in ("planner", "executor"))
    # queries, keys, values and output of 16 + 8 + 8 + 16 heads; gate, up and down; four norms
    layer = 2048 * 128 * 48 + 3 * 2048 * 6144 + 2 * 2048 + 2 * 128
    parameters = 151936 * 2048 + 4 * layer + 2048  # the head is tied to the embedding
    assert planner["parameters"] == executor["parameters"] == parameters
    # rank 16 on q, k, v, o, gate, up and down: 16 * (in + out) of each
    widths = (2048 + 2048) + 2 * (2048 + 1024) + (2048 + 2048) + 3 * (2048 + 6144)
    adapter = 4 * 16 * widths
    assert (parameters, adapter) == (PARAMETERS, ADAPTER)
    assert planner["adapter_parameters"] == adapter
    assert planner["memory"]["weights"] == 2 * parameters, "bf16"
    assert executor["memory"]["weights"] == 0, "they share one frozen base"
    for memory in (planner["memory"], executor["memory"]):
        assert memory["adapter"] == memory["gradients"] == 4 * adapter and memory["moments"] == 8 * adapter
        assert memory["masters"] == memory["reference"] == 0
    assert planner["context"] == 40960
    rows, prompts, answer = 512, 128, 512
    kept = 2 * 4 * 8 * 128 * 2  # keys and values, layers, heads, their size, bf16
    assert planner["memory"]["kv"] == kept * (prompts * (40960 - answer) + rows * answer)
    assert any("tokenizer" in note for note in plan["notes"]), "so prompts fill the context"
    assert plan["fit"]["gpus"] == 4 and plan["fit"]["gpu_memory"] == 24e9
    assert plan["saturates_first"]["what"] == "the KV cache"
    assert not plan["fit"]["one"] and plan["fit"]["least_gpus"] == -(-plan["memory"]["peak"] // int(24e9))


@pytest.mark.torch
def test_tables_for_people(tmp_path):
    pytest.importorskip("torch")
    folder = model_folder(tmp_path, 28)
    arguments = (
        "plan_path",
        f"policies.shared.model={folder}",
        "rewards.judge.type=tests.cli.test_plan:Judge",
    )
    bounded = coterie("plan", *arguments, "--gpus", "2")
    assert "saturates first: activations" in " ".join(bounded.stdout.split()), "a GPU bounds the KV cache"
    done = coterie("plan", *arguments, "engine.kv_memory=500GB", "--gpus", "2")
    assert done.exit_code == 0, done.output
    text = " ".join(done.stdout.split())
    assert "generations 4,096 4,096" in text and "optimiser steps 64 64" in text
    assert "12,288 outside calls of judge" in text, "three for each joint action"
    assert "parameters 1,720,574,976" in text and "weights 3.44 GB 3.44 GB" in text
    assert "of its adapter 17,432,576" in text
    assert "does not fit a GPU of 80 GB" in text and "spread evenly over 2 GPUs" in text
    assert "saturates first: the KV cache" in text


class Judge:
    """A reward source that calls an outside service."""

    scope, components, weights, policy_fault, calls_per_view = "joint", {"taste": "increment"}, {}, 0.0, 3

    def __init__(self, config, build):
        pass

    async def score(self, view):
        return {}


# ----------------------------------------------------------------------------------------------------- memory

LORA = ("train=lora", "lora={rank: 4, alpha: 8}", "warm_start=null")
TWO_ADAPTERS = [f"policies.{name}.{setting}" for name in ("planner", "executor") for setting in LORA]
AT_ONCE = "team.order=[[planner, executor]]"
LARGER = (
    "policies.shared.model={init: qwen3, hidden_size: 64, layers: 2, heads: 4, head_dim: 16, mlp_size: 128}"
)
PER_ROLE = ("plan_path", "--with", "per_role", "--scale", "smoke")
RUNS = {
    "quickstart": ("quickstart", "schedule.tasks_per_step=4"),
    "adapters": (*PER_ROLE, *TWO_ADAPTERS),
    "adapters at once": (*PER_ROLE, *TWO_ADAPTERS, AT_ONCE),
    "adapters merged": (
        "plan_path",
        "--with",
        "per_role",
        "--scale",
        "smoke",
        *TWO_ADAPTERS,
        "engine.adapters=merged",
    ),
    "adapters in bf16": (
        *PER_ROLE,
        *TWO_ADAPTERS,
        *("policies.planner.dtype=bfloat16", "policies.executor.dtype=bfloat16"),
    ),
    "a policy each": PER_ROLE,
    "bf16, masters, reference": (
        *("plan_path", "--scale", "smoke", LARGER, "policies.shared.dtype=bfloat16"),
        *("loss.kl=0.1", "trainer.micro_tokens=40"),  # several micro-batches: gradients in bf16 beside fp32
    ),
    "a value head": (
        *("plan_path", "--scale", "smoke", LARGER),
        *("env.team=potential", "algorithm=gae", "sampler.branches=1"),
    ),
    "transformers' decoder": ("plan_path", "--scale", "smoke", LARGER, "engine.decoder=transformers"),
}
"""What is planned and then run. Each differs in who owns which weights, or in what is kept beside them."""
SHORT = ("quickstart", "adapters in bf16")
"""Those that `make test` runs."""
QUICK = ("schedule.steps=1", "schedule.evaluate_every=0", "schedule.record_every=0")
"""What is changed to be quick, and changes no tensor that a run keeps."""


@pytest.mark.torch
@pytest.mark.parametrize(
    "arguments",
    [pytest.param(v, id=name, marks=() if name in SHORT else pytest.mark.long) for name, v in RUNS.items()],
)
def test_the_planned_memory_is_what_a_run_takes(arguments, monkeypatch):
    """Within 15 % of the bytes of live tensors (`Held` says which), in sum and in each of its parts."""
    pytest.importorskip("torch")
    from coterie.backends.models.memory import STAYING
    from coterie.compose import compose
    from coterie.recipes import load
    from tests.cli.measuring import held_by

    plan = planned(*arguments)
    parts = [policy["memory"] for policy in plan["policies"].values()]
    expected = (
        sum(part[name] for part in parts for name in STAYING),
        max(part["gradients"] for part in parts),
        plan["memory"]["cache"],
    )
    scale = arguments[arguments.index("--scale") + 1] if "--scale" in arguments else None
    settings = [argument for argument in arguments[1:] if "=" in argument]
    if arguments[0] == "quickstart":
        settings += ["policies.shared.warm_start.steps=2", "algorithm.zero_variance=keep"]
    overlays = [arguments[arguments.index("--with") + 1]] if "--with" in arguments else []
    resolved = load(arguments[0], overlays=overlays, scale=scale, overrides=[*settings, *QUICK])
    held = held_by(compose(resolved), monkeypatch)
    for measured, planned_bytes in zip((*held, sum(held)), (*expected, sum(expected)), strict=True):
        assert planned_bytes == pytest.approx(measured, rel=0.15), (held, expected)


@pytest.mark.torch
def test_steps_ahead_hold_versions_and_generate_during_updates():
    pytest.importorskip("torch")
    smoke = ("plan_path", "--scale", "smoke", LARGER)
    plain, text_of_plain = planned_and_shown(*smoke)
    ahead, text_of_ahead = planned_and_shown(*smoke, "schedule.max_staleness=2")
    flying = planned(*smoke, "schedule.max_staleness=2", "schedule.play=in_flight")
    weights = plain["policies"]["shared"]["memory"]["weights"]
    before, after = (plan["policies"]["shared"]["memory"]["engine"] for plan in (plain, ahead))
    assert after - before == 2 * weights, "versions of two further steps"
    assert flying["policies"]["shared"]["memory"]["engine"] == before
    phases = [plan["memory"]["phases"] for plan in (plain, ahead, flying)]
    copies, cache = 3 * weights, plain["memory"]["cache"]
    assert ahead["policies"]["shared"]["memory"]["copies"] == copies
    assert "trainer's copies" in text_of_ahead and "trainer's copies" not in text_of_plain
    assert phases[1]["generation"] - phases[0]["generation"] == 2 * weights + copies
    assert phases[1]["update"] - phases[0]["update"] == 2 * weights + copies + cache
    assert phases[2]["update"] - phases[0]["update"] == cache


@pytest.mark.torch
@pytest.mark.parametrize("local", [False, True])
def test_pinned_steps_ahead_of_whole_models_in_vllm_are_refused(local):
    """Without vLLM: its settings are enough."""
    pytest.importorskip("torch")
    pinned = ("plan_path", "--scale", "smoke", "schedule.max_staleness=3", "schedule.play=pinned")
    vllm = "engine={type: mixed, local: {type: vllm}, remote: {type: openai, base_url: http://nowhere}}"
    engine = vllm if local else "engine.type=vllm"
    refused = coterie("plan", *pinned, engine)
    assert refused.exit_code == 2 and "Traceback" not in refused.output, refused.output
    assert "one version of policy 'shared', and pinned steps ahead need 4" in refused.output
    assert "schedule.max_staleness" in refused.output and "schedule.play=in_flight" in refused.output
    for more in (
        ("--with", "l1"),
        ("schedule.play=in_flight",),
        ("schedule.max_staleness=0", "schedule.play=auto"),
    ):
        allowed = coterie("plan", *pinned, "engine.type=vllm", *more)
        assert "one version" not in allowed.output and allowed.exit_code == 0, allowed.output


@pytest.mark.torch
def test_steps_ahead_of_adapters_hold_adapters():
    pytest.importorskip("torch")
    smoke = ("plan_path", "--scale", "smoke", LARGER, "--with", "l1")
    plain, ahead = (planned(*smoke, *more)["policies"] for more in ((), ("schedule.max_staleness=3",)))
    for name, policy in ahead.items():
        grown = policy["memory"]["engine"] - plain[name]["memory"]["engine"]
        assert grown == 3 * policy["memory"]["adapter"]
