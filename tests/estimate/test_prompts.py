"""What a plan says of later prompts, against conversations that are really played and trained on."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import yaml

from coterie.estimate.counts import Growth, PolicyCounts, RoleCalls
from coterie.estimate.prompts import MOST_TURNS, growth, growths
from coterie.testing import coterie_run
from tests.cli.support import TABULAR, coterie
from tests.cli.test_plan import planned_and_shown

pytest.importorskip("transformers")

from coterie.backends.chat_formats.formats import AutoChat
from tests.backends.chat_formats.families import FAMILIES, TOOLS
from tests.backends.chat_formats.qwen3 import QWEN3_THINKING
from tests.backends.chat_formats.test_turn_samples import THOUGHT, context_of, played
from tests.backends.chat_formats.tokenizers import bpe

pytestmark = pytest.mark.torch

FIRST = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "what is 2 + 2?"}]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_measured_episode_begins_anew_where_a_played_one_does(name):
    """With thoughts, three turns of one role; the made-up answers are as long as the played ones."""
    codec = FAMILIES[name].codec()
    context, engine = context_of(codec, [THOUGHT if name != "thoughts_off" else "UP"] * 3)
    rows = played(context, 3)
    length = len(engine.calls[0].token_ids)
    first = [dict(message) for message in rows[0][1].messages]
    measured = growth(codec, first, 3, 1, length)
    assert measured.begins_anew == tuple(not call.continues for call in engine.calls[1:])
    assert bool(measured.why) == (measured.anew > 0) and measured.of_call == ()


@pytest.mark.parametrize(
    ("name", "anew", "why"),
    [
        ("chatml", 0, ""),
        ("chatml_default", 0, ""),
        ("headers", 0, ""),
        ("user_and_model", 0, ""),
        ("thoughts", 3, "the template drops earlier thoughts, where answers have some"),
        ("thoughts_off", 3, "the template writes earlier prompts differently"),
        ("inst", 3, "the template writes earlier prompts differently"),  # the system message moves
        ("inst_first", 3, "the template writes earlier answers differently"),
    ],
)
def test_four_turns_of_each_family(name, anew, why):
    codec = FAMILIES[name].codec()
    measured = growth(codec, FIRST, 4, 1, 40)
    assert (measured.anew, measured.why) == (anew, why)
    assert len(measured.begins_anew) == 3
    assert (measured.factor == 1) == (anew == 0) and measured.factor >= 1


def test_a_system_message_that_comes_again_and_is_left_out_counts_nothing():
    codec = FAMILIES["inst_first"].codec()
    turn = len(
        codec.tokenizer.encode("[INST] what is 2 + 2? [/INST]")
    )  # and a space on both sides of answers
    measured = growth(codec, FIRST, 4, 1, 40)
    assert measured.least == pytest.approx(len(codec.encode(FIRST).ids) + 3 * (turn + 2), abs=3)
    assert measured.factor > 1.2


def test_tokens_to_prefill_are_what_a_prefix_cache_lacks():
    """Counted by hand: the prompts of plain answers grow by an answer and a turn each."""
    codec = FAMILIES["chatml"].codec()
    answer = " ".join(["the answer"] * 10)
    size = len(codec.encode_completion(answer))
    first = len(codec.encode(FIRST).ids)
    turn = {"role": "assistant", "content": answer}
    second = len(codec.encode([*FIRST, turn, *FIRST]).ids)
    measured = growth(codec, FIRST, 3, 1, 10 * len(codec.encode_completion(" the answer")[:-1]))
    assert measured.new == measured.least == first + 2 * (second - first - size)
    assert measured.whole == first + second + (2 * second - first)


def test_a_template_that_moves_the_question_makes_most_of_a_prompt_new():
    codec = FAMILIES["inst"].codec()
    measured = growth(codec, FIRST, 4, 1, 40)
    assert measured.new > measured.whole / 2 and measured.factor > 2.5


@pytest.mark.parametrize("name", ["chatml_default", "thoughts", "thoughts_off", "headers", "inst"])
def test_the_calls_of_an_action_are_as_many_samples_as_are_measured(name):
    codec = FAMILIES[name].codec().with_tools(TOOLS)
    measured = growth(codec, FIRST, 1, 3, 30)
    broken = name in ("thoughts_off", "inst")
    assert measured.of_call == measured.begins_anew == (broken, broken)
    calls = RoleCalls(decisions=5, branches=4, calls=3, answer=10, anew=measured.of_call)
    assert calls.samples == 5 * 4 * (3 if broken else 1)
    lengths = (110, 120, 130) if broken else (130,)
    assert calls.sample_tokens(100, None) == 5 * 4 * sum(lengths)
    assert calls.sample_tokens(100, 114) == 5 * 4 * sum(min(length, 115) for length in lengths)


def test_an_action_that_the_context_ends_is_counted_by_what_was_measured():
    turns = Growth(begins_anew=(False, True, True), calls=3, whole=9, new=9, least=9)  # four prompts
    assert turns.of_call == (False, True)
    assert Growth(begins_anew=(False, False, False, True), calls=3, whole=9, new=9, least=9).of_call == (
        True,
        False,
    )
    assert Growth(begins_anew=(True,), calls=4, whole=9, new=9, least=9).of_call == (True,)
    assert Growth(begins_anew=(), calls=4, whole=9, new=9, least=9).of_call == ()


def test_a_template_that_opens_a_thought_drops_it():
    codec = AutoChat().codec(bpe(QWEN3_THINKING), None)
    measured = growth(codec, FIRST, 4, 1, 40)
    assert measured.anew == 3 and measured.why == "the template drops earlier thoughts"
    assert growth(codec.with_tools(TOOLS), FIRST, 1, 3, 40).anew == 0  # kept between calls of tools


def test_a_template_that_has_written_a_thought_gets_answers_without_one():
    """One that keeps the empty thought of its prompt, and would drop those of answers."""
    closed = "{{- '<|im_start|>assistant\n<think>\n\n</think>\n\n' -}}"
    template = (
        "{%- for m in messages -%}{%- if m.role == 'assistant' -%}" + closed
        + "{{- m.content.split('</think>')[-1] -}}"
        "{%- else -%}{{- '<|im_start|>' ~ m.role ~ '\n' ~ m.content -}}{%- endif -%}{{- '<|im_end|>\n' -}}"
        "{%- endfor -%}{%- if add_generation_prompt -%}" + closed + "{%- endif -%}"
    )  # fmt: skip
    measured = growth(AutoChat().codec(bpe(template), None), FIRST, 4, 1, 40)
    assert (measured.anew, measured.why) == (0, "")


def test_a_template_that_also_rewrites_other_answers_says_how_many():
    """It writes the first answer in capitals while there is one more question, and drops all thoughts."""
    first = "m.content | upper if messages | length == 3 else m.content.split('</think>')[-1].lstrip('\\n')"
    turn = "{{- '<|im_start|>' ~ m.role ~ '\n' ~ (" + first + ") ~ '<|im_end|>\n' -}}"
    ask = "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
    template = "{%- for m in messages -%}" + turn + "{%- endfor -%}" + ask
    measured = growth(AutoChat().codec(bpe(template), None), FIRST[1:], 4, 1, 40)
    assert measured.anew == 3
    assert measured.why == (
        "the template drops earlier thoughts, where answers have some, 2 where they have none"
    )


def test_the_least_that_could_be_new_is_what_a_template_that_keeps_all_adds():
    keeps, drops = (growth(FAMILIES[name].codec(), FIRST, 4, 1, 40) for name in ("chatml", "thoughts"))
    assert drops.least == keeps.new
    assert drops.new > 1.2 * keeps.new


def test_calls_of_which_nothing_is_known_are_counted_as_samples():
    calls = RoleCalls(decisions=2, branches=3, calls=4, answer=10)
    assert calls.samples == calls.generations == 24
    assert RoleCalls(decisions=2, branches=3, calls=1, answer=10, anew=()).samples == 6
    long = RoleCalls(decisions=1, branches=1, calls=20, answer=10, anew=(True, False))
    assert long.samples == 2  # further calls go on like the last that was measured


def test_counts_follow_what_was_measured():
    role = RoleCalls(decisions=6, branches=4, calls=3, answer=10)
    counts = PolicyCounts(calls={"one": role}, trained=True, generations=72, generated_tokens=720, samples=72)
    measured = Growth(begins_anew=(False, True), calls=3, whole=400, new=300, least=200, why="x")
    known = counts.bounded(1000, 10, {"one": 50}, {"one": measured}, True)
    assert known.samples == 6 * 4 * 2 and known.sample_tokens == 6 * 4 * (50 + 20 + 50 + 30)
    assert known.prompt_tokens == 6 * 50 + 6 * 4 * (60 + 70)
    assert known.prefill_tokens == known.prompt_tokens * 300 // 400
    whole = counts.bounded(1000, 10, {"one": 50}, {"one": measured})
    assert whole.prefill_tokens == whole.prompt_tokens == known.prompt_tokens
    frozen = replace(counts, trained=False).bounded(1000, 10, {"one": 50}, {"one": measured})
    assert frozen.samples == frozen.sample_tokens == 0 and frozen.prompt_tokens == known.prompt_tokens
    unknown = counts.bounded(None, 10)
    assert unknown.samples == 72
    assert unknown.sample_tokens is unknown.prefill_tokens is unknown.prompt_tokens is None


def test_roles_that_are_asked_once_have_no_later_prompts():
    run = coterie_run(max_turns=12, roles={"one": {"remembers": True}, "two": {}})
    codec = FAMILIES["chatml"].codec(4000)
    measured = growths(run, {"p": codec})
    assert list(measured) == ["one"] and len(measured["one"].begins_anew) == MOST_TURNS - 1
    assert growths(run, {}) == {}
    short = FAMILIES["chatml"].codec(len(codec.encode(FIRST).ids) + 200)
    assert len(growths(run, {"p": short})["one"].begins_anew) < MOST_TURNS - 1  # the context is full


def test_sentences():
    keeps = Growth(begins_anew=(False, False), calls=1, whole=9, new=5, least=5)
    text = keeps.sentence("one", cached=True)
    assert text == "prefill: each of 2 later prompts of role 'one' extends what was sampled"
    drops = Growth(begins_anew=(True, False, True), calls=2, whole=90, new=50, least=20, why="a reason")
    text = drops.sentence("one", cached=True)
    assert text == (
        "prefill: of 4 prompts of role 'one', 2 begin anew (a reason): 2.5 times the tokens to prefill; "
        "the calls of an action are 2 samples"
    )
    assert "2.5 times the tokens to prefill, if the engine had a prefix cache" in drops.sentence(
        "one", cached=False
    )


# ----------------------------------------------------------------------------------------------- the command


@pytest.fixture
def recipe(tmp_path):
    """A role that remembers, with a small Qwen3 and the tokenizer of a family that drops thoughts."""
    model = tmp_path / "model"
    model.mkdir()
    FAMILIES["thoughts"].tokenizer().save_pretrained(model)
    config = {
        **{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512},
        **{"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2},
        **{"num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 4096},
    }
    (model / "config.json").write_text(json.dumps(config))
    for split in ("train", "val", "test"):
        line = json.dumps({"question": f"{split}?", "answer": "yes"})
        (tmp_path / f"{split}.jsonl").write_text(line + "\n")
    role = {"type": "template", "policy": "shared", "prompt": "{{ question }}", "remembers": True}
    table = {
        **yaml.safe_load(TABULAR.read_text()),
        "env": {
            "type": "team_task",
            **{split: str(tmp_path / f"{split}.jsonl") for split in ("train", "val", "test")},
        },
        "team": {"order": ["solver"], "max_turns": 4, "roles": {"solver": role}},
        "policies": {"shared": {"model": str(model), "train": "full"}},
        "engine": {"type": "hf"},
        "trainer": {"type": "torch"},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(table))
    return tmp_path / "recipe.yaml"


SHORT = "sampler.sampling.max_new_tokens=64"


def planned(*arguments):
    done = coterie("plan", *arguments, SHORT, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["policies"]["shared"]


def test_a_plan_says_how_often_a_prompt_begins_anew(recipe):
    plan, text = planned_and_shown(recipe, SHORT)
    (line,) = [line for line in text.splitlines() if line.startswith("prefill: ")]
    start = "prefill: of 4 prompts of role 'solver', 3 begin anew (the template drops earlier thoughts, where"
    assert line.startswith(start) and line.endswith(
        "times the tokens to prefill, if the engine had a prefix cache"
    )
    shared = plan["policies"]["shared"]
    grown = shared["prompt_growth"]["solver"]
    assert (grown["prompts"], grown["begin_anew"], grown["samples_of_action"]) == (4, 3, 1)
    assert grown["prefill_factor"] > 1.2
    assert shared["prefill_tokens"] == shared["prompt_tokens"]
    assert shared["sample_tokens"] == shared["samples"] * (shared["first_prompts"]["solver"] + 64)


def test_with_a_prefix_cache_the_plan_counts_what_is_new(recipe):
    shared = planned(recipe, "engine={type: vllm}")
    assert shared["prefill_tokens"] < 0.6 * shared["prompt_tokens"]
    off = planned(recipe, "engine={type: vllm, prefix_cache: false}")
    assert off["prefill_tokens"] == off["prompt_tokens"]
    plain = planned(recipe, "chat={type: plain}", "engine={type: vllm}")
    assert plain["prompt_growth"]["solver"]["begin_anew"] == 0
    assert plain["prefill_tokens"] < shared["prefill_tokens"]
    text = coterie("plan", recipe, "engine={type: vllm}", SHORT).stdout
    assert "of these to prefill" in text and "if the engine had" not in text


def test_tools_make_samples_of_the_calls_that_begin_anew(recipe):
    tools = (
        "tools.python={type: python, calls: native}",
        "team.roles.solver.tools=[python]",
        "team.roles.solver.max_tool_turns=2",
    )
    kept = planned(recipe, *tools, "team.max_turns=1", "sandbox={type: local}", "trainer.minibatch_size=8")
    assert kept["samples"] * 3 == kept["generations"]
    assert kept["optimizer_steps"] == -(-kept["samples"] // 8)
    off = "chat={type: template, template_kwargs: {enable_thinking: false}}"
    broken = planned(
        recipe, *tools, "team.max_turns=1", "sandbox={type: local}", "trainer.minibatch_size=8", off
    )
    assert broken["samples"] == broken["generations"] and broken["sample_tokens"] > kept["sample_tokens"]


def test_a_tokenizer_that_is_not_here_leaves_it_unknown(recipe):
    for file in (recipe.parent / "model").glob("*token*"):
        file.unlink()
    plan, text = planned_and_shown(recipe)
    assert "whether later ones extend what was sampled is unknown" in " ".join(text.split())
    assert plan["policies"]["shared"]["prompt_growth"] == {}
