"""Mutations that break an invariant of the design, each with tests that must fail.

A mutation changes one place of the source in a copy of the tree. The tests beside it must then fail; they
pass on the unchanged copy. A mutation whose text is not in the source fails as well: it needs the present
text.
"""

from __future__ import annotations

import pytest

from tests.long.tree import copy_tree, run_tests

MUTATIONS = {
    "1 a prompt that doesn't continue the ids is merged all the same": (
        "coterie/core/training/samples.py",
        "return call.prompt_ids[: len(ids)] == ids",
        "return True",
        "tests/core/training/test_samples.py",
    ),
    "2 later roles get the first branch's rewards": (
        "coterie/core/rollout/rewards.py",
        "rewards = [joint_reward(node, index, role, scores, reward_weights) for",
        "rewards = [joint_reward(node, 0, role, scores, reward_weights) for",
        "tests/plugins/samplers/test_tree.py",
    ),
    "2 the next stage is prompted with the state before the commit": (
        "coterie/plugins/samplers/expansion.py",
        "NodePosition(at.task, at.key.child(index), joint.step.state,",
        "NodePosition(at.task, at.key.child(index), at.state,",
        "tests/plugins/samplers/test_tree.py",
    ),
    "3 a missing score counts as zero": (
        "coterie/core/types/scores.py",
        "                return None\n            total += self.weight",
        "                continue\n            total += self.weight",
        "tests/core/rollout/test_rewards.py",
    ),
    "3 a hung verifier leaves the score missing": (
        "coterie/core/rollout/rewards.py",
        "return Score(float(source.plugin.policy_fault)",
        "return Score(None",
        "tests/core/rollout/test_rewards.py",
    ),
    "4 truncation is silent": (
        "coterie/compose/run.py",
        "if side.sampler.sampling(role).filtered:",
        "if False:",
        "tests/core/rollout/test_rewards.py",
    ),
    "5 frozen policies give samples": (
        "coterie/core/training/samples.py",
        "if decision.trainable and action.trainable",
        "if action.trainable",
        "tests/core/training/test_samples.py",
    ),
    "6 the denominator is the sample's own": (
        "coterie/backends/models/minibatches.py",
        "share = weight[span.branch] / denominator if denominator else 0.0",
        "share = weight[span.branch] / max(tokens[span.branch], 1)",
        "tests/core/training/test_samples.py",
    ),
    "8 a batch forms as soon as somebody asks": (
        "coterie/core/concurrency/active_rollouts.py",
        "return self._waiting[cohort] > 0 and self._waiting[cohort] >= self._live[cohort]",
        "return self._waiting[cohort] > 0",
        "tests/backends/engines/test_request_batching.py",
    ),
    "8 rows come in the order of arrival": (
        "coterie/backends/engines/request_batching.py",
        "queue.sort(key=lambda item: item[0].key)",
        "pass",
        "tests/backends/engines/test_request_batching.py",
    ),
    "8 a resume forgets where it was": (
        "coterie/core/training/lifetime.py",
        "self.state.restore(checkpoint.step, ",
        "self.state.restore(max(checkpoint.step - 1, 0), ",
        "tests/test_resume.py::test_n_steps_are_k_steps_and_resume",
    ),
    "8 a batch mixes steps": (
        "coterie/backends/engines/request_batching.py",
        "set(sorted(filter(self._active_rollouts.all_wait, waiting))[:1])",
        "set(filter(self._active_rollouts.all_wait, waiting))",
        "tests/core/training/test_steps_in_play.py",
    ),
    "8 a lease keeps nothing": (
        "coterie/backends/models/versions.py",
        "self._leases[policy, version] += 1",
        "self._leases[policy, version] += 0",
        "tests/backends/models/test_versions.py",
    ),
    "8 steps are handed out one too early": (
        "coterie/core/training/steps_in_play.py",
        "self.state.step + self.ahead + 2)",
        "self.state.step + self.ahead + 2 + (self.ahead > 0))",
        "tests/core/training/test_steps_in_play.py",
    ),
    "8 a resume plays steps ahead with the newest weights": (
        "coterie/core/training/run.py",
        "        await self.lease_again()\n",
        "",
        "tests/test_asynchronous.py::test_n_steps_are_k_steps_and_resume",
    ),
    "8 an evaluation joins a step's batches": (
        "coterie/core/training/evaluation.py",
        'cohort=run.cohort(run.state.step, f" evaluation {set_name}"),',
        "cohort=run.cohort(run.state.step + 2),",
        "tests/core/training/test_steps_in_play.py",
    ),
    "9 unknown keys are ignored": (
        "coterie/core/plugins/base.py",
        'extra="forbid"',
        'extra="ignore"',
        "tests/recipes/test_layers.py",
    ),
    "9 a taken name replaces the other": (
        "coterie/discovery/registry.py",
        "if taken is not None:",
        "if False:",
        "tests/discovery/test_manager.py",
    ),
    "10 levels are summed over turns": (
        "coterie/plugins/algos/blocks/returns.py",
        'if kind == "potential":',
        'if kind == "nothing":',
        "tests/plugins/algos/blocks/test_returns.py",
    ),
    "11 the rule isn't told": (
        "coterie/plugins/samplers/tree.py",
        'return [drawn], "best" if',
        'return [drawn], "only" if',
        "tests/plugins/samplers/test_tree.py",
    ),
    "11 a choice may wait for the episode's score": (
        "coterie/compose/run.py",
        "    _check_selection(side, parts.estimator)\n",
        "",
        "tests/core/rollout/test_rewards.py",
    ),
    "12 strands of branches are not counted": (
        "coterie/core/concurrency/active_rollouts.py",
        "self.start(len(work) - 1)",
        "self.start(1)",
        "tests/backends/engines/test_request_batching.py",
    ),
    "2 chains of a task start from different resets": (
        "coterie/plugins/samplers/tree.py",
        'ctx.seed(Key(task.id, epoch), "reset")',
        'ctx.seed(Key(task.id, epoch, chain), "reset")',
        "tests/plugins/samplers/test_tree.py",
    ),
    "2 groups of a task ignore the epoch": (
        "coterie/plugins/algos/blocks/groups.py",
        "return first.task, first.epoch, row.role",
        "return first.task, row.role",
        "tests/plugins/algos/blocks/test_groups.py",
    ),
    "2 an episode's score is written to the first node of the path": (
        "coterie/core/rollout/rewards.py",
        "            node, index = path[-1]\n",
        "            node, index = path[0]\n",
        "tests/core/rollout/test_rewards.py",
    ),
    "3 an infinite score is a number": (
        "coterie/core/rollout/rewards.py",
        "not abs(number := float(given.value)) <= 1e100",
        "(number := float(given.value)) != number",
        "tests/core/rollout/test_rewards.py",
    ),
    "10 an unknown last potential is filled up with 0": (
        "coterie/plugins/algos/blocks/returns.py",
        "for ahead in remaining) if len(known) == len(last) else None",
        "for ahead in remaining)",
        "tests/plugins/algos/blocks/test_returns.py",
    ),
    "the first call decides whether the limit cut an action": (
        "coterie/plugins/algos/reinforce_pp.py",
        'calls[-1].finish == "length"',
        'calls[0].finish == "length"',
        "tests/plugins/algos/test_reinforce_pp.py",
    ),
    "frozen policies' advantages are recorded": (
        "coterie/api/rollouts.py",
        "if credit is None or key not in credit.advantage or not trained:",
        "if credit is None or key not in credit.advantage:",
        "tests/api/test_rollouts.py",
    ),
    "the best branch of a role in a cross is that of the first joint action": (
        "coterie/core/rollout/rewards.py",
        "return [None if not part or None in part else sum(part) / len(part) for part in parts]",
        "return [part[0] if part else None for part in parts]",
        "tests/plugins/samplers/test_tree.py",
    ),
    "3 a role's failure is the team's": (
        "coterie/plugins/samplers/expansion.py",
        "Question(source, view, places, owner, owner)",
        "Question(source, view, places, owner)",
        "tests/core/rollout/test_failures.py",
    ),
    "3 a floor leaves the role's potential as it was": (
        "coterie/plugins/algos/blocks/returns.py",
        "owners = [each for each in (TEAM, role) if (each, component) in potentials] or [WHOLE]",
        "owners = [WHOLE]",
        "tests/plugins/algos/blocks/test_returns.py",
    ),
    "3 a judge that is down hides behind what nobody can read": (
        "coterie/core/rollout/missing.py",
        "    unread = set(_unread(trees)) if failed else set()\n",
        "    unread: set[Key] = set()\n",
        "tests/core/rollout/test_missing.py",
    ),
    "frozen partners are in the statistics": (
        "coterie/plugins/algos/blocks/returns.py",
        "if all(decisions[key.decision] for key in row.branches)",
        "if True",
        "tests/plugins/algos/test_reinforce_pp.py",
    ),
    "equal scores are scaled": (
        "coterie/plugins/algos/blocks/groups.py",
        "if not (flat and shift) and scope not in unscaled:",
        "if not (flat and shift):",
        "tests/plugins/algos/test_reinforce_pp.py",
    ),
    "immediate potentials are paid as they are in every group": (
        "coterie/plugins/algos/blocks/estimator.py",
        'differences = pieces.returns == "immediate" and pieces.group != "decision"',
        "differences = False",
        "tests/plugins/algos/test_differences.py",
    ),
    "a branch of a cross without a joint action is compared": (
        "coterie/plugins/algos/blocks/returns.py",
        "yield row if lost.isdisjoint(row.branches) else replace(row, value=None)",
        "yield row",
        "tests/plugins/algos/blocks/test_returns.py",
    ),
    "a sign flip": (
        "coterie/plugins/algos/blocks/groups.py",
        "values - values.mean()",
        "values.mean() - values",
        "tests/plugins/algos/blocks/test_groups.py",
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
    result = run_tests(copy, tests)
    output = f"{result.stdout[-2000:]}\n{result.stderr[-1000:]}"
    assert result.returncode == 1, f"the tests still pass:\n{output}"
    assert "failed" in result.stdout or "error" in result.stdout
