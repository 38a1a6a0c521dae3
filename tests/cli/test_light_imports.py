"""What only reads and checks a configuration imports no torch, and takes no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.forks import python
from tests.cli.support import process

MATRIX = Path(__file__).parents[1] / "recipes" / "matrix.yaml"
HEAVY = ("torch", "transformers", "peft", "safetensors")

COMMANDS = [
    ["config", "plan_path"],
    ["config", "plan_path_split", "--with", "per_role,l1", "trainer.epochs=2", "--json"],
    ["recipes"],
    ["schema"],
    ["schema", "plan_path"],
    ["explain", "plan_path", "--with", "per_role"],
    ["explain", "quickstart", "--keys"],
    ["plan", "--help"],
    ["run", "--help"],
    ["plugins"],
    ["watch", "--help"],
    ["plot", "--help"],
    ["episodes", "--help"],
]

LATE = {
    "algorithm={type: grpo, normalise: no}": "algorithm.normalise",
    "algorithm={type: gae, lam: 2}": "algorithm.lam",
    "env.sise=7": "env.sise",
    "team.order=[planner, executer]": "team.order",
    "team.roles.planner.policy=shard": "team.roles.planner.policy",
    "team.roles.planner.stile=1": "team.roles.planner.stile",
    "rewards.environment.weights={team: much}": "rewards.environment.weights.team",
    "rewards.environment.weights={teem: 1}": "rewards.environment.weights.teem",
    "rewards={late: {type: 'tests.cli.test_light_imports:Late'}}": "rewards.late",
    "sampler.branchs=2": "sampler.branchs",
    "loss.clip_lo=0.1": "loss.clip_lo",
    "chat={type: template, kwargs: 1}": "chat.kwargs",
    "trackers.jsonl.file=a": "trackers.jsonl.file",
    "engine.decoder=fast": "engine.decoder",
    "engine={type: scripted, play: 'json:nothing'}": "engine.play",
    "trainer.micro_token=1": "trainer.micro_token",
    "trainer.value.clop=1": "trainer.value.clop",
    "trainer=tortch": "trainer.type",
    "trainer.value.clip=0.1": "trainer.value",
    "policies.shared.optimiser={}": "policies.shared.optimiser",
    "policies.shared.optimizer.schedule=linear": "policies.shared.optimizer.horizon",
    "policies.shared.train=full": "policies.shared.lora",
    "policies.shared.model={init: tabular}": "policies.shared.model.init",
    "policies.shared.model=./nowhere": "policies.shared.model",
    "policies.shared.model={init: qwen3, tokenizer: /no/such/folder}": "policies.shared.model.tokenizer",
    "sandbox=local": "sandbox",
    "env.data={type: jsonl, train: /no/train.jsonl, val: /no/val.jsonl}": "env.data.train",
    "env.data={type: jsonl, path: /no/all.jsonl}": "env.data.path",
}
"""Mistakes that only the composition of a run finds, and their paths."""

SCRIPT = """
import json, sys
from click.testing import CliRunner
from coterie.cli.main import cli
heavy, told = {heavy!r}, []
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(cli, arguments, prog_name="coterie")
    told.append([done.exit_code, done.output, [name for name in heavy if name in sys.modules]])
print(json.dumps(told))
"""


class Late:
    """A reward source whose score comes after the episode, which no selection can wait for."""

    scope = "episode"
    components = {"late": "increment"}
    weights = {"late": 1.0}

    def __init__(self, config: object, build: object) -> None:
        pass

    async def score(self, view: object) -> dict[object, float]:
        return {}

    def policy_fault(self, *arguments: object) -> dict[object, float]:
        return {}


def told(commands: list[list[str]]) -> list[tuple[int, str, list[str]]]:
    """(exit code, output, heavy modules imported so far) of commands, called in one fresh process."""
    done = python(SCRIPT.format(heavy=HEAVY), json.dumps(commands))
    assert done.returncode == 0, done.stderr
    return [tuple(answer) for answer in json.loads(done.stdout.splitlines()[-1])]


def test_commands_that_only_show_import_no_torch() -> None:
    for command, (code, output, heavy) in zip(COMMANDS, told(COMMANDS), strict=True):
        assert (code, heavy) == (0, []), f"{command}: {output[-300:]}"


def test_late_mistakes_are_told_without_torch(tmp_path: Path) -> None:
    runs = [["run", "plan_path", mistake, "--out", str(tmp_path / "run")] for mistake in LATE]
    answers = dict(zip(LATE, told(runs), strict=True))
    wrong = {
        mistake: (code, output[:200], heavy)
        for mistake, (code, output, heavy) in answers.items()
        if code != 2 or heavy or not output.startswith(f"Error: {LATE[mistake]}: ")
    }
    assert wrong == {} and not (tmp_path / "run").exists()


def own_data(folder: Path) -> Path:
    """A recipe for a model that plays records, and the files of its three splits."""
    for split in ("train", "val", "test"):
        (folder / f"{split}.jsonl").write_text(json.dumps({"question": split, "answer": 1}) + "\n")
    recipe = folder / "own.yaml"
    recipe.write_text(f"""
env: {{type: team_task, fields: [question], train: {folder}/train.jsonl, val: {folder}/val.jsonl,
      test: {folder}/test.jsonl}}
team:
  order: [solver]
  roles: {{solver: {{type: template, prompt: "{{{{ question }}}}", policy: shared}}}}
policies: {{shared: {{model: {{init: qwen3, hidden_size: 8, layers: 1, heads: 1, head_dim: 8, mlp_size: 8,
                             context: 64, tokenizer: bytes}}}}}}
sampler: {{chains: 2, branches: 1}}
algorithm: grpo
schedule: {{steps: 4, tasks_per_step: 1, evaluate_every: 2, evaluate_tasks: 1}}
""")
    return recipe


@pytest.mark.parametrize(("command", "path", "records"), [
    ("run", "env.train", ""), ("run", "env.val", ""), ("eval", "env.test", ""),
    ("run", "env.train", "not JSON"), ("eval", "env.test", "not JSON"),
])  # fmt: skip
def test_data_that_cant_be_read_is_told_before_torch_is_imported(
    command: str, path: str, records: str, tmp_path: Path
) -> None:
    recipe, file = own_data(tmp_path), tmp_path / f"{path.removeprefix('env.')}.jsonl"
    if records:
        file.write_text(records)
    else:
        file.unlink()
    arguments = [command, str(recipe), *(["--out", str(tmp_path / "run")] if command == "run" else [])]
    [(code, output, heavy)] = told([arguments])
    expected = f"Error: {file}, line 1" if records else f"Error: {path}: no such file: {file}"
    assert code == 2 and heavy == [] and output.startswith(expected), output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("settings", "refused"), [
    ([], True), (["schedule.evaluate_every=0"], False), (["schedule.evaluate_every=5"], False),
])  # fmt: skip
def test_the_val_split_is_asked_for_where_the_run_evaluates(
    settings: list[str], refused: bool, tmp_path: Path
) -> None:
    """Of a game, whose files are read split by split: else the first evaluation would miss it."""
    from coterie.compose import compose, trained_splits
    from coterie.core.errors import ConfigError
    from coterie.recipes import load
    from tests.cli.support import TABULAR, coterie

    assert coterie("data", "make", TABULAR, "--out", tmp_path, "--split", "train").exit_code == 0
    data = f"env.data={{type: jsonl, train: '{tmp_path}/train.jsonl'}}"
    resolved = load(TABULAR, overrides=[data, "schedule.steps=4", *settings])
    if refused:
        with pytest.raises(ConfigError, match="there is no file for split 'val'"):
            compose(resolved, trained_splits(resolved.config.schedule))
    else:
        compose(resolved, trained_splits(resolved.config.schedule))


def test_a_run_folder_can_be_composed_without_its_data(tmp_path: Path) -> None:
    """For `coterie export` and `coterie config`: they play nothing."""
    from coterie.compose import compose
    from coterie.recipes import load

    recipe = own_data(tmp_path)
    (tmp_path / "train.jsonl").unlink()
    assert compose(load(recipe)).team.members


@pytest.mark.parametrize(
    ("command", "model"),
    [("config", "./nowhere"), ("run", "./nowhere"), ("run", "/no/such/folder"), ("run", "~/no/such/folder")],
)
def test_a_model_folder_that_isnt_there_is_told_at_once(command: str, model: str, tmp_path: Path) -> None:
    names = tmp_path / "modules.txt"
    write = f"open({str(names)!r}, 'w').write(' '.join(sys.modules))"
    code = f"import atexit, sys; atexit.register(lambda: {write})"
    done = process(command, "plan_path", f"policies.shared.model={model}", code=code)
    assert done.returncode == 2 and not {"torch", "transformers"} & {*names.read_text().split()}
    what, why, fix = done.stderr.splitlines()
    assert what == f"Error: policies.shared.model: there is no folder {model}"
    assert "looked for it from" in why and "hub id" in fix


@pytest.mark.parametrize("model", ["nobody/nothing", "nothing"])
def test_a_hub_id_is_no_folder(model: str) -> None:
    assert process("config", "plan_path", f"policies.shared.model={model}").returncode == 0


def test_an_old_run_whose_model_is_gone_can_be_read(tmp_path: Path) -> None:
    from coterie.recipes import load

    (tmp_path / "config.yaml").write_text(
        load("plan_path", overrides=["policies.shared.model=/no/such/folder"]).text()
    )
    resolved = load(tmp_path)
    assert resolved.config.policies["shared"].model == "/no/such/folder"
