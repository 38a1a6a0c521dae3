"""Two texts on one source, measured by levels."""
