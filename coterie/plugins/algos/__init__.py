"""Advantage estimators, one algorithm a file."""
