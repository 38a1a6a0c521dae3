"""Plan-Path: find the way through a grid with walls (see `env.py`)."""

from coterie.plugins.envs.plan_path.env import PlanPath

__all__ = ["PlanPath"]
