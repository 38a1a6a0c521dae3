"""Advantage estimators, an algorithm and its variants a file."""
