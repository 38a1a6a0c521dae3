"""Reports in Chromium: what people and their keyboards do, and what must not happen."""

from __future__ import annotations

import re
import time

import pytest

from coterie.api.rollouts import read_rollouts
from coterie.api.train import train
from coterie.viewing.report import report
from coterie.viewing.report.page import visible
from tests.browser.conftest import PHONE
from tests.browser.runs import HOSTILE, KEPT, hostile, magrpo, mathchat, planted, quickstart
from tests.viewing.planted import table
from tests.viewing.report_numbers import check_numbers, embedded

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]
PARTS = ("overview", "roles", "episodes", "metrics", "configuration")
KINDS = ("quickstart", "mathchat", "magrpo")


def until(page, condition):
    """Wait for a condition in the page. Playwright's own way evaluates text there, which it forbids."""
    end = time.monotonic() + 8
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def expect(locator):
    from playwright.sync_api import expect as expected

    return expected(locator)


def go(page, part):
    page.evaluate("part => { location.hash = part }", part)
    page.wait_for_selector(f"#view-{part.split('?')[0]}:not([hidden])")


def entries(page):
    page.wait_for_selector("#view-episodes:not([hidden])")
    return page.locator(".entry")


def opened(page):
    """Waits until an episode is drawn; its heading."""
    page.wait_for_selector("#side-0 .episode-head h2")
    return page.locator("#side-0 .episode-head").inner_text()


def axe(page):
    """Findings of axe-core that are serious or critical."""
    from axe_playwright_python.base import AXE_FILE_PATH

    page.evaluate(AXE_FILE_PATH.read_text(encoding="utf-8"))
    results = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (of["id"], node["html"][:160], node["failureSummary"])
        for of in results["violations"]
        if of["impact"] in ("serious", "critical")
        for node in of["nodes"]
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_part_is_drawn_and_accessible_in_both_themes(kind, request, open_page):
    path = request.getfixturevalue(f"{kind}_report")
    parts = (*PARTS, "coach") if kind == "mathchat" else PARTS
    for scheme in ("light", "dark"):
        page = open_page(path, scheme=scheme)
        for part in parts:
            go(page, part)
            if part == "episodes":
                opened(page)
            assert axe(page) == [], (scheme, part)
            assert page.locator("main").inner_text().strip()
        assert page.locator("#problem").is_hidden()


@pytest.mark.parametrize("kind", (*KINDS, "large"))
def test_nothing_is_wider_than_a_phone(kind, request, open_page):
    page = open_page(request.getfixturevalue(f"{kind}_report"), size=PHONE)
    for part in PARTS:
        go(page, part)
        if part == "episodes":
            opened(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], part
    go(page, "episodes")
    assert axe(page) == []


@pytest.mark.parametrize("kind", [*KINDS, "hostile"])
def test_every_number_is_the_runs(kind, request):
    check_numbers(KEPT / kind, request.getfixturevalue(f"{kind}_report"))


def test_curves_have_their_numbers_in_a_table(quickstart_report, open_page):
    page = open_page(quickstart_report)
    chart = page.locator('[data-chart="success"]')
    assert chart.locator("canvas").count() == 1
    assert "success" in chart.locator(".plot").get_attribute("aria-label").lower()
    chart.locator("summary").click()
    row = chart.locator("tbody tr", has=page.locator("th", has_text=re.compile("^60$")))
    assert row.locator("td").first.inner_text().startswith("0.")
    page.select_option("#axis", "tokens")
    page.select_option("#smooth", "5")
    assert page.locator('[data-chart="time"] canvas').count() == 1
    assert page.locator("#charts-overview .chart").count() == 12, "a curated dozen first"


def test_a_metric_on_demand_is_found_by_its_meaning_and_linked(quickstart_report, open_page):
    page = open_page(quickstart_report, "#metrics")
    page.fill("#metric-search", "clip_fraction")
    page.locator("#metric-list input").first.check()
    page.wait_for_selector("#charts-metrics canvas")
    assert "clip_fraction" in page.evaluate("location.hash")
    again = open_page(quickstart_report, page.evaluate("location.hash"))
    again.wait_for_selector("#charts-metrics canvas")


def test_an_episode_is_opened_a_branch_followed_and_the_place_linked(magrpo_report, open_page):
    page = open_page(magrpo_report, "#episodes")
    entries(page).nth(1).click()
    opened(page)
    page.locator('#side-0 g.joint[data-node="0"][data-joint="2"]').click()
    stages = page.locator("#side-0 .stage")
    assert stages.count() == 2, "the branch goes on to its child"
    committed = page.locator('#side-0 [data-place="0"] .sibling[aria-pressed="true"]').first
    assert committed.get_attribute("data-branch") == "2"
    texts = page.locator("#side-0 pre.completion").all_inner_texts()
    again = open_page(magrpo_report, page.evaluate("location.hash"))
    opened(again)
    assert again.locator("#side-0 pre.completion").all_inner_texts() == texts
    sibling = again.locator('#side-0 [data-place="0"] [data-branch="1"]').first
    sibling.click()
    assert (
        again.locator('#side-0 [data-place="0"] [data-branch="1"]').first.get_attribute("aria-pressed")
        == "true"
    )
    assert again.locator('#side-0 g.joint.on[data-node="0"]').get_attribute("data-joint") == "1"


def test_the_completions_on_the_page_are_those_of_the_rollout_file(quickstart_report, open_page):
    page = open_page(quickstart_report, "#episodes?step=60")
    opened(page)
    rows = read_rollouts(quickstart() / "rollouts" / "step-000060.jsonl.gz")
    first = next(row for row in rows if row["kind"] == "branch")
    decision = page.locator('#side-0 [data-place="0"] .decision').first
    decision.locator('[data-branch="0"]').click() if decision.locator(".sibling").count() else None
    decision = page.locator('#side-0 [data-place="0"] .decision').first
    assert decision.locator("pre.completion").first.inner_text().rstrip("⏎") == first["completion"]
    assert decision.locator(".token").count() == len(first["calls"][0]["token_ids"]), "cut into its tokens"
    page.keyboard.press("s")
    said = page.locator("#side-0 .completion .token").first.get_attribute("title")
    assert said.startswith("log-prob "), said


def test_filters_keep_what_they_say(quickstart_report, open_page):
    page = open_page(quickstart_report, "#episodes?step=all")
    opened(page)
    page.select_option("#filter", "worst")
    rewards = [float(of) for of in page.locator(".entry .reward").all_inner_texts()]
    assert rewards == sorted(rewards) and len(rewards) == 40
    page.select_option("#filter", "best")
    best = [float(of) for of in page.locator(".entry .reward").all_inner_texts()]
    assert best == sorted(best, reverse=True) and best[0] > rewards[0]
    page.select_option("#filter", "disagreeing")
    assert entries(page).count()
    page.select_option("#filter", "faults.executor")
    assert all("not parsed" in text for text in entries(page).all_inner_texts())
    page.select_option("#filter", "failed")
    assert set(page.locator(".entry .sign").all_inner_texts()) == {"✗"}
    page.select_option("#filter", "all")
    page.locator("#page-after").click()
    assert page.locator("#page-at").inner_text().startswith("2 of ")


def test_a_role_that_fails_is_named_with_its_episodes(mathchat_report, open_page):
    page = open_page(mathchat_report, "#roles?step=2")
    finding = page.locator("#roles-of-step .signs li").first
    assert "problem_solver" in finding.inner_text() and "parser could not read" in finding.inner_text()
    finding.locator("a").click()
    assert "step 2" in opened(page)
    assert page.locator("#filter").input_value() == "faults.problem_solver"
    assert "could not be parsed" in page.locator("#side-0 .fault").first.inner_text()


@pytest.mark.parametrize(
    ("failure", "role", "why", "filter"),
    [
        ("repeats", "executor", "repeat the last one of another role", "repeats.executor"),
        ("unparsed", "executor", "could not read", "faults.executor"),
        ("length", "executor", "grows with the length", "long.executor"),
    ],
)
def test_which_role_fails_at_step_40_and_why(failure, role, why, filter, tmp_path, open_page):
    path = report(planted(failure), tmp_path / "out.html")
    page = open_page(path, "#roles?step=40")
    said = page.locator("#roles-of-step .signs li")
    assert said.count() == 1, said.all_inner_texts()
    assert role in said.inner_text() and why in said.inner_text()
    said.locator("a").click()
    assert "step 40" in opened(page)
    assert page.locator("#filter").input_value() == filter
    assert entries(page).count() >= 4


def test_search_opens_blocks_and_marks_its_hits(mathchat_report, open_page):
    rows = read_rollouts(mathchat() / "rollouts" / "step-000003.jsonl.gz")
    word = next(row["prompt"].split()[-2] for row in rows if row["kind"] == "node")
    page = open_page(mathchat_report, "#episodes?step=3")
    opened(page)
    page.keyboard.press("/")
    page.keyboard.type(word)
    expect(page.locator("#list-status")).to_contain_text("with")
    assert entries(page).count()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.wait_for_selector("#side-0 mark")
    assert page.locator("#side-0 mark").first.inner_text().lower() == word.lower()
    page.fill("#search", "no such words anywhere")
    expect(page.locator("#list-status")).to_contain_text(re.compile("^0 of"))
    assert "No episode is like this" in page.locator("#episode-list").inner_text()


def test_the_keyboard_alone_reaches_everything(magrpo_report, open_page):
    page = open_page(magrpo_report)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("3")
    before = opened(page)
    page.keyboard.press("j")
    expect(page.locator("#side-0 .episode-head")).not_to_have_text(before, use_inner_text=True)
    page.keyboard.press("[")
    expect(page.locator("#step")).to_have_value("2")
    page.keyboard.press("g")
    assert page.evaluate("document.activeElement.matches('g.joint')")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.dataset.node") == "0"
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.joint") == "1"
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.node") != "0", "the branch's child"
    page.keyboard.press("?")
    assert page.locator("#keys").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#keys").is_hidden()
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_two_runs_are_compared_on_the_same_task(tmp_path, open_page):
    path = report([magrpo(), hostile(), mathchat()], tmp_path / "two.html")
    page = open_page(path, "#episodes?step=2")
    first = opened(page)
    page.wait_for_selector("#compare-bar:not([hidden])")
    other = page.locator("#compare option", has_text="hostile").first.get_attribute("value")
    page.select_option("#compare", other)
    page.wait_for_selector("#side-1 .episode-head h2")
    second = page.locator("#side-1 .episode-head").inner_text()
    task = first.split()[1]
    assert task in second and "hostile" in second
    go(page, "overview")
    page.wait_for_selector('[data-chart="time-1"] canvas')
    assert page.locator('[data-chart="time-0"]').count() == 1, "what is stacked is one configuration's"
    assert "different environments" in page.locator("#view-overview").inner_text()
    assert axe(page) == []
    go(page, "configuration")
    assert "In what the runs differ" in page.locator("#view-configuration").inner_text()


def test_what_a_model_wrote_is_text(hostile_report, open_page):
    page = open_page(hostile_report, "#episodes?step=1")
    opened(page)
    said = visible(HOSTILE)
    assert page.locator("#side-0 pre.completion").first.evaluate("of => of.textContent").startswith(said)
    for place in (".prompt pre", ".thought pre", ".tool pre"):
        assert page.locator(f"#side-0 {place}").first.evaluate("of => of.textContent") == said, place
    assert said in page.locator("#side-0 .fault").first.evaluate("of => of.textContent")
    shown = page.locator("#side-0 .decision").first
    assert shown.locator("img, script, iframe, textarea, a, svg").count() == 0
    go(page, "overview")
    assert "</title><script>" in page.locator("#view-overview .about").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.evaluate("document.querySelectorAll('img, iframe, object').length") == 0


def test_a_large_run_is_small_and_quick(large_report, open_page):
    assert large_report.stat().st_size <= 15_000_000
    begin = time.perf_counter()
    page = open_page(large_report)
    assert time.perf_counter() - begin < 5, "with the start of a page on a busy machine"
    assert page.evaluate("performance.getEntriesByName('coterie-drawn')[0].startTime") < 2_000, (
        "to the first picture"
    )
    begin = time.perf_counter()
    go(page, "episodes")
    opened(page)
    assert time.perf_counter() - begin < 3
    assert page.locator("#side-0 .token").count() >= 400
    assert page.locator(".note", has_text="recorded trees").count() == 0, "all 5,000 branches are in it"
    assert "rounded to 2 decimal places" in page.locator("footer").inner_text()


def test_the_episode_follows_the_step_and_the_address_names_what_is_shown(quickstart_report, open_page):
    page = open_page(quickstart_report, "#episodes?step=40")
    entries(page).nth(2).click()
    until(page, "document.querySelector('#side-0 .episode-head').innerText.includes('step 40')")
    page.keyboard.press("]")
    until(page, "document.querySelector('#side-0 .episode-head').innerText.includes('step 45')")
    assert "step=45" in page.evaluate("location.hash")
    page.select_option("#step", "")
    until(page, "location.hash.includes('step=all')")
    assert "step 45" in opened(page), "the list has it, so it stays"
    again = open_page(quickstart_report, page.evaluate("location.hash"))
    assert opened(again) == opened(page)


def test_a_link_to_what_is_not_in_the_report_says_so(quickstart_report, open_page):
    for place, named in (
        ("step=40&episode=none.0", "episode none.0"),
        ("step=41", "step 41"),
        ("run=x", "run x"),
    ):
        page = open_page(quickstart_report, f"#episodes?{place}")
        expect(page.locator("#place-problem")).to_contain_text(f"names {named}, which is not in this report")
        assert page.locator("#side-0 .episode-head").count() == 0
        entries(page).first.click()
        opened(page)
        assert page.locator("#place-problem").is_hidden()


def test_what_is_beside_and_what_is_searched_are_in_the_address(magrpo_report, open_page):
    page = open_page(magrpo_report, "#episodes")
    opened(page)
    page.select_option("#compare", index=1)
    page.wait_for_selector("#side-1 .episode-head")
    beside = page.locator("#side-1 .episode-head").inner_text()
    again = open_page(magrpo_report, page.evaluate("location.hash"))
    again.wait_for_selector("#side-1 .episode-head")
    assert again.locator("#side-1 .episode-head").inner_text() == beside
    again.fill("#search", "return")
    assert "text=return" in again.evaluate("location.hash"), "at once"


def seeds(folder, values, **settings):
    """Runs of one configuration, of which each has the rewards of `values`; None: no value at the step."""
    import json
    import shutil

    from coterie.core.config import to_yaml
    from coterie.recipes import read_yaml

    runs = []
    for seed, of in enumerate(values):
        run = folder / f"seed-{seed}"
        run.mkdir(parents=True)
        for name in ("config.yaml", "resolved.yaml"):
            shutil.copy(quickstart() / name, run / name)
        config = {**read_yaml(run / "config.yaml"), "seed": seed, **settings}
        (run / "config.yaml").write_text(to_yaml(config))
        record = read_yaml(run / "resolved.yaml")
        record["settings"] |= {"seed": seed, **settings}
        (run / "resolved.yaml").write_text(to_yaml(record))
        rows = [
            {"step": step, "tokens/generated": 10, "reward/planner": value}
            for step, value in enumerate(of, 1)
        ]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        runs.append(run)
    return runs


BAND = """(wanted) => {
  const canvas = document.querySelector('[data-chart="reward"] canvas');
  const over = document.querySelector('[data-chart="reward"] .u-over');
  const scale = canvas.width / canvas.clientWidth;
  const left = over.offsetLeft * scale, width = over.clientWidth * scale;
  const at = (step) => Math.round(left + ((step - 1) / 8) * width);
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  return wanted.map(([from, to, low, high]) => {
    let count = 0;
    for (let x = at(from); x <= at(to); x++)
      for (let y = 0; y < canvas.height; y++) {
        const alpha = data[4 * (y * canvas.width + x) + 3];
        if (alpha >= low && alpha <= high) count += 1;
      }
    return count / (at(to) - at(from) + 1);
  });
}"""
"""Pixels a column, of the reward's chart of 9 steps, whose opacity is in a range: [from, to, low, high]."""


def test_a_gap_of_an_interval_is_no_band_and_a_single_one_a_bar(tmp_path, open_page):
    first = [0.2, 0.3, 0.4, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7]
    other = [0.3, 0.4, 0.5, None, None, 0.6, None, None, None]
    page = open_page(report(seeds(tmp_path, [first, other]), tmp_path / "out.html"))
    page.wait_for_selector('[data-chart="reward"] canvas')
    band, bar = [40, 52], [170, 200]
    places = [(1.5, 2.5, *band), (3.3, 5.7, *band), (6.3, 8.9, *band), (5.97, 6.03, *bar), (4.9, 5.1, *bar)]
    there, gap, end, alone, none = page.evaluate(BAND, places)
    assert there > 20 and gap < 4 and end < 4, "a band where there are intervals alone"
    assert alone > 5 and none < 3, "a single one is a bar"


def test_tasks_whose_chains_disagree_come_by_their_difference(tmp_path, open_page):
    sampler = {"chains": 4, "branches": 1, "expand": "sampled", "sampling": {"max_new_tokens": 64}}
    schedule = {"steps": 2, "tasks_per_step": 8, "evaluate_every": 0, "record_every": 1}
    run = tmp_path / "run"
    train({**table("repeats"), "sampler": sampler, "algorithm": "grpo", "schedule": schedule}, out=run)
    path = report(run, tmp_path / "out.html")
    columns = embedded(path)["episodes"]["runs"][0]["columns"]
    assert not any(columns["spread"]), "no prompt has siblings"
    known = {}
    for step, task, *values in zip(
        *(columns[name] for name in ("step", "task", "reward", "success")), strict=True
    ):
        known.setdefault((step, task), []).append(values)
    ranges = {place: [max(of) - min(of) for of in zip(*each, strict=True)] for place, each in known.items()}
    differ = {place: max(of) for place, of in ranges.items()}
    expected = sorted((of for of in differ if differ[of] > 0), key=lambda of: -differ[of])
    assert expected and len(expected) < len(known)
    page = open_page(path, "#episodes?step=all&filter=chains")
    opened(page)
    assert page.locator("#list-status").inner_text().startswith(f"{4 * len(expected)} of ")
    shown = [of.inner_text() for of in page.locator(".entry .task").all()]
    step = [int(re.search(r"step (\d+)", of.inner_text())[1]) for of in page.locator(".entry .small").all()]
    differences = [differ[of] for of in zip(step, shown, strict=True)]
    assert differences == sorted(differences, reverse=True)


def test_the_table_of_roles_fits_and_legends_are_as_lines(open_page, tmp_path):
    run = planted("length")
    other = planted("repeats")
    page = open_page(
        report([run, other], tmp_path / "out.html"), "#roles", size={"width": 1280, "height": 800}
    )
    table = page.locator("#roles-of-step > .scroll").first
    assert table.evaluate("of => of.scrollWidth <= of.clientWidth"), "no column is hidden"
    go(page, "overview")
    lines = page.locator('[data-chart="reward"] .legend line')
    dashes = [line.get_attribute("stroke-dasharray") for line in lines.all()]
    assert dashes[0] is None and dashes[1] and dashes[::2] == [None, None], "by role"
    strokes = [line.get_attribute("stroke") for line in lines.all()]
    dots = page.locator(".run .dot").evaluate_all(
        "all => all.map((of) => getComputedStyle(of).backgroundColor)"
    )
    assert [strokes[0], strokes[2]] == dots == [strokes[1], strokes[3]], "a configuration has one colour"
    chart = page.locator("#charts-overview").bounding_box()["y"]
    assert chart < page.locator("#overview-findings").bounding_box()["y"], "curves come first"


def test_a_phone_shows_where_one_is(magrpo_report, open_page):
    page = open_page(magrpo_report, "#configuration", size=PHONE)
    seen = (
        "of => { const box = of.getBoundingClientRect(); return box.left >= 0 && box.right <= innerWidth; }"
    )
    assert page.locator(".tabs a[aria-current]").evaluate(seen)
    go(page, "episodes")
    opened(page)
    assert "scroll it sideways" in page.locator("#side-0 .tree-note").inner_text()
    page.locator('#side-0 g.joint[data-node="0"]').last.evaluate("of => of.dispatchEvent(new Event('click'))")
    assert page.locator("#side-0 g.joint.on").last.evaluate(seen), "the end of the path"
