"""Known data sets of problems and texts, as records of one type (docs/code.md)."""
