"""Replay: a recorded step played again without a model, and compared with its record."""
