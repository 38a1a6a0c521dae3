"""Judging a run from what it left: replay, credit, comparison, diagnosis. Values; the commands print them."""
