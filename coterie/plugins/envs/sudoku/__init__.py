"""Sudoku: fill a grid whose solution is unique (see `env.py`)."""

from coterie.plugins.envs.sudoku.env import Sudoku

__all__ = ["Sudoku"]
