"""Comparison of runs or evaluations: paired by task, over seeds, with what so many tasks can show."""
