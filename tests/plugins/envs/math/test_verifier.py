"""The verifier: forms of answers, hostile answers, lost workers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("math_verify")

from coterie.core.errors import MissingExtra, PolicyFault, SystemFault
from coterie.plugins.envs.math import verifier as module
from coterie.plugins.envs.math.answers import MOST, accepted, find
from coterie.plugins.envs.math.verifier import Verifier
from tests.plugins.envs.math.adversarial import strings
from tests.plugins.envs.math.forms import RIGHT, WRONG
from tests.plugins.envs.math.written import EQUAL, UNEQUAL

TWENTY = (0, 1, 2, 7, 10, 11, 25, 42, 60, 99, 100, 101, 137, 204, 385, 500, 721, 863, 998, 999)


@pytest.fixture(scope="module")
def verifier():
    made = Verifier()
    yield made
    made.close()


def verified(verifier: Verifier, text: str, reference: str) -> bool:
    try:
        answer = find(text)
        return any([verifier.compare(answer, one) for one in accepted(reference)])
    except PolicyFault:
        return False


def check_forms(verifier: Verifier, answers):
    wrong = [
        (name, answer)
        for answer in answers
        for forms, expected in ((RIGHT, True), (WRONG, False))
        for name, form in forms.items()
        if verified(verifier, form(answer), str(answer)) is not expected
    ]
    assert not wrong


def alive(group: int) -> bool:
    """Whether a worker or its child runs."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            state, _, process_group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(process_group) == group and state != "Z":
            return True
    return False


def child_of(pid: int) -> int:
    """The worker's child; 0 between two."""
    return int([*Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), "0"][0])


def wait_for(condition, seconds: float = 60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


# ---- forms


@pytest.mark.parametrize("part", range(4))
def test_twenty_answers_verify_in_every_right_form_and_in_no_wrong_one(verifier, part):
    check_forms(verifier, TWENTY[part::4])


@pytest.mark.coach
def test_sixty_answers_verify_in_every_right_form_and_in_no_wrong_one(verifier):
    check_forms(verifier, range(3, 1000, 17))
    assert len(range(3, 1000, 17)) == 59
    check_forms(verifier, [777])


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_every_answer_that_aime_may_have_verifies(verifier):
    check_forms(verifier, range(1000))


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.skipif("COTERIE_TEST_DATA" not in os.environ, reason="needs COTERIE_TEST_DATA")
def test_every_answer_that_aime_had_verifies_against_itself(verifier):
    records = json.loads((Path(os.environ["COTERIE_TEST_DATA"]) / "aime_2000_2024.json").read_text())
    distinct = sorted({record["answer"] for record in records})
    assert len(distinct) > 400
    for reference in distinct:
        for answer in accepted(reference):
            for name, form in RIGHT.items():
                assert verified(verifier, form(int(answer)), reference), (name, reference)


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        (r"\frac{1}{2}", "0.5"),
        (r"\dfrac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
        (r"\{2, 1\}", r"\{1, 2\}"),
        ("x=3", "3"),
        ("(1,2)", "(1, 2)"),
        (r"2\pi", r"\pi \cdot 2"),
        ("x^2+2x+1", "(x+1)^2"),
        ("1,234", "1234"),
    ],
)
def test_answers_of_other_sets_are_compared_by_value(verifier, answer, reference):
    assert verifier.compare(answer, reference)
    assert not verifier.compare(answer, reference + "+7")


def wrongly(verifier: Verifier, pairs, expected: bool):
    """The pairs that the verifier takes for what they aren't."""

    def compare(pair: tuple[str, str]) -> bool:
        try:
            return verifier.compare(*pair)
        except PolicyFault:
            return False

    with ThreadPoolExecutor(2) as threads:
        return [
            pair for pair, equal in zip(pairs, threads.map(compare, pairs), strict=True) if equal != expected
        ]


def test_what_is_equal_is_equal_however_it_is_written(verifier):
    assert wrongly(verifier, EQUAL, True) == []


def test_what_only_looks_equal_is_not(verifier):
    assert wrongly(verifier, UNEQUAL, False) == []


def rows(title: str) -> list[tuple[str, str]]:
    """The answers and references in a table of the page."""
    page = (Path(__file__).resolve().parents[4] / "docs" / "math.md").read_text(encoding="utf-8")
    table = page.split(f"### {title}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(.+?)` \| `(.+?)` \|", table, re.MULTILINE)


def test_the_page_lists_right_answers_that_are_taken_for_wrong(verifier):
    assert len(rows("Known limits")) >= 12
    assert wrongly(verifier, rows("Known limits"), False) == []


def test_the_page_s_equal_answers_are_equal(verifier):
    assert len(rows("What is equal")) >= 10
    assert wrongly(verifier, rows("What is equal"), True) == []


def test_plain_numbers_start_no_worker():
    made = Verifier()
    assert made.compare("042", "42") and made.compare("1/2", "0.50") and not made.compare("41", "42")
    assert made.pids == ()


@pytest.mark.coach
def test_the_way_without_a_worker_says_what_math_verify_says(verifier, monkeypatch):
    pairs = [(f"{a:03d}", str(a + d)) for a in range(0, 1000, 41) for d in (0, 1, -1)]
    pairs += [("1/3", "2/6"), ("0.25", "1/4"), ("-7", "7"), ("+7", "7"), ("7.0", "7")]
    short = [verifier.compare(*pair) for pair in pairs]
    monkeypatch.setattr(module, "number", lambda text: None)
    assert [verifier.compare(*pair) for pair in pairs] == short


# ---- hostile answers


def survives(verifier: Verifier, texts) -> Counter[str]:
    def compare(text: str) -> str:
        try:
            return str(verifier.compare(text, "42"))
        except PolicyFault:
            return "fault"

    with ThreadPoolExecutor(2) as threads:
        counts = Counter(threads.map(compare, texts))
    assert verifier.compare(r"\frac{84}{2}", "42"), "it works on"
    return counts


def test_an_answer_that_takes_too_long_is_the_policy_s_fault():
    made = Verifier(seconds=0.3, workers=1)
    assert made.compare(r"\frac{84}{2}", "42")
    before = made.pids
    for text in ("10^{10^{10^{10}}}", "99999999!"):
        with pytest.raises(PolicyFault, match=r"more than 0\.3 s"):
            made.compare(text, "42")
        assert made.pids == before and made.compare(r"\frac{84}{2}", "42"), "it is there for the next one"
    made.close()


def test_an_answer_that_is_nested_too_deep_is_the_policy_s_fault(verifier):
    with pytest.raises(PolicyFault, match="RecursionError"):
        verifier.compare("-" * 900 + "1", "x")
    assert verifier.compare(r"\frac{84}{2}", "42")


def test_an_answer_that_is_too_long_is_never_read(verifier):
    with pytest.raises(PolicyFault, match="characters"):
        verifier.compare("1+" * MOST + "1", "42")


@pytest.mark.coach
def test_five_hundred_hostile_answers_neither_hang_nor_crash_it():
    made = Verifier(seconds=0.3)
    counts = survives(made, strings(500))
    made.close()
    assert counts["True"] == 0 and counts["fault"] > 50 and counts["False"] > 100, counts


@pytest.mark.coach
def test_a_few_hostile_answers_do_not_either():
    made = Verifier(seconds=0.3)
    counts = survives(made, [text for text in strings(60, seed=1) if len(text) < 40])
    made.close()
    assert counts["True"] == 0 and counts["False"] > 5, counts


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_thousand_hostile_answers_off_the_main_thread():
    """In four threads with event loops of their own, as rollouts in other processes' loops compare."""
    texts, counts, failures = strings(10_000), Counter(), []
    made = Verifier(seconds=0.5, workers=2)

    async def compare_all(part):
        for text in part:
            try:
                counts[str(await made.equal(text, "42"))] += 1
            except PolicyFault:
                counts["fault"] += 1
        assert await made.equal(r"\frac{84}{2}", "42")

    def run(part):
        try:
            asyncio.run(compare_all(part))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(texts[index::4],)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    made.close()
    assert not failures and sum(counts.values()) == 10_000 and counts["True"] <= 5, (failures, counts)


def test_it_works_off_the_main_thread_in_two_event_loops(verifier):
    results = []

    def compare():
        results.append(asyncio.run(verifier.equal(r"\frac{84}{2}", "42")))

    for _ in range(2):
        thread = threading.Thread(target=compare)
        thread.start()
        thread.join()
    assert results == [True, True]


def test_the_event_loop_goes_on_during_a_comparison(verifier):
    async def beats():
        comparison = asyncio.ensure_future(verifier.equal(r"\sqrt{1764}", "42"))
        count = 0
        while not comparison.done():
            count += 1
            await asyncio.sleep(0)
        return count, await comparison

    count, equal = asyncio.run(beats())
    assert equal and count > 1


# ---- lost workers


def test_a_worker_that_was_killed_is_replaced(verifier):
    assert verifier.compare(r"\frac{84}{2}", "42")
    before = verifier.pids
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(alive, before)))  # its child, too, ends by itself
    assert verifier.compare(r"\frac{84}{2}", "42")
    assert set(verifier.pids) - set(before)


def kill_during(made: Verifier, signals) -> BaseException | bool:
    """The result of a long comparison whose workers die of these signals, one after another."""
    result: list[BaseException | bool] = []

    def compare():
        try:
            result.append(made.compare("99999999!", "42"))
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=compare)
    thread.start()
    killed: set[int] = set()
    for number in signals:
        wait_for(lambda: set(made.pids) - killed)
        pid = next(iter(set(made.pids) - killed))
        wait_for(lambda pid=pid: busy(pid))
        os.kill(pid, number)
        killed.add(pid)
    thread.join()
    return result[0]


def busy(pid: int) -> bool:
    """Whether a worker compares: its child has used the processor for a tenth of a second."""
    try:
        fields = Path(f"/proc/{child_of(pid)}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return int(fields[11]) + int(fields[12]) >= os.sysconf("SC_CLK_TCK") / 10


@pytest.mark.coach
def test_a_worker_that_is_stopped_is_replaced_with_a_line(monkeypatch, caplog):
    monkeypatch.setattr(module, "SPARE_SECONDS", 2.0)
    made = Verifier(workers=1, patience=0.0)
    try:
        assert made.compare(r"\frac{x}{2}", "x/2")
        (pid,) = made.pids
        os.killpg(pid, signal.SIGSTOP)
        assert made.compare(r"\frac{x}{3}", "x/3")
        assert made.pids != (pid,) and not alive(pid)
        assert f"(process {pid}) has not answered for 2 s: it is replaced" in caplog.text
    finally:
        made.close()


def test_a_child_that_is_killed_between_two_answers_changes_nothing(verifier):
    assert verifier.compare(r"\frac{84}{2}", "42")
    before = verifier.pids
    for _ in range(3):
        for pid in before:
            child = child_of(pid)
            os.kill(child, signal.SIGKILL)
            wait_for(
                lambda pid=pid, child=child: Path(f"/proc/{pid}").exists() and child_of(pid) not in (0, child)
            )
        assert verifier.compare(r"\sqrt{1764}", "42") and not verifier.compare("x", "42")
    assert verifier.pids == before


@pytest.mark.coach
def test_two_workers_killed_from_outside_are_the_system_s_fault():
    made = Verifier(seconds=60.0, workers=1)
    result = kill_during(made, [signal.SIGKILL, signal.SIGKILL])
    made.close()
    assert isinstance(result, SystemFault) and "SIGKILL" in str(result)


@pytest.mark.coach
def test_an_answer_that_crashes_two_workers_is_the_policy_s_fault():
    made = Verifier(seconds=60.0, workers=1)
    result = kill_during(made, [signal.SIGSEGV, signal.SIGSEGV])
    made.close()
    assert isinstance(result, PolicyFault) and "SIGSEGV" in str(result)


@pytest.mark.coach
def test_a_worker_that_runs_out_of_memory_is_the_answer_s_fault():
    made = Verifier(seconds=10.0, workers=1, memory=400 << 20)
    assert made.compare(r"\frac{84}{2}", "42")
    with suppress(PolicyFault):
        assert not made.compare("2^{2^{33}}", "42")
    assert made.compare(r"\frac{84}{2}", "42")
    made.close()


def test_a_worker_that_cannot_start_is_the_system_s_fault():
    made = Verifier(memory=20 << 20)
    with pytest.raises(SystemFault):
        made.compare(r"\frac{84}{2}", "42")
    assert made.pids == ()


def test_without_the_package_the_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="math_verify") as caught:
        Verifier()
    assert "coterie[math]" in str(caught.value)


# ---- what it leaves behind


def test_closing_ends_the_workers_and_a_comparison_that_runs():
    made = Verifier(seconds=60.0, workers=1)
    failures: list[BaseException] = []

    def compare():
        try:
            made.compare("99999999!", "42")
        except SystemFault as fault:
            failures.append(fault)

    thread = threading.Thread(target=compare)
    thread.start()
    wait_for(lambda: made.pids and busy(made.pids[0]))
    pids = made.pids
    made.close()
    thread.join(60)
    assert not thread.is_alive() and "closed" in str(failures[0])
    assert made.pids == ()
    wait_for(lambda: not any(map(alive, pids)))  # the child is nobody's to wait for


def test_closing_ends_comparisons_that_wait_for_a_worker_too():
    made = Verifier(seconds=60.0, workers=1)

    async def closed_meanwhile():
        comparisons = [asyncio.ensure_future(made.equal("99999999!", "42")) for _ in range(3)]
        while not (made.pids and busy(made.pids[0])):
            await asyncio.sleep(0.02)
        made.close()
        return await asyncio.gather(*comparisons, return_exceptions=True)

    results = asyncio.run(closed_meanwhile())
    assert [type(result) for result in results] == [SystemFault] * 3, results
    assert made.pids == ()


def test_workers_end_with_a_verifier_that_nobody_closes():
    made = Verifier(workers=1)
    assert made.compare(r"\frac{84}{2}", "42")
    pids = made.pids
    del made
    wait_for(lambda: not any(map(alive, pids)))


_RUN = """
from coterie.plugins.envs.math.verifier import Verifier
idle, busy = (Verifier(seconds=600, workers=1) for _ in range(2))
for made in (idle, busy):
    assert made.compare(r"\\frac{84}{2}", "42")
print(*idle.pids, *busy.pids, flush=True)
busy.compare("10^{10^{10^{10}}}", "42")
"""


def test_workers_end_with_a_run_that_is_killed():
    root = Path(__file__).resolve().parents[4]
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    idle, compares = map(int, run.stdout.readline().split())
    wait_for(lambda: busy(compares))
    assert alive(idle)
    run.kill()
    run.communicate()
    wait_for(lambda: not alive(idle) and not alive(compares))


def test_a_forked_child_leaves_the_workers_alone_and_has_its_own(verifier):
    assert verifier.compare(r"\frac{84}{2}", "42")
    before, read_end, write_end = verifier.pids, *os.pipe()
    child = os.fork()
    if child == 0:
        try:
            empty = verifier.pids == ()
            equal = verifier.compare(r"\frac{84}{2}", "42")
            mine = verifier.pids
            verifier.close()
            os.write(write_end, json.dumps([empty, equal, mine]).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with os.fdopen(read_end) as answers:
        empty, equal, mine = json.loads(answers.read())
    os.waitpid(child, 0)
    assert empty and equal and not set(mine) & set(before)
    assert verifier.pids == before and verifier.compare(r"\sqrt{1764}", "42")
