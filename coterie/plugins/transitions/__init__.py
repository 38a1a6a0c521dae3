"""Transition modes."""
