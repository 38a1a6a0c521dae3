"""Coterie's tests. A package with this file, since libraries install packages named `tests` too."""
