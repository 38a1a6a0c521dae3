"""What is derived for a component without arguments, what an example gives, and the smallest example."""

from __future__ import annotations

import warnings

import pytest

from coterie import testing
from coterie.compose.kinds import PROTOCOL
from coterie.core.errors import PluginError, UserError
from coterie.discovery import Entry, plugins
from coterie.testing import ConformanceError, Example, NotChecked
from coterie.testing.builtin_examples import REGISTERED
from coterie.testing.checking.apart import check_apart
from coterie.testing.checking.cases import Built, Case, check_of
from coterie.testing.checking.component import check_component, smallest
from coterie.testing.checking.results import Broken, Checked, of_component, whole
from coterie.testing.checking.targets import find_target
from coterie.testing.checks.plugin import registered
from coterie.testing.support.promises import Promises, promise, recorded
from coterie.testing.support.toys import EchoRole, NumberGame

GAME = "coterie.testing.support.toys:NumberGame"
HERE = f"environment:{__name__}"


class Spoils(NumberGame):
    """Changes the observation's list when somebody writes 3."""

    async def step(self, state, actions, ctx):
        step = await super().step(state, actions, ctx)
        odd = any(action.text == "3" for action in actions.values())
        return step if not odd else type(step)(state=step.state, scores={("TEAM", "none"): 1.0})


class Forgets(EchoRole):
    def parse(self, text, observation):
        if text == "good":
            raise ValueError("no")
        return super().parse(text, observation)


def test_promises_are_recorded_in_their_order():
    promise("outside, which is no error")
    with recorded(Promises()) as promises:
        promise("a")
        promise("b")
        promise("a")
    assert promises.begun == ["a", "b"] and promises.current == "a"


def test_every_kind_that_has_a_table_has_its_check():
    assert all(callable(check_of(kind)) for kind in PROTOCOL)


def test_the_fixture_checks_a_class_and_returns_what_is_kept(coterie_check):
    (result,) = coterie_check(HERE + ":NumberGame", roles=["a"], act=["1", "2"], episodes=2)
    assert result.ok and "a step repeats" in result.kept and not result.unchecked


def test_the_fixture_warns_of_what_it_could_not_check(coterie_check):
    with pytest.warns(NotChecked, match="Example\\(act="):
        coterie_check(HERE + ":NumberGame")


def test_a_broken_promise_is_raised_with_its_smallest_example(coterie_check):
    with pytest.raises(ConformanceError) as error:
        coterie_check(HERE + ":Spoils", roles=["a"], act=["1", "2", "3", "4", "5"])
    text = str(error.value)
    assert "broken: a step takes any action, and gives declared scores" in text
    assert "act=['3']" in text and "episodes=1" in text and "turns=1" in text
    (line,) = [line for line in text.splitlines() if line.strip().startswith("example: ")]
    names = {name: getattr(testing, name) for name in ("build", "check_environment")}
    with pytest.raises(ConformanceError) as again:
        exec(line.partition("example: ")[2], names)
    assert again.value.what in text, "what is printed can be pasted into a test"


def test_an_exception_for_a_guessed_observation_is_no_broken_promise():
    (entry,) = find_target(f"role:{__name__}:Forgets").entries
    assert check_component(entry).ok
    broken = check_component(entry, Example(good=["good"]), shrink=False)
    assert broken.broken[0].promise == "a good text is read" and "ValueError" in broken.broken[0].what


def test_arguments_that_no_check_takes_are_refused():
    (entry,) = find_target(f"role:{__name__}:Forgets").entries
    result = check_component(entry, Example(observation=[1]))
    assert "did you mean 'observations'" in result.broken[0].fix


def test_names_are_of_all_kinds_unless_one_is_given():
    kinds = {entry.kind for entry in find_target("writing").entries}
    assert kinds == {"environment", "reward"}
    assert [entry.kind for entry in find_target("reward:writing").entries] == ["reward"]
    assert [entry.kind for entry in find_target("coterie:writing", "reward").entries] == ["reward"]
    with pytest.raises(UserError, match="no reward, module or distribution"):
        find_target("reward:writting")


def test_examples_that_are_broken_harm_no_registration():
    from types import ModuleType

    from coterie import hookimpl
    from coterie.discovery import Plugins, Report

    module = ModuleType("broken_examples")

    def register_examples(register):
        register("lost", 3, "no.such:thing")
        raise ValueError("late")

    module.register_examples = hookimpl(register_examples)
    manager, report = Plugins(), Report("broken", "broken", "")
    manager.add(module, report)
    assert report.ok
    lost, late = manager.registry.examples
    assert (lost.kind, lost.name) == ("lost", 3) and "ValueError: late" in late.error


@pytest.mark.parametrize("kind", ["environment", "role"])
def test_a_number_in_place_of_a_class_is_no_fault_of_its_neighbours(kind):
    number = Entry(kind, "five", 5, "numbers.py")
    good = {"environment": Entry("role", "reads", EchoRole, "numbers.py")}
    neighbour = good.get(kind, Entry("environment", "game", NumberGame, "numbers.py"))
    with registered([number, neighbour]):
        (fault,) = check_component(number).broken
        result = check_component(neighbour)
        with pytest.raises(PluginError, match=f"{kind} 'five' of numbers.py is no class"):
            plugins().registry.config_of(kind, "five")
    assert fault.where == f"{kind} 'five' of numbers.py" and "is an int" in fault.what
    assert fault.fix == "register the class itself, or 'module:Class'"
    assert not result.broken and f"{kind} 'five' of numbers.py is no class" in result.unchecked[-1]


def test_no_smaller_case_is_tried_when_the_time_is_over():
    case = Case("environment", Built("environment", {"type": "x"}), arguments={"act": ["a", "b", "c"]})
    assert smallest(case, lambda smaller: True, seconds=-1.0) is case


def test_the_smallest_case_still_breaks():
    case = Case("environment", Built("environment", {"type": "x"}), arguments={"act": ["a", "b", "c"]})
    calls = []

    def breaks(smaller):
        calls.append(smaller)
        return "b" in smaller.arguments["act"] and smaller.arguments.get("episodes", 20) >= 1

    fewest = smallest(case, breaks, seconds=5)
    assert fewest.arguments == {"act": ["b"], "episodes": 1, "turns": 1} and len(calls) < 40
    assert fewest.code() == "check_environment(build('environment', 'x'), act=['b'], episodes=1, turns=1)"


def test_the_report_disarms_what_a_plugin_says():
    broken = Broken("a\x1b[31m", "said \x1b]0;title\x07", "Some.method", "fix\nit")
    text = of_component(Checked("role", "x\x1b[2J", "d", ["kept"], [broken], ["why\x9b"], ["n"], 0.5))
    assert "\x1b" not in text and "\x9b" not in text and "\x07" not in text
    assert Checked.of(Checked("role", "x", "d", broken=[broken]).table()).broken == [broken]


def test_nothing_is_told_where_all_is_kept(coterie_check, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        coterie_check("loss:ppo_clip")
    assert capsys.readouterr() == ("", "")


def test_a_recipe_is_told_all_of_its_wrong_keys(tmp_path):
    (tmp_path / "two.yaml").write_text(
        "env: {type: plan_path, sze: 3}\n"
        "team: {order: [solver], roles: {solver: {type: plan_path_solver, policy: p}}}\n"
        "policies: {p: {model: {init: tabular}}}\n"
        "sampler: {branches: 4, samplng: 3}\n"
        "algorithm: grpo\n"
        "scales: {smoke: {loss: {type: nope}}}\n"
    )
    result = check_component(Entry("recipe", "two", str(tmp_path / "two.yaml"), "here"))
    what = result.broken[0].what
    assert all(text in what for text in ("env.sze", "sampler.samplng", "loss.type")), what


def test_every_example_of_our_components_is_registered():
    registered = {
        f"{example.kind}_{example.name}": example.target
        for example in plugins().registry.examples
        if example.distribution == "coterie"
    }
    assert registered.keys() == REGISTERED.keys()
    known = {f"{kind}_{name}" for kind in PROTOCOL for name in plugins().registry.names(kind)}
    assert registered.keys() <= known
    where = "coterie.testing.builtin_examples:"
    assert all(target == f"{where}{name}" for name, target in registered.items())


@pytest.mark.long
def test_our_components_keep_their_promises():
    outcome = check_apart("coterie", timeout=300)
    assert outcome.ok, whole([result for result in outcome.results if not result.ok])
    missing = {f"{each.kind}_{each.name}" for each in outcome.results if each.state == "not checked"}
    skipped = {name for name, example in REGISTERED.items() if example.skip}
    assert missing <= skipped
