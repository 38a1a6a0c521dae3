"""Data sources: records by split for environments that read their tasks; one format a file."""
