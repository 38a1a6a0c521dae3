"""Sokoban: push every box onto a target (see `env.py`)."""

from coterie.plugins.envs.sokoban.env import Sokoban

__all__ = ["Sokoban"]
