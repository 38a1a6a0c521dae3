"""Every built-in plugin passes the check of its kind."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import coterie.builtin
from coterie.backends.models.wordcodec import word_id
from coterie.core.protocols import Limits
from coterie.data.sources import known_sets
from coterie.discovery import plugins
from coterie.testing import (
    build,
    check_chat_format,
    check_data_source,
    check_engine,
    check_environment,
    check_estimator,
    check_executor,
    check_loss,
    check_plugin,
    check_reward,
    check_role,
    check_sampler,
    check_sandbox,
    check_tool,
    check_tracker,
    check_trainer,
    check_transition,
)
from coterie.testing.support.toys import LetterTokenizer
from tests.backends.sandboxes.fusion_server import FusionServer
from tests.backends.tools.support import SANDBOX, served
from tests.plugins.envs.programs import INLINE, answer

PAIR = ["planner", "executor"]
MCP_SERVER = [sys.executable, str(Path(__file__).parents[1] / "backends" / "tools" / "server.py")]
GRID = {"type": "plan_path", "size": 4, "min_distance": 2}
MESSAGES = ["[U, R]", "[r1c1, r3c2]", "[D]", "[]", "no list", "[L, L, U, D]", "[r0c0]", "R2 D1"]
WORDS = ("left", "right", "up", "down")
TABULAR = [0, *(word_id(word) for word in WORDS)]
TINY = {
    "init": "qwen3", "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_size": 16,
    "context": 64,
}  # fmt: skip

DATA_SCIENCE_ROLES = ("data_engineer", "modeler", "analyst")
MATH_ROLES = ("reasoner", "problem_solver", "code_executor", "verifier", "solver")
CHECKED = {
    "environment": {"plan_path", "sokoban", "sudoku", "team_task"},
    "role": {
        "plan_path_planner",
        "plan_path_executor",
        "plan_path_solver",
        "plan_path_tool",
        "plan_path_plan",
        "sokoban_executor",
        "sokoban_plan",
        "sokoban_planner",
        "sokoban_solver",
        "sokoban_tool",
        "sudoku_executor",
        "sudoku_plan",
        "sudoku_planner",
        "sudoku_solver",
        "sudoku_tool",
        "template",
    },
    "reward": {"environment", "function"},
    "engine": {"scripted", "tabular", "hf"},
    "trainer": {"tabular", "torch", "none"},
    "executor": {"local"},
    "sandbox": {"local", "sandbox_fusion"},
    "chat_format": {"auto", "plain", "template"},
    "tool": {"python", "search", "mcp"},
    "data_source": {"jsonl", "parquet"},
    "tracker": {"jsonl"},
}
"""Plugins whose checks need arguments, by kind; the plugins of other kinds are checked by name."""
ELSEWHERE = {
    ("tracker", "otel"),  # tests/backends/trackers/test_otel.py
    ("data_source", "hub"),
    *(("data_source", name) for name in {*known_sets()} - {"cooperative", "posts", "sums"}),
    ("engine", "openai"),
    ("engine", "mixed"),
    ("engine", "vllm"),
    ("trainer", "deepspeed"),
    ("executor", "ray"),
    ("environment", "code_collab"),
    ("environment", "code_game"),
    ("environment", "code_tests"),
    ("environment", "data_science"),
    ("environment", "math"),
    ("environment", "writing"),
    ("reward", "writing"),
    *(("data_source", name) for name in ("cooperative", "ds_pack", "posts", "sums")),
    *(("role", f"writing_{name}") for name in ("first", "second", "solver")),
    *(("role", f"code_{name}") for name in ("aux", "main", "solver")),
    *(("role", f"code_game_{name}") for name in ("aux", "main", "solver")),
    *(("role", f"code_tests_{name}") for name in ("coder", "solver", "tester")),
    *(("reward", name) for name in ("code_structure", "golden_tests", "test_quality", "unit_tests")),
    *(("role", f"math_{name}") for name in (*MATH_ROLES, "tool")),
    *(("role", f"data_science_{name}") for name in DATA_SCIENCE_ROLES),
    ("reward", "coach"),
    *(("tracker", name) for name in ("mlflow", "tensorboard", "wandb", "weave")),
}
"""Plugins that need a network, whose own tests fake one, those that tests/scale checks, and those whose own
tests run the check: data science, mathematics and code (tests/plugins/envs, tests/plugins/agents), data sets
(tests/backends/data/sets), trackers of libraries (tests/backends/trackers) and the coach."""


def names(kind: str) -> list[str]:
    return [entry.name for entry in plugins().registry.entries(kind) if entry.distribution == "coterie"]


def test_every_plugin_is_checked():
    for kind, checked in CHECKED.items():
        unchecked = {name for name in names(kind) if (kind, name) not in ELSEWHERE} - checked
        assert not unchecked, f"check {kind} {sorted(unchecked)} in this file, then name it in CHECKED"


def test_the_hooks_and_what_they_register():
    check_plugin(coterie.builtin)


@pytest.mark.parametrize("settings", [
    {}, {"views": "split", "max_moves": 3, "plan_language": "legs"},
    {"rendering": "prose", "plan_language": "moves", "walk": "skip"},
    {"team": "potential", "waypoint_words": "offsets", "width": 5}, {"team": "paper", "walk": "skip"},
])  # fmt: skip
def test_plan_path(settings):
    check_game({**GRID, **settings}, MESSAGES, every_order=not settings)


def check_game(table: dict[str, Any], act: list[str], *, every_order: bool) -> None:
    """Check a game with planner and executor; with a solver; and with unparsed texts in one stage."""
    for order in (PAIR, ["solver"], [PAIR]) if every_order else (PAIR,):
        env = build("environment", table, order=order)
        roles = PAIR if order != ["solver"] else order
        role_plugins = {} if order == [PAIR] else roles_of(table["type"], order, table)
        episodes = {"roles": roles, "order": order, "act": act, "role_plugins": role_plugins}
        check_environment(env, episodes=4, disjoint="content", **episodes)
        if every_order and order == PAIR:
            check_reward(build("reward", "environment", env=table, order=order), environment=env, **episodes)


def roles_of(game: str, order: list[str], table: dict[str, Any]) -> dict[str, Any]:
    """The game's role of each name in the order."""
    return {name: build("role", f"{game}_{name}", name=name, order=order, env=table) for name in order}


@pytest.mark.parametrize("rendering", ["compact", "prose"])
@pytest.mark.parametrize("name", ["planner", "executor", "solver"])
def test_roles_of_plan_path(name, rendering):
    order = ["solver"] if name == "solver" else PAIR
    table = {**GRID, "rendering": rendering}
    env = build("environment", table, order=order)
    task = env.tasks("train", 0)[0]
    role = build("role", f"plan_path_{name}", name=name, order=order, env=table)
    good = {"compact": "r1c1 r0c2" if name == "planner" else "U R", "prose": "so: [(1, 1)]"}[rendering]
    check_role(
        role,
        name=name,
        observations=[env.observe(env.reset(task, 0), name)],
        good=[good if name == "planner" or rendering == "compact" else "[UP, right]"],
        feedback=["You hit a wall."] if rendering == "prose" else (),
    )


def test_plan_path_with_programs():
    order = ["tool", "plan"]
    table = {**GRID, "rendering": "prose", "sandbox": {"type": INLINE}}
    env = build("environment", table, order=order)
    role_plugins = roles_of("plan_path", order, table)
    programs = [answer(f"print({moves!r})") for moves in MESSAGES] + [answer("1 / 0"), answer("# killer")]
    check_environment(env, roles=order, act=[*MESSAGES, *programs], role_plugins=role_plugins, episodes=4)
    state = env.reset(env.tasks("train", 0)[0], 0)
    for name, good in (("tool", programs[0]), ("plan", "so: [UP, right]")):
        observations = [env.observe(state, name)]
        check_role(
            role_plugins[name],
            name=name,
            observations=observations,
            good=[good],
            feedback=["You hit a wall."],
        )


PUSHES = ["[U, R]", "[r1c1R, r3c2U]", "U R D", "r1c1R", "pR pU", "[]", "no list", "[L, L, U, D]", ""]
BOXES = {"type": "sokoban", "size": 4}


@pytest.mark.parametrize("settings", [
    {}, {"views": "split", "max_moves": 3, "max_pushes_planned": 2, "boxes": 2},
    {"rendering": "prose", "boxes": 2, "walk": "skip", "stop_at_deadlock": True},
    {"team": "potential", "push_words": "offsets", "width": 5}, {"push_words": "directions", "walk": "skip"},
])  # fmt: skip
def test_sokoban(settings):
    check_game({**BOXES, **settings}, PUSHES, every_order=not settings)


@pytest.mark.parametrize("rendering", ["compact", "prose"])
@pytest.mark.parametrize("name", ["planner", "executor", "solver"])
def test_roles_of_sokoban(name, rendering):
    order = ["solver"] if name == "solver" else PAIR
    table = {**BOXES, "rendering": rendering}
    env = build("environment", table, order=order)
    observation = env.observe(env.reset(env.tasks("train", 0)[0], 0), name)
    moves = ["r1c1R", "r0c2U"] if name == "planner" else ["U", "R"]
    good = " ".join(moves) if rendering == "compact" else f"so: [{', '.join(moves)}]"
    notes = ["You hit a wall."] if rendering == "prose" else ()
    role = build("role", f"sokoban_{name}", name=name, order=order, env=table)
    check_role(role, name=name, observations=[observation], good=[good], feedback=notes)


def test_sokoban_with_programs():
    order = ["tool", "plan"]
    table = {**BOXES, "rendering": "prose", "sandbox": {"type": INLINE}}
    env = build("environment", table, order=order)
    role_plugins = roles_of("sokoban", order, table)
    programs = [answer(f"print({moves!r})") for moves in PUSHES] + [answer("1 / 0"), answer("# killer")]
    check_environment(env, roles=order, act=[*PUSHES, *programs], role_plugins=role_plugins, episodes=4)
    state = env.reset(env.tasks("train", 0)[0], 0)
    for name, good in (("tool", programs[0]), ("plan", "so: [UP, right]")):
        observations = [env.observe(state, name)]
        check_role(
            role_plugins[name],
            name=name,
            observations=observations,
            good=[good],
            feedback=["You hit a wall."],
        )


FILLS = ["[r0c1=3, r2c3=1]", "a c -", "1 2 3", "r0c0=1 r1c1=4", "[]", "no list", "[(0, 0, 1)]", "[r9c9=7]"]


@pytest.mark.parametrize("settings", [
    {}, {"views": "split", "plan_language": "letters", "max_cells": 3, "illegal": "stop"},
    {"rendering": "prose", "team": "potential"},
])  # fmt: skip
def test_sudoku(settings):
    check_game({"type": "sudoku", **settings}, FILLS, every_order=not settings)


@pytest.mark.parametrize("rendering", ["compact", "prose"])
@pytest.mark.parametrize("name", ["planner", "executor", "solver"])
def test_roles_of_sudoku(name, rendering):
    order = ["solver"] if name == "solver" else PAIR
    table = {"type": "sudoku", "rendering": rendering}
    env = build("environment", table, order=order)
    observations = [env.observe(env.reset(env.tasks("train", 0)[0], 0), name)]
    role = build("role", f"sudoku_{name}", name=name, order=order, env=table)
    good = "so: [r0c1=3]" if rendering == "prose" else "1 2" if name == "planner" else "r0c1=3 r2c3=1"
    notes = ["You slept."] if rendering == "prose" else ()
    check_role(role, name=name, observations=observations, good=[good], feedback=notes)


def test_sudoku_with_programs():
    order = ["tool", "plan"]
    table = {"type": "sudoku", "rendering": "prose", "sandbox": {"type": INLINE}}
    env = build("environment", table, order=order)
    role_plugins = roles_of("sudoku", order, table)
    programs = [answer(f"print({text!r})") for text in FILLS] + [answer("1 / 0"), answer("# killer")]
    check_environment(env, roles=order, act=[*FILLS, *programs], role_plugins=role_plugins, episodes=4)
    state = env.reset(env.tasks("train", 0)[0], 0)
    for name, good in (("tool", programs[0]), ("plan", "so: [r0c1=3]")):
        observations = [env.observe(state, name)]
        check_role(
            role_plugins[name], name=name, observations=observations, good=[good], feedback=["You slept."]
        )


@pytest.mark.parametrize("settings", [
    {"parser": "text"}, {"parser": "strip"}, {"parser": "number"}, {"parser": "json"}, {"parser": "code"},
    {"parser": "boxed"}, {"parser": "choice", "choices": ["left", "(right"]},
    {"parser": "regex", "pattern": r"(?P<one>\d+)-(\d+)"},
], ids=lambda settings: settings["parser"])  # fmt: skip
def test_template(settings):
    prompt = (
        "{{ role }} {{ observation }} {{ history | length }} {% for note in notes %}{{ note }}{% endfor %}"
    )
    role = build("role", {"type": "template", "system": "{{ turn }}", "prompt": prompt, **settings})
    good = {"number": "about 1,234", "json": '{"a": 1}', "code": "```\nx\n```", "boxed": "\\boxed{1}",
            "choice": "go LEFT", "regex": "1-2"}.get(settings["parser"], "yes")  # fmt: skip
    check_role(role, name="solver", observations=["x", {"q": 1}], good=[good], feedback=["You were wrong."])


def records(folder: Any) -> str:
    path = folder / "records.jsonl"
    rows = [{"id": i, "question": f"{i}?", "answer": i % 7} for i in range(120)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def long_dialogue(record: Any, transcript: Any) -> float:
    return float(len(transcript) > 3)


@pytest.mark.parametrize("settings", [
    {}, {"stop_when": "agree"}, {"success": long_dialogue},
    {"success": {"match": "number"}, "stop_when": long_dialogue},
])  # fmt: skip
def test_team_task(settings, tmp_path):
    order = ["writer", ["checker", "critic"]]
    table = {"type": "team_task", "path": records(tmp_path), "id_field": "id", **settings}
    env = build("environment", table, order=order)
    roles = ["writer", "checker", "critic"]
    check_environment(env, roles=roles, order=order, act=["1", "2", 3, 1.5], disjoint="content")


@pytest.mark.parametrize("scope", ["joint", "action", "episode", "siblings"])
def test_function_reward(scope):
    env = build("environment", GRID, order=PAIR)
    function = (lambda view: [0.5] * len(view.actions)) if scope == "siblings" else lambda view: 1.0
    source = build("reward", {"type": "function", "function": function, "scope": scope}, env=GRID, order=PAIR)
    check_reward(source, environment=env, roles=PAIR, act=MESSAGES, repeatable=["function"])


@pytest.mark.parametrize("name", names("estimator"))
def test_estimators(name):
    pieces = {"group": "decision", "return": "tree", "baseline": "loo"} if name == "compose" else {}
    check_estimator(build("estimator", {"type": name, **pieces}), seeds=1)


@pytest.mark.parametrize("name", ["at_grpo", "grpo"])
def test_estimators_that_drop_and_whiten(name):
    table = {"type": name, "zero_variance": "drop", "normalise": {"type": "whiten"}}
    check_estimator(build("estimator", table), seeds=1)


@pytest.mark.parametrize("name", names("loss"))
@pytest.mark.parametrize("settings", [
    {}, {"kl": 0.3}, {"kl": 0.3, "kl_form": "k2"}, {"length": "constant", "length_constant": 8},
    {"correction": {}}, {"correction": {"level": "sequence", "cap": 1.5}, "kl": 0.3},
])  # fmt: skip
def test_losses(name, settings):
    # No gradient flows through cispo's weights, so its grad isn't the derivative of its value.
    check_loss(build("loss", {"type": name, **settings}), detached=name == "cispo")


@pytest.mark.parametrize("settings", [
    {"type": "ppo_clip", "dual_clip": 2.0, "clip_high": 0.4},
    {"type": "gspo", "clip_low": 0.2, "clip_high": 0.4},
    {"type": "cispo", "clip_low": 0.5, "clip_high": 1.0},
], ids=lambda settings: settings["type"])  # fmt: skip
def test_losses_with_other_bounds(settings):
    check_loss(build("loss", settings), detached=settings["type"] == "cispo")


@pytest.mark.parametrize("name", names("transition"))
def test_transitions(name):
    env = build("environment", GRID, order=PAIR)
    table = {"type": name, **({"model": "heuristic"} if name == "expert_edits" else {})}
    check_transition(build("transition", table, env=GRID, order=PAIR), env, roles=PAIR, act=MESSAGES)


@pytest.mark.parametrize("settings", [
    {}, {"chains": 3}, {"branches": 3}, {"branches": 3, "expand": "sampled"},
    {"branches": 2, "expand": "all"}, {"branches": 2, "expand": "all", "pairing": "cross"},
    {"branches": 3, "commit": "per_role"},
    {"branches": 2, "sampling": {"temperature": 0.7}, "roles": {"critic": {"max_new_tokens": 3}}},
])  # fmt: skip
def test_tree(settings):
    check_sampler(build("sampler", {"type": "tree", **settings}))


def test_every_sampler_can_be_built_and_checked():
    for name in names("sampler"):
        check_sampler(build("sampler", name))


def test_scripted():
    # The script decides the length of its text, so max_new_tokens must be large enough.
    engine = build("engine", {"type": "scripted", "play": lambda request, text: text.split()[0]})
    check_engine(engine, limits=(8,))


def test_tabular():
    check_engine(build("engine", "tabular"), model={"init": "tabular"})
    for settings in ({}, {"optimizer": "adam", "learning_rate": 0.1}, {"epochs": 2, "minibatch_size": 3}):
        table = {"type": "tabular", **settings}
        check_trainer(
            lambda table=table: build("trainer", table), model={"init": "tabular"}, token_ids=TABULAR
        )


def test_trainer_none():
    check_trainer(lambda: build("trainer", "none"), model={"init": "none"}, token_ids=range(9), train="none")


@pytest.mark.torch
@pytest.mark.parametrize("train", ["full", "lora", "none"])
def test_torch_trainer(train):
    pytest.importorskip("torch")
    lora = {"lora": {"rank": 2}} if train == "lora" else {}
    policy = {"optimizer": {"learning_rate": 0.01}, **lora}
    check_trainer(
        lambda: build("trainer", {"type": "torch", "device": "cpu"}),
        model=TINY, token_ids=range(3, 7), train=train, policy=policy,
    )  # fmt: skip


@pytest.mark.torch
@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_hf(decoder):
    pytest.importorskip("torch")
    from coterie.backends.models.policy import TorchPolicy
    from coterie.core.protocols import TrainerContext
    from coterie.testing.support.toys import PolicyGradient

    trainer = build("trainer", {"type": "torch", "device": "cpu"})
    policies = {"policy": TorchPolicy(model=TINY)}
    ctx = TrainerContext(policies=policies, loss=PolicyGradient(), chat=build("chat_format", "auto"), seed=0,
                         deterministic=True, vocabulary=WORDS)  # fmt: skip
    asyncio.run(trainer.open(ctx))
    engine = build("engine", {"type": "hf", "decoder": decoder})
    check_engine(engine, model=TINY, weights=[trainer.weights("policy")], vocabulary=WORDS)


def test_local():
    check_executor(build("executor", "local"))


@pytest.mark.parametrize("name", ["auto", "plain", "template"])
def test_chat_formats(name):
    check_chat_format(build("chat_format", name))
    if name != "template":
        check_chat_format(build("chat_format", name), tokenizer=LetterTokenizer(template=False))


@pytest.mark.torch
def test_chat_formats_with_real_tokenizers():
    pytest.importorskip("transformers")
    from coterie.backends.models.tokenizers import words_tokenizer
    from tests.backends.chat_formats.tokenizers import DROPS, KEEPS, TRIMS, bpe

    tokenizer_of_words = words_tokenizer(["go", "left", "turn", "right", "stop"])
    for tokenizer in (bpe(KEEPS), bpe(DROPS), bpe(TRIMS, eos="<end>"), bpe(), tokenizer_of_words):
        check_chat_format(build("chat_format", "auto"), tokenizer=tokenizer)


@pytest.mark.torch
def test_chat_formats_with_the_templates_of_the_families():
    pytest.importorskip("transformers")
    from tests.backends.chat_formats.families import FAMILIES

    for name, family in FAMILIES.items():
        chat = build("chat_format", {"type": "template", "template_kwargs": dict(family.kwargs)})
        continues = name not in ("thoughts_off", "inst_first")
        check_chat_format(chat, tokenizer=family.tokenizer(), continues=continues)


@pytest.mark.sandbox
def test_sandboxes():
    limits = Limits(cpu_seconds=1, wall_seconds=3, memory_mb=1024, output_kb=8)
    packages = {"type": "local", "packages": ["numpy"]}
    check_sandbox(build("sandbox", packages), limits=limits, modules=["numpy"])
    with FusionServer() as server:
        table = {"type": "sandbox_fusion", "url": server.url, "retry_seconds": 0, "backoff": 0.01}
        table["shared_user"] = "warn"  # where this kernel keeps no two programs of one user apart
        check_sandbox(build("sandbox", table), lose=lambda: setattr(server, "always", "504"))


def asks(name: str, **arguments: Any) -> str:
    return f"So:\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.mark.parametrize(("calls", "texts"), [
    ("fenced", ["```python\nprint(1)\n```", "so\n```py\n{}[1]\n```", "```python\n# lost worker\n```"]),
    ("native", [asks("python", code="print(1)"), asks("python"), asks("python", code="# killer")]),
])  # fmt: skip
def test_python(calls, texts):
    tool = build("tool", {"type": "python", "calls": calls, "sandbox": {"type": SANDBOX}}, name="python")
    check_tool(tool, calls=texts, needs=[tool.config.sandbox])


@pytest.mark.parametrize(("calls", "texts"), [
    ("fenced", ["```search\nhow?\n```"]), ("native", [asks("search", query="how?"), asks("search", query=1)])
])  # fmt: skip
def test_search(calls, texts):
    with served(lambda request, body: request.say(200, {"results": [{"title": "so"}]})) as url:
        check_tool(build("tool", {"type": "search", "url": url, "calls": calls}, name="search"), calls=texts)


@pytest.mark.mcp
def test_mcp():
    pytest.importorskip("mcp")
    tool = build("tool", {"type": "mcp", "command": MCP_SERVER}, name="small")
    check_tool(tool, calls=[asks("add", a=1, b=2), asks("fail", why="so"), asks("add")])


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_data(kind, tmp_path):
    path = records(tmp_path)
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
        path = str(tmp_path / "records.parquet")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    check_data_source(build("data_source", {"type": kind, "path": path}))
    check_data_source(build("data_source", {"type": kind, "train": path}))


def test_jsonl_tracker():
    check_tracker(build("tracker", "jsonl"))
