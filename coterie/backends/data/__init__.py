"""Data sources: records by split, for environments that read their tasks; one module per format."""
