"""Trainers: what updates weights."""
