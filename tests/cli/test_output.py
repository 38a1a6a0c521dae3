"""What of the log the command line prints."""

from __future__ import annotations

import logging

import pytest

from coterie.cli.output import show_warnings


@pytest.fixture
def loggers():
    names = ("coterie", "coterie.usage", "coterie.dtype")
    kept = {name: (list(logging.getLogger(name).handlers), logging.getLogger(name).level) for name in names}
    yield
    for name, (handlers, level) in kept.items():
        logging.getLogger(name).handlers[:] = handlers
        logging.getLogger(name).setLevel(level)


def test_the_choice_of_a_dtype_is_printed_and_other_information_is_not(loggers, capsys):
    for name in ("coterie", "coterie.usage", "coterie.dtype"):
        logging.getLogger(name).handlers.clear()
    show_warnings()
    show_warnings()
    logging.getLogger("coterie.dtype").info("policies.p.dtype: auto is bfloat16")
    logging.getLogger("coterie").info("nobody asked")
    printed = capsys.readouterr().err
    assert printed.count("info: policies.p.dtype: auto is bfloat16") == 1
    assert "nobody asked" not in printed
