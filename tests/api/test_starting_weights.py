"""`policies.<name>.from`: a new run begins with weights of another run or of a folder."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie import Plugin, export, train
from coterie.api.checkpoints import find_checkpoint
from coterie.api.open_run import open_run
from coterie.compose import compose
from coterie.core.config.resolved import table_digest
from coterie.core.errors import ConfigError, UserError
from coterie.core.types import Key, Sample, Span
from coterie.recipes import load

MATRIX = Path(__file__).parents[1] / "recipes" / "matrix.yaml"
TABULAR = MATRIX.parent / "tabular.yaml"
SHORT = (
    "schedule.steps=2",
    "schedule.evaluate_every=1",
    "schedule.checkpoint_every=1",
    "schedule.keep_checkpoints=9",
    "schedule.record_every=0",
)
SHARED = ("team.roles.column.policy=row", "policies.column=null")
"""Both roles play the policy `row`."""
UNTRAINED = "schedule.steps=0"


def trained(folder: Path, *overrides: str) -> Path:
    train(MATRIX, overrides=(*SHORT, *overrides), out=folder)
    return folder


def digests(source: Path, which: object = "latest") -> dict[str, str]:
    """The digests of a checkpoint's weights, by policy."""
    run = compose(load(source))

    async def go() -> dict[str, str]:
        try:
            await run.open_trainer(find_checkpoint(source, which).path)  # type: ignore[arg-type]
            return run.trainer.digest()
        finally:
            await run.trainer.close()

    return asyncio.run(go())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of two tables, with a checkpoint of each step."""
    return trained(tmp_path_factory.mktemp("source") / "a")


@pytest.mark.parametrize(("suffix", "which"), [("", "latest"), ("@best", "best"), ("@1", 1), ("@2", 2)])
def test_before_the_first_step_the_weights_are_the_sources(source, tmp_path, suffix, which):
    new = trained(tmp_path / "b", f"policies.*.from={source}{suffix}", UNTRAINED, "seed=7")
    assert digests(new) == digests(source, which)
    assert f"from: {source}{suffix}\n" in (new / "config.yaml").read_text()
    assert digests(source, 1) != digests(source, 2)


def test_an_exported_table_is_a_source_too(source, tmp_path):
    export(source, "row", tmp_path / "table", checkpoint=2)
    new = trained(tmp_path / "b", f"policies.row.from={tmp_path / 'table'}", UNTRAINED)
    assert digests(new)["row"] == digests(source)["row"] != digests(new)["column"]


def test_a_resume_needs_no_source_and_equals_the_run_that_was_not_interrupted(source, tmp_path):
    begun = (f"policies.*.from={tmp_path / 'gone'}", "loss.kl=0.1")
    shutil.copytree(source, tmp_path / "gone")
    whole = trained(tmp_path / "whole", *begun, "schedule.steps=4")
    part = trained(tmp_path / "part", *begun)
    shutil.rmtree(tmp_path / "gone")
    train(resume=part, overrides=("schedule.steps=4",))
    assert digests(part) == digests(whole) != digests(source)


def test_only_the_policy_with_a_source_begins_there(source, tmp_path):
    new = trained(tmp_path / "b", f"policies.row.from={source}", UNTRAINED)
    fresh = trained(tmp_path / "c", UNTRAINED)
    assert digests(new)["row"] == digests(source)["row"]
    assert digests(new)["column"] == digests(fresh)["column"] != digests(source)["column"]


def test_which_policy_of_the_other_run(source, tmp_path):
    """That of the same name, the one that is named, or the run's only one."""
    crossed = trained(tmp_path / "b", f"policies.row.from={source}@latest:column", UNTRAINED)
    assert digests(crossed)["row"] == digests(source)["column"] != digests(source)["row"]
    shared = trained(tmp_path / "c", *SHARED)
    both = trained(tmp_path / "d", f"policies.*.from={shared}", UNTRAINED)
    assert set(digests(both).values()) == set(digests(shared).values())
    renamed = ("policies.both.model={init: tabular}", "team.roles.*.policy=both", "policies.row=null")
    with pytest.raises(ConfigError, match=r"policies\.both\.from: which policy") as error:
        trained(tmp_path / "e", *renamed, "policies.column=null", f"policies.both.from={source}")
    assert ":row, :column" in str(error.value)


def test_the_reference_is_what_the_run_began_with(source):
    """After an update too: the reference stays where the run began."""
    run = compose(load(MATRIX, overrides=(f"policies.row.from={source}", "loss.kl=0.1")))

    async def go() -> tuple[list[np.ndarray], list[np.ndarray], int]:
        try:
            await open_run(run)
            table = run.trainer.weights("row").module
            context = next(context for context, row in table.rows.items() if row.any())
            ids = np.array([*context, int(table.ids[1])])
            mask, key = np.arange(len(ids)) == len(context), Key("t").of_branch("row", 0)
            zeros = np.zeros(len(ids), np.float32)
            sample = Sample(
                key=key,
                policy="row",
                token_ids=ids,
                loss_mask=mask,
                logprobs=zeros,
                advantages=np.where(mask, 1, zeros),
                spans=(Span(len(context), len(ids), key, 1.0),),
                version=0,
            )

            async def annotated() -> list[np.ndarray]:
                names = ("ref_logprobs", "old_logprobs")
                return [(await run.trainer.annotate([sample], name))[key] for name in names]

            before = await annotated()
            referenced = replace(sample, extras={"ref_logprobs": np.where(mask, before[0][0], 0)})
            await run.trainer.update({"row": [referenced]}, 0)
            return before, await annotated(), len(table.ids)
        finally:
            await run.close()

    before, after, words = asyncio.run(go())
    assert before[0] == before[1] == after[0] != after[1]
    assert not np.allclose(before[0], -np.log(words))  # as under a uniform table


def test_the_digest_of_a_configuration_without_a_source_is_what_it_was():
    table = load(MATRIX).table
    assert table["policies"]["row"]["from"] is None
    without = json.loads(json.dumps(table))
    del without["policies"]["row"]["from"]
    assert table_digest(table) == table_digest(without)
    assert load(MATRIX, overrides=("policies.row.from=x",)).digest() != table_digest(table)


def test_a_table_over_other_words_is_refused(source, tmp_path):
    with pytest.raises(UserError, match=r"policies\.shared\.from: its table is over other words") as error:
        train(
            TABULAR,
            overrides=(f"policies.shared.from={source}:row",),
            out=tmp_path / "b",
        )
    assert "words differ, such as" in str(error.value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("nowhere", "there is no folder nowhere"),
        ("{source}@9", "no checkpoint of step 9"),
        ("{source}:planer", "has no policy 'planer'"),
        ("{empty}", "neither a run's folder nor a model's"),
        ("{empty}@best", "nothing reads 'best'"),
    ],
)
def test_a_source_that_is_not_there_is_told_before_a_folder_is_made(source, tmp_path, value, message):
    (tmp_path / "empty").mkdir()
    value = value.format(source=source, empty=tmp_path / "empty")
    with pytest.raises(UserError, match=message):
        trained(tmp_path / "b", f"policies.row.from={value}")
    assert not (tmp_path / "b").exists()


class Deaf(Plugin):
    """A trainer of somebody else, which takes no weights."""

    async def open(self, ctx):
        raise AssertionError("too late")

    async def annotate(self, samples, name):
        return {}

    async def update(self, samples, step):
        return {}

    def weights(self, policy):
        raise AssertionError

    def save(self, folder):
        raise AssertionError

    load = save

    def digest(self):
        return {}

    def export(self, policy, folder, *, merge=False):
        raise AssertionError

    async def close(self):
        pass


def test_a_trainer_that_takes_no_weights_is_an_error(source, tmp_path):
    with pytest.raises(ConfigError, match="begin_with") as error:
        trained(
            tmp_path / "b",
            f"policies.row.from={source}",
            f"trainer.type={__name__}:Deaf",
        )
    assert error.value.path == "policies.row.from" and "Deaf" in str(error.value)


# ------------------------------------------------------------------------------------- what an address names


def test_best_of_a_run_that_was_never_evaluated_is_told(tmp_path, caplog):
    folder = trained(tmp_path / "a", "schedule.evaluate_every=0")
    train(MATRIX, overrides=(*SHORT, UNTRAINED, f"policies.row.from={folder}@best"), out=tmp_path / "b")
    assert f"{folder} was never evaluated on val" in caplog.text and "its latest is of step 2" in caplog.text


def test_best_of_a_run_that_was_evaluated_says_nothing(source, tmp_path, caplog):
    train(MATRIX, overrides=(*SHORT, UNTRAINED, f"policies.row.from={source}@best"), out=tmp_path / "b")
    assert "never evaluated" not in caplog.text


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("@7", ["no checkpoint of step 7"]),
        ("@-1", ["'-1' is no checkpoint of", "@latest or @STEP"]),
        ("@", ["'' is no checkpoint of"]),
        ("/../nothing", ["there is no folder"]),
    ],
)
def test_an_address_that_names_nothing_is_told_with_its_key(source, tmp_path, address, words):
    with pytest.raises(UserError) as error:
        train(MATRIX, overrides=(*SHORT, f"policies.row.from={source}{address}"), out=tmp_path / "b")
    assert error.value.path == "policies.row.from" and not (tmp_path / "b").exists()
    for text in words:
        assert text in str(error.value)


def test_a_relative_folder_that_is_not_there_says_from_where_it_was_looked_for(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder nowhere/b") as error:
        train(MATRIX, overrides=(*SHORT, "policies.row.from=nowhere/b"), out=tmp_path / "b")
    assert str(Path.cwd()) in error.value.why
