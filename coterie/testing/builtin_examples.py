"""Examples of Coterie's own components: what `coterie check coterie` can't derive for them.

A name here is `<kind>_<name>`; `coterie.builtin` registers each. A component that needs a server, a GPU or a
data set of the hub says which test checks it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import coterie.backends.data
from coterie.backends.models.wordcodec import word_id
from coterie.core.types import Request
from coterie.testing.example import Example

_POSTS = str(Path(coterie.backends.data.__file__).parent / "posts.jsonl")
_TINY = {
    "init": "qwen3", "hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "mlp_size": 16,
    "context": 64,
}  # fmt: skip
_PAIR = [["aux", "main"]]
_COLLAB = {"type": "code_collab", "data": "cooperative", "sandbox": "local"}
_SUMS = {"level": 5, "train_tasks": 8, "val_tasks": 4, "test_tasks": 4, "sandbox": "local"}


def first_word(request: Request, text: str) -> str:
    """What the scripted engine of the example answers: the prompt's first word."""
    return text.split()[0]


def half(view: Any) -> float:
    """The score of the example of the reward `function`."""
    return 0.5


# ---- environments, roles, rewards, transitions

environment_math = Example(
    _SUMS,
    order=["solver"],
    act=[r"\boxed{9}", r"\boxed{8}", "no answer", r"\boxed{9", ""],
    episodes=4,
    disjoint="content",
)
_STAGES = ["data_engineer", "modeler", "analyst"]
environment_data_science = Example(
    {"data": {"type": "coterie.testing.support.packs:SyntheticPack", "tasks": 4}, "sandbox": "local"},
    order=_STAGES,
    act=["DONE", "words", "```python\nprint(1)\n```", "```python\n1 / 0\n```", "```python\nhalf"],
    episodes=3,
    turns=1,
)
environment_team_task = Example(
    {"data": "posts", "answer_field": "title"},
    order=["writer", ["reader", "critic"]],
    roles=["writer", "reader", "critic"],
    act=["1", "The kettle", 3, 1.5],
    episodes=6,
)
_STORY = "The kettle sang. Nobody came, so it sang louder, and then it stopped. " * 3
_TEXTS = [_STORY, f"{_STORY}\n---\n{_STORY * 3}", "short", ""]
environment_writing = Example(
    {"kind": "tldr", "data": "posts"}, order=[["first", "second"]], act=_TEXTS, episodes=4, turns=2
)
role_math_reasoner = Example(
    name="reasoner", env={"type": "math", **_SUMS}, order=[["reasoner", "tool"]], good=[r"\boxed{9}"]
)
role_math_tool = Example(
    name="tool",
    env={"type": "math", **_SUMS},
    order=[["reasoner", "tool"]],
    good=["```python\nprint(9)\n```"],
)
role_template = Example(
    {"prompt": "{{ role }} {{ observation }} {% for note in notes %}{{ note }}{% endfor %}"},
    observations=["x", {"q": 1}],
    good=["yes"],
    feedback=["You were wrong."],
)
_GRID = {"type": "plan_path", "size": 4, "min_distance": 2}
_WALK = ["planner", "executor"]
reward_environment = Example(env=_GRID, order=_WALK)
reward_coach = Example({"model": "heuristic"}, env=_GRID, order=_WALK)
transition_none = Example(env=_GRID, order=_WALK)
reward_function = Example({"function": f"{__name__}:half"}, act=["1", "2", "stop"])
_READERS = {"aux": "code_aux", "main": "code_main"}
reward_unit_tests = Example(env=_COLLAB, order=_PAIR, role_plugins=_READERS, episodes=3)
reward_writing = Example(
    env={"type": "writing", "kind": "tldr", "data": "posts"}, order=[["first", "second"]], act=_TEXTS, turns=1
)
transition_level_passed = Example(env=_COLLAB, order=_PAIR, role_plugins=_READERS, episodes=3)
transition_passed = Example(env=_COLLAB, order=_PAIR, role_plugins=_READERS, episodes=3)
transition_expert_edits = Example({"model": "heuristic"}, env=_GRID, order=_WALK)

# ---- losses, engines, trainers

# No gradient flows through the weights of cispo, so its grad isn't the derivative of its value.
loss_cispo = Example(detached=True)
engine_tabular = Example(model={"init": "tabular"})
# The script decides the length of its text, so max_new_tokens must be large enough.
engine_scripted = Example({"play": f"{__name__}:first_word"}, limits=[8])
trainer_none = Example(model={"init": "none"}, token_ids=list(range(9)), train="none")
trainer_tabular = Example(
    model={"init": "tabular"}, token_ids=[0, *(word_id(word) for word in ("left", "right", "up", "down"))]
)
trainer_torch = Example(
    {"device": "cpu"}, model=_TINY, token_ids=[3, 4, 5, 6], policy={"optimizer": {"learning_rate": 0.01}}
)

# ---- tools, data

tool_python = Example(
    {"sandbox": "local"}, calls=["```python\nprint(1)\n```", "so\n```py\n{}[1]\n```"], texts=200
)
data_source_jsonl = Example({"path": _POSTS})


def _elsewhere(needs: str, test: str) -> Example:
    return Example(skip=f"it needs {needs}; tested by {test}")


_HUB, _SETS = "a data set of the hub", "tests/backends/data/sets"
data_source_apps = data_source_arxiv = data_source_code_contests = _elsewhere(_HUB, _SETS)
data_source_coop_humaneval = data_source_humaneval = data_source_mbpp = _elsewhere(_HUB, _SETS)
data_source_live_code_bench = data_source_tldr = _elsewhere(_HUB, _SETS)
data_source_hub = _elsewhere(_HUB, "tests/backends/data")
data_source_ds_pack = _elsewhere("a folder of prepared tasks", "tests/backends/data/test_ds_pack.py")
data_source_parquet = _elsewhere("a file in that form", "tests/testing/test_builtin.py")
chat_model_gemini = chat_model_openai = _elsewhere("a server", "tests/backends/chat_models/test_requests.py")
chat_model_policy = _elsewhere("a run's policy", "tests/backends/chat_models/test_policy.py")
tool_search = tool_mcp = _elsewhere("a server", "tests/testing/test_builtin.py")
sandbox_sandbox_fusion = _elsewhere("a server", "tests/testing/test_builtin.py")
engine_openai = engine_mixed = _elsewhere("a server", "tests/backends/engines")
engine_vllm = trainer_deepspeed = _elsewhere("a GPU", "tests/scale")
executor_ray = _elsewhere("a cluster, which it starts", "tests/backends/executors")
tracker_wandb = tracker_weave = _elsewhere("an account, or a stand-in", "tests/backends/trackers")
tracker_otel = _elsewhere("a collector", "tests/backends/trackers/test_otel.py")

REGISTERED: dict[str, Any] = {
    name: value
    for name, value in vars().copy().items()
    if isinstance(value, Example) and not name.startswith("_")
}
"""Every example by `<kind>_<name>`, for the test that each is registered."""
