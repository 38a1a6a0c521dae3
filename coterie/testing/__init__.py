"""Conformance checks that plugin authors import."""
