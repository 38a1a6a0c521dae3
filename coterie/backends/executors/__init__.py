"""Executors: where episodes run."""
