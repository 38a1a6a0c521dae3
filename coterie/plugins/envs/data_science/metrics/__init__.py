"""Metrics of data-science competitions: which a task has, and what a submission is worth."""
