"""Chat formats: messages to text."""
