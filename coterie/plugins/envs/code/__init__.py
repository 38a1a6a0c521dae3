"""Programs that a team writes: `code_collab` and `code_tests`, and what they share."""
