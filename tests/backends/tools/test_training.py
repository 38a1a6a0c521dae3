"""A role with a tool in a real run: a tiny transformer generates, a trainer learns, every id is checked."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest

from coterie.testing.support.toys import GAME, ROLE

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coterie import Plugin  # noqa: E402
from coterie.api.open_run import open_run  # noqa: E402
from coterie.compose import compose  # noqa: E402
from coterie.core.training.samples import merge_annotations, samples_of  # noqa: E402
from coterie.core.types import Credit  # noqa: E402
from coterie.core.types.seeding import generator  # noqa: E402
from coterie.recipes import load  # noqa: E402
from tests.backends.chat_formats.qwen3 import FORGETS, QWEN3, QWEN3_THINKING  # noqa: E402
from tests.backends.chat_formats.tokenizers import KEEPS  # noqa: E402

pytestmark = pytest.mark.torch

LETTERS = "abcdefghijklmnopqrstuvwxyz 0123456789\n<>|_/"


class Vowels(Plugin):
    """Called by any reply with an `a` or an `e`; the result is their number."""

    name = "vowels"

    def find(self, text):
        return sum(text.count(vowel) for vowel in "ae") or None

    async def run(self, call):
        return f"{call} vowels"


def tokenizer(folder, template):
    """Saved in a folder: a BPE of few letters, so that a model that knows nothing closes thoughts."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    trained_tokenizer = Tokenizer(models.BPE())
    trained_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained_tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trained_tokenizer.train_from_iterator(
        [LETTERS, "the tool told the user how many vowels it found"] * 3,
        trainers.BpeTrainer(vocab_size=80, special_tokens=special, show_progress=False),
    )
    whole = PreTrainedTokenizerFast(
        tokenizer_object=trained_tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    whole.add_tokens([AddedToken("<think>"), AddedToken("</think>")])
    whole.chat_template = template
    whole.save_pretrained(folder)


def run_of(folder, template, **team):
    tokenizer(folder, template)
    size = {"init": "qwen3", "hidden_size": 16, "layers": 1, "heads": 2, "head_dim": 8, "mlp_size": 16}
    role = {
        "type": ROLE,
        "policy": "p",
        "tools": ["vowels"],
        "max_tool_turns": 3,
    }
    return compose(load({
        "env": {"type": GAME},
        "team": {"order": ["one"], "max_turns": 2, "roles": {"one": {**role, **team}}},
        "policies": {"p": {"model": {**size, "context": 2000, "tokenizer": str(folder)},
                           "optimizer": {"learning_rate": 1e-2}}},
        "tools": {"vowels": {"type": "tests.backends.tools.test_training:Vowels"}},
        "sampler": {"branches": 4, "sampling": {"max_new_tokens": 24}},
        "algorithm": {"type": "at_grpo"},
        "engine": {"type": "hf"}, "trainer": {"type": "torch", "device": "cpu"}, "trackers": {},
        "schedule": {"steps": 2, "tasks_per_step": 3},
    }))  # fmt: skip


def check(sample, calls):
    """One sample against the engine's calls, one after the other: `calls` of the branch, in their order."""
    last = calls[-1]
    assert sample.token_ids.tolist() == [*last.prompt_ids, *last.token_ids]
    assert sample.token_ids[sample.loss_mask].tolist() == [
        index for call in calls for index in call.token_ids
    ]
    drawn = [value for call in calls for value in call.logprobs]
    assert np.array_equal(sample.logprobs[sample.loss_mask], np.array(drawn, dtype=np.float32))
    assert not sample.logprobs[~sample.loss_mask].any()
    for before, call in pairwise(calls):
        ids = before.prompt_ids + before.token_ids
        assert call.prompt_ids[: len(ids)] == ids and len(call.prompt_ids) > len(ids)


async def trained(run):
    """Two steps; (samples, the engine's calls by key) of both, the weights' digests, the worst difference of
    log-probs between engine and trainer."""
    drawn, steps, worst = {}, [], 0.0
    await open_run(run)
    generate = run.engine.generate

    async def recorded(request):
        drawn[request.key] = call = await generate(request)
        return call

    run.engine.generate = recorded
    digests = [run.trainer.digest()]
    try:
        async for step, rollouts in run.rollouts():
            trees = rollouts.trees
            rng = generator(step, "advantages", "test")
            advantage = {
                node.key.of_branch("one", branch): rng.normal(
                    size=sum(len(c.token_ids) for c in action.calls)
                )
                for tree in trees
                for node in tree.nodes()
                for branch, action in enumerate(node.decisions["one"].branches)
            }
            samples = samples_of(trees, Credit(advantage=advantage), {})["p"]
            present = await run.trainer.annotate(samples, "old_logprobs")
            for sample in samples:
                difference = np.abs(present[sample.key] - sample.logprobs[sample.loss_mask])
                worst = max(worst, float(difference.max()))
            annotations = merge_annotations({"p": samples}, "old_logprobs", present)
            samples = samples_of(trees, Credit(advantage=advantage), annotations)["p"]
            steps.append((samples, dict(drawn), advantage))
            drawn.clear()
            before = run.versions
            await run.trainer.update({"p": samples}, run.state.step)
            await run.sync(before)
            digests.append(run.trainer.digest())
            run.state.step = step
    finally:
        await run.close()
    return steps, digests, worst


@pytest.mark.parametrize(("template", "extends", "breaks"), [
    (KEEPS, True, False), (QWEN3, True, False), (QWEN3_THINKING, False, True), (FORGETS, True, True),
], ids=["keeps", "qwen3", "qwen3_thinking", "forgets"])  # fmt: skip
def test_the_ids_that_were_drawn_are_the_ids_that_are_trained(template, extends, breaks, tmp_path):
    """`extends`: some action must hold two calls in one sample; `breaks`: some must need two samples, since
    the template drops its thought, or writes other empty lines around it than were drawn."""
    steps, digests, worst = asyncio.run(trained(run_of(tmp_path, template)))
    longest, broken = 0, 0
    assert len(steps) == 2
    for samples, drawn, advantage in steps:
        of_branch = {}
        for sample in samples:
            of_branch.setdefault(sample.key._replace(call=-1), []).append(sample)
        assert set(of_branch) == {key._replace(call=-1) for key in drawn}
        for branch, mine in of_branch.items():
            left = [drawn[key] for key in sorted(key for key in drawn if key._replace(call=-1) == branch)]
            for sample in mine:
                calls = [left.pop(0)]
                while left and left[0].continues:
                    calls.append(left.pop(0))
                check(sample, calls)
                longest = max(longest, len(calls))
            assert not left
            broken += len(mine) > 1
            values = np.concatenate([sample.advantages[sample.loss_mask] for sample in mine])
            assert np.array_equal(values, advantage[branch].astype(np.float32))
            # The trainer's own log-probs of the drawn tokens stand at the drawn tokens.
            for sample in mine:
                difference = (
                    sample.extras["old_logprobs"][sample.loss_mask] - sample.logprobs[sample.loss_mask]
                )
                assert np.abs(difference).max() < 1e-3
    assert worst < 1e-3
    assert longest >= 2 or not extends
    assert broken or not breaks
    assert len({digest["p"] for digest in digests}) == 3
