"""Break each invariant of the design, and see its tests fail.

A mutation is one line of the source changed in a copy of the tree; the tests named beside it must then
fail, and they pass on the copy unchanged. A mutation whose text is gone from the source fails too: move it
along.
"""

from __future__ import annotations

import pytest

from tests.long.tree import copy_tree, run_tests

MUTATIONS = {
    "1 a prompt that doesn't continue the ids is merged all the same": (
        "coterie/core/batching.py",
        "return call.prompt_ids[: len(ids)] == ids",
        "return True",
        "tests/core/test_batching.py",
    ),
    "2 later roles get the first branch's rewards": (
        "coterie/core/scoring.py",
        "found[joint.pick[role]].append(joint_reward(node, index, role, scores, mix))",
        "found[joint.pick[role]].append(joint_reward(node, 0, role, scores, mix))",
        "tests/core/test_sampler.py",
    ),
    "2 the next stage is prompted with the state before the commit": (
        "coterie/core/sampler.py",
        "Place(place.key.child(index), one.step.state,",
        "Place(place.key.child(index), place.state,",
        "tests/core/test_sampler.py",
    ),
    "3 a missing score counts as zero": (
        "coterie/core/scoring.py",
        "                return None\n            total += weight * score.value",
        "                continue\n            total += weight * score.value",
        "tests/core/test_scoring.py",
    ),
    "3 a hung verifier leaves the score missing": (
        "coterie/core/scoring.py",
        "return Score(float(source.plugin.policy_fault)",
        "return Score(None",
        "tests/core/test_scoring.py",
    ),
    "4 truncation is silent": (
        "coterie/core/compose.py",
        "if sampler.sampling(role).truncated:",
        "if False:",
        "tests/core/test_scoring.py",
    ),
    "5 frozen policies give samples": (
        "coterie/core/batching.py",
        "if not decision.trainable:",
        "if False:",
        "tests/core/test_batching.py",
    ),
    "6 the denominator is the sample's own": (
        "coterie/core/batching.py",
        "share = weight[span.branch] / denominator if denominator else 0.0",
        "share = weight[span.branch] / max(tokens[span.branch], 1)",
        "tests/core/test_batching.py",
    ),
    "8 a batch forms as soon as somebody asks": (
        "coterie/core/gathering.py",
        "return self.waiting > 0 and self.waiting >= self.live",
        "return self.waiting > 0",
        "tests/core/test_gathering.py",
    ),
    "8 rows come in the order of arrival": (
        "coterie/core/gathering.py",
        "queue.sort(key=lambda item: item[0].key)",
        "pass",
        "tests/core/test_gathering.py",
    ),
    "8 a resume forgets where it was": (
        "coterie/core/run.py",
        "self.done = checkpoint.step",
        "self.done = max(checkpoint.step - 1, 0)",
        "tests/test_resume.py::test_n_steps_are_k_steps_and_resume",
    ),
    "9 unknown keys are ignored": (
        "coterie/core/config.py",
        '        extra="forbid",\n        frozen=True,\n        arbitrary',
        '        extra="ignore",\n        frozen=True,\n        arbitrary',
        "tests/core/test_recipes.py",
    ),
    "9 a taken name replaces the other": (
        "coterie/core/registry.py",
        "if taken is not None:",
        "if False:",
        "tests/core/test_plugins.py",
    ),
    "10 levels are summed over turns": (
        "coterie/core/returns.py",
        'if kind == "level":',
        'if kind == "nothing":',
        "tests/core/test_returns.py",
    ),
    "11 the rule isn't told": (
        "coterie/core/sampler.py",
        'return [best], "best"',
        'return [best], "only"',
        "tests/core/test_sampler.py",
    ),
    "11 a choice may wait for the episode's score": (
        "coterie/core/compose.py",
        "    _check_selection(sampler, estimator, sources)\n",
        "",
        "tests/core/test_scoring.py",
    ),
    "12 strands of branches are not counted": (
        "coterie/core/gathering.py",
        "self.start(len(work))",
        "self.start(1)",
        "tests/core/test_gathering.py",
    ),
    "a sign flip": (
        "coterie/core/credit.py",
        "values - values.mean()",
        "values.mean() - values",
        "tests/core/test_credit.py",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTATIONS)
def test_breaking_an_invariant_fails_its_tests(tmp_path, name):
    file, before, after, tests = MUTATIONS[name]
    copy = copy_tree(tmp_path / "copy")
    source = (copy / file).read_text()
    assert source.count(before) == 1, f"{file} has changed: {source.count(before)} places read {before!r}"
    (copy / file).write_text(source.replace(before, after))
    found = run_tests(copy, tests)
    assert found.returncode == 1, f"the tests still pass:\n{found.stdout[-2000:]}\n{found.stderr[-1000:]}"
    assert "failed" in found.stdout or "error" in found.stdout
