"""The recipes of mathematics: the papers' settings, overlays, short runs, failed episodes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from coach_relay import parts_of

from coterie import ChatAnswer, Plugin, PluginConfig, SystemFault
from coterie.compose import compose
from coterie.core.protocols import Batch
from coterie.recipes import load
from coterie.testing import coterie_run, play_episode
from tests.backends.remote.server import MODEL, OpenAIServer
from tests.cli.support import coterie
from tests.plugins.envs.math.players import CHAIN, box, program
from tests.plugins.envs.programs import INLINE

QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": True,
}

# --------------------------------------------------------------------------------------- the papers' settings


@pytest.mark.parametrize("scale", [None, "gpu"])
def test_mathchat_has_the_settings_of_mappa(scale):
    """arXiv 2601.23228: MathChat."""
    config = load("mathchat_coach", scale=scale).config
    assert config.team.order == CHAIN
    assert {role: table["policy"] for role, table in config.team.roles.items()} == dict(
        zip(CHAIN, CHAIN, strict=True)
    )
    for policy in config.policies.values():
        assert (policy.model, policy.train) == ("Qwen/Qwen3-4B-Thinking-2507", "full")
        assert policy.context == 24_576 + 4_096
    sampler, schedule, trainer = config.sampler, config.schedule, config.trainer
    assert (sampler["chains"], sampler["branches"]) == (2, 1)
    assert sampler["sampling"]["max_new_tokens"] == 4_096
    assert (schedule.epochs, schedule.tasks_per_step, trainer["minibatch_size"]) == (8, 32, 16)
    assert config.env["train"] == {"set": "aime_1983_2024", "draw": 512}
    assert config.env["val"] == {"set": "amc", "draw": 32}
    assert config.evaluate == {
        "sets": {"aime": {"env": {"val": {"set": "aime_1983_2024", "draw": 32}}}, "amc": {}},
        "best": "amc", "samples": 2, "sampling": {"temperature": 0.6},
    }  # fmt: skip
    assert (schedule.evaluate_every, schedule.evaluate_tasks) == (4, 32)
    assert (config.algorithm["type"], config.algorithm["beta"]) == ("reinforce_pp", 0.01)
    assert (trainer["type"], trainer["stage"]) == ("deepspeed", 3)
    assert (config.engine["type"], config.engine["replicas"]) == ("vllm", 2)
    assert config.chat["template_kwargs"] == {"enable_thinking": True}
    assert config.chat_models["coach"]["model"] == "gemini-2.5-flash"
    assert config.rewards["coach"]["ground_truth"] == "last"
    assert set(config.rewards["environment"]["weights"].values()) == {0}, "success is measured, not paid"


def test_the_team_of_at_grpo_has_the_papers_settings():
    """arXiv 2510.11062: K = 4, T = 4, 128 problems, minibatches of 64, no thinking, Polaris."""
    config = load("math_at_grpo").config
    assert config.team.order == [["reasoner", "tool"]] and config.team.max_turns == 4
    assert (config.sampler["branches"], config.sampler["pairing"]) == (4, "aligned")
    assert (config.schedule.tasks_per_step, config.trainer["minibatch_size"]) == (128, 64)
    assert config.chat["template_kwargs"] == {"enable_thinking": False}
    assert (config.env["train"], config.env["test"]) == ("polaris", "aime24")
    assert config.algorithm["type"] == "at_grpo"


def test_the_single_agent_has_the_turns_feedback_and_data_of_the_team():
    single, team = load("math_single").config, load("math_at_grpo").config
    assert single.team.order == ["solver"] and single.algorithm["type"] == "grpo"
    assert single.team.max_turns == team.team.max_turns and single.transition == team.transition
    assert single.env == team.env and single.policies == team.policies
    assert (single.sampler["chains"], single.sampler["branches"]) == (team.sampler["branches"], 1)


@pytest.mark.coach
@pytest.mark.torch
@pytest.mark.parametrize(("gpus", "apart"), [("8", True), ("4", False)])
def test_mathchat_is_planned_for_four_and_eight_gpus(gpus, apart, tmp_path):
    """Three full policies in Qwen3-4B's shape, ZeRO-3 on 4 ranks, two servers each, full contexts."""
    pytest.importorskip("torch")
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_4B))
    words = (
        "--gpu-memory",
        "80",
        "--gpus",
        gpus,
        f"policies.*.model={tmp_path}",
        "env={train: null, val: null}",
        "evaluate=null",
    )
    plan = json.loads(coterie("plan", "mathchat_coach", *words, "env.test=null", "--json").stdout)
    memory, policies = plan["memory"], plan["policies"].values()
    assert plan["fit"]["one"] and memory["ranks"] == 4
    assert all(60e9 < size <= 80e9 for size in memory["phases"].values())
    assert (memory["cache"] > 50e9) == apart, "servers on the ranks' GPUs have what these leave"
    assert [policy["parameters"] for policy in policies] == 3 * [4_022_468_096]
    for policy in policies:
        assert policy["memory"]["masters"] == 4 * 4_022_468_096
        assert policy["memory"]["engine"] == 4_022_468_096, "two GPUs a server divide weights in bf16"


def test_a_frozen_remote_model_plays_the_same_team_in_an_evaluation(tmp_path):
    """`coterie eval` with engine `openai`: the environment, its sandbox and its verifier are the recipe's."""
    (tmp_path / "test.jsonl").write_text(json.dumps({"prompt": "What is 20 + 22?", "answer": "42"}) + "\n")

    def answer(body):
        prompt = body["messages"][-1]["content"]
        if "starts with ```python" in prompt:
            return program("print(20 + 22)" if "repair it" in prompt else "1 / 0")
        return box(42) if "program was run" in prompt else box(41)

    with OpenAIServer(answer=answer) as server:
        done = coterie(
            "eval", "mathchat_coach", "--with", "shared,l0", "engine=openai", f"engine.base_url={server.url}",
            f"policies.shared.model={MODEL}", "trainer=none", f"sandbox.type={INLINE}",
            "rewards.coach=null", "chat_models.coach=null", "rewards.environment.weights.correct=1",
            f"env={{verify: numbers, train: null, val: null, test: {{file: {tmp_path / 'test.jsonl'}}}}}",
            "env.test.set=auto", "evaluate=null", "--samples", "2", "--json",
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        asked = [request.body for request in server.asked]
    result = json.loads(done.stdout)
    assert (result["success"]["mean"], result["samples"], result["checkpoint"]) == (1.0, 2, None)
    assert result["roles"]["verifier"]["policy"] == "shared" and len(asked) == 2 * 4
    assert {body["model"] for body in asked} == {MODEL}
    assert all("What is 20 + 22?" in body["messages"][-1]["content"] for body in asked)
    assert sum("ZeroDivisionError" in body["messages"][-1]["content"] for body in asked) == 2 * 2


# --------------------------------------------------------------------------------------------------- overlays


@pytest.mark.parametrize("level", ["l0", "l1", "l2"])
@pytest.mark.parametrize(
    ("recipe", "owner"),
    [("math_at_grpo", "per_role"), ("math_at_grpo", "shared"), ("mathchat_coach", "per_role"),
     ("mathchat_coach", "shared"), ("math_single", "shared")],
)  # fmt: skip
def test_levels_and_ownership_compose(recipe, owner, level):
    resolved = load(recipe, overlays=[owner, level, "one_gpu"])
    config = resolved.config
    assert config.engine["type"] == "hf" and "replicas" not in config.engine
    roles = [role for stage in config.team.order for role in ([stage] if isinstance(stage, str) else stage)]
    assert len(config.policies) == (len(roles) if owner == "per_role" else 1)
    train = {"l0": "none", "l1": "lora", "l2": "full"}[level]
    assert {policy.train for policy in config.policies.values()} == {train}


def test_a_shared_base_with_adapters_is_one_policy_of_rank_16():
    config = load("mathchat_coach", overlays=["shared", "l1"], scale="gpu").config
    (policy,) = config.policies.values()
    assert (policy.train, policy.lora.rank, policy.lora.alpha) == ("lora", 16, 32)
    assert policy.model == "Qwen/Qwen3-4B-Thinking-2507"


@pytest.mark.torch
@pytest.mark.parametrize("scale", ["cpu", "smoke"])
@pytest.mark.parametrize("recipe", ["mathchat_coach", "math_single"])
def test_scales_without_a_network_compose(recipe, scale):
    run = compose(load(recipe, scale=scale))
    assert run.config.env["rendering"] == "compact" and run.config.sandbox is None


# ------------------------------------------------------------------------------------------------- short runs


@pytest.mark.torch
@pytest.mark.parametrize("recipe", ["mathchat_coach", "math_single"])
def test_the_smoke_scale_trains_two_steps(recipe, tmp_path):
    pytest.importorskip("torch")
    done = coterie("run", recipe, "--scale", "smoke", "--out", tmp_path / "run")
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "step" in row][-1] == 2
    text = done.stdout + done.stderr
    report = [line for line in text.splitlines() if line.startswith("missing")]
    assert bool(report) == (recipe == "mathchat_coach")
    if report:
        assert report[0].split()[-1] == "0.0%" and "drift" in text


# -------------------------------------------------------- a failed episode neither shrinks nor changes others


class Words(Plugin):
    """A coach whose score is the boxed digit; it fails for `# no score`."""

    class Config(PluginConfig):
        pass

    structured = False

    async def open(self):
        pass

    async def close(self):
        pass

    async def answer(self, request):
        (parts, *_) = parts_of(request.messages[0]["content"])
        if "# no score" in parts["wrote"]:
            raise SystemFault("the coach is gone")
        score = int(parts["wrote"].rpartition("boxed{")[2][0])
        return ChatAnswer(text=f"PROCESS_SCORE: {score}\nREASONING: the number", version="1")


COACH = {"type": "coach", "model": {"type": f"{__name__}:Words"}}
ALGORITHMS = {
    "grpo": {"type": "grpo"},
    "reinforce_pp": {"type": "reinforce_pp", "beta": 0.0, "truncated": "keep", "normalise": {"type": "none"}},
}


def credit_of(algorithm, chains, failure=""):
    """(advantage by branch, keys without a score, trees); the failure is in the last of four chains."""

    def write(request, prompt):
        key = request.key
        number = (3 * key.chain + len(key.path)) % 7
        broken = f"  {failure}" if key.chain == 3 and key.role == "code_executor" else ""
        code = (
            f"```python\nprint({number})\n```\n"
            if key.role == "code_executor" and "was run" not in prompt
            else ""
        )
        return f"{code.replace(')', ')' + broken, 1) if broken else code}\\boxed{{{number}}}"

    run = coterie_run(
        write,
        env={"type": "math", "verify": "numbers"},
        order=CHAIN,
        roles={role: {"type": f"math_{role}"} for role in CHAIN},
        sandbox={"type": INLINE},
        sampler={"chains": chains, "branches": 1},
        rewards={"environment": {"type": "environment", "weights": {"correct": 0}}, "coach": COACH},
        algorithm=ALGORITHMS[algorithm],
        schedule={"steps": 1, "tasks_per_step": 2, "max_missing": 1.0},
    )
    trees, scores = play_episode(run, tasks=2)
    credit, _ = run.estimator(
        Batch(trees=trees, scores=scores, annotations={}, reward_weights=run.reward_weights), None
    )
    missing = {key for key, _, component, score in scores if component == "process" and score.value is None}
    return {key: np.asarray(value, dtype=float) for key, value in credit.advantage.items()}, missing, trees


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("failure", ["# lost", "# no score"])
def test_a_failed_episode_leaves_the_others_as_they_are_without_it(algorithm, failure):
    """The original drops other episodes with it: 31 become 16, 15 become none.

    Samples are compared with the run of three chains where the failed one gave none in their place, and with
    the whole run where it did.
    """
    whole, without = credit_of(algorithm, 4)[0], credit_of(algorithm, 3)[0]
    failed, missing, trees = credit_of(algorithm, 4, failure)
    assert len(trees) == 8
    if failure == "# no score":
        assert missing and {key.chain for key in missing} == {3}
    given = {(key.role, len(key.path)) for key, value in failed.items() if key.chain == 3 and value.any()}
    others = {key: value for key, value in failed.items() if key.chain != 3}
    assert set(others) == set(without) and len(others) == 2 * 3 * 4
    compared = set()
    for key, value in others.items():
        with_failed = (key.role, len(key.path)) in given
        np.testing.assert_allclose(value, (whole if with_failed else without)[key], rtol=0, atol=1e-12)
        compared.add(with_failed)
    assert False in compared, "what failed is no sample"
    assert any(abs(value).max() > 0.01 for value in others.values())


def test_what_is_scored_of_a_partial_episode_is_trained():
    failed, _, _ = credit_of("reinforce_pp", 4, "# lost")
    kept = [key for key, value in failed.items() if key.chain == 3 and abs(value).max() > 0]
    assert kept, "the problem solver acted and was scored before the sandbox failed"
