"""Plugins: their errors are isolated, attributed to a distribution, and listed."""

from __future__ import annotations

import importlib.metadata
import re
import sys
import textwrap
import threading
from types import SimpleNamespace

import pytest

from coterie import hookimpl, load_plugin_file
from coterie.core.errors import MissingExtra, PluginError
from coterie.core.plugins import KINDS, Composed
from coterie.discovery import KIND_OF, Plugins, Report, hookspecs, import_object


class FakeEntry:
    """An entry point of a made-up distribution."""

    def __init__(self, name, distribution, load):
        self.name, self.value, self._load = name, f"{name}:x", load
        self.dist = SimpleNamespace(name=distribution, version="1.0")

    def load(self):
        return self._load()


def module(**functions):
    """A module with these functions."""
    return SimpleNamespace(**functions)


@hookimpl
def register_rewards(register):
    register("mine", "json:JSONDecoder")


@pytest.fixture
def entries(monkeypatch):
    listed = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: list(listed))
    return listed


def loaded(only=None):
    manager = Plugins()
    manager.load(only)
    return manager, {report.name: report for report in manager.reports}


def test_every_kind_has_a_typed_documented_registration_hook():
    assert set(KIND_OF.values()) == set(KINDS)
    for hook in KIND_OF:
        spec = getattr(hookspecs, hook)
        assert spec.__doc__ and list(spec.__annotations__) == ["register", "return"]


def test_built_ins_register_through_the_entry_point():
    report = next(report for report in built_ins().reports if report.distribution == "coterie")
    assert report.ok
    assert "plan_path" in report.provides["environment"] and "at_grpo" in report.provides["estimator"]


def built_ins():
    manager = Plugins()
    manager.load(frozenset())
    return manager


def broken_import():
    raise ImportError("no such library")


class Stop(BaseException):
    """Like those of test frameworks: no Exception."""


def stop_on_import():
    raise Stop("here")


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no text")


class Closed:
    """Raises at any look at it."""

    def __getattribute__(self, name):
        raise Wordless


def raise_wordless():
    raise Wordless


def exit_on_import():
    raise SystemExit(3)


@hookimpl
def register_reward(register):  # misspelt
    pass


@hookimpl(specname="register_rewards")
def wrong_signature(registry):
    pass


@hookimpl(specname="register_rewards")
def any_arguments(*args):
    pass


@hookimpl(specname="register_rewards")
def taken(register):
    register("mine", "json:loads")


@hookimpl(specname="register_rewards")
def raises(register):
    raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (FakeEntry("bad", "bad-dist", broken_import), "no such library"),
        (FakeEntry("bad", "bad-dist", exit_on_import), "SystemExit"),
        (FakeEntry("bad", "bad-dist", stop_on_import), "Stop: here"),
        (
            FakeEntry("bad", "bad-dist", lambda: module(register_reward=register_reward)),
            "did you mean 'register_rewards'",
        ),
        (FakeEntry("bad", "bad-dist", lambda: module(f=wrong_signature)), "registry"),
        (FakeEntry("bad", "bad-dist", lambda: module(f=any_arguments)), "takes *args or **kwargs"),
        (FakeEntry("bad", "bad-dist", lambda: module(f=taken)), "already registered by good-dist"),
        (FakeEntry("bad", "bad-dist", lambda: module(f=raises)), "boom"),
        (FakeEntry("bad", "bad-dist", lambda: module()), "implements no hook"),
        (FakeEntry("bad", "bad-dist", lambda: 5), "bad:x is an int, which has no hooks"),
    ],
)
def test_a_broken_plugin_is_reported_and_everything_else_works(entries, monkeypatch, broken, error):
    good = FakeEntry(
        "good",
        "a-good-dist" if "already" not in error else "good-dist",
        lambda: module(register_rewards=register_rewards),
    )
    broken.dist.name = "z-" + broken.dist.name.removeprefix("z-")
    entries += [broken, good]
    manager, reports = loaded()
    assert not reports["bad"].ok and error in " ".join(reports["bad"].errors)
    assert reports["bad"].distribution == "z-bad-dist"
    assert reports["good"].ok and manager.registry.names("reward") == ["mine"]
    monkeypatch.setenv("COTERIE_STRICT_PLUGINS", "1")
    with pytest.raises(PluginError, match="z-bad-dist"):
        loaded()


def test_a_taken_name_is_available_with_its_distribution(entries):
    entries += [
        FakeEntry("one", "a-dist", lambda: module(register_rewards=register_rewards)),
        FakeEntry("two", "b-dist", lambda: module(f=taken)),
    ]
    manager, _ = loaded()
    assert manager.registry.load("reward", "b-dist:mine").__name__ == "loads"
    assert manager.registry.load("reward", "mine").__name__ == "JSONDecoder"


def test_third_party_plugins_can_be_limited(entries):
    entries += [
        FakeEntry("one", "a-dist", lambda: module(register_rewards=register_rewards)),
        FakeEntry("two", "b-dist", broken_import),
    ]
    assert set(loaded(frozenset({"one"}))[1]) == {"one"}
    assert set(loaded(frozenset({"a-dist"}))[1]) == {"one"}
    assert set(loaded(frozenset())[1]) == set()


def test_an_unknown_name_tells_which_plugins_are_broken_or_left_out(entries):
    entries += [
        FakeEntry("one", "a-dist", lambda: module(register_rewards=register_rewards)),
        FakeEntry("two", "b-dist", broken_import),
    ]
    manager, _ = loaded()
    with pytest.raises(PluginError) as caught:
        manager.registry.find("reward", "theirs")
    assert "plugin 'two' of b-dist is broken: import failed: ImportError: no such lib" in caught.value.why
    assert "-p FILE.py" in caught.value.fix and "coterie.load_plugin_file" in caught.value.fix
    manager, _ = loaded(frozenset({"two"}))
    for name in ("mine", "a-dist:mine"):
        with pytest.raises(PluginError) as caught:
            manager.registry.find("reward", name)
        assert "COTERIE_PLUGINS leaves out 'one' of a-dist" in caught.value.why
        assert "plugin 'two' of b-dist is broken" in caught.value.why


def test_a_limit_that_names_no_plugin_is_told(entries, caplog):
    entries.append(FakeEntry("one", "a-dist", lambda: module(register_rewards=register_rewards)))
    loaded(frozenset({"one"}))
    assert caplog.text == ""
    loaded(frozenset({"a-dits"}))
    assert "COTERIE_PLUGINS names 'a-dits'" in caplog.text and "did you mean 'a-dist'?" in caplog.text


def register_tools(register):
    """A hook whose author forgot the mark."""


def test_a_hook_without_its_mark_is_reported(entries):
    both = module(register_rewards=register_rewards, register_tools=register_tools)
    entries.append(FakeEntry("half", "a-dist", lambda: both))
    manager, reports = loaded()
    assert reports["half"].errors == [
        "`register_tools` is never called: `@coterie.hookimpl` is missing above it\n"
        "  fix: write it there, or rename the function if it is no hook"
    ]
    assert manager.registry.names("reward") == ["mine"]


def test_an_object_of_a_module_needs_no_registration():
    manager = built_ins()
    assert manager.registry.load("reward", "json:loads").__name__ == "loads"
    with pytest.raises(PluginError, match="can't be imported"):
        manager.registry.load("reward", "json:nothing")
    with pytest.raises(PluginError, match="did you mean 'environment'"):
        manager.registry.load("reward", "enviroment")


def test_a_missing_extra_names_what_to_install(monkeypatch, tmp_path):
    (tmp_path / "needs_mcp.py").write_text("import mcp\n")
    (tmp_path / "needs_another.py").write_text("import a_package_that_is_no_extra\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(MissingExtra, match=r"(?s)mcp.*coterie\[mcp\]"):
        built_ins().registry.load("tracker", "needs_mcp:X")
    with pytest.raises(PluginError, match="No module named 'a_package_that_is_no_extra'") as caught:
        built_ins().registry.load("tracker", "needs_another:X")
    assert caught.value.fix.startswith("pip install the package that has 'a_package_that_is_no_extra'")
    with pytest.raises(PluginError, match="No module named 'nowhere'") as caught:
        built_ins().registry.load("tracker", "nowhere:X")
    assert "coterie[" not in str(caught.value) and "on PYTHONPATH; if a file of yours" in caught.value.fix
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(
        PluginError, match=r"(?s)fails when 'leaves' is imported.*SystemExit: 3 .*leaves.py, line 2"
    ):
        built_ins().registry.load("tracker", "leaves:X")


def test_one_file_is_a_plugin(tmp_path):
    file = tmp_path / "my_plugin_file.py"
    file.write_text(
        textwrap.dedent("""
        from coterie import hookimpl
        @hookimpl
        def register_rewards(register):
            register("from_file", "my_plugin_file:Thing")
        class Thing: pass
    """)
    )
    manager = built_ins()
    load_plugin_file(file, manager)
    assert manager.registry.load("reward", "from_file").__name__ == "Thing"
    load_plugin_file(file, manager)  # as it was
    load_plugin_file(tmp_path / ".." / tmp_path.name / file.name, manager)
    assert [report.name for report in manager.reports].count("my_plugin_file") == 1
    file.write_text("raise ValueError('oops')")
    with pytest.raises(PluginError, match=r"(?s)is loaded already.*has changed since.*a new process"):
        load_plugin_file(file, manager)
    broken = tmp_path / "broken_plugin_file.py"
    broken.write_text("raise ValueError('oops')")
    for _ in range(2):
        with pytest.raises(PluginError, match="fails when it is imported"):
            load_plugin_file(broken, manager)
    unmarked = tmp_path / "unmarked_plugin_file.py"
    unmarked.write_text("def register_rewards(register): pass")
    for _ in range(2):
        with pytest.raises(PluginError, match="hookimpl` is missing"):
            load_plugin_file(unmarked, manager)
    with pytest.raises(PluginError, match="no such plugin file"):
        load_plugin_file(tmp_path / "nothing.py", manager)


EXITS = """
from coterie import hookimpl
@hookimpl
def register_rewards(register):
    raise SystemExit("no license")
"""


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("import sys; sys.exit(0)", "calls sys.exit(0) when it is imported"),
        ("import sys; sys.exit('no license')", "calls sys.exit('no license')"),
        ("raise BaseException('odd')", "fails when it is imported"),
        (EXITS, "hook 'register_rewards' raised SystemExit: no license"),
    ],
)
def test_a_file_that_exits_does_not_end_the_command_without_a_word(tmp_path, text, what):
    file = tmp_path / "exits.py"
    file.write_text(text)
    with pytest.raises(PluginError) as error:
        load_plugin_file(file, built_ins())
    assert what in f"{error.value} {error.value.why}" and "exits.py" in str(error.value)


@hookimpl(specname="register_rewards")
def no_argument():
    pass


@hookimpl(specname="step_ended", wrapper=True)
def wraps(step):
    yield


@hookimpl(specname="step_ended")
async def asynchronous(step):
    pass


@hookimpl(specname="register_rewards")
def keyword_only(*, register):
    register("second", "json:loads")


@hookimpl(specname="register_roles")
def with_default(register=None):
    register("spoken", "json:loads")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (register_reward, "did you mean"),
        (wrong_signature, "argument 'registry'"),
        (any_arguments, "*args"),
        (no_argument, "takes no argument `register`"),
        (wraps, "a wrapper is never called"),
        (asynchronous, "hook 'step_ended': is `async def`, and nothing awaits it"),
    ],
)
def test_a_wrong_hook_leaves_the_plugins_other_hooks_working(entries, wrong, message):
    both = module(wrong=wrong, register_rewards=register_rewards)
    if wrong is register_reward:
        both = module(register_reward=wrong, register_rewards=register_rewards)
    entries.append(FakeEntry("half", "a-dist", lambda: both))
    manager, reports = loaded()
    assert not reports["half"].ok and manager.registry.names("reward") == ["mine"]
    assert message in " ".join(reports["half"].errors)


def test_two_functions_may_implement_one_hook_and_take_register_in_any_way(entries):
    all_three = module(register_rewards=register_rewards, f=keyword_only, g=with_default)
    entries.append(FakeEntry("many", "a-dist", lambda: all_three))
    manager, reports = loaded()
    assert reports["many"].ok, reports["many"].errors
    assert manager.registry.names("reward") == ["mine", "second"]
    assert manager.registry.names("role") == ["spoken"]


def test_two_distributions_may_name_one_module(entries):
    shared = module(register_rewards=register_rewards)
    entries += [FakeEntry("one", "a-dist", lambda: shared), FakeEntry("two", "b-dist", lambda: shared)]
    manager, reports = loaded()
    assert reports["one"].ok and "already registered by a-dist" in " ".join(reports["two"].errors)
    assert manager.registry.load("reward", "b-dist:mine") is manager.registry.load("reward", "a-dist:mine")


@pytest.mark.parametrize(
    ("kind", "fix"), [("chat_fromat", "'chat_format'"), ("rewrd", "did you mean 'reward'")]
)
def test_a_field_of_an_unknown_kind_is_refused_where_it_is_written(kind, fix):
    with pytest.raises(PluginError, match=fix):
        Composed(kind)


def test_observers_are_isolated_and_receive_the_arguments_they_name(caplog):
    manager = built_ins()
    seen = []

    @hookimpl(specname="step_ended")
    def watches(step):
        seen.append(step)

    @hookimpl(specname="step_ended")
    def fails(step, metrics):
        raise RuntimeError("observer broke")

    @hookimpl(specname="step_ended")
    def by_keyword(*, metrics=None):
        seen.append(metrics)

    manager.add(module(f=fails), Report("bad", "bad-dist", ""))
    manager.add(module(f=by_keyword), Report("keyword", "keyword-dist", ""))
    manager.add(module(f=watches), Report("good", "good-dist", ""))
    manager.notify("step_ended", step=3, metrics={"a": 1})
    assert seen == [{"a": 1}, 3] and "bad-dist" in caplog.text and "observer broke" in caplog.text
    manager.notify("step_ended", step=4, metrics={"a": 1})
    assert seen[2:] == [{"a": 1}, 4] and caplog.text.count("observer broke") == 1  # told once


def test_two_entry_points_of_one_name_are_reported(entries):
    first = module(register_rewards=register_rewards)
    entries += [FakeEntry("same", "a-dist", lambda: first), FakeEntry("same", "a-dist", lambda: module())]
    entries[1].value = "other:y"
    manager = Plugins()
    manager.load(None)
    assert [report.ok for report in manager.reports] == [True, False]
    assert "already registered" in manager.reports[1].errors[0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        ("register('z')", r"register\(\) missing 1 required positional argument: 'target'"),
        ("register('z', 'a:b', confg=1)", r"register\(\) got an unexpected keyword argument 'confg'"),
        ("register('mine', 'json:JSONDecoder'); register('mine', 'json:loads')", "fix: choose another name$"),
        ("import a_neighbour_that_is_elsewhere", ""),
    ],
)
def test_what_a_file_registers_wrongly_is_told_in_its_own_words(tmp_path, call, text):
    file = tmp_path / f"wrong_{abs(hash(call))}.py"
    body = f"from coterie import hookimpl\n@hookimpl\ndef register_rewards(register):\n    {call}\n"
    file.write_text(body if text else call)
    with pytest.raises(PluginError) as error:
        load_plugin_file(file, built_ins())
    message = f"{error.value} {error.value.why}"
    assert re.search(text, message, re.M) and "_call_registration" not in message
    if not text:
        assert f"PYTHONPATH={tmp_path}" in error.value.fix


@pytest.mark.parametrize(
    "text", ["raise ValueError(1)", "import an_absent_one", "from coterie import nothing"]
)
def test_pip_is_named_for_what_pip_installed_and_a_file_is_left_out(tmp_path, monkeypatch, text):
    (tmp_path / "fails_on_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    fixes = {}
    for distribution in ("pytest", "mine.py", ""):  # a package, a file, a module on Python's path
        with pytest.raises(PluginError) as error:
            import_object("fails_on_import:X", "reward 'z'", "rewards.z.type", distribution)
        fixes[distribution] = error.value.fix
    assert "pytest" in fixes["pytest"]
    for fix in (fixes["mine.py"], fixes[""]):
        assert not re.search(r"pip (uninstall|install -U)|dependencies", fix), fix
    if "ValueError" in text:
        assert fixes["pytest"].endswith("pip uninstall pytest") and fixes["mine.py"].endswith(
            "leave out -p mine.py"
        )


def test_an_entry_point_without_a_module_is_reported(entries):
    entries.append(FakeEntry("empty", "a-dist", module))
    entries[0].value = ""
    _, reports = loaded()
    assert reports["empty"].errors == ["its value '' names no module\n  fix: write `name = module`"]


def test_a_target_without_an_attribute_is_told():
    with pytest.raises(PluginError, match="can't be imported from 'json'") as error:
        import_object("json", "reward 'z'", "rewards.z")
    assert error.value.fix == "write 'module:attribute'" and error.value.path == "rewards.z"


def test_an_exception_without_a_text_and_an_object_that_raises_are_reported(entries):
    entries += [FakeEntry("wordless", "acme", raise_wordless), FakeEntry("closed", "beta", Closed)]
    _, reports = loaded()
    assert "import failed: Wordless: (its text raised RuntimeError)" in reports["wordless"].errors[0]
    assert "its hooks can't be read: Wordless" in reports["closed"].errors[0]


def test_a_thread_that_an_import_leaves_behind_is_named_since_every_command_waits_for_it(entries, caplog):
    end = threading.Event()

    def load():
        threading.Thread(target=end.wait, name="poller").start()
        threading.Thread(target=end.wait, name="harmless", daemon=True).start()
        return module(register_rewards=register_rewards)

    entries.append(FakeEntry("mine", "acme", load))
    try:
        _, reports = loaded()
    finally:
        end.set()
    (warning,) = reports["mine"].warnings
    assert "its import started the thread 'poller'" in warning and reports["mine"].ok
    assert "plugin 'mine' of acme" in caplog.text and "COTERIE_PLUGINS='' leaves it out" in caplog.text


def test_what_an_import_prints_goes_to_stderr_since_stdout_may_be_json(entries, capsys):
    entries.append(FakeEntry("loud", "acme", lambda: print("loading")))
    loaded()
    printed = capsys.readouterr()
    assert printed.out == "" and "loading" in printed.err
