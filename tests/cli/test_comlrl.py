"""`--from comlrl`: the original's command lines, its files, and what has no counterpart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.comlrl.reading import literal
from coterie.core.errors import ConfigError
from coterie.recipes import read_yaml
from tests.backends.loopback import one_store_of_certificates
from tests.backends.remote.server import OpenAIServer
from tests.cli.comlrl_files import LINES, words, write
from tests.cli.support import coterie
from tests.recipes.test_code_recipes import TINY, row

PLAY = "tests.recipes.test_code_recipes:play"
EXPERT = {"type": "expert_edits", "expert_model": "deepseek-coder", "original_prompt": False}
HE = {"type": "humaneval", "train": "test[33:163]", "val": "test[:32]", "test": None}
CHE = {"type": "coop_humaneval", "train": "test[16:]", "val": "test[:16]", "test": None}
QWEN = "Qwen/Qwen2.5-Coder-3B"
FIELDS = ("roles", "turns", "epochs", "lr", "model", "data", "weights", "transition")
EXPECTED = (
    (["solver"], 1, 10, 2e-5, QWEN, HE, [], {"type": "none"}),
    (["aux", "main"], 1, 10, 2e-5, QWEN, CHE, [], {"type": "none"}),
    (["aux", "main"], 2, 7, 2e-5, QWEN, HE, [], EXPERT),
    (["aux", "main"], 1, 10, 2e-5, "bigcode/starcoder2-3b", HE, [], {"type": "none"}),
    (["solver"], 1, 20, 3e-5, QWEN, CHE, [], {"type": "none"}),
    (
        ["aux", "main"], 2, 7, 2e-5, QWEN,
        {**CHE, "train": "test[:20]", "val": "test[20:30]"}, [1.5, 0.5], EXPERT,
    ),
    (["aux", "main"], 1, 10, 2e-5, "Qwen/Qwen2.5-Coder-7B", HE, [], {"type": "none"}),
    (["aux", "main"], 2, 10, 2e-5, QWEN, HE, [1.2, 0.8], EXPERT),
    (["aux", "main"], 2, 7, 2e-5, QWEN, HE, [], {"type": "level_feedback", "original_prompt": False}),
    (
        ["aux", "main"], 2, 7, 2e-5, QWEN, CHE, [],
        {"type": "level_feedback", "sandbox_slice": -2, "original_prompt": False},
    ),
)  # fmt: skip
"""What each line resolves to, in the order of FIELDS."""


def resolved(*arguments):
    """The configuration that `coterie config` shows, and what it warned of."""
    done = coterie("config", "--json", *arguments)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["config"], done.stderr


def shown(config):
    """The settings of FIELDS; the policies must agree in theirs."""
    policies = list(config["policies"].values())
    rates = {policy["optimizer"]["learning_rate"] for policy in policies}
    models = {policy["model"] for policy in policies}
    assert len(rates) == len(models) == 1
    order = config["team"]["order"]
    roles = order[0] if isinstance(order[0], list) else order
    data = {key: config["data"][key] for key in ("type", "train", "val", "test")}
    defaults = {"sandbox_slice": 0, "base_url": None, "api_key": None, "max_tokens": 2048, "model": None}
    transition = {
        key: value
        for key, value in config["transition"].items()
        if defaults.get(key, ...) != value and key != "temperature"
    }
    turns, epochs = config["team"]["max_turns"], config["schedule"]["epochs"]
    weights = config["algorithm"]["turn_weights"]
    return dict(zip(FIELDS, (roles, turns, epochs, *rates, *models, data, weights, transition), strict=True))


@pytest.mark.parametrize(("line", "wanted"), zip(LINES, EXPECTED, strict=True), ids=LINES)
def test_a_line_resolves_to_its_settings(line, wanted, tmp_path):
    config, warned = resolved(*words(line, tmp_path))
    assert shown(config) == dict(zip(FIELDS, wanted, strict=True))
    assert all((each["train"], each["lora"]) == ("full", None) for each in config["policies"].values())
    assert config["schedule"]["steps"] is None and config["schedule"]["tasks_per_step"] == 1
    assert config["sampler"]["branches"] == 4 and config["sampler"]["pairing"] == "aligned"
    sampling = {"temperature": 0.8, "top_p": 0.95, "max_new_tokens": 256}
    assert sampling.items() <= config["sampler"]["sampling"].items()
    assert config["algorithm"]["gamma"] == (0.9 if line.startswith("mt") else 1.0)
    assert config["algorithm"]["termination_threshold"] is None
    program = line.split("_he")[0].split("_che")[0].removeprefix("mt_")
    assert f"{program}.logging_steps: every step is logged" in warned
    assert "wandb.project: " in warned and "unknown" not in warned


def test_an_overlay_trains_adapters_instead(tmp_path):
    config, _ = resolved(*words(LINES[1], tmp_path), "--with", "l1")
    trained = {(each["train"], each["lora"]["rank"]) for each in config["policies"].values()}
    assert trained == {("lora", 16)}


# ------------------------------------------------------------------------------------------------ they run


@pytest.fixture
def file(tmp_path):
    """A data set in the form of HumanEval and of its length."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(number)) + "\n" for number in range(164)), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def without_template(tmp_path_factory):
    """The folder of a model whose tokenizer has no chat template, as starcoder2's."""
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    from tests.backends.chat_formats.tokenizers import KEEPS, bpe

    folder = tmp_path_factory.mktemp("base") / "starcoder"
    tokenizer = bpe(KEEPS)
    tokenizer.chat_template = None
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=16, max_position_embeddings=8192,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert AutoTokenizer.from_pretrained(folder).chat_template is None
    return str(folder)


def small(file, folder, model=TINY):
    """Settings of ours that make a line's run a small one; its slices, modes and weights stay."""
    engine = f"engine={{type: 'coterie.testing.support.oracles:OracleEngine', play: '{PLAY}'}}"
    policy = ["dtype=float32", *([f"model={model}"] if model else [])]
    schedule = "steps=1", "epochs=null", "evaluate_every=0", "checkpoint_every=0"
    return [
        "--out", folder, f"data.file={file}", engine, "sampler.branches=2",
        "sampler.sampling.max_new_tokens=80", *(f"policies.*.{setting}" for setting in policy),
        *(f"schedule.{setting}" for setting in schedule),
    ]  # fmt: skip


def metrics(folder):
    return [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]


QUICK = (0, 2, 3, 9)
"""Lines that `make test` trains: one agent, an expert, a base model, and tests as feedback."""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        pytest.param(*each, id=each[0], marks=() if number in QUICK else pytest.mark.long)
        for number, each in enumerate(zip(LINES, EXPECTED, strict=True))
    ],
)
def test_a_line_trains_a_step(line, wanted, file, tmp_path, without_template):
    pytest.importorskip("torch")
    wanted, out = dict(zip(FIELDS, wanted, strict=True)), tmp_path / "run"
    base = "starcoder" in line
    line = line.replace("bigcode/starcoder2-3b", without_template)
    more = small(file, out, None if base else TINY)
    edits = json.dumps({"aux": "return x ** 2", "main": "call aux"})
    with one_store_of_certificates(), OpenAIServer(answer=lambda body: edits) as server:
        if wanted["transition"] == EXPERT:
            more.append(f"transition.base_url={server.url}")
        done = coterie("run", *words(line, tmp_path), *more)
    assert done.exit_code == 0, done.output
    (step,) = metrics(out)
    assert step["score/team/code_structure"] > 0
    if wanted["transition"] == EXPERT:
        assert step["expert/edits"] > 0 and step["expert/none"] == 0
        assert server.asked[0].body["model"] == "deepseek-coder"
    kept = read_yaml(out / "config.yaml")
    assert {key: kept["data"].get(key) for key in HE} == wanted["data"]
    assert kept["team"]["max_turns"] == wanted["turns"]
    assert kept["transition"]["type"] == wanted["transition"]["type"]
    if base:
        assert {policy["model"] for policy in kept["policies"].values()} == {without_template}


def test_without_a_key_the_expert_stops_the_run_before_its_first_step(file, tmp_path, monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    assert EXPECTED[2][-1] == EXPERT
    done = coterie("run", *words(LINES[2], tmp_path), *small(file, tmp_path / "run"))
    assert done.exit_code == 2
    assert "DEEPSEEK_API_KEY is not set" in done.stderr
    assert "plain, passed, level_passed, level_feedback" in done.stderr
    assert not (tmp_path / "run" / "metrics.jsonl").exists() or not metrics(tmp_path / "run")


def test_the_smallest_scale_runs_with_neither_key_nor_data(tmp_path, monkeypatch):
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)
    for line in (LINES[2], LINES[9]):
        config, _ = resolved(*words(line, tmp_path), "--scale", "smoke")
        assert config["data"]["type"] == "cooperative"
        assert config["transition"]["type"] == "level_feedback"
        assert config["schedule"]["steps"] == 2 and config["schedule"]["epochs"] is None
    assert config["transition"]["sandbox_slice"] == -2


def test_the_run_folder_lies_in_the_base_folder(file, tmp_path):
    line = f"grpo_he --override output.base_dir={tmp_path / 'mine'}"
    more = small(file, tmp_path)[2:]
    more = [item for item in more if not item.startswith("schedule.steps")]
    done = coterie("run", *words(line, tmp_path), *more, "schedule.steps=0")
    assert done.exit_code == 0, done.output
    (folder,) = (tmp_path / "mine").iterdir()
    assert folder.name.startswith("grpo_he_config-") and str(folder) in done.stdout


# ------------------------------------------------------------------------------------------- the command line


def test_a_later_form_of_the_files_is_read_too(tmp_path):
    path = write(
        tmp_path,
        "mt_magrpo_che",
        model=None,
        agent_model={"name": "A/B", "temperature": 0.6, "top_p": 0.5, "top_k": None, "torch_dtype": "auto"},
        dataset={"name": "OpenMLRL/CoopHumanEval", "train_split": "train[16:]"},
        external={"mode": "passed", "sandbox_slice": "all", "original_prompt": True},
        magrpo={
            "agent_learning_rate": 1e-5, "learning_rate": None, "discount": 1.0, "joint_mode": "cross",
            "train_batch_size": 4, "rollout_buffer_size": 4, "per_device_train_batch_size": None,
            "advantage_normalization": True, "early_termination_threshold": -0.2, "eval_interval": 6,
            "eval_num_samples": 5, "agents": 3, "parallel_training": "none",
        },
        reward_processor={"enabled": True, "scale_factor": 2.0, "shift": -4},
    )  # fmt: skip
    config, warned = resolved("--from", "comlrl", path)
    assert config["data"]["hub"] == "OpenMLRL/CoopHumanEval"
    assert {policy["model"] for policy in config["policies"].values()} == {"A/B"}
    assert config["sampler"]["pairing"] == "cross" and config["sampler"]["sampling"]["temperature"] == 0.8
    assert config["schedule"]["tasks_per_step"] == 4
    assert config["schedule"]["evaluate_every"] == 6 and config["schedule"]["evaluate_tasks"] == 5
    assert config["algorithm"]["termination_threshold"] == -0.2
    assert config["algorithm"]["normalise"]["type"] == "scale"
    assert config["rewards"]["code_structure"] == {"type": "code_structure", "scale": 2.0, "shift": -4.0}
    transition = {"type": "passed", "sandbox_slice": 0, "original_prompt": True}
    assert config["transition"] == transition
    assert config["env"]["feedback_tests"] == "hidden", "there is no choice of them there"
    assert "magrpo.agents: an unknown key; did you mean 'magrpo.num_agents'?" in warned
    assert "agent_model.torch_dtype: the recipe's dtype stays" in warned
    assert "magrpo.early_termination_threshold of " in warned and "plays no further turn" in warned


@pytest.mark.parametrize("dataset", ["tldr", "arxiv"])
@pytest.mark.parametrize("program", ["grpo", "magrpo"])
def test_the_writing_tasks_have_recipes_too(program, dataset, tmp_path):
    names = {"tldr": "trl-lib/tldr", "arxiv": "OpenMLRL/arXiv_abstract"}
    data = {"name": names[dataset], "type": None, "train_split": "train[:9]", "eval_split": "test[:5]"}
    path = write(tmp_path, f"{program}_he", dataset=data)
    config, _ = resolved("--from", "comlrl", path)
    assert config["env"]["kind"] == dataset
    assert config["data"]["type"] == dataset and config["data"]["train"] == "train[:9]"
    assert len(config["team"]["roles"]) == (1 if program == "grpo" else 2)
    done = coterie("config", "--from", "comlrl", path, "--override", f"{program}.num_turns=2")
    assert done.exit_code == 2 and "is played in one turn" in done.stderr


def test_copies_of_mbpp_are_read_by_their_columns(tmp_path):
    for name, source, hub in (
        ("OpenMLRL/MBPP", "coop_humaneval", "OpenMLRL/MBPP"),
        ("google-research-datasets/mbpp", "mbpp", None),
    ):
        config, _ = resolved(
            "--from", "comlrl", write(tmp_path, "magrpo_he", dataset={"name": name, "type": "mbpp"})
        )
        assert config["data"]["type"] == source and config["data"]["hub"] == hub


def test_a_model_each_and_a_team_of_one(tmp_path):
    path = write(tmp_path, "magrpo_he")
    config, _ = resolved("--from", "comlrl", path, "--override", "agents=['A/B','C/D']")
    assert {name: policy["model"] for name, policy in config["policies"].items()} == {
        "aux": "A/B",
        "main": "C/D",
    }
    config, _ = resolved(
        "--from", "comlrl", path, "--override", "agents=['A/B','C/D']", "--model_name", "E/F"
    )
    assert {policy["model"] for policy in config["policies"].values()} == {"A/B", "C/D"}
    config, _ = resolved("--from", "comlrl", path, "--override", "magrpo.num_agents=1")
    assert list(config["team"]["roles"]) == ["solver"]


def test_the_command_line_precedes_the_file_by_whatever_name(tmp_path):
    path = write(tmp_path, "mt_magrpo_he", magrpo={"external_mode": "passed"}, external={"sandbox_slice": 3})
    config, warned = resolved("--from", "comlrl", path, "--override", "external.mode=plain")
    assert config["transition"]["type"] == "plain"
    assert "magrpo.external_mode: external.mode precedes it" in warned
    assert "external.sandbox_slice: only level_feedback, level_passed and passed run tests" in warned
    config, warned = resolved("--from", "comlrl", path, "--num_turns", "1")
    assert config["transition"] == {"type": "none"} and config["team"]["max_turns"] == 1
    assert "magrpo.external_mode: it has no effect with one turn, there too" in warned


def test_settings_of_ours_may_follow_theirs_anywhere(tmp_path):
    config, _ = resolved(
        *words(LINES[4], tmp_path), "schedule.steps=3", "schedule.epochs=null", "--with", "l2",
        "--override", "seed=7", "sampler.branches=3", "--turn_gradient_weights", "1", "sampler.chains=2",
    )  # fmt: skip
    assert config["schedule"]["steps"] == 3 and config["seed"] == 7
    assert config["sampler"]["branches"] == 3 and config["sampler"]["chains"] == 2
    assert {policy["train"] for policy in config["policies"].values()} == {"full"}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("True", True), ("null", None), ("None", None), ("3e-5", 3e-5), ("[1.5,0.5]", [1.5, 0.5]),
        ("(1, 2)", [1, 2]), ("'x'", "x"), ("test[:20]", "test[:20]"), ("a/b-3B", "a/b-3B"), ("-2", -2),
    ],
)  # fmt: skip
def test_a_value_is_read_as_the_original_reads_it(word, value):
    assert literal(word) == value


@pytest.mark.parametrize(
    ("threshold", "shift", "ends"),
    [(-0.2, None, True), (0.1, None, False), (-4, -4, True), (-0.2, -4, False)],
)
def test_a_threshold_that_every_joint_action_earns_is_mentioned(threshold, shift, ends, tmp_path):
    settings = {"early_termination_threshold": threshold, "reward_shift": shift, "external_mode": "plain"}
    _, warned = resolved("--from", "comlrl", write(tmp_path, "mt_magrpo_he", magrpo=settings))
    assert "plays no further turn" in warned and ("no joint action plays a second turn" in warned) is ends


# ------------------------------------------------------------------------------------------------ wrong input


@pytest.mark.parametrize(
    ("setting", "path", "text"),
    [
        ("magrpo.num_turns=two", "magrpo.num_turns", "a whole number of 1 or more is needed"),
        ("magrpo.num_turns=1.5", "magrpo.num_turns", "it is 1.5"),
        ("magrpo.num_turns=True", "magrpo.num_turns", "it is True"),
        ("magrpo.learning_rate=fast", "magrpo.learning_rate", "a number is needed"),
        ("magrpo.turn_gradient_weights=[1,2,3]", "magrpo.turn_gradient_weights", "give 2 values"),
        ("magrpo.turn_gradient_weights=3", "magrpo.turn_gradient_weights", "a list of numbers"),
        ("magrpo.external_mode=level_pased", "magrpo.external_mode", "did you mean 'level_passed'?"),
        ("magrpo.external_original_prompt=1", "magrpo.external_original_prompt", "true or false"),
        ("magrpo.joint_mode=both", "magrpo.joint_mode", "known: align, aligned, cross, crossed"),
        ("magrpo.num_agents=3", "magrpo.num_agents", "there is no recipe for 3 agents"),
        ("magrpo.num_generations=1", "magrpo.num_generations", "a whole number of 2 or more"),
        ("dataset.type=humanevl", "dataset.type", "did you mean 'humaneval'?"),
        ("model.name=3", "model.name", "a name, or a list of names is needed"),
        ("agents=['x']", "agents", "give 2 values, one for each role"),
        ("model.model_kwargs.torch_dtype=int8", "model.model_kwargs.torch_dtype", "unknown value 'int8'"),
        ("external=3", "external", "a table is needed, not 3"),
        ("grpo.num_turns=2", "magrpo", "has the sections grpo and magrpo"),
        ("num_turns", "--override", "is not of the form key=value"),
        ("=2", "--override", "is not of the form key=value"),
    ],
)
def test_a_wrong_value_is_refused_by_the_original_key(setting, path, text, tmp_path):
    from coterie.comlrl import Flags, read, translate

    file = write(tmp_path, "mt_magrpo_he", magrpo={"external_mode": "level_feedback"})
    with pytest.raises(ConfigError) as caught:
        translate(read(file, Flags([setting])))
    assert caught.value.path == path
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["grpo_he", "--num_turns", "2"], "--num_turns is an option of CoMLRL's scripts"),
        (["--from", "comlrl"], "--from comlrl needs a file"),
        (["--from", "comlrl", "FILE", "magrpo.num_turns=3"], "--override magrpo.num_turns=3"),
        (["--from", "comlrl", "FILE", "--resume", "x"], "--from and --resume exclude each other"),
        (["--from", "comlrl", "FILE", "--override"], "'--override' requires an argument"),
        (["--from", "trl", "FILE"], "is not 'comlrl'"),
        (["--from", "comlrl", "none.yaml"], "none.yaml"),
    ],
)
def test_a_wrong_line_is_refused(arguments, text, tmp_path):
    path = str(write(tmp_path, "magrpo_he"))
    done = coterie("run", *[path if word == "FILE" else word for word in arguments])
    assert done.exit_code == 2
    assert text in done.stderr


@pytest.mark.parametrize("section", ["iac", "madpo", None])
def test_a_file_of_another_program_is_refused(section, tmp_path):
    path = Path(tmp_path / "other.yaml")
    path.write_text(f"model: {{name: a/b}}\n{section or 'extra'}: {{num_turns: 2}}\n", encoding="utf-8")
    done = coterie("run", "--from", "comlrl", path)
    assert done.exit_code == 2
    wanted = f"is of the program '{section}'" if section else "has no section grpo or magrpo"
    assert wanted in done.stderr


@pytest.mark.parametrize(("section", "kind", "roles"), [
    ("magrpo", "tldr", ["first", "second"]), ("magrpo", "arxiv", ["first", "second"]),
    ("grpo", "tldr", ["solver"]),
])  # fmt: skip
@pytest.mark.parametrize(("enabled", "scale"), [(None, 2.0), (True, 2.0), (False, 1.0)])
def test_files_of_writing_process_rewards_unless_they_say_otherwise(
    section, kind, roles, enabled, scale, tmp_path
):
    table = {"scale_factor": 2.0, "shift": -1.0} | ({} if enabled is None else {"enabled": enabled})
    lines = [
        f"dataset: {{type: {kind}}}",
        f"{section}: {{num_train_epochs: 2}}",
        f"reward_processor: {json.dumps(table)}",
    ]
    file = tmp_path / "writing.yaml"
    file.write_text("\n".join(lines), encoding="utf-8")
    config, _ = resolved("--from", "comlrl", str(file))
    assert (config["env"]["type"], config["env"]["kind"]) == ("writing", kind)
    assert config["schedule"]["epochs"] == 2 and set(config["policies"]) == set(roles)
    assert config["rewards"]["writing"].get("scale", 1.0) == scale
