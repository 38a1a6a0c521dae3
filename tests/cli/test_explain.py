"""`coterie explain`: what is printed, of recipes, runs, plugins and mistakes."""

from __future__ import annotations

import json
import re

import pytest

from tests.cli.support import TABULAR, anew, coterie, plugin_package

OBSERVER = '''
    """An observer of a made-up package, and a role."""
    from coterie import Plugin, PluginConfig, hookimpl


    class Polite(Plugin):
        """Says please."""

        class Config(PluginConfig):
            please: str = "please"

        def render(self, role_input):
            text = f"{role_input.observation.role}, {self.config.please}: {role_input.observation.position}"
            return [{"role": "user", "content": text}]

        def parse(self, text, observation):
            return tuple(text.split())


    @hookimpl
    def register_roles(register):
        register("polite", Polite)


    @hookimpl
    def step_ended(step, metrics):
        pass


    @hookimpl
    def episode_ended(tree):
        pass
'''


def printed(*arguments):
    done = coterie("explain", *arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def as_json(*arguments):
    return json.loads(printed(*arguments, "--json"))


def test_the_overview_has_parts_hooks_prompts_and_origins_and_fits_two_screens():
    text = printed("plan_path", "loss.clip_low=0.1")
    assert len(text.splitlines()) < 45 and max(map(len, text.splitlines())) < 200
    assert re.search(
        r"^env +environment 'plan_path' +coterie [\d.]+ +coterie/plugins/envs/plan_path/env.py:\d+",
        text,
        re.M,
    )
    assert re.search(r"^sampler .* default$", text, re.M)
    assert "hooks: no plugin observes steps or episodes" in text
    assert "prompts of task train-0; the answers are the oracle's, with errors" in text
    assert re.search(
        r"^planner +1 +\d+ +its role's text \d+%, observation \d+% \(turn, height, width", text, re.M
    )
    assert re.search(r"^executor +2 .*feedback \d+%$", text, re.M)
    assert re.search(r"^\d+ keys, set .*\d+ by recipe plan_path.*1 by override", text, re.M)


def test_one_key_all_keys_and_the_keys_of_a_table():
    one = printed("plan_path", "--key", "trainer.epochs")
    assert re.findall(r"^  (\w+[ \w]*?)  +(.*)$", one, re.M) == [
        ("value", "1"),
        ("set by", "default of its plugin"),
        ("read by", "trainer 'torch' of coterie"),
        ("declared in", "coterie.backends.trainers.settings:TorchConfig"),
        ("allowed", "int >= 1"),
        ("default", "1"),
        ("meaning", "Passes over the samples of a step."),
    ]
    required = printed("plan_path", "--key", "policies.shared.model")
    assert "default      required" in required
    assert printed("plan_path", "--key", "team.roles.planner").count("read by") > 3
    keys = printed("plan_path", "--keys")
    assert re.search(r"^seed +0 +the run +default$", keys, re.M) and len(keys.splitlines()) > 100
    table = as_json("plan_path", "--key", "trainer.epochs")
    assert [key["path"] for key in table["keys"]] == ["trainer.epochs"]


def test_a_prompt_is_shown_line_by_line_with_the_origin_of_each():
    text = printed(TABULAR, "--prompt", "executor")
    (first, second) = re.findall(r"^executor, turn (\d), policy shared, \d+ tokens$", text, re.M)
    assert (first, second) == ("1", "2")
    letters, line = re.search(r"^  ([a-z ]+)  (executor r\dc\d .* plan .* :)$", text, re.M).groups()
    meanings = dict(re.findall(r"^  ([a-z])  (.*)$", text.split("\n\n")[1], re.M))
    assert set(letters.split()) == set(meanings)
    assert "environment 'plan_path' of coterie: plan" in meanings.values()
    assert "role 'plan_path_executor' of coterie: its text" in meanings.values()
    prompts = as_json(TABULAR, "--prompt", "executor")["prompts"]
    assert {prompt["role"] for prompt in prompts} == {"executor"}
    assert "".join(part["text"] for part in prompts[0]["text"]) == line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["plan_pat"], ["unknown recipe 'plan_pat'", "plan_path"]),
        (["plan_path", "env.sise=7"], ["env.sise", "unknown key 'sise'", "size"]),
        (
            ["plan_path", "--key", "trainer.epoch"],
            ["trainer.epoch", "no key", "did you mean", "trainer.epochs"],
        ),
        (["plan_path", "--prompt", "planer"], ["--prompt", "no role 'planer'", "planner"]),
        (["plan_path", "--task", "-3"], ["--task", "no train task -3"]),
        (["plan_path", "--scale", "tiny"], ["--scale", "no scale 'tiny'"]),
        (["plan_path", "steps"], ["'steps' is no override"]),
    ],
)
def test_mistakes_are_told_as_everywhere(arguments, words):
    done = coterie("explain", *arguments)
    assert done.exit_code == 2 and "Traceback" not in done.output
    for word in words:
        assert word in done.output, done.output


def test_hooks_of_a_package_are_listed_and_a_broken_one_is_named_with_its_fix(tmp_path):
    path = plugin_package(tmp_path, "acme-polite", OBSERVER)
    plugin_package(tmp_path, "acme-broken", "import a_library_that_is_not_there")
    role = "team.roles.executor={type: polite, policy: shared}"
    done = anew("explain", "plan_path", role, path=path)
    assert done.exit_code == 0, done.stderr
    text = done.stdout
    assert re.search(r"^team.roles.executor +role 'polite' +acme-polite 1.2 +.*acme_polite.py:6 ", text, re.M)
    lines = [line for line in text.splitlines() if line.startswith(("episode_ended", "step_ended"))]
    assert [line.partition(" (")[0] for line in lines] == [
        "episode_ended: episode_ended of acme-polite 1.2",
        "step_ended: step_ended of acme-polite 1.2",
    ]
    assert re.search(r"acme_polite.py:\d+", lines[1]) and "at the end of each training step" in lines[1]
    assert "loaded: acme-polite 1.2 serves team.roles.executor; its hooks: " in text
    assert "broken: acme-broken 1.2 is left out" in text
    assert "fix: pip install the package that has 'a_library_that_is_not_there'" in text


def test_a_role_of_a_plugin_file_is_explained_with_its_settings(tmp_path):
    import textwrap

    file = tmp_path / "polite_role.py"
    file.write_text(textwrap.dedent(OBSERVER).replace('"polite"', '"polite_of_file"'))
    done = anew(
        "explain", TABULAR, "-p", file, "team.roles.executor={type: polite_of_file, policy: shared}",
        "--prompt", "executor", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    made = json.loads(done.stdout)
    (parts,) = [message["parts"] for message in made["prompts"][0]["messages"]]
    assert [(part["kind"], part["names"]) for part in parts][:3] == [
        ("observation", ["role"]), ("role", []), ("setting", ["team.roles.executor.please"]),
    ]  # fmt: skip
    assert parts[0]["writer"] == "environment 'plan_path' of coterie"
    assert parts[1]["writer"] == f"role 'polite_of_file' of {file}"
    (served,) = [part for part in made["parts"] if part["path"] == "team.roles.executor"]
    assert (served["distribution"], served["file"], served["line"]) == (str(file), str(file), 6)


def test_a_run_folder_is_explained_as_it_was_made(tmp_path):
    folder = tmp_path / "run"
    done = coterie("run", TABULAR, "schedule.steps=0", "-o", folder)
    assert done.exit_code == 0, done.output
    record = folder / "resolved.yaml"
    then = re.sub(r"^(  coterie: ).*$", r"\g<1>0.0.9", record.read_text(), flags=re.M)
    assert "max_live: 4096" in then
    record.write_text(then.replace("max_live: 4096", "max_live: 17"))
    text = printed(folder)
    assert str(folder) in text and "(made with 0.0.9)" in text
    assert "prompts with the defaults of then: the plugins have other ones for executor.max_live" in text
    made = as_json(folder)
    assert made["folder"] == str(folder) and {part["recorded"] for part in made["parts"]} == {"0.0.9"}
    assert made["task"] == "train-0" and made["prompts"]
    (key,) = [key for key in made["keys"] if key["path"] == "executor.max_live"]
    assert (key["value"], key["default"]) == (17, 4096)
