"""The page on the doctor says what checks and rules do; its table is generated (tests/test_docs.py)."""

from __future__ import annotations

import re
from pathlib import Path

from coterie.analysis.diagnosis import evidence, machine, machine_hardware, run
from coterie.analysis.diagnosis.machine import CHECKS
from coterie.analysis.diagnosis.run import RULES
from coterie.viewing.metric_names import METRICS

PAGE = (Path(__file__).parents[1] / "docs" / "doctor.md").read_text(encoding="utf-8")


def test_every_check_has_a_row_in_the_order_of_the_command():
    rows = re.findall(r"^\| ([a-z -]+) \|", PAGE.partition("## A run")[0], re.MULTILINE)
    assert rows == ["check", *CHECKS, "self-test"]


def test_its_numbers_are_the_code_s():
    assert f"at most {run.MOST_RECORDED} rollout files" in PAGE
    least, little = machine_hardware.LEAST_DISK, machine_hardware.LITTLE_DISK
    disk = f"a fault below {least:g} GB, a warning below {little:g} GB"
    assert disk in PAGE
    assert f"a warning below {machine_hardware.LITTLE_SHARED:g} GB" in PAGE
    assert f"a warning below {machine_hardware.LITTLE_FILES}" in PAGE
    assert f"a run of {machine.STEPS} steps" in PAGE and f"after {machine.LIMIT:g} seconds" in PAGE
    assert f"at least {evidence.NARROWEST} and at most {evidence.WIDEST} steps" in PAGE
    assert f"fewer than {evidence.LEAST_STEPS}" in PAGE and f"success of {evidence.LEARNED:g}"[-2:] in PAGE


def test_every_metric_of_a_rule_is_one():
    patterns = {metric.pattern for metric in METRICS}
    for rule in RULES:
        assert {name for name in rule.metrics if not name.startswith("rollouts/")} <= patterns, rule.kind
        assert rule.metrics and rule.sees and rule.means and rule.helps
