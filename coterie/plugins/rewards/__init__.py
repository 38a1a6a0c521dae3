"""Reward sources."""
