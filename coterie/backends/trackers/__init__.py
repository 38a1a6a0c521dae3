"""Trackers: who is told the metrics."""
