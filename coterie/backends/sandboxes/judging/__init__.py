"""The judge: the tests and the candidate are two programs, and only plain data crosses between them.

The modules `plain_types`, `plain`, `changes`, `asserts`, `test_side` and `candidate_side` never run in
Coterie's own process: their *source* is sent into the sandbox. A sandbox that can connect two isolated
programs runs `host.programs` and calls `host.verdict` on the results.

Tests that do not parse or have no `assert` give a verdict with total 0 and one failure that names the reason.
The candidate never causes this. The owner of the tests decides what it means: an error in a data set, or the
lowest reward if a model wrote the tests.
"""
