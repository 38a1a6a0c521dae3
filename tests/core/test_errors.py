"""Errors: their text, and the retired name of an argument."""

from __future__ import annotations

from coterie.core.errors import ConfigError, DataError, MissingExtra, UserError, did_you_mean


def test_the_text_of_an_error_has_path_why_and_fix():
    error = ConfigError("unknown key 'a'", path="team.a", why="got 1", fix="remove it")
    assert str(error) == "team.a: unknown key 'a'\n  why: got 1\n  fix: remove it"
    assert str(UserError("no such run")) == "no such run"


def test_a_data_error_names_file_line_and_field():
    error = DataError("tasks.jsonl", 3, "answer", "it is empty", fix="fill it in")
    assert (error.file, error.line, error.field, error.fix) == ("tasks.jsonl", 3, "answer", "fill it in")
    assert str(error) == "tasks.jsonl, line 3, field 'answer': it is empty\n  fix: fill it in"


def test_a_missing_extra_names_what_to_install():
    error = MissingExtra("pyarrow", "data", needed_by="data source 'parquet'")
    assert "needed by data source 'parquet'" in str(error) and error.fix == "pip install 'coterie[data]'"


def test_a_misspelt_word_has_a_nearest_one_or_all():
    assert did_you_mean("stpes", ["steps", "epochs"]) == "did you mean 'steps'?"
    assert did_you_mean("zzz", ["steps", "epochs"]) == "known: epochs, steps"
    assert did_you_mean("zzz", []) == "known: none"
