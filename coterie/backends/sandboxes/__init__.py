"""Sandboxes: where programs that a model wrote run."""
