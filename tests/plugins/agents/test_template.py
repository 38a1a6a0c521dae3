"""The template role: what it can say, what it refuses, and its parsers."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coterie.core.errors import ConfigError, PolicyFault
from coterie.core.types import Action, HistoryEntry
from coterie.plugins.agents.template import TemplateRole
from tests.plugins.support import Build, make, role_input

SEEN = {"question": "2+2?", "actions": {"planner": "add"}, "parsed": {"planner": "add"}, "transcript": []}


def role(prompt="{{ question }}", fields=None, **settings):
    build = Build(
        name="solver",
        path="team.roles.solver",
        order=["planner", "solver"],
        environment=SimpleNamespace(fields=fields),
    )
    return make(TemplateRole, build, prompt=prompt, **settings)


def text(role, observation=SEEN, **more):
    return role.render(role_input(observation, "solver", **more))[-1]["content"]


def test_variables():
    past = HistoryEntry(
        turn=0, observation=SEEN, messages=(), action=Action(calls=(), text="five", parsed=5), info={}
    )
    solver = role(
        "{{ role }} {{ turn }} {{ question }} {{ actions.planner }} {{ actions['solver'] }}|"
        "{% for one in history %}{{ one.turn }}={{ one.parsed }} {% endfor %}{{ notes | join(' ') }} "
        "{{ observation.question }}",
        system="You are {{ role }}.",
    )
    assert solver.render(role_input(SEEN, "solver", 1, feedback=("wrong", "again"), history=(past,))) == [
        {"role": "system", "content": "You are solver."},
        {"role": "user", "content": "solver 1 2+2? add |0=5 wrong again 2+2?"},
    ]


def test_fields_of_a_dataclass_observation_are_variables():
    from coterie.plugins.envs.plan_path import PlanPath
    from tests.plugins.envs.mazes import WALLED, start

    env = make(PlanPath, size=4)
    assert text(role("{{ position[0] }},{{ goal[1] }}"), env.observe(start(env, *WALLED), "solver")) == "1,3"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("A\n{% if turn %}B{% endif %}\nC", "A\n\nC"),
        ("{% if role %}Rules.{% endif %}\n{{ question }}", "Rules.\n2+2?"),
        ("Team:\n{% for name in actions %}\n- {{ name }}{% endfor %}\n", "Team:\n\n- planner\n- solver"),
        ("{# a comment #}\nQ", "\nQ"),
        ("a list:\n    {% if role %}- one{% endif %}", "a list:\n    - one"),
        ("A\n{%- if turn %}B{% endif %}\nC", "A\nC"),
        ("A {% if role -%}\n   B{% endif %}", "A B"),
        ("{{ question }}\n", "2+2?"),
        ("{{ question }}\n\n", "2+2?\n"),
    ],
)
def test_a_template_keeps_its_newlines_and_spaces_outside_of_tags(prompt, expected):
    """Only a `-` in a tag removes them, and the newline at the very end that YAML's `|` adds."""
    assert text(role(prompt)) == expected
    assert role("x", system=prompt).render(role_input(SEEN, "solver"))[0]["content"] == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("{{ qestion }}", "unknown variable 'qestion'"),
        ("{{ actions.planer }}", "'planer', which is not in the team"),
        ("{{ actions['planer'] }}", "'planer', which is not in the team"),
        ("{% if %}", "wrong in line 1"),
        ("a\n{{ question | shout }}", "wrong in line 2"),
    ],
)
def test_what_can_be_known_at_once_is_refused_at_once(prompt, message):
    with pytest.raises(ConfigError, match=message) as caught:
        role(prompt, fields=("question",))
    assert caught.value.path == "team.roles.solver.prompt"
    if "known" in message or "team" in message:
        assert "did you mean" in caught.value.fix


def test_an_undefined_variable_is_never_an_empty_place_in_the_prompt():
    with pytest.raises(ConfigError, match="qestion") as caught:
        text(role("{{ qestion }}"))
    assert caught.value.path == "team.roles.solver.prompt" and "question" in caught.value.fix
    with pytest.raises(ConfigError, match="hint"):
        text(role("{{ question.hint }}"))
    with pytest.raises(ConfigError, match="TypeError"):
        text(role("{{ question + 1 }}"))


def test_templates_run_in_a_sandbox():
    with pytest.raises(ConfigError):
        text(role("{{ ''.__class__.__mro__ }}"))
    with pytest.raises(ConfigError):
        text(role("{{ transcript.append(1) }}"))


def test_feedback_without_a_place_is_refused():
    with pytest.raises(ConfigError, match="no place") as caught:
        text(role(), feedback=("wrong",))
    assert "{{ note }}" in caught.value.fix


@pytest.mark.parametrize(
    ("settings", "answer", "parsed"),
    [
        ({}, " as it is ", " as it is "),
        ({"parser": "strip"}, " x \n", "x"),
        ({"parser": "number"}, "first 3, then 1,234.5", 1234.5),
        ({"parser": "number"}, "so x = -7.", -7),
        ({"parser": "number"}, "2e3 apples", 2000.0),
        ({"parser": "number"}, "none", None),
        ({"parser": "number"}, "9" * 5000, None),
        ({"parser": "number"}, "1e999", None),
        ({"parser": "choice", "choices": ["yes", "no"]}, "Not no: YES!", "yes"),
        ({"parser": "choice", "choices": ["yes", "no"]}, "I know nothing", None),
        ({"parser": "choice", "choices": ["A", "A+"]}, "grade: A+", "A+"),
        ({"parser": "json"}, 'x {"a": [1, 2]} y {"b": {"c": null}} z', {"b": {"c": None}}),
        ({"parser": "json"}, "```json\n[1, {}]\n```", [1, {}]),
        ({"parser": "json"}, "{broken", None),
        ({"parser": "json"}, "[" * 20000, None),
        ({"parser": "regex", "pattern": r"<a>(.*?)</a>"}, "<a>1</a> <a>2</a>", "2"),
        ({"parser": "regex", "pattern": r"(?P<x>\d)-(?P<y>\d)"}, "1-2", {"x": "1", "y": "2"}),
        ({"parser": "regex", "pattern": r"\d+"}, "1 22", "22"),
        ({"parser": "regex", "pattern": r"\d+"}, "x", None),
        ({"parser": "code"}, "a\n```python\nx = 1\n```\nb\n```\ny\n```", "y\n"),
        ({"parser": "code"}, "x = 1", None),
        ({"parser": "boxed"}, r"\boxed{1} or \boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        ({"parser": "boxed"}, r"\boxed{1", None),
        ({"parser": "boxed"}, "1", None),
    ],
)
def test_parsers(settings, answer, parsed):
    solver = role(**settings)
    if parsed is None:
        with pytest.raises(PolicyFault):
            solver.parse(answer, SEEN)
    else:
        value = solver.parse(answer, SEEN)
        assert value == parsed and type(value) is type(parsed)


@pytest.mark.parametrize(
    "settings",
    [
        {"parser": "regex"},
        {"parser": "choice"},
        {"pattern": "x"},
        {"choices": ["a"]},
        {"parser": "regex", "pattern": "("},
        {"parser": "numbr"},
    ],
)
def test_parser_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError):
        role(**settings)


def test_remembering_is_said_by_the_role():
    assert role(remembers=True).remembers and not role().remembers
