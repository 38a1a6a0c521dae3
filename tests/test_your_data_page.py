"""What docs/your_data.md says of `team_task` and `template` is so: its commands run, its tables hold."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml

from coterie.api.rows import read_metrics
from coterie.compose import make_rollout_parts
from coterie.compose.tables import TEAM_KEYS
from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.types import Action
from coterie.plugins.agents.template import VARIABLES, ParserName, TemplateRole
from coterie.plugins.envs.team_task.env import Match, TeamTask, matches
from coterie.plugins.envs.team_task.records import RESERVED, TYPES
from coterie.recipes import load
from tests.cli.support import coterie
from tests.plugins.support import Build, context, make, role_input, wait

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "your_data.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.M | re.S))
COMMANDS = [
    shlex.split(line, comments=True)
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.M | re.S)
    for line in block.splitlines()
]
FRAGMENTS = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.M | re.S)
MODEL = "Qwen/Qwen3-0.6B"


def rows(first: str) -> list[list[str]]:
    """The cells of the table whose first heading is `first`."""
    header = re.search(rf"^\| {re.escape(first)} \|.*\n\|---", PAGE, re.M)
    assert header is not None, first
    block = PAGE[header.start() :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in block.splitlines()[2:]]


def names(first: str) -> list[str]:
    return [row[0].strip("`") for row in rows(first)]


def value(cell: str) -> Any:
    """The JSON in a cell."""
    return json.loads(cell.strip("`"))


def environment(**settings: Any) -> Any:
    """`team_task` on the page's records, in the working folder."""
    return make(TeamTask, Build(order=["solver", "checker"]), path="sums.jsonl", **settings)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The page's files in the working folder, and the records that the first command writes."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert COMMANDS[0] == ["python", "make_sums.py"]
    runpy.run_path("make_sums.py")
    yield tmp_path
    for module in ("my_rules", "digit_reward"):
        sys.modules.pop(module, None)


def tiny_model(folder: Path) -> Path:
    """A model of a few thousand weights in the place of the page's."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.backends.chat_formats.tokenizers import KEEPS, bpe

    tokenizer = bpe(KEEPS)
    config = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1, head_dim=16, max_position_embeddings=512,
    )  # fmt: skip
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# ------------------------------------------------------------------------------------------------ it runs


def test_the_commands_that_need_no_model_run(page: Path):
    shown = [words[1:] for words in COMMANDS if words[0] == "coterie" and words[1] in ("data", "config")]
    assert len(shown) == 8
    for words in shown:
        done = coterie(*words)
        assert done.exit_code == 0, (words, done.output)
        if words[1:3] == ["leaks", "sums.jsonl"]:
            assert "repeated" not in done.stdout
        if "--answer" in words:
            assert "The solver says: It is 5." in done.stdout and "The checker said: No, 7." in done.stdout
    assert "Last time you said: <solver's answer>" in coterie("data", "show", "sums.yaml").stdout


@pytest.mark.torch
def test_the_run_and_what_comes_before_and_after_it(page: Path):
    pytest.importorskip("torch")
    recipe, model = page / "sums.yaml", tiny_model(page / "model")
    assert MODEL in recipe.read_text()
    recipe.write_text(recipe.read_text().replace(MODEL, str(model)).replace("bfloat16", "float32"))
    quick = ("schedule.steps=1", "schedule.evaluate_every=1", "schedule.evaluate_tasks=2", "sampler.chains=2")
    commands = {
        words[1]: words[1:]
        for words in COMMANDS
        if words[1] in ("plan", "run", "eval") and "offline" not in words[2]
    }
    for name, extra in (
        ("plan", ()),
        ("run", (*quick, "sampler.sampling.max_new_tokens=4")),
        ("eval", ("--tasks", "2")),
    ):
        done = coterie(*commands.pop(name), *extra)
        assert done.exit_code == 0, done.output
    assert not commands and (page / "runs" / "sums" / "metrics.jsonl").is_file()


@pytest.mark.torch
def test_a_reader_without_a_hub_trains_and_evaluates_a_team(page: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    run, evaluate = [words[1:] for words in COMMANDS if len(words) > 2 and "offline" in words[2]]
    assert (run[0], evaluate[0]) == ("run", "eval")
    done = coterie(*run, "schedule.steps=10", "schedule.evaluate_every=0")
    assert done.exit_code == 0, done.output
    digits = [row["score/team/digits"] for row in read_metrics(page / "runs" / "offline" / "metrics.jsonl")]
    assert sum(digits[-4:]) > sum(digits[:4]), "the page says that it rises"
    done = coterie(*evaluate, "--tasks", "4")
    assert done.exit_code == 0 and "success" in done.stdout, done.output
    assert done.stdout.count("What is") >= 2, "two episodes are shown"


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_the_other_sources_of_records_play(fragment: str, page: Path):
    [prepare] = [words[1:] for words in COMMANDS if "prepare" in words]
    assert coterie(*prepare).exit_code == 0
    table = yaml.safe_load(FILES["sums.yaml"]) | yaml.safe_load(fragment)
    table["schedule"].pop("stratify")
    run = make_rollout_parts(load(table))
    for split in ("train", "val", "test"):
        assert len(run.environment.tasks(split, 0)) > 10
    state = run.environment.reset(run.environment.tasks("val", 0)[0], 0)
    assert set(run.environment.observe(state, "solver")) == {"question", "actions", "parsed", "transcript"}


# ------------------------------------------------------------------------------------------ the environment


def test_every_key_of_the_environment_and_of_the_role_is_listed():
    assert sorted(names("key of `env`")) == sorted(TeamTask.Config.model_fields)
    assert sorted(names("key of a role")) == sorted(TemplateRole.Config.model_fields)
    [fields] = [row[1] for row in rows("key of `env`") if row[0] == "`fields`"]
    assert re.findall(r"`(\w+)`", fields) == list(TYPES)
    sentence = PAGE[PAGE.index("Every role has besides") :].split("\n\n")[0]
    assert sorted(re.findall(r"`(\w+)`", sentence)) == sorted(TEAM_KEYS)


def test_the_defaults_are_those_that_are_said():
    settings = TeamTask.Config(path="a.jsonl")
    assert settings.answer_field == "answer" and settings.stop_when is None
    said = {row[0].strip("`"): row[1] for row in rows("key of `env`")}
    assert "0.1 by default" in said["val_share"] and "`answer` by default" in said["answer_field"]
    assert TemplateRole.Config(prompt="x").parser == "text"


def test_every_match_is_listed_with_its_examples():
    assert names("`match`") == list(get_args(Match))
    for name, right, wrong, _ in rows("`match`"):
        for cell, expected in (right, True), (wrong, False):
            pairs = re.findall(r"`([^`]+)` = `([^`]+)`", cell)
            assert pairs, cell
            for given, answer in pairs:
                assert matches(json.loads(given), json.loads(answer), name.strip("`")) is expected, (
                    given,
                    answer,
                )


def acted(env: Any, task: Any, **parsed: Any) -> Any:
    """The state after one turn."""
    state = env.reset(task, 0)
    for role, answer in parsed.items():
        action = {role: Action(calls=(), text=str(answer), parsed=answer)}
        state = wait(env.step(state, action, context(turn=0))).state
    return state


def test_every_stop_rule_is_listed_and_stops(page: Path):
    assert names("`stop_when`") == ["null", "agree", "module:function"]
    equal, different = {"solver": 7, "checker": 7}, {"solver": 7, "checker": 8}
    for rule, stops in (None, False), ("agree", True), ("my_rules:enough", True):
        env = environment(stop_when=rule)
        task = env.tasks("train", 0)[0]
        assert (env.acting_roles(acted(env, task, **equal)) == ()) is stops
        assert env.acting_roles(acted(env, task, **different)) is None


def test_a_function_of_ones_own_decides_on_success(page: Path):
    env = environment(success="my_rules:close")
    task = env.tasks("train", 0)[0]
    answers = {task.answer: 1.0, task.answer + 1: 0.5, task.answer + 2: 0.0, None: 0.0}
    for answer, expected in answers.items():
        assert env.outcome(acted(env, task, solver=0, checker=answer))["success"] == expected


def test_an_answer_that_cant_be_read_matches_nothing(page: Path):
    for match in get_args(Match):
        assert not matches(None, "None", match)


# ------------------------------------------------------------------------------------------------ the role


def template(prompt: str, fields: tuple[str, ...] | None = None, **settings: Any) -> Any:
    build = Build(
        name="solver", path="team.roles.solver", order=["solver", "checker"],
        environment=SimpleNamespace(fields=fields),
    )  # fmt: skip
    return make(TemplateRole, build, prompt=prompt, **settings)


def test_every_variable_is_listed_and_has_a_value(page: Path):
    listed = names("variable")
    assert listed[0] == "fields of the record" and sorted(listed[1:]) == sorted(RESERVED)
    assert set(RESERVED) == {*VARIABLES, "parsed", "transcript"}
    env = environment(fields=["question"])
    task = env.tasks("train", 0)[0]
    state = acted(env, task, solver=7, checker=8)
    prompt = (
        "{{ question }}|{{ role }}|{{ turn }}|{{ actions.solver }}|{{ parsed.checker }}|{{ history }}|"
        "{% for one in transcript %}{{ one.turn }} {{ one.role }} {{ one.text }} {{ one.parsed }} "
        "{% endfor %}"
        "|{{ notes | join }}|{{ observation.question }}"
    )
    role = template(prompt, env.fields)
    [message] = role.render(role_input(env.observe(state, "solver"), "solver", 1, feedback=("again",)))
    question = task.payload["question"]
    assert message["content"] == f"{question}|solver|1|7|8|[]|0 solver 7 7 0 checker 8 8 |again|{question}"
    with pytest.raises(ConfigError, match="unknown variable 'qestion'"):
        template("{{ qestion }}", env.fields)


def test_the_entries_of_history_have_the_keys_that_are_listed():
    from coterie.core.types import HistoryEntry

    [said] = [row[1] for row in rows("variable") if row[0] == "`history`"]
    keys = re.findall(r"`(\w+)`", said)
    entry = HistoryEntry(
        turn=0, observation={}, messages=(), action=Action(calls=(), text="five", parsed=5), info={}
    )
    prompt = " ".join(f"{{{{ history[-1].{key} }}}}" for key in keys)
    assert keys == ["turn", "text", "parsed"]
    assert template(prompt).render(role_input({}, "solver", 1, history=(entry,)))[0]["content"] == "0 five 5"


@pytest.mark.parametrize("row", rows("template"), ids=lambda row: row[0])
def test_newlines_are_as_the_table_says(row: list[str]):
    role = template(value(row[0]))
    for turn in (0, 1):
        assert role.render(role_input({}, "solver", turn))[0]["content"] == value(row[1 + turn])


def test_every_parser_is_listed():
    assert names("`parser`") == list(get_args(ParserName))


@pytest.mark.parametrize("row", rows("`parser`"), ids=lambda row: row[0])
def test_a_parser_reads_as_its_row_says(row: list[str]):
    name, settings, answer, parsed, unreadable = row
    role = template("x", parser=name.strip("`"), **(value(settings) if settings else {}))
    assert role.parse(value(answer), {}) == value(parsed)
    if unreadable:
        with pytest.raises(PolicyFault):
            role.parse(value(unreadable), {})
